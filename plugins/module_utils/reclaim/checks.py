# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether an idle unit, container or job may be stopped.

The decision uses one scan of the host. All functions are pure, except that they read the clock.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Sequence

from ..holders.bare_handles import has_rdma_open
from ..holders.essential_units import is_essential
from ..holders.model import DEVICE_HANDLE
from ..model import Gpu, Holder, Host, Place

#: Average number of busy cores between two scans that counts as work. The audit has the same value.
WORKING_CORES = 0.1
#: A process with at least this average number of busy cores may start short kernels. The audit has the same value.
STARTING_CORES = 0.003

#: Kinds of work that a GPU may not measure: kernels of a few milliseconds, longer kernels, JPEG and optical flow, and
#: transfers that other devices start.
SHORT_KERNELS = "short kernels"
LONG_KERNELS = "long kernels"
ENGINES = "JPEG and optical flow"
TRANSFERS = "transfers"


def held_by(item: Mapping[str, Any], holders: Sequence[Holder]) -> list[Holder]:
    """Return the holders that belong to the item."""
    name = item["name"]
    if item["kind"] == "job":
        return [holder for holder in holders if holder.job == name]
    if item["kind"] == "container":
        name = ("%s container %s" % (item.get("runtime") or "", name)).strip()
    return [holder for holder in holders if holder.unit_or_container == name]


def using(holders: Sequence[Holder]) -> list[Holder]:
    """Return the holders that are not bare handles, or all if there are no others.

    docs/holders.md defines bare handles. They do not count, because a process without a context has no memory on the
    GPU and runs nothing. Otherwise, in a unit that several users share, any user could start such a process to protect
    the unit.
    """
    return [holder for holder in holders if holder.kind != DEVICE_HANDLE] or list(holders)


def spared(
    item: Mapping[str, Any], host: Host, holders: Sequence[Holder], mine: Sequence[Holder], parts: bool = False
) -> str:
    """Return why an item must not be stopped now, or "".

    `parts` is true if the run would only stop idle parts of the item.
    """
    is_job = item["kind"] == "job"
    if is_essential(item["name"]):
        return "the host needs it"
    wanted = {place(text) for text in item["gpus"]}
    gpus = {gpu.uuid: gpu for gpu in host.gpus}
    if not mine:
        return "it no longer holds a GPU"
    if not is_job and any(holder.job for holder in mine):
        return "a scheduler started it"
    held = {_of(holder, gpus[holder.gpu_uuid]) for holder in mine if holder.gpu_uuid in gpus}
    if held - wanted and not parts:
        return "it holds another GPU too: %s" % ", ".join(_text(where) for where in sorted(held - wanted, key=repr))
    for uuid, instance in sorted(held, key=repr):
        gpu = gpus[uuid]
        if any(one.kind == "unknown" and one.blocks(instance) for one in holders if one.gpu_uuid == uuid):
            return "the holders of gpu %d are not known" % gpu.index
        # NVML reports no utilization of instances. `watch` measures it.
        if instance is None and not parts:
            reason = working(gpu.index, gpu.telemetry.gpu_utilization_percent if gpu.telemetry else None)
            if reason:
                return reason
    return ""


def working(index: int, percent: int | None) -> str:
    """Return why a GPU's utilization forbids a stop, or "" for 0 percent."""
    if percent is None:
        return "the utilization of gpu %d is not known" % index
    return "gpu %d is in use now (%d %%)" % (index, percent) if percent > 0 else ""


def young(mine: Sequence[Holder], quiet_seconds: float) -> str:
    """Return why a recently started process forbids a stop, or "".

    A process is recent if it started within the grace period.
    """
    for holder in mine:
        if holder.pid is None:
            continue
        if holder.started_seconds is None:
            return "the start time of pid %d is not known" % holder.pid
        hours = (time.time() - holder.started_seconds) / 3600
        if hours < quiet_seconds / 3600:
            return "pid %d started %.1f h ago; protected for %.0f h" % (holder.pid, hours, quiet_seconds / 3600)
    return ""


def worked(before: Sequence[Holder], after: Sequence[Holder], seconds: float) -> str:
    """Return why work between two scans forbids a stop, or "" if there was none.

    The scans are `seconds` apart.
    """
    if max((one.clients or 0 for one in after), default=0) > max((one.clients or 0 for one in before), default=0):
        return "a new client has connected"
    total = sum(_spent(before, after).values())
    if seconds > 0 and total >= WORKING_CORES * seconds:
        return "its processes used %.0f s of CPU time within %.0f s" % (total, seconds)
    return ""


def cannot_tell(
    unmeasured: Sequence[str],
    before: Sequence[Holder],
    after: Sequence[Holder],
    seconds: float,
    has_rdma: Callable[[int], bool] = has_rdma_open,
) -> str:
    """Return why the holder may have worked unnoticed between two scans, or "".

    `unmeasured` has kinds of work that the GPU does not show (watch.py). A process needs CPU time to start kernels or
    decode images. It needs none for a long kernel, or for transfers from other hosts.
    """
    pids = {one.pid for one in after if one.pid is not None}
    if not pids:
        return ""
    if LONG_KERNELS in unmeasured:
        return "cannot tell whether it works: NVML does not measure its instance, and the GPU is not at rest"
    if TRANSFERS in unmeasured and any(has_rdma(pid) for pid in sorted(pids)):
        return "cannot tell whether it works: it may receive data by RDMA, which its GPU does not measure"
    blind = [kind for kind in (SHORT_KERNELS, ENGINES) if kind in unmeasured]
    if not blind:
        return ""
    spent = _spent(before, after)
    if set(spent) != pids:
        return "cannot tell whether it works: its CPU time is not known, and its GPU does not measure %s" % blind[0]
    if sum(spent.values()) >= STARTING_CORES * seconds > 0:
        return "cannot tell whether it works: it used CPU time, and its GPU does not measure %s" % blind[0]
    return ""


def _spent(before: Sequence[Holder], after: Sequence[Holder]) -> dict[int, float]:
    """Return the CPU time in seconds between two scans, by PID.

    Leaves out processes with unknown times.
    """
    # The start time distinguishes two processes with the same PID.
    earlier = {(one.pid, one.started_ticks): one.cpu_seconds for one in before}
    spent = {}
    for one in after:
        first = earlier.get((one.pid, one.started_ticks))
        if one.pid is not None and first is not None and one.cpu_seconds is not None:
            spent[one.pid] = max(0.0, one.cpu_seconds - first)
    return spent


def place(text: str) -> Place:
    """Return the GPU or instance that an item's text names."""
    uuid, _blank, instance = text.partition(" ")
    return uuid, int(instance) if instance.isdigit() else None


def in_words(text: str, host: Host) -> str:
    """Return a GPU or instance as text for messages."""
    uuid, instance = place(text)
    index = next((gpu.index for gpu in host.gpus if gpu.uuid == uuid), None)
    words = uuid if index is None else "gpu %d (%s)" % (index, uuid)
    return words if instance is None else "%s instance %d" % (words, instance)


def _of(holder: Holder, gpu: Gpu) -> Place:
    return holder.gpu_uuid, holder.gpu_instance_id if gpu.mig.enabled else None


def _text(where: Place) -> str:
    return where[0] if where[1] is None else "%s instance %d" % where
