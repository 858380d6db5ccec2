# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the devices of a node from lines of gres.conf. Pure: no I/O.

https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Sequence

from ..errors import FleetError
from ..holders.slurm import hostnames, numbers

_FIELD = re.compile(r"(\w+)=(\S+)")
_GPU_PATH = re.compile(r"/dev/nvidia([0-9]+)$")
# /dev/nvidia[0-3]
_RANGE = re.compile(r"([^\[\]]*)\[([0-9,-]+)\]$")


class SlotsError(FleetError):
    """The lines do not list the devices of the node."""


def slots(lines: Sequence[str], node: str, types: Sequence[str], minors: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the devices of gres/gpu in Slurm's order.

    `types` are the types in the order of the node's Gres=, which sorts the lines. `minors` are the device minors of the GPUs by
    UUID. Each device has `type`, `files` and `gpu`, the UUID of its GPU, which is empty for a pad. Raises SlotsError if a line
    has no file or the file of an unknown GPU, or if no line is for GPUs of the node.
    """
    by_minor = {minor: uuid for uuid, minor in minors.items()}
    found = [slot for line in lines for slot in _slots(line, node, by_minor)]
    if not found:
        raise SlotsError(
            "gres.conf",
            "no line has Name=gpu and File= or MultipleFiles= for the node %s" % node,
            "List the devices, because their numbers are unknown with AutoDetect.",
        )
    order = [*types, *(slot["type"] for slot in found)]
    return sorted(found, key=lambda slot: order.index(slot["type"]))


def _slots(line: str, node: str, by_minor: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    fields = {key.lower(): value for key, value in _FIELD.findall(line.partition("#")[0])}
    if fields.get("name", "").lower() != "gpu" or node not in hostnames(fields.get("nodename", node)):
        return
    if "multiplefiles" in fields:
        devices = [fields["multiplefiles"].split(",")]
    elif "file" in fields:
        devices = [[path] for path in _expanded(fields["file"])]
    else:
        raise SlotsError("gres.conf", "the line %.200r has no File=" % line, "List the device nodes.")
    for files in devices:
        match = _GPU_PATH.match(files[0])
        if match and int(match.group(1)) not in by_minor:
            raise SlotsError("gres.conf", "no GPU has the device node %s" % files[0], "Check /proc/driver/nvidia/gpus.")
        gpu = by_minor[int(match.group(1))] if match else ""
        yield {"type": fields.get("type", ""), "gpu": gpu, "files": files}


def _expanded(text: str) -> list[str]:
    """Return the paths of File=, such as /dev/nvidia[0-3]."""
    match = _RANGE.match(text)
    if match is None:
        return text.split(",")
    return ["%s%d" % (match.group(1), number) for number in numbers(match.group(2)) or ()]
