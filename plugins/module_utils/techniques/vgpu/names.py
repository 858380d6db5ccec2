# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Match a layout's tenants to a host's tenants, with pure functions.

Tenants may have been renamed. A tenant always keeps its key, under which its processes are accounted. All its other
names may change.
"""

from __future__ import annotations

import itertools
from typing import Iterable, Mapping, Sequence

from ...errors import PlanError
from ...frozen import frozen
from ...layout.types import Layout
from .model import KEY, VgpuName, VgpuSeen, VgpuTenant
from .part import Tenant

#: Maximum number of processes in a message.
_NAMED = 20
#: Maximum length of a key before a number is appended. With the number, it has at most 63 characters, the maximum
#: length of a name.
_KEY_BASE = 57


@frozen
class Names:
    """A layout's tenant on the host: its key, other names and current tenant.

    `now` is the current tenant, or None for a new tenant. `kept` has the names that the layout does not contain, but
    that processes still use.
    """

    now: VgpuTenant | None
    key: str
    aliases: tuple[str, ...] = ()
    kept: tuple[VgpuName, ...] = ()


def match(layout: Layout, seen: Sequence[VgpuSeen], labels: Mapping[str, str]) -> dict[str, Names]:
    """Return each tenant's names on the host, by its name in the layout.

    `labels` maps GPU UUIDs to labels. Raises PlanError if two tenants would become one, or if a name belongs to another
    tenant.
    """
    tenants = [
        ("%s.vgpu.tenants[%d]" % (entry.where, number), tenant)
        for entry in layout.entries
        if entry.sharing == KEY
        for number, tenant in enumerate(entry.part.tenants)
    ]
    current = {one.tenant.name: one for one in seen}
    matched = {tenant.name: _by_name(where, tenant, current, labels) for where, tenant in tenants}
    _match_aliases(tenants, current, matched)
    for where, tenant in tenants:
        _check_names(where, tenant, matched, seen, labels)
    keys = {one.tenant.key for one in seen}
    taken = {*keys, *matched}
    names = {}
    for _where, tenant in tenants:
        one = matched[tenant.name]
        key = _new_key(tenant.name, keys, taken) if one is None else one.tenant.key
        taken.add(key)
        kept = () if one is None else _kept(tenant, one)
        declared = () if tenant.was is None else (tenant.was,)
        now = None if one is None else one.tenant
        names[tenant.name] = Names(now, key, (*declared, *(each.name for each in kept)), kept)
    return names


def _by_name(where: str, tenant: Tenant, current: Mapping[str, VgpuSeen], labels: Mapping[str, str]) -> VgpuSeen | None:
    """Return the host's tenant with a layout tenant's current or earlier name."""
    own, old = current.get(tenant.name), current.get(tenant.was or "")
    if own is not None and old is not None:
        raise PlanError(
            "%s.was" % where,
            "the host has separate tenants %s (%s) and %s (%s), and two tenants cannot become one"
            % (tenant.was, _gpus(old.tenant, labels), tenant.name, _gpus(own.tenant, labels)),
            "Remove the key was, which removes %s. Or remove %s in an earlier run." % (tenant.was, tenant.name),
        )
    return own or old


def _match_aliases(
    tenants: Sequence[tuple[str, Tenant]], current: Mapping[str, VgpuSeen], matched: dict[str, VgpuSeen | None]
) -> None:
    """Match tenants that the host knows only by an alias.

    For example, after a rename was reverted.
    """
    free = {one.tenant.key: one for one in current.values()}
    for one in matched.values():
        if one is not None:
            free.pop(one.tenant.key, None)
    for _where, tenant in tenants:
        if matched[tenant.name] is None:
            names = {tenant.name, tenant.was}
            one = next((one for one in free.values() if names.intersection(one.tenant.aliases)), None)
            if one is not None:
                matched[tenant.name] = free.pop(one.tenant.key)


def _check_names(
    where: str,
    tenant: Tenant,
    matched: Mapping[str, VgpuSeen | None],
    seen: Sequence[VgpuSeen],
    labels: Mapping[str, str],
) -> None:
    """Raise PlanError if a name belongs to another tenant of the host.

    The name is accepted if the same run first removes it from the other tenant.
    """
    own = matched[tenant.name]
    owners = {one.tenant.key: name for name, one in matched.items() if one is not None}
    for one in seen:
        if own is not None and own.tenant.key == one.tenant.key:
            continue
        for key, name in (("name", tenant.name), ("was", tenant.was)):
            if name not in one.tenant.names:
                continue
            pids = [pid for used in one.names_in_use if used.name == name for pid in used.pids]
            # Existing tenants give up names before new tenants are added.
            if own is None and one.tenant.key in owners and not pids:
                continue
            label = owners.get(one.tenant.key, one.tenant.name)
            problem = "%s is still a name of the tenant %s (%s)" % (name, label, _gpus(one.tenant, labels))
            if pids:
                problem += ", and processes use it: %s" % ", ".join("pid %d" % pid for pid in pids[:_NAMED])
                raise PlanError("%s.%s" % (where, key), problem, "End them and run again, or choose another name.")
            cure = "Apply the layout without this tenant first, then with it."
            raise PlanError("%s.%s" % (where, key), problem, cure)


def _kept(tenant: Tenant, one: VgpuSeen) -> tuple[VgpuName, ...]:
    """Return the names that processes use but the layout does not contain.

    A tenant's only name is never returned, because `names_in_use` is then empty.
    """
    return tuple(used for used in one.names_in_use if used.name not in (tenant.name, tenant.was))


def _new_key(name: str, keys: Iterable[str], taken: Iterable[str]) -> str:
    """Return the name as a key, or with a number if the key is taken.

    A renamed tenant may still use the name as its key.
    """
    if name not in keys:
        return name
    numbered = ("%s.%d" % (name[:_KEY_BASE], number) for number in itertools.count(2))
    return next(key for key in numbered if key not in taken)


def _gpus(tenant: VgpuTenant, labels: Mapping[str, str]) -> str:
    return " and ".join(labels.get(uuid, "gpu %s" % uuid) for uuid in tenant.gpus)
