# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install or remove Slurm's TaskProlog and its list of devices."""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from ..holders.slurm import DEVICES
from ..slurm import conf
from ..slurm.task_devices import SETTINGS, UNIT, read_nodes
from ..slurm.task_slots import slots
from .files import Installation, InstallError
from .layout_boot import COMMAND
from .sources import Sources

# Files of an installation, relative to the root.
PROGRAM = "usr/lib/openfleet-gpu/slurm/task-prolog"
UNIT_FILE = "etc/systemd/system/" + UNIT
# This file exists from the first change until the devices are written.
UNFINISHED = "etc/openfleet-gpu/slurm/installing"
_CONFIGURED = re.compile(r"^TaskProlog\s*=\s*(\S.*?)\s*$", re.MULTILINE)


def body(params: Mapping[str, Any], target: Installation, _sources: Sources) -> dict[str, Any]:
    """Apply the requested state, and return a part of the module's result."""
    if params["state"] == "absent":
        return {"devices": [], "advice": _uninstall(target)}
    _install(target, params)
    configured = _configured(target)
    advice = "" if configured is None or _uses_program(target, configured) else _advice(configured)
    return {"devices": _uuids(target), "advice": advice}


def _install(target: Installation, params: Mapping[str, Any]) -> None:
    if not target.check and not target.path(COMMAND).exists():
        raise InstallError(
            "/" + COMMAND, "it is missing, and it lists the devices", "Set gpu_layout_restore_at_boot: true."
        )
    lines, known = params["gres_conf"], read_nodes(target.root).minors
    if lines is None:
        lines = _lines_of_file(target, params["gres_file"], params["node"])
    # Without GRES in the layout, there are no lines.
    found = slots(lines, params["node"], params["types"], known) if lines else []
    settings = {"version": 1, "node": params["node"], "gres_file": params["gres_file"], "slots": _known(target, found)}
    before = _text(target, DEVICES)
    if target.mark(UNFINISHED):
        target.done.append("write /%s (an earlier run did not write it)" % DEVICES)
    target.write(PROGRAM, params["program"].encode(), 0o755)
    target.write(SETTINGS, json.dumps(settings, indent=1).encode())
    target.write(UNIT_FILE, params["unit"].encode())
    if target.done:
        # systemd reads the link in slurmd.service.wants only when it reloads.
        target.systemctl("enable", "--quiet", UNIT)
        target.reload(target.is_host)
    # Write the devices even if nothing else changed, because the instances may have changed.
    if params["in_use"]:
        target.systemctl("restart", UNIT, log_of=UNIT)
    elif target.is_host:
        target.run("/" + COMMAND, "slurm-devices", "--common")
    if target.is_host and not target.check:
        if _text(target, DEVICES) != before:
            target.done.append("write /%s" % DEVICES)
        _refuse_other_devices(_uuids(target), params["devices"])
    target.finish()


def _known(target: Installation, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the slots, with the recorded UUIDs if the slots are the same."""
    try:
        recorded = json.loads(_text(target, SETTINGS))["slots"]
    except (ValueError, KeyError):
        return found
    same = [{key: slot[key] for key in ("type", "gpu", "files")} for slot in recorded] == found
    return recorded if same else found


def _refuse_other_devices(current: list[str], expected: list[str]) -> None:
    """Raise InstallError if the current devices differ from the planned devices.

    This is the case if the layout changed after the plan was made.
    """
    for number, (uuid, other) in enumerate(zip(expected, current)):
        if uuid != other:
            problem = "the device %d is %s now, and the plan has %s" % (number, other or "missing", uuid or "none")
            raise InstallError("/" + DEVICES, problem, "Run again.")


def _uuids(target: Installation) -> list[str]:
    """Return the recorded UUIDs by number.

    A device that never existed has an empty UUID.
    """
    slots = json.loads(_text(target, SETTINGS) or '{"slots": []}')["slots"]
    return [slot.get("uuid", "") for slot in slots]


def _configured(target: Installation) -> str | None:
    """Return the TaskProlog in slurm.conf.

    Returns "" if it is not set, and None if slurmctld does not respond.
    """
    if not target.is_host:
        return None
    try:
        found = _CONFIGURED.search(target.ask("scontrol", "show", "config"))
    except InstallError:
        return None
    except FileNotFoundError:
        return ""
    return found.group(1) if found and found.group(1) != "(null)" else ""


def _uses_program(target: Installation, configured: str) -> bool:
    return bool(configured) and (configured == "/" + PROGRAM or PROGRAM in _text(target, configured.lstrip("/")))


def _advice(configured: str) -> str:
    """Return what the administrator must change in slurm.conf."""
    if not configured:
        return "Add TaskProlog=/%s to slurm.conf, and run scontrol reconfigure." % PROGRAM
    return "slurm.conf has TaskProlog=%s. Let this program end with: exec /%s" % (configured, PROGRAM)


def _lines_of_file(target: Installation, path: str, node: str) -> list[str]:
    """Return a node's lines about gres/gpu in a file and the files that it includes."""
    if not path or not _text(target, path.lstrip("/")):
        raise InstallError(path or "gres_file", "it cannot be read, or it is empty", "Name the gres.conf of the node.")
    directory, _slash, name = path.rpartition("/")
    found = conf.gpu_lines(conf.tree(lambda file: _text(target, file.lstrip("/")), directory, name), node)
    if not found:
        problem = "no line is for GPUs of the node %s" % node
        raise InstallError(path, problem, "Add a line with Name=gpu and File= or MultipleFiles=.")
    return found


def _text(target: Installation, relative: str) -> str:
    try:
        return target.path(relative).read_text(errors="replace")
    except OSError:
        return ""


def _uninstall(target: Installation) -> str:
    """Remove everything, except the program while Slurm runs it.

    Returns what the administrator must change before the program can be removed.
    """
    if not any(target.path(relative).exists() for relative in (UNIT_FILE, PROGRAM, SETTINGS)):
        return ""
    configured = _configured(target) if target.path(PROGRAM).exists() else ""
    # If TaskProlog named a program that is missing, Slurm would start no task.
    keeps = configured is None or _uses_program(target, configured)
    if target.path(UNIT_FILE).exists():
        target.systemctl("disable", "--quiet", UNIT, log_of=UNIT)
    for relative in (UNIT_FILE, *(() if keeps else (PROGRAM,)), SETTINGS, DEVICES, UNFINISHED):
        target.remove(relative)
    for relative in (PROGRAM, SETTINGS):
        target.prune(target.path(relative).parent, report=False)
    if target.done:
        target.reload(target.is_host)
    return "Remove /%s from TaskProlog in slurm.conf, and run again to remove the file." % PROGRAM if keeps else ""
