# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tenant of a host a tenant of a layout is, when tenants are renamed. Pure.

A tenant keeps its key for life: the name under which its processes are counted. Its names may change.
"""

from __future__ import annotations

import itertools
from typing import Iterable, Mapping, Sequence

from ...errors import PlanError
from ...frozen import frozen
from ...layout.types import Layout
from .model import KEY, VgpuName, VgpuSeen, VgpuTenant
from .part import Tenant

#: How many processes a message names.
_NAMED = 20
#: A key is at most as long as a name (63), with its number.
_KEY_BASE = 57


@frozen
class Names:
    """The tenant of the host that a tenant of the layout is (None: it is new), its key, and its other names.

    Of the other names `kept` are not in the layout: processes have them.
    """

    now: VgpuTenant | None
    key: str
    aliases: tuple[str, ...] = ()
    kept: tuple[VgpuName, ...] = ()


def match(layout: Layout, seen: Sequence[VgpuSeen], labels: Mapping[str, str]) -> dict[str, Names]:
    """Return by name what each tenant of the layout is on a host with these tenants. `labels` are those of GPUs, by UUID.

    Raises PlanError where the host has several tenants that would become one, or where a name belongs to another tenant.
    """
    tenants = [
        ("%s.vgpu.tenants[%d]" % (entry.where, number), tenant)
        for entry in layout.entries
        if entry.sharing == KEY
        for number, tenant in enumerate(entry.part.tenants)
    ]
    there = {one.tenant.name: one for one in seen}
    found = {tenant.name: _found(where, tenant, there, labels) for where, tenant in tenants}
    _match_aliases(tenants, there, found)
    for where, tenant in tenants:
        _check_names(where, tenant, found, seen, labels)
    keys = {one.tenant.key for one in seen}
    taken = {*keys, *found}
    names = {}
    for _where, tenant in tenants:
        one = found[tenant.name]
        key = _new_key(tenant.name, keys, taken) if one is None else one.tenant.key
        taken.add(key)
        kept = () if one is None else _kept(tenant, one)
        declared = () if tenant.was is None else (tenant.was,)
        now = None if one is None else one.tenant
        names[tenant.name] = Names(now, key, (*declared, *(each.name for each in kept)), kept)
    return names


def _found(where: str, tenant: Tenant, there: Mapping[str, VgpuSeen], labels: Mapping[str, str]) -> VgpuSeen | None:
    """Return the tenant of the host that has the name, or had the earlier one."""
    own, old = there.get(tenant.name), there.get(tenant.was or "")
    if own is not None and old is not None:
        raise PlanError(
            "%s.was" % where,
            "the host has separate tenants %s (%s) and %s (%s), and two tenants cannot become one"
            % (tenant.was, _gpus(old.tenant, labels), tenant.name, _gpus(own.tenant, labels)),
            "Take was away, which removes %s; or remove %s first, in a run before this one."
            % (tenant.was, tenant.name),
        )
    return own or old


def _match_aliases(
    tenants: Sequence[tuple[str, Tenant]], there: Mapping[str, VgpuSeen], found: dict[str, VgpuSeen | None]
) -> None:
    """Match tenants of which the host has only an earlier name, as where a rename is taken back."""
    free = {one.tenant.key: one for one in there.values()}
    for one in found.values():
        if one is not None:
            free.pop(one.tenant.key, None)
    for _where, tenant in tenants:
        if found[tenant.name] is None:
            asked = {tenant.name, tenant.was}
            one = next((one for one in free.values() if asked.intersection(one.tenant.aliases)), None)
            if one is not None:
                found[tenant.name] = free.pop(one.tenant.key)


def _check_names(
    where: str,
    tenant: Tenant,
    found: Mapping[str, VgpuSeen | None],
    seen: Sequence[VgpuSeen],
    labels: Mapping[str, str],
) -> None:
    """Raise PlanError for a name that belongs to another tenant of the host and is not given up before."""
    own = found[tenant.name]
    owners = {one.tenant.key: name for name, one in found.items() if one is not None}
    for one in seen:
        if own is not None and own.tenant.key == one.tenant.key:
            continue
        for key, name in (("name", tenant.name), ("was", tenant.was)):
            if name not in one.tenant.names:
                continue
            pids = [pid for used in one.names_in_use if used.name == name for pid in used.pids]
            # Tenants that stay give up names before new tenants come.
            if own is None and one.tenant.key in owners and not pids:
                continue
            label = owners.get(one.tenant.key, one.tenant.name)
            problem = "%s is still a name of the tenant %s (%s)" % (name, label, _gpus(one.tenant, labels))
            if pids:
                problem += ", and processes have it: %s" % ", ".join("pid %d" % pid for pid in pids[:_NAMED])
                raise PlanError("%s.%s" % (where, key), problem, "End them and run again, or take another name.")
            cure = "Apply the layout without this tenant first, then with it."
            raise PlanError("%s.%s" % (where, key), problem, cure)


def _kept(tenant: Tenant, one: VgpuSeen) -> tuple[VgpuName, ...]:
    """Return the names that the layout does not have and processes do. The only name of a tenant is never one of them."""
    return tuple(used for used in one.names_in_use if used.name not in (tenant.name, tenant.was))


def _new_key(name: str, keys: Iterable[str], taken: Iterable[str]) -> str:
    """Return the name, or where a tenant that was renamed is counted under it another one like it."""
    if name not in keys:
        return name
    numbered = ("%s.%d" % (name[:_KEY_BASE], number) for number in itertools.count(2))
    return next(key for key in numbered if key not in taken)


def _gpus(tenant: VgpuTenant, labels: Mapping[str, str]) -> str:
    return " and ".join(labels.get(uuid, "gpu %s" % uuid) for uuid in tenant.gpus)
