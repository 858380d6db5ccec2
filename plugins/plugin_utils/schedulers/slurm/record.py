# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a node's current devices by number, from gres.conf.

Source: https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

from typing import Sequence

from ....module_utils.model import Gpu
from ....module_utils.slurm.conf import GresLinesError, gpu_devices
from ....module_utils.slurm.mig_devices import DeviceNodes, all_devices, device_files
from .gres import GPU, Gres


def record(
    lines: Sequence[str],
    node: str,
    gres: Sequence[Gres],
    gpus: Sequence[Gpu],
    nodes: DeviceNodes,
) -> tuple[tuple[str, str], ...]:
    """Return each device's type and UUID, by number.

    `lines` has the lines of gres.conf about the node's gres/gpu, `gres` its current GRES, and `nodes` its device nodes.
    The UUID is empty if no current device has a line's files. Returns () if the lines do not list the devices, for
    example with AutoDetect.
    """
    devices = [device for gpu in gpus for device in all_devices(gpu)]
    known = {frozenset(device_files(device, nodes)): device.uuid for device in devices}
    known.pop(frozenset(), None)
    try:
        found = gpu_devices(lines, node)
    except GresLinesError:
        return ()
    return in_order([(kind, known.get(frozenset(files), "")) for kind, files in found], gres)


def in_order(devices: Sequence[tuple[str, str]], gres: Sequence[Gres]) -> tuple[tuple[str, str], ...]:
    """Return devices in the order of their numbers.

    Returns () if their types differ from those in `gres`.
    """
    counts = [(each.type, each.count) for each in gres if each.name == GPU]
    kinds = [kind for kind, _uuid in devices]
    if sorted(counts) != sorted((kind, kinds.count(kind)) for kind in set(kinds)):
        return ()
    order = [kind for kind, _count in counts]
    return tuple(sorted(devices, key=lambda device: order.index(device[0])))
