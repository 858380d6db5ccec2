# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of its layout, as a text for Prometheus: pure.

The form is that of https://prometheus.io/docs/instrumenting/exposition_formats/, names and labels are in
docs/gpu-layout-command.md. What is not known is left out, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, Sequence

from ..errors import FleetError
from ..frozen import frozen
from ..holders.model import DEVICE_HANDLE, MPS, PROCESS
from ..metric_family import COUNTER, GAUGE, Family, Sample, labels_of
from ..model import Gpu, Holder
from .drift import Standing

if TYPE_CHECKING:
    from ..change.unnamed import Unmanaged


@frozen
class Snapshot:
    """What one look at a host saw. `gpus` are those that answered."""

    time_seconds: float
    gpus: tuple[Gpu, ...] = ()
    standing: tuple[Standing, ...] = ()
    #: GPUs that the collection changed and that the layout does not name.
    unmanaged: tuple[Unmanaged, ...] = ()
    holders: tuple[Holder, ...] = ()
    #: The metrics of services beside the GPUs.
    beside: tuple[Family, ...] = ()
    #: What could not be looked at or told, and why.
    problems: tuple[FleetError, ...] = ()
    #: The run that was changing the host meanwhile.
    changing: FleetError | None = None

    @property
    def succeeded(self) -> bool:
        return not self.problems and self.changing is None


def render(families: Iterable[Family]) -> str:
    """The text, each family with its help and type; one without samples is left out."""
    lines = []
    for family in families:
        if family.samples:
            lines.append("# HELP %s %s" % (family.name, _escaped(family.help)))
            lines.append("# TYPE %s %s" % (family.name, family.kind))
            lines += ["%s%s %s" % (family.name, _labels(each.labels), _number(each.value)) for each in family.samples]
    return "".join(line + "\n" for line in lines)


def families(seen: Snapshot) -> tuple[Family, ...]:
    """All that there is to tell."""
    gpus = {gpu.uuid: gpu for gpu in seen.gpus}
    standing = [(labels_of(each.gpu_uuid, gpus), each) for each in seen.standing]
    return (
        Family(
            "openfleet_layout_check_success",
            GAUGE,
            "Whether the last look at the host could tell all that it should.",
            (Sample(int(seen.succeeded)),),
        ),
        Family(
            "openfleet_layout_check_timestamp_seconds",
            GAUGE,
            "When the host was last looked at, in seconds since 1970.",
            (Sample(seen.time_seconds),),
        ),
        Family(
            "openfleet_layout_drift",
            GAUGE,
            "Whether the GPU is another one than its gpu_layout says.",
            tuple(Sample(int(bool(each.differences)), labels) for labels, each in standing),
        ),
        Family(
            "openfleet_layout_differences",
            GAUGE,
            "In how many things the GPU differs from its gpu_layout; gpu-layout plan names them.",
            tuple(Sample(len(each.differences), labels) for labels, each in standing),
        ),
        Family(
            "openfleet_layout_sharing_info",
            GAUGE,
            "How the GPU is to be shared.",
            tuple(Sample(1, dict(labels, sharing=each.sharing)) for labels, each in standing),
        ),
        Family(
            "openfleet_layout_unmanaged_info",
            GAUGE,
            "A GPU that had an entry of gpu_layout and that no entry names any more: what it was given, and what it has.",
            tuple(
                Sample(1, dict(labels_of(each.uuid, gpus), recorded=each.recorded, current=each.current))
                for each in seen.unmanaged
            ),
        ),
        Family(
            "openfleet_holders",
            GAUGE,
            "Who counts as using the GPU or GPU instance, by kind.",
            tuple(_holders(seen.gpus, seen.holders)),
        ),
        Family(
            "openfleet_holders_cpu_seconds_total",
            COUNTER,
            "CPU time so far of the processes that run on the GPU or GPU instance.",
            tuple(_cpu_seconds(seen.gpus, seen.holders)),
        ),
        *seen.beside,
    )


def _holders(gpus: Sequence[Gpu], holders: Sequence[Holder]) -> list[Sample]:
    """Each GPU as a whole and each of its instances; processes also where there is none, so that it can be told."""
    samples = []
    for gpu in gpus:
        own = [holder for holder in holders if holder.gpu_uuid == gpu.uuid]
        places = {None: ("", ""), **{each.id: (each.profile, str(each.id)) for each in gpu.mig.instances}}
        for place, (profile, instance) in places.items():
            # A holder of an instance that went between two looks holds what is left of the GPU.
            here = [h.kind for h in own if (h.gpu_instance_id if h.gpu_instance_id in places else None) == place]
            for kind in (PROCESS, *sorted(set(here) - {PROCESS})):
                labels = dict(
                    labels_of(gpu.uuid, {gpu.uuid: gpu}),
                    model=gpu.name,
                    mig_profile=profile,
                    mig_instance=instance,
                    kind=kind,
                )
                samples.append(Sample(here.count(kind), labels))
    return samples


def _cpu_seconds(gpus: Sequence[Gpu], holders: Sequence[Holder]) -> Iterator[Sample]:
    """Each device, a GPU without instances or an instance.

    A process of which the instance is not known counts on each of them: it may be at work there.
    """
    for gpu in gpus:
        own = _at_work([holder for holder in holders if holder.gpu_uuid == gpu.uuid])
        instances = {each.id: each.profile for each in gpu.mig.instances}
        for place, profile in instances.items() or ((None, ""),):
            here = {
                h.pid: h.cpu_seconds for h in own if h.gpu_instance_id == place or h.gpu_instance_id not in instances
            }
            labels = dict(
                labels_of(gpu.uuid, {gpu.uuid: gpu}),
                model=gpu.name,
                mig_profile=profile,
                mig_instance="" if place is None else str(place),
            )
            yield Sample(sum(here.values()), labels)


def _at_work(holders: Sequence[Holder]) -> list[Holder]:
    """Those with a context, and bare handles that belong to the same unit, container or job, as the loaders of a training have.

    Any other bare handle says nothing of the GPU: who may open its node could make it look busy.
    """
    running = [holder for holder in holders if holder.kind in (PROCESS, MPS)]
    theirs = {origin for origin in map(_origin, running) if any(origin)}
    found = running + [h for h in holders if h.kind == DEVICE_HANDLE and _origin(h) in theirs]
    return [holder for holder in found if holder.cpu_seconds is not None]


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
