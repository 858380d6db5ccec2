# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a typed layout back to data."""

from __future__ import annotations

from typing import Any

from .layout_gpus import selector_to_data
from .layout_types import MPS_DAEMONS, VGPU_PROVIDERS, Entry, Layout, MigInstance, Mps, Tenant, Vgpu
from .sizes import format_size
from .techniques.registry import TECHNIQUES


def layout_to_data(layout: Layout) -> list[dict[str, Any]]:
    """The layout in its canonical form, fit for YAML and JSON: what equals a default is left out."""
    return [_entry_to_data(entry) for entry in layout.entries]


def _entry_to_data(entry: Entry) -> dict[str, Any]:
    selectors = [selector_to_data(selector) for selector in entry.selectors]
    data: dict[str, Any] = {"gpus": "all" if selectors == ["all"] else selectors, "sharing": entry.sharing}
    if entry.mig is not None:
        data["mig"] = [_mig_instance_to_data(instance) for instance in entry.mig]
    if entry.mps is not None:
        data["mps"] = _mps_to_data(entry.mps)
    if entry.vgpu is not None:
        data["vgpu"] = _vgpu_to_data(entry.vgpu)
    for technique in TECHNIQUES:
        if technique.key == entry.sharing:
            data[technique.key] = technique.to_data(entry.part)
    return data


def _mig_instance_to_data(instance: MigInstance) -> dict[str, Any]:
    data: dict[str, Any] = {"profile": instance.profile}
    if instance.count != 1:
        data["count"] = instance.count
    if instance.placement is not None:
        data["placement"] = instance.placement
    if instance.compute_instances:
        data["compute_instances"] = list(instance.compute_instances)
    if instance.mps is not None:
        data["mps"] = _mps_to_data(instance.mps)
    return data


def _mps_to_data(mps: Mps) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": mps.name,
        "clients": mps.clients,
        "active_thread_percentage": mps.active_thread_percentage,
    }
    if mps.pinned_memory_limit_bytes is not None:
        data["pinned_memory_limit"] = format_size(mps.pinned_memory_limit_bytes)
    if mps.oversubscribe:
        data["oversubscribe"] = True
    if mps.daemon_per != MPS_DAEMONS[0]:
        data["daemon_per"] = mps.daemon_per
    return data


def _vgpu_to_data(vgpu: Vgpu) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if vgpu.provider != VGPU_PROVIDERS[0]:
        data["provider"] = vgpu.provider
    if vgpu.policy != "fixed":
        data["policy"] = vgpu.policy
    ratios = {"memory": vgpu.oversubscribe_memory_ratio, "sm": vgpu.oversubscribe_sm_ratio}
    if set(ratios.values()) != {1.0}:
        data["oversubscribe"] = {key: ratio for key, ratio in ratios.items() if ratio != 1.0}
    data["tenants"] = [_tenant_to_data(tenant) for tenant in vgpu.tenants]
    return data


def _tenant_to_data(tenant: Tenant) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": tenant.name,
        "memory": format_size(tenant.memory_bytes),
        "sm_percent": tenant.sm_percent,
    }
    if tenant.priority:
        data["priority"] = tenant.priority
    if tenant.gpus != 1:
        data["gpus"] = tenant.gpus
    if tenant.gpu is not None:
        data["gpu"] = selector_to_data(tenant.gpu)
    if tenant.group is not None:
        data["group"] = tenant.group
    if tenant.oversubscribe_managed:
        data["oversubscribe_managed"] = True
    return data
