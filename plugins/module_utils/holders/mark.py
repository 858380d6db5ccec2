# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add holders to an observed host, for the planner, with pure functions."""

from __future__ import annotations

import dataclasses
from typing import Iterable

from ..model import ComputeInstance, Gpu, GpuInstance, Holder, Host
from .model import PROCESS


def mark(host: Host, holders: Iterable[Holder]) -> Host:
    """Return the host with `held_by` set on GPUs, GPU instances and compute instances."""
    holders = tuple(holders)
    return dataclasses.replace(
        host, gpus=tuple(_gpu(gpu, [h for h in holders if h.gpu_uuid == gpu.uuid]) for gpu in host.gpus)
    )


def _gpu(gpu: Gpu, holders: list[Holder]) -> Gpu:
    instances = tuple(_instance(i, [h for h in holders if h.blocks(i.id)]) for i in gpu.mig.instances)
    mig = dataclasses.replace(gpu.mig, instances=instances)
    return dataclasses.replace(gpu, mig=mig, held_by=_once(h for h in holders if h.blocks()))


def _instance(instance: GpuInstance, holders: list[Holder]) -> GpuInstance:
    compute = tuple(_compute(c, instance, holders) for c in instance.compute_instances)
    return dataclasses.replace(instance, compute_instances=compute, held_by=_once(holders))


def _compute(compute: ComputeInstance, instance: GpuInstance, holders: list[Holder]) -> ComputeInstance:
    """Set a compute instance's holders.

    NVML reports the compute instance of a process. For other holders, only the GPU instance is known.
    """
    own_pids = {process.pid for process in compute.processes}
    elsewhere = {process.pid for process in instance.processes} - own_pids
    return dataclasses.replace(
        compute, held_by=_once(h for h in holders if h.kind != PROCESS or h.pid not in elsewhere)
    )


def _once(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """Keep one holder for each `who`, and sort them."""
    return tuple(holder for _who, holder in sorted({str(holder): holder for holder in holders}.items()))
