# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render a host's snapshot in the text format of Prometheus, with pure functions.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/. docs/gpu-layout-metrics.md has the names and
labels. A sample with an unknown value is left out, and never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, Sequence

from ..errors import FleetError
from ..frozen import frozen
from ..holders.model import DEVICE_HANDLE, MPS, PROCESS
from ..model import Gpu, Holder
from ..plan.metric_family import COUNTER, GAUGE, Family, Sample, labels_of
from .drift import GpuDrift

if TYPE_CHECKING:
    from ..change.unnamed import Unmanaged


@frozen
class Snapshot:
    """The state of a host at one time. `gpus` are the GPUs that answer."""

    time_seconds: float
    gpus: tuple[Gpu, ...] = ()
    #: The drift of each GPU in the layout.
    standing: tuple[GpuDrift, ...] = ()
    #: GPUs that the collection changed and that now have no layout entry.
    unmanaged: tuple[Unmanaged, ...] = ()
    holders: tuple[Holder, ...] = ()
    #: Metrics of the services.
    service_families: tuple[Family, ...] = ()
    #: Parts of the comparison that failed.
    problems: tuple[FleetError, ...] = ()
    #: The reason, if a run was changing the host.
    changing: FleetError | None = None

    @property
    def succeeded(self) -> bool:
        return not self.problems and self.changing is None


def render(families: Iterable[Family]) -> str:
    """Return the text of the metric families, with help and type.

    Empty families are left out.
    """
    lines = []
    for family in families:
        if family.samples:
            lines.append("# HELP %s %s" % (family.name, _escaped(family.help)))
            lines.append("# TYPE %s %s" % (family.name, family.kind))
            lines += [
                "%s%s%s %s" % (family.name, each.suffix, _labels(each.labels), _number(each.value))
                for each in family.samples
            ]
    return "".join(line + "\n" for line in lines)


def families(seen: Snapshot) -> tuple[Family, ...]:
    """Return all metric families of a snapshot."""
    gpus = {gpu.uuid: gpu for gpu in seen.gpus}
    standing = [(labels_of(each.gpu_uuid, gpus), each) for each in seen.standing]
    return (
        Family(
            "openfleet_layout_check_success",
            GAUGE,
            "Whether the last check of the host succeeded completely.",
            (Sample(int(seen.succeeded)),),
        ),
        Family(
            "openfleet_layout_check_timestamp_seconds",
            GAUGE,
            "When the host was last checked, in seconds since 1970.",
            (Sample(seen.time_seconds),),
        ),
        Family(
            "openfleet_layout_drift",
            GAUGE,
            "Whether the state of the GPU differs from its entry in gpu_layout.",
            tuple(Sample(int(bool(each.differences)), labels) for labels, each in standing),
        ),
        Family(
            "openfleet_layout_differences",
            GAUGE,
            "Number of differences between the GPU and its entry in gpu_layout. `gpu-layout plan` lists them.",
            tuple(Sample(len(each.differences), labels) for labels, each in standing),
        ),
        Family(
            "openfleet_layout_sharing_info",
            GAUGE,
            "How the GPU is shared according to its entry in gpu_layout (label `sharing`).",
            tuple(Sample(1, dict(labels, sharing=each.sharing)) for labels, each in standing),
        ),
        Family(
            "openfleet_layout_unmanaged_info",
            GAUGE,
            "A GPU that is no longer in gpu_layout: its former entry, and its current state.",
            tuple(
                Sample(1, dict(labels_of(each.uuid, gpus), recorded=each.recorded, current=each.current))
                for each in seen.unmanaged
            ),
        ),
        Family(
            "openfleet_holders",
            GAUGE,
            "Number of holders of the GPU or GPU instance, by kind.",
            tuple(_holders(seen.gpus, seen.holders)),
        ),
        Family(
            "openfleet_holders_cpu_seconds_total",
            COUNTER,
            "Total CPU time of the processes that use the GPU or GPU instance.",
            tuple(_cpu_seconds(seen.gpus, seen.holders)),
        ),
        *seen.service_families,
    )


def _holders(gpus: Sequence[Gpu], holders: Sequence[Holder]) -> list[Sample]:
    """Return the number of holders per GPU and instance, by kind.

    The kind "process" has a sample even if its number is 0.
    """
    samples = []
    for gpu in gpus:
        own = [holder for holder in holders if holder.gpu_uuid == gpu.uuid]
        places = {None: ("", ""), **{each.id: (each.profile, str(each.id)) for each in gpu.mig.instances}}
        for place, (profile, instance) in places.items():
            # If a holder's instance was destroyed after the scan, count the holder for the whole GPU.
            kinds = [h.kind for h in own if (h.gpu_instance_id if h.gpu_instance_id in places else None) == place]
            for kind in (PROCESS, *sorted(set(kinds) - {PROCESS})):
                labels = dict(
                    labels_of(gpu.uuid, {gpu.uuid: gpu}),
                    model=gpu.name,
                    mig_profile=profile,
                    mig_instance=instance,
                    kind=kind,
                )
                samples.append(Sample(kinds.count(kind), labels))
    return samples


def _cpu_seconds(gpus: Sequence[Gpu], holders: Sequence[Holder]) -> Iterator[Sample]:
    """Yield a sample for each device.

    A device is an instance, or a GPU without instances. A process in an unknown instance counts for every instance,
    because it may work in any of them.
    """
    for gpu in gpus:
        own = _with_work([holder for holder in holders if holder.gpu_uuid == gpu.uuid])
        instances = {each.id: each.profile for each in gpu.mig.instances}
        for place, profile in instances.items() or ((None, ""),):
            seconds = {
                h.pid: h.cpu_seconds for h in own if h.gpu_instance_id == place or h.gpu_instance_id not in instances
            }
            labels = dict(
                labels_of(gpu.uuid, {gpu.uuid: gpu}),
                model=gpu.name,
                mig_profile=profile,
                mig_instance="" if place is None else str(place),
            )
            yield Sample(sum(seconds.values()), labels)


def _with_work(holders: Sequence[Holder]) -> list[Holder]:
    """Return the holders with a context, and device handles of the same services.

    A device handle counts if its unit, container or job has a holder with a context, as for a data loader. Other device
    handles are excluded. Otherwise any user who may open the device node could make the GPU look busy.
    """
    running = [holder for holder in holders if holder.kind in (PROCESS, MPS)]
    origins = {origin for origin in map(_origin, running) if any(origin)}
    working = running + [h for h in holders if h.kind == DEVICE_HANDLE and _origin(h) in origins]
    return [holder for holder in working if holder.cpu_seconds is not None]


def _origin(holder: Holder) -> tuple[str | None, str | None]:
    return holder.unit_or_container, holder.job


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{%s}" % ",".join('%s="%s"' % (name, _escaped(text).replace('"', '\\"')) for name, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
