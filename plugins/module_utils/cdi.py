# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and renew CDI specifications of nvidia-ctk.

Container engines assign devices by such a file. It lists the GPUs and MIG devices of the time when it was written. The container
toolkit does not renew it when MIG devices are created or destroyed:
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html

For the options see https://github.com/NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk/cdi/generate.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

from . import durable
from .command import Run, ask
from .errors import FleetError, Problem
from .frozen import frozen

TOOL = "nvidia-ctk"
#: Folders of container engines: for files of administrators, and for files that are created at each boot.
#: https://github.com/cncf-tags/container-device-interface
LASTING, PASSING = "etc/cdi", "var/run/cdi"

#: It initializes all GPUs, which takes seconds for each without a persistence daemon.
_TIMEOUT_SECONDS = 120

#: The default kind of nvidia-ctk. The device plugin, the DRA driver and the toolkit's management mode renew files of other kinds
#: themselves.
_KIND = "nvidia.com/gpu"
#: All specifications of nvidia-ctk have hooks that run one of these.
_HOOKS = ("nvidia-cdi-hook", TOOL)
_YAML_KIND = re.compile(r"^kind:\s*[\"']?([^\"'\s]+)", re.MULTILINE)
_YAML_NAME = re.compile(r"^\s*(?:-\s+)?name:\s*[\"']?([^\"'\s]+)[\"']?\s*$", re.MULTILINE)
#: Names of devices by nvidia-ctk's strategy. Each has a device `all` too.
_STRATEGIES = {
    "index": re.compile(r"[0-9]+(:[0-9]+)?"),
    "uuid": re.compile(r"(GPU|MIG)-.+"),
    "type-index": re.compile(r"gpu[0-9]+|mig[0-9]+:[0-9]+"),
}


@frozen
class Spec:
    """A file of nvidia-ctk.

    `format` is yaml or json, `strategies` are those of its device names, `written` identifies its version.
    """

    path: Path
    format: str
    strategies: tuple[str, ...]
    written: tuple[int, int]

    @property
    def command(self) -> list[str]:
        """Return the command that prints it.

        If nvidia-ctk wrote the file, that would not be atomic.
        """
        names = ["--device-name-strategy=%s" % strategy for strategy in self.strategies]
        # The first option also overrides a NVIDIA_CTK_CDI_OUTPUT_FILE_PATH in the environment.
        return [TOOL, "cdi", "generate", "--output=", "--format=%s" % self.format, *names]


def find_specs(folder: Path) -> list[Spec]:
    """Return the specifications in a folder, sorted by name.

    Empty if the folder does not exist.
    """
    # Engines read no other files (CDI repository, pkg/cdi/spec-dirs.go).
    files = sorted(path for pattern in ("*.yaml", "*.json") for path in folder.glob(pattern))
    return [spec for spec in map(_read, files) if spec is not None]


def unchanged(spec: Spec) -> bool:
    """Return whether the file has not changed since it was found."""
    try:
        return _written(spec.path) == spec.written
    except OSError:
        return False


def renew(spec: Spec, run: Run) -> tuple[bool, Problem | None]:
    """Renew a file atomically. Return (whether it has changed, problem)."""
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
    """Read a specification. Return None for other files and those of other tools."""
    format = path.suffix[1:]
    try:
        # Renewing keeps a link.
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
    """Return the device names in a specification of GPUs, or None for other texts.

    Needs no YAML parser.
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
    # Engines do not read the temporary file.
    durable.write_text(path, text, stat.S_IMODE(path.stat().st_mode))
    return True


def _written(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns
