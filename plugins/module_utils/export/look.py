# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the layout of this host, for the command gpu-layout and the module layout_export."""

from __future__ import annotations

import dataclasses
from typing import Collection

from ..model import Gpu
from ..plan.leased import Leased, LeasedRecord
from ..techniques.observers import OBSERVERS
from ..techniques.service_views import SERVICE_VIEWS
from ..vendors.nvidia.nvml.bounded_session import BoundedSession
from ..vendors.nvidia.nvml.calls import lost_error
from .layout import Exported, exported

#: Kinds of selectors for GPUs.
SELECT_BY = ("index", "uuid", "pci")


def export_host(directory: str, pin_placements: bool = False, select_by: str = SELECT_BY[0]) -> Exported:
    """Return the layout for the current state of the host.

    `directory` is the state directory. Instances of leases are left out, because they are not part of a layout. Raises
    NvmlError, for example if none of the host's GPUs works. Raises ApplyError if a record cannot be read.
    """
    leased = LeasedRecord(directory).read()
    with BoundedSession() as session:
        # nvidia-smi and daemons cannot see GPUs that only this process simulates.
        session.observers = () if session.private else OBSERVERS
        seen = {each.key: each.look(session.private) for each in SERVICE_VIEWS}
        host = session.observe()
    if host.lost and not host.gpus:
        raise lost_error("this host", host.lost, ". A layout without these GPUs would not be the current layout")
    gpus = [_without_leased(gpu, leased) for gpu in host.gpus]
    export = exported(gpus, pin_placements, select_by, seen, whole=not host.lost)
    return dataclasses.replace(export, left_out=(*export.left_out, *map(str, host.lost)))


def _without_leased(gpu: Gpu, leased: Collection[Leased]) -> Gpu:
    if not leased:
        return gpu
    instances = [each for each in gpu.mig.instances if not any(record.matches(gpu, each) for record in leased)]
    return gpu.with_instances(tuple(instances), gpu.mig.enabled)
