# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine metrics and host state into one Holding per GPU, instance and tenant.

Pure. Hosts report the current holders. Metrics show the use over time. Either source may be missing, so each holding
lists the unknown facts.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field, fields, replace
from typing import Any, Mapping, Sequence

from ...module_utils.layout.profile_name import ProfileNameError, parse_profile_name
from ..techniques.registry import TECHNIQUES, tenants_of
from .history import History, Key, Record, is_pod
from .model import Holder, Holding, Measured, Pod, Subject

#: Kinds of holders that are processes. Holders of other kinds only reserve the GPU.
_RUNNING = ("process", *(kind for technique in TECHNIQUES for kind in technique.holder_kinds))
#: Words in command lines of notebook kernels, which listen only for their own notebook server.
_NOTEBOOKS = ("ipykernel", "jupyter")
#: Kind of a process that has the GPU's device node open, but no context on the GPU according to NVML.
_BARE_HANDLE = "device_handle"


@dataclass(frozen=True)
class Price:
    """Price of one GPU per hour.

    `model` is a glob for NVML names without "NVIDIA ". The first matching price applies.
    """

    model: str
    price: float


@dataclass(frozen=True)
class HostState:
    """A host's result of the module `gpu_info`, and its `gpu_layout`.

    `layout` is empty if the inventory has no layout for the host.
    """

    gpus: Sequence[Mapping[str, Any]]
    tenants: Sequence[Mapping[str, Any]] = ()
    layout: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    #: Pods that hold the host's GPUs, by UID, except pods that the API server does not know.
    pods: Mapping[str, Pod] = field(default_factory=dict)
    #: GPUs that failed.
    lost: Sequence[Mapping[str, Any]] = ()


def hosts_of(
    states: Mapping[str, Mapping[str, Any]], pods: Mapping[str, Mapping[str, Pod]] | None = None
) -> dict[str, HostState]:
    """Return each host's state from the results of gpu_info.

    `pods` has each host's pods by UID.
    """
    return {
        host: HostState(
            state.get("gpus") or (),
            [row for _technique, row in tenants_of(state)],
            pods=(pods or {}).get(host) or {},
            lost=state.get("lost_gpus") or (),
        )
        for host, state in states.items()
    }


def holdings(
    history: History | None, hosts: Mapping[str, HostState], prices: Sequence[Price] = ()
) -> tuple[Holding, ...]:
    """Return one Holding for each tenant, MIG instance, and GPU without instances.

    `history` is None without a server. `hosts` only has hosts that answered. The holdings are sorted by host, GPU,
    instance and name.
    """
    records: Mapping[Key, Record] = history.records if history else {}
    found: dict[Key, Holding] = {key: _of_record(record) for key, record in records.items()}
    for host, state in hosts.items():
        current = _add_host(found, host, state)
        # Remove instances of the past: the history also has instances that were removed since. Keep pods' quotas, which
        # the host does not know.
        for key in [key for key in found if key[0] == host and key not in current and not is_pod(key)]:
            if key[2] or any(present[:2] == key[:2] for present in current):
                del found[key]
            else:
                found[key] = replace(found[key], missing=(*found[key].missing, "the host does not list this GPU"))
    found = {
        key: _with_gpu(holding, records.get((*key[:2], "", ""))) if key[2] else holding
        for key, holding in found.items()
    }
    split = {key[:2] for key in found if key[2]}
    whole = [holding for key, holding in found.items() if key[2] or key[3] or key[:2] not in split]
    shares = _shares(whole, records, hosts)
    known = {key[:2]: record.price_per_hour for key, record in records.items() if record.price_per_hour is not None}
    if history:
        whole = [_aged(holding, history.window.end_seconds) for holding in whole]
    done = [_priced(_with_missing(holding, history, hosts), prices, known, shares) for holding in whole]
    return tuple(sorted(done, key=lambda holding: holding.subject.rack_order))


def _of_record(record: Record) -> Holding:
    held = record.held_now
    measured = {each.name: getattr(record, each.name) for each in fields(Measured)}
    if record.subject.kind == "tenant":
        measured["memory_total_bytes"] = record.memory_limit_bytes
    return Holding(
        **measured,
        # A server with the series for one kind of holder has the series for all kinds.
        holders=None
        if held is None
        else tuple(Holder(kind, "%d" % count) for kind, count in sorted(held.items()) if count > 0),
        **{name: record.stats.get(name) for name in ("memory", "busy", "compute", "bandwidth", "tensor", "processes")},
    )


