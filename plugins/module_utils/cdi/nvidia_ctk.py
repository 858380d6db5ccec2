# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and regenerate the CDI specifications of nvidia-ctk.

Container engines read these files to give devices to containers. A specification lists the GPUs and MIG devices that
existed when the file was written. The container toolkit does not regenerate it when MIG devices are created or
destroyed: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html

The options of the command are documented at https://github.com/NVIDIA/nvidia-container-toolkit,
cmd/nvidia-ctk/cdi/generate.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

from .. import durable
from ..errors import FleetError, Problem
from ..frozen import frozen
from ..processes.command import Run, ask

TOOL = "nvidia-ctk"
#: Folders that container engines read: LASTING has the administrators' files, PASSING has files that are created at
#: each boot. Source: https://github.com/cncf-tags/container-device-interface
LASTING, PASSING = "etc/cdi", "var/run/cdi"

#: nvidia-ctk initializes all GPUs, which takes seconds for each GPU if no persistence daemon runs.
_TIMEOUT_SECONDS = 120

#: The default CDI kind of nvidia-ctk. Files of other kinds belong to the device plugin, the DRA driver or the toolkit's
#: management mode. These programs regenerate their files themselves.
_KIND = "nvidia.com/gpu"
#: The hooks in every specification by nvidia-ctk run one of these programs.
_HOOKS = ("nvidia-cdi-hook", TOOL)
_YAML_KIND = re.compile(r"^kind:\s*[\"']?([^\"'\s]+)", re.MULTILINE)
_YAML_NAME = re.compile(r"^\s*(?:-\s+)?name:\s*[\"']?([^\"'\s]+)[\"']?\s*$", re.MULTILINE)
#: Device names by naming strategy of nvidia-ctk. Each strategy also has a device named "all".
_STRATEGIES = {
    "index": re.compile(r"[0-9]+(:[0-9]+)?"),
    "uuid": re.compile(r"(GPU|MIG)-.+"),
    "type-index": re.compile(r"gpu[0-9]+|mig[0-9]+:[0-9]+"),
}


@frozen
class Spec:
    """A specification file that nvidia-ctk wrote.

    `format` is "yaml" or "json". `strategies` are the naming strategies of its device names. `written` changes when the
    file is written again.
    """

    path: Path
    format: str
    strategies: tuple[str, ...]
    written: tuple[int, int]

    @property
    def command(self) -> list[str]:
        """Return the command that prints the specification.

        nvidia-ctk does not write the file itself, because that would not be atomic.
        """
        names = ["--device-name-strategy=%s" % strategy for strategy in self.strategies]
        # `--output` also overrides NVIDIA_CTK_CDI_OUTPUT_FILE_PATH from the environment.
        return [TOOL, "cdi", "generate", "--output=", "--format=%s" % self.format, *names]


def find_specs(folder: Path) -> list[Spec]:
    """Return the specifications in a folder, sorted by name.

    Returns an empty list if the folder does not exist.
    """
    # Engines read only files with these suffixes (CDI repository, pkg/cdi/spec-dirs.go).
    files = sorted(path for pattern in ("*.yaml", "*.json") for path in folder.glob(pattern))
    return [spec for spec in map(_read, files) if spec is not None]


def unchanged(spec: Spec) -> bool:
    """Return whether the file is unchanged since it was found."""
    try:
        return _written(spec.path) == spec.written
    except OSError:
        return False


def renew(spec: Spec, run: Run) -> tuple[bool, Problem | None]:
    """Regenerate a file atomically.

    Returns (whether the content changed, problem).
    """
    cure = "Fix this and run again, or run by hand: %s cdi generate --output=%s" % (TOOL, spec.path)
    text, problem = ask(run, spec.command, timeout_seconds=_TIMEOUT_SECONDS)
    if text is None:
        return False, Problem(str(spec.path), "it still lists the previous devices: %s" % problem, cure)
    if _names(text, spec.format) is None:
        problem = "it still lists the previous devices: %s printed no specification of %s" % (TOOL, _KIND)
        return False, Problem(str(spec.path), problem, cure)
    try:
        return _replace(spec.path, text), None
    except FleetError as error:
        return False, Problem(str(spec.path), error.problem, cure)
    except OSError as error:
        return False, Problem(str(spec.path), "it cannot be read: %s" % error, cure)


def _read(path: Path) -> Spec | None:
    """Read a specification.

    Returns None if the file was not written by nvidia-ctk or is not a specification.
    """
    format = path.suffix[1:]
    try:
        # Write to the target of a link, so that the link itself is kept.
        path = path.resolve()
        written, text = _written(path), path.read_text(errors="replace")
    except OSError:
        return None
    names = _names(text, format)
    if names is None or not any(hook in text for hook in _HOOKS):
        return None
    strategies = tuple(s for s, pattern in _STRATEGIES.items() if any(pattern.fullmatch(name) for name in names))
    return Spec(path, format, strategies, written)


def _names(text: str, format: str) -> list[str] | None:
    """Return the names of the GPU devices in a specification, without a YAML parser.

    Returns None if the text is not a specification of GPUs.
    """
    if format == "json":
        try:
            data = json.loads(text)
            return [device["name"] for device in data["devices"]] if data["kind"] == _KIND else None
        except (ValueError, KeyError, TypeError):
            return None
    kind = _YAML_KIND.search(text)
    return _YAML_NAME.findall(text) if kind and kind.group(1) == _KIND else None


def _replace(path: Path, text: str) -> bool:
    if path.read_text(errors="replace") == text:
        return False
    # The temporary file's suffix makes container engines ignore it.
    durable.write_text(path, text, stat.S_IMODE(path.stat().st_mode))
    return True


def _written(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns
