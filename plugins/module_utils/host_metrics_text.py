# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of its layout, as a text for Prometheus: pure.

The form is that of https://prometheus.io/docs/instrumenting/exposition_formats/, names and labels are in
docs/gpu-layout-command.md. What is not known is left out, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Iterator, Mapping, Sequence

from .errors import FleetError
from .holders_model import DEVICE_HANDLE, MPS, PROCESS
from .host_metrics_drift import Standing, answers
from .model import Gpu, Holder
from .mps_model import MpsPlace, MpsSeen
from .vgpu_model import VgpuSeen

GAUGE, COUNTER = "gauge", "counter"


@dataclass(frozen=True)
class Snapshot:
    """What one look at a host saw. `gpus` are those that answered."""

    time_seconds: float
    gpus: tuple[Gpu, ...] = ()
    standing: tuple[Standing, ...] = ()
    holders: tuple[Holder, ...] = ()
    daemons: tuple[MpsSeen, ...] = ()
    tenants: tuple[VgpuSeen, ...] = ()
    #: What could not be looked at or told, and why.
    problems: tuple[FleetError, ...] = ()
    #: The run that was changing the host meanwhile.
    changing: FleetError | None = None

    @property
    def succeeded(self) -> bool:
        return not self.problems and self.changing is None


@dataclass(frozen=True)
class Sample:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """The samples of one metric."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


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
    standing = [(_gpu(each.gpu_uuid, gpus), each) for each in seen.standing]
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
        Family(
            "openfleet_mps_daemon_up",
            GAUGE,
            "Whether the MPS daemon runs and answers.",
            tuple(_daemons(seen.daemons, gpus)),
        ),
        *_tenants(seen.tenants, gpus),
    )


def _gpu(uuid: str, gpus: Mapping[str, Gpu]) -> dict[str, str]:
    """The labels of a GPU. Of one that does not answer the index is not known."""
    return {"gpu_uuid": uuid, "gpu_index": str(gpus[uuid].index) if uuid in gpus else ""}


def _holders(gpus: Sequence[Gpu], holders: Sequence[Holder]) -> list[Sample]:
    """Each GPU as a whole and each of its instances; processes also where there is none, so that it can be told."""
    samples = []
    for gpu in gpus:
        own = [holder for holder in holders if holder.gpu_uuid == gpu.uuid]
        places = {None: ("", ""), **{each.id: (each.profile, str(each.id)) for each in gpu.mig.instances}}
        for place, (profile, instance) in places.items():
            # Of an instance that went between two looks, whoever held it holds what is left of the GPU.
            here = [h.kind for h in own if (h.gpu_instance_id if h.gpu_instance_id in places else None) == place]
            for kind in (PROCESS, *sorted(set(here) - {PROCESS})):
                labels = dict(
                    _gpu(gpu.uuid, {gpu.uuid: gpu}),
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
                _gpu(gpu.uuid, {gpu.uuid: gpu}),
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


def _daemons(daemons: Sequence[MpsSeen], gpus: Mapping[str, Gpu]) -> list[Sample]:
    samples = []
    for seen in daemons:
        up = answers(seen)
        for place in seen.daemon.places if up is not None else ():
            labels = dict(
                _gpu(place.gpu_uuid, gpus),
                daemon=seen.daemon.name,
                mig_instance=_instance(place, gpus.get(place.gpu_uuid)),
            )
            samples.append(Sample(int(bool(up)), labels))
    return samples


def _instance(place: MpsPlace, gpu: Gpu | None) -> str:
    instances = gpu.mig.instances if gpu is not None else ()
    found = [each.id for each in instances if (each.profile, each.placement.start) == (place.profile, place.start)]
    return str(found[0]) if found else ""


def _tenants(tenants: Sequence[VgpuSeen], gpus: Mapping[str, Gpu]) -> list[Family]:
    limits, shares, used, denied = [], [], [], []
    for seen in tenants:
        uses = {use.gpu_uuid: use for use in seen.usage.gpus} if seen.usage is not None else {}
        for uuid in seen.tenant.gpus:
            labels = dict(_gpu(uuid, gpus), tenant=seen.tenant.name)
            limits.append(Sample(seen.tenant.memory_bytes, labels))
            shares.append(Sample(seen.tenant.sm_percent / 100, labels))
            if seen.usage is not None:
                # Where nothing of it ever ran, nothing is used.
                use = uses.get(uuid)
                used.append(Sample(use.used_bytes if use is not None else 0, labels))
                denied.append(Sample(use.refused if use is not None else 0, labels))
    return [
        Family(
            "openfleet_tenant_memory_limit_bytes",
            GAUGE,
            "The tenant's quota of memory on the GPU.",
            tuple(limits),
        ),
        Family(
            "openfleet_tenant_memory_used_bytes",
            GAUGE,
            "What the tenant's processes have of its quota of memory.",
            tuple(used),
        ),
        Family("openfleet_tenant_sm_limit_ratio", GAUGE, "The tenant's quota of the GPU's SMs, 0 to 1.", tuple(shares)),
        Family(
            "openfleet_tenant_denied_total",
            COUNTER,
            "Allocations that were refused because of the tenant's quota, since the host started.",
            tuple(denied),
        ),
    ]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{%s}" % ",".join('%s="%s"' % (name, _escaped(text).replace('"', '\\"')) for name, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