def _with_gpu(instance: Holding, whole: Record | None) -> Holding:
    """Copy errors, throttling and loss from the GPU to an instance of it.

    Metrics only report these three for the whole GPU.
    """
    if whole is None:
        return instance
    return replace(
        instance,
        lost=instance.lost or whole.lost,
        xid={**whole.xid, **instance.xid},
        throttled={**whole.throttled, **instance.throttled},
    )


def _add_host(found: dict[Key, Holding], host: str, state: HostState) -> set[Key]:
    """Merge a host's state into `found`.

    Returns the keys of the subjects that the host reports now.
    """
    current: set[Key] = set()
    for gpu in state.lost:
        # Without a UUID, a GPU's history is unknown. A note in the report lists the GPU.
        if gpu.get("uuid"):
            index = "" if gpu.get("index") is None else str(gpu["index"])
            whole = Subject("gpu", host, gpu["uuid"], gpu_index=index, model=gpu.get("name") or "", vendor="nvidia")
            key = (host, whole.gpu_uuid, "", "")
            current.add(key)
            found[key] = replace(_with_state(found.get(key), whole, {}, {}), lost=True)
    for gpu in state.gpus:
        whole = Subject(
            "gpu",
            host,
            str(gpu["uuid"]),
            gpu_index=str(gpu["index"]),
            model=str(gpu.get("name") or ""),
            vendor="nvidia",
        )
        instances = (gpu.get("mig") or {}).get("instances") or ()
        if not instances:
            key = (host, whole.gpu_uuid, "", "")
            current.add(key)
            found[key] = _with_state(found.get(key), whole, gpu, state.pods)
        for instance in instances:
            subject = replace(
                whole, kind="mig_instance", mig_profile=str(instance["profile"]), mig_instance=str(instance["id"])
            )
            key = (host, whole.gpu_uuid, subject.mig_instance, "")
            current.add(key)
            found[key] = _with_state(found.get(key), subject, instance, state.pods)
        for tenant in state.tenants:
            for place in tenant.get("gpus") or ():
                if tenant.get("name") and place.get("uuid") == whole.gpu_uuid:
                    current.add(_add_tenant(found, whole, tenant))
    return current


def _with_state(known: Holding | None, subject: Subject, state: Mapping[str, Any], pods: Mapping[str, Pod]) -> Holding:
    base = known or Holding(subject)
    total = state.get("memory_total_bytes")
    holders = state.get("holders")
    processes = state.get("processes")
    named = replace(base.subject, **{
        name: value
        for name, value in (
            ("gpu_index", subject.gpu_index), ("model", subject.model), ("mig_profile", subject.mig_profile),
        )
        if value
    })  # fmt: skip
    return replace(
        base,
        subject=named,
        holders=base.holders
        if holders is None
        else tuple(_holder(one, pods) for one in holders if not one.get("watches")),
        processes_now=base.processes_now if processes is None else float(len(processes)),
        memory_total_bytes=base.memory_total_bytes or (float(total) if total else None),
    )


def _holder(row: Mapping[str, Any], pods: Mapping[str, Pod]) -> Holder:
    since, listens, clients = row.get("started_seconds"), row.get("listens"), row.get("clients")
    pid = row.get("pid")
    return Holder(
        str(row["kind"]),
        str(row["who"]),
        since_seconds=None if since is None else float(since),
        listens=None if listens is None else bool(listens),
        clients=None if clients is None else int(clients),
        pid=None if pid is None else int(pid),
        pod=pods.get(str(row.get("job"))),
        user=str(row.get("user") or ""),
        unit=str(row.get("unit_or_container") or ""),
        job=str(row.get("job") or ""),
    )


def _aged(holding: Holding, now: float) -> Holding:
    """Add the age of the newest holder process.

    Ignores bare handles, because they run no kernels.
    """
    holders = holding.holders or ()
    counted = [holder for holder in holders if holder.kind != _BARE_HANDLE] or holders
    starts = [holder.since_seconds for holder in counted if holder.since_seconds is not None]
    # A host's clock that is ahead would give a negative age.
    return replace(holding, newest_holder_seconds=max(0.0, now - max(starts)) if starts else None)


def _add_tenant(found: dict[Key, Holding], whole: Subject, tenant: Mapping[str, Any]) -> Key:
    subject = replace(whole, kind="tenant", name=str(tenant["name"]))
    key = (whole.host, whole.gpu_uuid, "", subject.name)
    base = found.get(key) or Holding(subject)
    limit = tenant.get("memory_bytes")
    found[key] = replace(base, memory_total_bytes=base.memory_total_bytes or (float(limit) if limit else None))
    return key


