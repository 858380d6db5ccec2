# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide from one look at a host whether an idle unit or container may be stopped. Pure, except for the clock."""

from __future__ import annotations

import time
from typing import Any, Mapping, Sequence, Tuple

from ..essential_units import is_essential
from ..holders.model import DEVICE_HANDLE
from ..model import Gpu, Holder, Host

#: From so many cores on, on the average of a look, processes work: the rate that is a sign of work to the audit, too.
WORKING_CORES = 0.1

#: A GPU by its UUID, and the GPU instance's id or None.
Place = Tuple[str, "int | None"]


def held_by(item: Mapping[str, Any], holders: Sequence[Holder]) -> list[Holder]:
    """Return the holders that are processes of the item."""
    name = item["name"]
    if item["kind"] == "container":
        name = ("%s container %s" % (item.get("runtime") or "", name)).strip()
    return [holder for holder in holders if holder.unit_or_container == name]


def using(holders: Sequence[Holder]) -> list[Holder]:
    """Return the holders without bare handles, or all where they have nothing else: docs/holders.md, "Bare handles".

    A process that has no context on a GPU has no memory there and runs nothing. Where users run programs in a unit, any of them
    may start one, and it spares none.
    """
    return [holder for holder in holders if holder.kind != DEVICE_HANDLE] or list(holders)


def spared(
    item: Mapping[str, Any], host: Host, holders: Sequence[Holder], mine: Sequence[Holder], parts: bool = False
) -> str:
    """Return why it is not to be stopped just now; empty where it may be. `parts`: only idle parts of it are stopped."""
    if is_essential(item["name"]):
        return "the host needs it"
    wanted = {place(text) for text in item["gpus"]}
    gpus = {gpu.uuid: gpu for gpu in host.gpus}
    if not mine:
        return "it holds no GPU any more"
    if any(holder.job for holder in mine):
        return "a scheduler has started it"
    held = {_of(holder, gpus[holder.gpu_uuid]) for holder in mine if holder.gpu_uuid in gpus}
    if held - wanted and not parts:
        return "it holds another GPU too: %s" % ", ".join(_text(each) for each in sorted(held - wanted, key=repr))
    for uuid, instance in sorted(held, key=repr):
        gpu = gpus[uuid]
        if any(one.kind == "unknown" and one.blocks(instance) for one in holders if one.gpu_uuid == uuid):
            return "who holds gpu %d is not known" % gpu.index
        # Of an instance NVML tells no utilisation: there the history alone counts.
        if instance is None and not parts:
            why = working(gpu.index, gpu.telemetry.gpu_utilization_percent if gpu.telemetry else None)
            if why:
                return why
    return ""


def working(index: int, percent: int | None) -> str:
    """Return why a utilisation spares what holds the GPU; empty where it is 0."""
    if percent is None:
        return "whether gpu %d works just now is not known" % index
    return "gpu %d works just now (%d %%)" % (index, percent) if percent > 0 else ""


def young(mine: Sequence[Holder], quiet_seconds: float) -> str:
    """Return why a process that began within the grace spares it: what was quiet before was something else."""
    for holder in mine:
        if holder.pid is None:
            continue
        if holder.started_seconds is None:
            return "since when pid %d runs is not known" % holder.pid
        hours = (time.time() - holder.started_seconds) / 3600
        if hours < quiet_seconds / 3600:
            return "pid %d started %.1f h ago; protected for %.0f h" % (holder.pid, hours, quiet_seconds / 3600)
    return ""


def worked(before: Sequence[Holder], after: Sequence[Holder], seconds: float) -> str:
    """Return why what an item's processes did between two looks, so many seconds apart, spares it; empty where they rested.

    This is all that shows work on an instance, of which NVML tells no utilisation.
    """
    if max((one.clients or 0 for one in after), default=0) > max((one.clients or 0 for one in before), default=0):
        return "a client has connected just now"
    # The ticks tell a process from another that has its pid now.
    then = {(one.pid, one.started_ticks): one.cpu_seconds for one in before}
    spent = {}
    for one in after:
        first = then.get((one.pid, one.started_ticks))
        if one.pid is not None and first is not None and one.cpu_seconds is not None:
            spent[one.pid] = max(0.0, one.cpu_seconds - first)
    total = sum(spent.values())
    if seconds > 0 and total >= WORKING_CORES * seconds:
        return "its processes took %.0f s of CPU time within %.0f s" % (total, seconds)
    return ""


def place(text: str) -> Place:
    """Return the GPU or instance that an item names."""
    uuid, _blank, instance = text.partition(" ")
    return uuid, int(instance) if instance.isdigit() else None


def in_words(text: str, host: Host) -> str:
    """Return a GPU or instance as people read it."""
    uuid, instance = place(text)
    index = next((gpu.index for gpu in host.gpus if gpu.uuid == uuid), None)
    words = uuid if index is None else "gpu %d (%s)" % (index, uuid)
    return words if instance is None else "%s instance %d" % (words, instance)


def _of(holder: Holder, gpu: Gpu) -> Place:
    return holder.gpu_uuid, holder.gpu_instance_id if gpu.mig.enabled else None


def _text(where: Place) -> str:
    return where[0] if where[1] is None else "%s instance %d" % where
