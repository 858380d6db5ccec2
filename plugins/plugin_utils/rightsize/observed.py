# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert results of the module gpu_info to the planners' types. Pure."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, Mapping, NamedTuple, Sequence

from ...module_utils import catalogue
from ...module_utils.change.targets import resolved
from ...module_utils.errors import FleetError
from ...module_utils.holders.mark import mark
from ...module_utils.layout.types import Entry, Layout
from ...module_utils.model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    GpuInstanceProfile,
    Holder,
    Host,
    Mig,
    NvLink,
    Placement,
    Process,
)
from ...module_utils.plan.assumed import assumed_gpus
from ...module_utils.techniques.forms import parse_layout
from .model import RightsizeError

#: Reason for excluding a host.
NO_LAYOUT = "the host's layout is invalid: %s"


class HostToday(NamedTuple):
    """A host's state and layout.

    `state` is the result of gpu_info, and `host` the same data as a Host. `entries` has the layout's entries by GPU
    UUID. For an invalid layout, `problem` has the reason and `entries` is empty.
    """

    state: Mapping[str, Any]
    host: Host
    layout: Layout
    entries: Mapping[str, Entry]
    problem: str = ""


def hosts_today(states: Mapping[str, Mapping[str, Any]], layouts: Mapping[str, Any]) -> dict[str, HostToday]:
    """Convert the states and layouts of all hosts. The result is sorted by host name.

    Raises RightsizeError if a state is not a result of gpu_info.
    """
    found = {}
    for name in sorted(states):
        host = host_of(name, states[name])
        try:
            layout = parse_layout(layouts.get(name) or [])
            found[name] = HostToday(states[name], host, layout, resolved(layout, host.gpus))
        except FleetError as error:
            found[name] = HostToday(states[name], host, Layout(()), {}, NO_LAYOUT % error)
    return found


def without_leases(layout: Layout) -> Layout:
    """Return the layout without entries that offer leases.

    Instances and tenants of leases are not in the layout.
    """
    return Layout(tuple(entry for entry in layout.entries if entry.leases is None))


@lru_cache(maxsize=None)
def _profiles(key: str) -> tuple[GpuInstanceProfile, ...]:
    return assumed_gpus([key], catalogue.load_models())[0].mig.profiles


def model_of(name: str) -> str:
    """Return the catalogue key for a GPU's NVML name, or ""."""
    for model in catalogue.load_models().values():
        if any(board.name == name for board in model.boards):
            return model.key
    return ""


def host_of(host: str, state: Mapping[str, Any]) -> Host:
    """Return the host with its holders.

    Raises RightsizeError if `state` is not a result of gpu_info.
    """
    try:
        gpus = tuple(_gpu(data) for data in state["gpus"])
        holders = [_holder(row, str(data["uuid"])) for data in state["gpus"] for row in data.get("holders") or ()]
        seen = Host(
            str(state.get("driver_version") or ""),
            str(state.get("nvml_version") or ""),
            state.get("cuda_version"),
            bool(state.get("simulated")),
            tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RightsizeError(
            host, "its state is not a result of openfleet.gpu.gpu_info (%r)" % error, "Pass the result of the module."
        ) from None
    return mark(seen, holders)


def _gpu(data: Mapping[str, Any]) -> Gpu:
    found = data.get("mig") or {}
    reported = found.get("profiles")
    key = model_of(str(data["name"]))
    profiles = tuple(_profile(row) for row in reported) if reported else _profiles(key) if key else ()
    mig = Mig(
        bool(found.get("capable", bool(profiles))),
        bool(found.get("enabled", found.get("instances"))),
        bool(found.get("pending", found.get("enabled", found.get("instances")))),
        profiles,
        tuple(_instance(row) for row in found.get("instances") or ()),
    )
    return Gpu(
        index=int(data["index"]),
        uuid=str(data["uuid"]),
        name=str(data["name"]),
        pci_address=str(data.get("pci_address") or ""),
        memory_total_bytes=data.get("memory_total_bytes"),
        mig=mig,
        architecture=data.get("architecture"),
        compute_capability=data.get("compute_capability"),
        compute_mode=data.get("compute_mode"),
        numa_node=data.get("numa_node"),
        nvlinks=tuple(NvLink(row["link"], row.get("remote_pci_address")) for row in data.get("nvlinks") or ()),
        processes=_processes(data),
    )


def _profile(row: Mapping[str, Any]) -> GpuInstanceProfile:
    values = {field.name: row[field.name] for field in dataclasses.fields(GpuInstanceProfile)}
    values["placements"] = tuple(_placement(place) for place in values["placements"])
    return GpuInstanceProfile(**values)


def _placement(row: Mapping[str, Any]) -> Placement:
    return Placement(int(row["start"]), int(row["size"]))


def _instance(row: Mapping[str, Any]) -> GpuInstance:
    compute = tuple(
        ComputeInstance(
            one["id"], one["compute_slices"], _placement(one["placement"]), one.get("mig_uuid"), _processes(one)
        )
        for one in row.get("compute_instances") or ()
    )
    return GpuInstance(int(row["id"]), str(row["profile"]), _placement(row["placement"]), compute, _processes(row))


def _processes(row: Mapping[str, Any]) -> tuple[Process, ...]:
    return tuple(
        Process(int(one["pid"]), str(one.get("kind") or "compute"), one.get("name"))
        for one in row.get("processes") or ()
    )


def _holder(row: Mapping[str, Any], uuid: str) -> Holder:
    names: Sequence[str] = [field.name for field in dataclasses.fields(Holder)]
    values = {name: row[name] for name in names if name in row}
    # A holder without a device holds the whole GPU in whose list it is.
    held = {"gpu_uuid": values.get("gpu_uuid") or uuid, "gpu_instance_id": values.get("gpu_instance_id")}
    return Holder(**{**values, **held})