def _with_missing(holding: Holding, history: History | None, hosts: Mapping[str, HostState]) -> Holding:
    """Add a sentence to `missing` for each unknown fact."""
    missing = list(holding.missing)
    if history is None:
        missing.append("no history: use over time is unknown")
    elif holding.memory is None and holding.busy is None and holding.subject.kind != "tenant":
        missing.append("the server has no samples")
    else:
        for name, stat in (("memory use", holding.memory), ("activity", holding.busy)):
            if stat is None and not (name == "activity" and holding.subject.kind == "tenant"):
                missing.append("%s is unknown" % name)
        if holding.tensor is None and holding.bandwidth is None and holding.subject.kind != "tenant":
            missing.append("tensor and bandwidth activity are unknown: useful and busy cannot be distinguished")
    if holding.holders is None and holding.subject.kind != "tenant":
        missing.append(
            "holders are unknown: the host %s"
            % ("did not check" if holding.subject.host in hosts else "was not asked or did not answer")
        )
    return replace(holding, missing=tuple(dict.fromkeys(missing)))


def _weight(subject: Subject) -> float:
    """Return the memory in GB from an instance's profile name: 40 for `3g.40gb`.

    Returns 0 if the name is not a profile.
    """
    try:
        return float(parse_profile_name(subject.mig_profile).memory_gb)
    except ProfileNameError:
        return 0.0


def _shares(
    found: Sequence[Holding], records: Mapping[Key, Record], hosts: Mapping[str, HostState]
) -> dict[tuple[str, str], float]:
    """Return the total weight of each GPU's instances, to split the GPU's price.

    Memory outside of instances is ignored.
    """
    totals: dict[tuple[str, str], float] = {}
    for subject in (holding.subject for holding in found):
        if subject.kind == "mig_instance":
            place = (subject.host, subject.gpu_uuid)
            totals[place] = totals.get(place, 0.0) + _weight(subject)
    memory = {key[:2]: record.memory_total_bytes for key, record in records.items() if not key[2] and not key[3]}
    memory.update(
        {(host, gpu["uuid"]): gpu.get("memory_total_bytes") for host, state in hosts.items() for gpu in state.gpus}
    )
    return {place: max(total, (memory.get(place) or 0.0) / (1 << 30)) for place, total in totals.items()}


def _priced(
    holding: Holding,
    prices: Sequence[Price],
    known: Mapping[tuple[str, str], float],
    shares: Mapping[tuple[str, str], float],
) -> Holding:
    """Add the price from the price table, or from metrics if no entry matches.

    Metrics only have the price of a whole GPU, of which an instance gets its share.
    """
    subject = holding.subject
    # The price counts for the GPU, so its tenants have none.
    if subject.kind == "tenant":
        return replace(holding, price_per_hour=None)
    ratio: float | None = 1.0
    if subject.kind == "mig_instance":
        total = shares[(subject.host, subject.gpu_uuid)]
        ratio = _weight(subject) / total if total and _weight(subject) else None
    price = price_of(subject.model, prices)
    if price is None:
        price = known.get((subject.host, subject.gpu_uuid))
    if price is not None:
        price = None if ratio is None else price * ratio
    return replace(holding, price_per_hour=price, gpu_ratio=ratio)


def price_of(model: str, prices: Sequence[Price]) -> float | None:
    """Return the price from the first entry that matches a model, or None."""
    short = model[len("NVIDIA ") :] if model.startswith("NVIDIA ") else model
    return next((price.price for price in prices if fnmatch.fnmatchcase(short, price.model)), None)


def is_notebook_holder(holder: Holder) -> bool:
    return any(word in holder.who for word in _NOTEBOOKS)


def is_notebook(holding: Holding) -> bool:
    """Return whether a notebook kernel holds the subject."""
    return any(map(is_notebook_holder, holding.holders or ()))


def using(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the holders except bare handles, or all if all are bare handles.

    Any user with access to a GPU's device node can keep it open. Such a bare handle has no memory on the GPU and runs
    no kernels, so it says nothing about use by other holders. See docs/holders.md, "Bare handles".
    """
    return [row for row in rows if row.get("kind") != _BARE_HANDLE] or list(rows)


def is_held(holding: Holding) -> bool | None:
    """Return whether the subject is held, or None if unknown."""
    if holding.processes_now:
        return True
    if holding.holders is None:
        return None
    return bool(holding.holders)


def runs_processes(holding: Holding) -> bool | None:
    """Return whether a process currently runs on the subject, or None if unknown."""
    if holding.processes_now is not None:
        return holding.processes_now > 0
    if holding.holders is None:
        return None
    return any(holder.kind in _RUNNING for holder in holding.holders)
