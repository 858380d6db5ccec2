# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specifications that nvidia-ctk made: which there are, and how each is renewed.

Such a file lists the GPUs and MIG devices of the moment in which it was made, and containers are given devices by it. It
has to be renewed when MIG devices come or go, and nothing in the container toolkit does so by itself:
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html

What is asked of nvidia-ctk: https://github.com/NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk/cdi/generate.
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
#: Where container engines look: for what an administrator put there, and for what is created at each boot.
#: https://github.com/cncf-tags/container-device-interface
LASTING, PASSING = "etc/cdi", "var/run/cdi"

#: It initialises every GPU of the host, which takes seconds for each where no persistence daemon keeps them awake.
_TIMEOUT_SECONDS = 120

#: The kind that nvidia-ctk writes unless told otherwise. Other kinds (of the device plugin, of the DRA driver, of the
#: toolkit's own management mode) are kept by what made them.
_KIND = "nvidia.com/gpu"
#: Every specification of nvidia-ctk has hooks that run one of these.
_HOOKS = ("nvidia-cdi-hook", TOOL)
_YAML_KIND = re.compile(r"^kind:\s*[\"']?([^\"'\s]+)", re.MULTILINE)
_YAML_NAME = re.compile(r"^\s*(?:-\s+)?name:\s*[\"']?([^\"'\s]+)[\"']?\s*$", re.MULTILINE)
#: How devices are named under each of nvidia-ctk's strategies. A device `all` is there under each.
_STRATEGIES = {
    "index": re.compile(r"[0-9]+(:[0-9]+)?"),
    "uuid": re.compile(r"(GPU|MIG)-.+"),
    "type-index": re.compile(r"gpu[0-9]+|mig[0-9]+:[0-9]+"),
}


@frozen
class Spec:
    """A file that nvidia-ctk made.

    `format` is yaml or json, `strategies` are those that its devices are named by, `written` tells its versions apart.
    """

    path: Path
    format: str
    strategies: tuple[str, ...]
    written: tuple[int, int]

    @property
    def command(self) -> list[str]:
        """Prints the specification. Written by nvidia-ctk itself, it would not be replaced at once, or be misnamed."""
        names = ["--device-name-strategy=%s" % strategy for strategy in self.strategies]
        # The first option also overrides a NVIDIA_CTK_CDI_OUTPUT_FILE_PATH in the environment.
        return [TOOL, "cdi", "generate", "--output=", "--format=%s" % self.format, *names]


def find_specs(folder: Path) -> list[Spec]:
    """Those of one directory, in order of name; empty where it is not there."""
    # Engines read no other files there (the CDI repository, pkg/cdi/spec-dirs.go).
    files = sorted(path for pattern in ("*.yaml", "*.json") for path in folder.glob(pattern))
    return [spec for spec in map(_read, files) if spec is not None]


def unchanged(spec: Spec) -> bool:
    """Whether the file still is what it was when it was found."""
    try:
        return _written(spec.path) == spec.written
    except OSError:
        return False


def renew(spec: Spec, run: Run) -> tuple[bool, Problem | None]:
    """(whether the file has changed, what went wrong). An engine that reads it finds the old one or the new one."""
    cure = "Mend that and run again, or by hand: %s cdi generate --output=%s" % (TOOL, spec.path)
    text, problem = ask(run, spec.command, timeout_seconds=_TIMEOUT_SECONDS)
    if text is None:
        return False, Problem(str(spec.path), "it still lists the devices of before: %s" % problem, cure)
    if _names(text, spec.format) is None:
        problem = "it still lists the devices of before: %s printed no specification of %s" % (TOOL, _KIND)
        return False, Problem(str(spec.path), problem, cure)
    try:
        return _replace(spec.path, text), None
    except FleetError as error:
        return False, Problem(str(spec.path), error.problem, cure)
    except OSError as error:
        return False, Problem(str(spec.path), "it cannot be read: %s" % error, cure)


def _read(path: Path) -> Spec | None:
    """None for what is no specification, or was not made by nvidia-ctk."""
    format = path.suffix[1:]
    try:
        # A link there stays one.
        path = path.resolve()
        written, text = _written(path), path.read_text(errors="replace")
    except OSError:
        return None
    names = _names(text, format)
    if names is None or not any(hook in text for hook in _HOOKS):
        return None
    found = tuple(s for s, pattern in _STRATEGIES.items() if any(pattern.fullmatch(name) for name in names))
    return Spec(path, format, found, written)


def _names(text: str, format: str) -> list[str] | None:
    """The names of the devices in a specification of GPUs; None where it is none. Hosts need not have a YAML parser."""
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
    # Until it is whole it has a name that no engine reads.
    durable.write_text(path, text, stat.S_IMODE(path.stat().st_mode))
    return True


def _written(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns
