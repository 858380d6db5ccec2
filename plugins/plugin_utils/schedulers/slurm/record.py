# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the current devices of a node by number, from gres.conf.

Source: https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

import re
from typing import Sequence

from ....module_utils.holders.slurm import numbers
from ....module_utils.model import Gpu
from ....module_utils.slurm.mig_devices import DeviceNodes, all_devices, device_files
from .gres import GPU, Gres

_FIELD = re.compile(r"([A-Za-z]+)=(\S+)")
_RANGE = re.compile(r"(.*)\[([0-9,-]+)\]")


def record(
    lines: Sequence[str],
    gres: Sequence[Gres],
    gpus: Sequence[Gpu],
    nodes: DeviceNodes,
) -> tuple[tuple[str, str], ...]:
    """Return type and UUID of each device by number.

    `lines` are the lines of gres.conf about gres/gpu of the node, `gres` its current GRES, and `nodes` its device
    nodes. The UUID is empty if the files in a line are not those of a current device. Returns an empty tuple if the
    lines do not list the devices, for example with AutoDetect.
    """
    devices = [device for gpu in gpus for device in all_devices(gpu)]
    known = {frozenset(device_files(device, nodes)): device.uuid for device in devices}
    known.pop(frozenset(), None)
    rows = [{key.lower(): value for key, value in _FIELD.findall(line)} for line in lines]
    # AutoDetect in a line for the node takes precedence over AutoDetect for the whole file.
    detected = {"nodename" in fields: fields["autodetect"].lower() for fields in rows if "autodetect" in fields}
    if detected.get(True, detected.get(False, "off")) != "off":
        return ()
    found: list[tuple[str, str]] = []
    for fields in rows:
        if fields.get("name", "").lower() != GPU:
            continue
        if "multiplefiles" in fields and fields.get("count", "1") == "1":
            files = [frozenset(_paths(fields["multiplefiles"]))]
        elif "file" in fields:
            files = [frozenset([path]) for path in _paths(fields["file"])]
        else:
            return ()
        found += [(fields.get("type", ""), known.get(each, "")) for each in files]
    return in_order(found, gres)


def in_order(devices: Sequence[tuple[str, str]], gres: Sequence[Gres]) -> tuple[tuple[str, str], ...]:
    """Return devices in the order of their numbers.

    Returns an empty tuple if the types of the devices differ from those of `gres`.
    """
    counts = [(each.type, each.count) for each in gres if each.name == GPU]
    kinds = [kind for kind, _uuid in devices]
    if sorted(counts) != sorted((kind, kinds.count(kind)) for kind in set(kinds)):
        return ()
    order = [kind for kind, _count in counts]
    return tuple(sorted(devices, key=lambda device: order.index(device[0])))


def _paths(text: str) -> list[str]:
    """Return the files of a list such as /dev/nvidia[0-1],/dev/nvidia3."""
    paths = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = _RANGE.fullmatch(part)
        paths += ["%s%d" % (match.group(1), n) for n in numbers(match.group(2)) or ()] if match else [part]
    return paths
