# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the tenants' part of a plan: the steps and their text.

`plan` decides which steps are needed.
"""

from __future__ import annotations

from typing import Any, ClassVar, Union

from ...frozen import frozen
from ...plan.disturbance import Disturbance
from ...sizes import BYTES_PER_UNIT, format_size
from .model import KEY, MPS, OFFLINE, ONLINE, VgpuName, VgpuSeen, VgpuTenant, to_data

_MIB = BYTES_PER_UNIT["MiB"]
#: Maximum number of processes in a line.
_NAMED = 20


@frozen
class RemoveTenant:
    """Remove a tenant. Programs that later start under its name have no quota."""

    seen: VgpuSeen

    @property
    def name(self) -> str:
        return self.seen.tenant.name

    @property
    def unheld(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs on which processes would escape the quota."""
        return self.seen.tenant.gpus

    def reason(self, gpu_uuid: str) -> str:
        """Return why processes on the GPU block the change.

        Messages put the GPU's label after this text.
        """
        return "it would be removed from"

    def __str__(self) -> str:
        return "remove"


@frozen
class AddTenant:
    tenant: VgpuTenant
    where: str
    #: Reason for the provider if `auto` selected it.
    why: str = ""

    @property
    def name(self) -> str:
        return self.tenant.name

    def __str__(self) -> str:
        words = [caps(self.tenant) + also(self.tenant), self.why, _promise(self.tenant)]
        return "add (%s)" % "; ".join(filter(None, words))


@frozen
class ChangeTenant:
    """Change the quota, name, GPUs or outdated files of a tenant."""

    seen: VgpuSeen
    tenant: VgpuTenant

    @property
    def name(self) -> str:
        return self.tenant.name

    @property
    def grows_bytes(self) -> int:
        return self.tenant.memory_bytes - self.seen.tenant.memory_bytes

    @property
    def ended_names(self) -> tuple[str, ...]:
        """Return the names under which programs can no longer start as the tenant."""
        return tuple(name for name in self.seen.tenant.names if name not in self.tenant.names)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that the tenant leaves."""
        return tuple(uuid for uuid in self.seen.tenant.gpus if uuid not in self.tenant.gpus)

    @property
    def unheld(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs on which processes would escape the quota.

        Running processes keep the daemon or library with which they started.
        """
        providers = {self.seen.tenant.provider, self.tenant.provider}
        return self.seen.tenant.gpus if len(providers) > 1 and MPS in providers else self.leaves

    def reason(self, gpu_uuid: str) -> str:
        """Return why processes on the GPU block the change.

        Messages put the GPU's label after this text.
        """
        return "it would leave" if gpu_uuid in self.leaves else "its provider would change on"

    def __str__(self) -> str:
        old, new = self.seen.tenant, self.tenant
        if old == new:
            return "rewrite its files"
        words = [] if old.name == new.name else ["rename tenant %s to %s" % (old.name, new.name)]
        words += ["add the name %s" % name for name in new.aliases if name not in old.names]
        words += ["end the name %s" % name for name in self.ended_names]
        words += [] if caps(old) == caps(new) else ["change from %s to %s" % (caps(old), caps(new))]
        return ", ".join(words) or ("move" if set(old.gpus) != set(new.gpus) else "change its seats")


VgpuStep = Union[RemoveTenant, ChangeTenant, AddTenant]


