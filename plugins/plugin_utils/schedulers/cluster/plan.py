# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a cluster's desired objects with its current objects. Pure.

Objects of the cluster are untrusted. One that does not have the API's format counts as absent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Mapping, Sequence

from ....module_utils.errors import FleetError
from ..kubernetes.api_objects import annotations_of, differs, is_owned, name_of, of_kind, reference, texts, title
from ..kubernetes.backend import LABELS_BEFORE
from ..protocol import Member, Read, Shared
from ..registry import backend
from . import hyper_nodes, quotas
from .model import Request

_NODES = Read("v1", "Node")
_NAMESPACES = Read("v1", "Namespace")
_QUOTAS = tuple(Read(quotas.API, kind) for kind in quotas.KINDS)
_HYPER_NODES = Read(hyper_nodes.API, hyper_nodes.KIND)
# Advice about a kind of objects that the cluster does not have.
_MISSING = {
    quotas.API: "Install Kueue 0.15 or later, or remove gpu_kubernetes_quotas",
    hyper_nodes.API: "Install Volcano 1.12 or later, or remove gpu_kubernetes_hypernodes",
}

Found = Mapping[Read, "Sequence[Any] | None"]


def reads(request: Request) -> tuple[Read, ...]:
    """Return the objects that the comparison needs."""
    found = [_NODES]
    found += [_NAMESPACES, *_QUOTAS] if request.quotas is not None else []
    found += [_HYPER_NODES] if request.hyper_nodes else []
    for key in _keys(request):
        found += backend(key).shared_reads(request.scheduler)
    return tuple(dict.fromkeys(found))


def check(request: Request) -> list[str]:
    """Return the problems that can be found without the cluster."""
    problems = list(request.problems)
    for function in (_parsed, _switches):
        try:
            function(request)
        except FleetError as error:
            problems.append(str(error))
    return problems


def plan(request: Request, found: Found) -> Shared:
    """Return the cluster's changes.

    `found` has the objects for each entry of `reads`, or None if the cluster does not have this kind.
    """
    problems = check(request)
    if problems:
        return Shared(problems=tuple(problems))
    parts = [_quotas(request, found), _hyper_nodes(request, found)]
    for key in _keys(request):
        current = {read: found.get(read) for read in backend(key).shared_reads(request.scheduler)}
        nodes = [node for node in found.get(_NODES) or () if name_of(node) not in request.removed]
        parts.append(backend(key).shared(request.removed, nodes, current))
    problems = [problem for part in parts for problem in part.problems]
    if problems:
        return Shared(problems=tuple(problems))
    return Shared(
        tuple(item for part in parts for item in part.write),
        tuple(item for part in parts for item in part.delete),
        tuple(line for part in parts for line in part.lines),
    )


def _quotas(request: Request, found: Found) -> Shared:
    """Return the quotas' changes.

    A run that removes the configuration from the role's last nodes also removes the quotas.
    """
    if request.quotas is None:
        return Shared()
    nodes = found.get(_NODES) or ()
    if request.removed:
        if any(LABELS_BEFORE in annotations_of(node) and name_of(node) not in request.removed for node in nodes):
            return Shared()
        return _difference([], _QUOTAS, found)
    desired = _parsed(request)
    offered = _offered(request.members, nodes)
    namespaces = set(map(name_of, found.get(_NAMESPACES) or ()))
    problems = quotas.check_offered(desired, offered) + quotas.check_namespaces(desired, namespaces)
    if problems:
        return Shared(problems=tuple(problems))
    changes = _difference(quotas.objects(desired), _QUOTAS, found, quotas.comparable, _is_fixed)
    return Shared(changes.write, changes.delete, (*changes.lines, *quotas.warnings(desired, offered)), changes.problems)


def _hyper_nodes(request: Request, found: Found) -> Shared:
    if not request.hyper_nodes:
        return Shared()
    return _difference(_switches(request), (_HYPER_NODES,), found)


def _parsed(request: Request) -> tuple[quotas.Quota, ...]:
    return quotas.parse_quotas(request.quotas) if request.quotas is not None else ()


def _switches(request: Request) -> list[dict[str, Any]]:
    if not request.hyper_nodes:
        return []
    return hyper_nodes.objects([member for member in request.members if member.node not in request.removed])


def _is_fixed(desired: Any, current: Any) -> bool:
    """Return whether the change requires that the object is created again.

    The API does not permit a change of a namespace's team. Admitted jobs keep running.
    """
    return bool(desired["kind"] == quotas.LOCAL and differs(desired["spec"], current.get("spec")))


def _difference(
    desired: Sequence[Mapping[str, Any]],
    kinds: Sequence[Read],
    found: Found,
    comparable: Callable[[Any], Any] = lambda item: item,
    is_fixed: Callable[[Any, Any], bool] = lambda desired, current: False,
) -> Shared:
    """Return the changes of the role's objects of these kinds.

    Afterwards, these objects equal the desired ones. Objects that the role did not write do not change.
    """
    missing = [kind for kind in kinds if found.get(kind) is None]
    if missing and desired:
        cure = _MISSING[missing[0].api_version]
        problem = "the cluster has no %s %s. %s." % (missing[0].api_version, missing[0].kind, cure)
        return Shared(problems=(problem,))
    current = {title(item): item for kind in kinds for item in of_kind(found.get(kind) or (), kind.kind)}
    names = {title(item) for item in desired}
    foreign = [name for name in sorted(names) if name in current and not is_owned(current[name])]
    if foreign:
        problem = "the %s exists, and the role did not write it. Rename or delete it. Nothing was changed."
        return Shared(problems=tuple(problem % name for name in foreign))
    old = [
        item
        for name, item in current.items()
        # Kueue keeps a deleted ClusterQueue until its last job has ended.
        if name not in names and is_owned(item) and "deletionTimestamp" not in item["metadata"]
    ]
    write = [
        item
        for item in desired
        if title(item) not in current or differs(comparable(item), comparable(current[title(item)]))
    ]
    recreated = [item for item in write if title(item) in current and is_fixed(item, current[title(item)])]
    lines = ["delete %s" % title(item) for item in old] + ["write %s" % title(item) for item in write]
    # Delete later kinds first, because they refer to earlier kinds.
    delete = [reference(item) for item in [*reversed(old), *recreated]]
    return Shared(tuple(write), tuple(delete), tuple(lines))


def _offered(members: Sequence[Member], nodes: Sequence[Any]) -> dict[str, int]:
    """Return the number of each extended resource in the cluster.

    For hosts of this run, this is the planned number, and for other nodes the number that they offer.
    """
    total: Counter[str] = Counter()
    planned = {member.node: member.offer for member in members if member.offer is not None}
    for offer in planned.values():
        if backend(offer["backend"]).offered_in.kind == _NODES.kind:
            total.update(offer["resources"])
    for node in nodes:
        if name_of(node) not in planned:
            status = node.get("status") if isinstance(node, Mapping) else None
            found = texts(status, "allocatable").items()
            total.update({name: int(count) for name, count in found if "/" in name and count.isdecimal()})
    return dict(total)


def _keys(request: Request) -> list[str]:
    return list(dict.fromkeys(member.backend for member in request.members if backend(member.backend).applies))