@frozen
class VgpuPlan:
    """The steps for a host's tenants, which follow the change of the GPUs.

    The order is: shrink, grow, add, remove.
    """

    key: ClassVar[str] = KEY
    removes: tuple[RemoveTenant, ...] = ()
    changes: tuple[ChangeTenant, ...] = ()
    adds: tuple[AddTenant, ...] = ()
    kept: tuple[VgpuSeen, ...] = ()
    #: The tenants of leases, which are not changed.
    left: tuple[VgpuSeen, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    #: (UUID, index) of each of the host's GPUs, for texts.
    indices: tuple[tuple[str, int], ...] = ()
    #: (tenant name, kept name) for each name that processes use but the layout does not contain.
    kept_names: tuple[tuple[str, VgpuName], ...] = ()

    @property
    def steps(self) -> tuple[VgpuStep, ...]:
        return (*self.removes, *self.changes, *self.adds)

    @property
    def takes_library(self) -> bool:
        """Return whether a tenant uses the library after the plan is applied."""
        seen = (*self.kept, *self.left)
        tenants = [*(step.tenant for step in (*self.changes, *self.adds)), *(one.tenant for one in seen)]
        return any(tenant.provider != MPS for tenant in tenants)

    def planned(self) -> list[VgpuSeen]:
        """Return the tenants after the plan is applied."""
        tenants = [*(step.tenant for step in (*self.changes, *self.adds)), *(seen.tenant for seen in self.kept)]
        return [VgpuSeen(tenant) for tenant in tenants]

    def to_data(self) -> list[dict[str, Any]]:
        """Return the steps as JSON data, independent of current usage."""
        return [_step_data(step) for step in self.steps]

    def gpus_changed(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs whose tenants change."""
        uuids: set[str] = set()
        for step in self.steps:
            if not isinstance(step, AddTenant):
                uuids.update(step.seen.tenant.gpus)
            if not isinstance(step, RemoveTenant):
                uuids.update(step.tenant.gpus)
        return frozenset(uuids)

    def lines(self) -> list[str]:
        """Return a line for each changed tenant and each kept name."""
        lines = [(step.name, "vgpu %s: %s %s" % (step.name, step, self._places(step))) for step in self.steps]
        for tenant, kept in self.kept_names:
            pids = ["pid %d" % pid for pid in kept.pids[:_NAMED]]
            pids += ["%d more" % (len(kept.pids) - _NAMED)] if len(kept.pids) > _NAMED else []
            line = "vgpu %s: keep the name %s until its processes end (%s)" % (tenant, kept.name, ", ".join(pids))
            lines.append((tenant, line))
        return [line for _name, line in sorted(lines, key=_first)]

    def _places(self, step: VgpuStep) -> str:
        if isinstance(step, RemoveTenant):
            return "from %s" % self.gpus(step.seen.tenant)
        if isinstance(step, ChangeTenant) and step.leaves:
            return "on %s instead of %s" % (self.gpus(step.tenant), self.gpus(step.seen.tenant))
        return "on %s" % self.gpus(step.tenant)

    def gpus(self, tenant: VgpuTenant) -> str:
        """Return the tenant's GPUs as text."""
        index = dict(self.indices)
        return " and ".join("gpu %d" % index[uuid] if uuid in index else uuid for uuid in tenant.gpus)

    def before(self, gpu_uuid: str) -> str:
        """Return the tenants of the GPU before the plan, as text."""
        gone = [step.seen for step in (*self.removes, *self.changes)]
        return _named([seen.tenant for seen in (*gone, *self.kept)], gpu_uuid)

    def after(self, gpu_uuid: str) -> str:
        """Return the tenants of the GPU after the plan, as text."""
        tenants = [step.tenant for step in (*self.changes, *self.adds)]
        return _named([*tenants, *(seen.tenant for seen in self.kept)], gpu_uuid)


def _step_data(step: VgpuStep) -> dict[str, Any]:
    data: dict[str, Any] = {"step": type(step).__name__, "name": step.name}
    if isinstance(step, RemoveTenant):
        return data
    data["tenant"] = to_data(step.tenant)
    if isinstance(step, ChangeTenant) and step.seen.tenant.name != step.name:
        data["renamed_from"] = step.seen.tenant.name
    if isinstance(step, ChangeTenant) and step.ended_names:
        data["ended_names"] = list(step.ended_names)
    return data


def size(size_bytes: int) -> str:
    """Return the size as in layouts.

    A size that layouts cannot express is returned in whole MiB.
    """
    return format_size(size_bytes) if size_bytes > 0 and size_bytes % _MIB == 0 else "%d MiB" % (size_bytes // _MIB)


def caps(tenant: VgpuTenant) -> str:
    """Return the tenant's limits on each GPU as text."""
    words = ["%s and %d %%" % (size(tenant.memory_bytes), tenant.sm_percent), tenant.policy]
    if tenant.latency is not None:
        words.append(tenant.latency)
        words.append("waterline %d %%" % tenant.waterline_percent)
    elif tenant.priority:
        words.append("priority %d" % tenant.priority)
    if tenant.group is not None:
        words.append("group %s" % tenant.group)
    if tenant.oversubscribe_managed:
        words.append("managed memory beyond the quota")
    return ", ".join([*words, "by %s" % tenant.provider])


def also(tenant: VgpuTenant) -> str:
    """Return the tenant's other names as text. Messages have it after the limits."""
    return ", also named %s" % " and ".join(tenant.aliases) if tenant.aliases else ""


def _promise(tenant: VgpuTenant) -> str:
    """Return what the policy colocate promises a new tenant as text."""
    if tenant.latency == ONLINE:
        return "its work may wait for the rest of one offline kernel"
    if tenant.latency == OFFLINE:
        return "online work waits for the rest of its running kernel"
    return ""


def _first(pair: tuple[str, str]) -> str:
    return pair[0]


def _named(tenants: list[VgpuTenant], gpu_uuid: str) -> str:
    names = sorted("%s (%s)" % (t.name, caps(t) + also(t)) for t in tenants if gpu_uuid in t.gpus)
    return "vgpu %s" % ", ".join(names) if names else ""
