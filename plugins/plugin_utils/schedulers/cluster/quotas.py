# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write teams' GPU quotas as Kueue's objects. Pure.

https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/ and the types of kueue.x-k8s.io/v1beta2 (Kueue 0.15 or later).

Each team has a ClusterQueue with its quota, and a LocalQueue in each of its namespaces. Kueue uses the LocalQueue named
`default` for jobs that name no queue. All ClusterQueues are in one cohort, so that teams can borrow unused quota.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Container, Mapping, Sequence

from ....module_utils.errors import FleetError
from ..kubernetes.api_objects import OWNED

API = "kueue.x-k8s.io/v1beta2"
FLAVOR, QUEUE, LOCAL = KINDS = ("ResourceFlavor", "ClusterQueue", "LocalQueue")
#: Name of the flavor and of the cohort.
NAME = "openfleet-gpu"
_VARIABLE = "gpu_kubernetes_quotas"
_LOCAL_NAME = "default"
# Quotas for resources that are not limited, because Kueue admits a job only if its ClusterQueue covers all resources
# that it requests. They are larger than any cluster, and their sum over 500 teams is below the maximum of a quantity
# (2^63 - 1).
_UNLIMITED = {"cpu": "1M", "memory": "16Pi", "ephemeral-storage": "16Pi"}
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_MOST = 10**6
_QUANTITY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)([numkMGTPE]|[KMGTPE]i)?")
_SUFFIXES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in zip(range(-3, 7), ("n", "u", "m", "", *"kMGTPE"))},
    **{suffix + "i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


@dataclass(frozen=True)
class Quota:
    """A team's quota.

    `resources` has the number of each resource by name. If `borrow` is true, the team may use other teams' unused
    quota.
    """

    team: str
    namespaces: tuple[str, ...]
    resources: Mapping[str, int]
    borrow: bool = False


def parse_quotas(value: Any) -> tuple[Quota, ...]:
    """Return the quotas of `gpu_kubernetes_quotas`.

    Raises FleetError with the entry if the value is invalid.
    """
    if not isinstance(value, Mapping):
        raise FleetError(_VARIABLE, "it is not a mapping", "Map each team to its namespaces and resources.")
    quotas = tuple(_quota(team, entry) for team, entry in value.items())
    teams: dict[str, str] = {}
    for quota in quotas:
        for namespace in quota.namespaces:
            other = teams.setdefault(namespace, quota.team)
            if other != quota.team:
                problem = "the namespace %s is also a namespace of %s" % (namespace, other)
                raise FleetError("%s.%s.namespaces" % (_VARIABLE, quota.team), problem, "Each namespace has one team.")
    return quotas


def _quota(team: Any, entry: Any) -> Quota:
    where = "%s.%.63s" % (_VARIABLE, team)
    _check_name(where, team, "team")
    if not isinstance(entry, Mapping) or set(entry) - {"namespaces", "resources", "borrow"}:
        cure = "Write {namespaces: [team-a], resources: {nvidia.com/gpu: 4}}. The key borrow is optional."
        raise FleetError(where, "it is not a quota", cure)
    namespaces, resources, borrow = entry.get("namespaces"), entry.get("resources"), entry.get("borrow", False)
    if not isinstance(namespaces, (list, tuple)) or not namespaces:
        raise FleetError(where + ".namespaces", "it is not a list of namespaces", "List at least one namespace.")
    for number, namespace in enumerate(namespaces):
        _check_name("%s.namespaces[%d]" % (where, number), namespace, "namespace")
    if not isinstance(resources, Mapping) or not resources:
        raise FleetError(where + ".resources", "it has no resource", "Write for example {nvidia.com/gpu: 4}.")
    for name, count in resources.items():
        place = "%s.resources.%.80s" % (where, name)
        if not isinstance(name, str) or not _RESOURCE.fullmatch(name):
            raise FleetError(place, "it is not the name of a GPU resource", "Write it like nvidia.com/mig-1g.10gb.")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST:
            raise FleetError(place, "%.40r is not a number from 0 to %d" % (count, _MOST), "Write it without a unit.")
    if not isinstance(borrow, bool):
        raise FleetError(where + ".borrow", "%.40r is neither true nor false" % (borrow,), "Write true or false.")
    return Quota(team, tuple(dict.fromkeys(namespaces)), dict(resources), borrow)


def _check_name(where: str, name: Any, what: str) -> None:
    if not isinstance(name, str) or not _DNS_LABEL.fullmatch(name):
        cure = "Use at most 63 lower-case letters, digits and -."
        raise FleetError(where, "%.70r is not the name of a %s" % (name, what), cure)


def check_offered(quotas: Sequence[Quota], offered: Mapping[str, int]) -> list[str]:
    """Return a problem for each quota of a resource that no node offers."""
    names = ", ".join(sorted(name for name, count in offered.items() if count)) or "no GPU resource"
    return [
        "%s.%s.resources.%s: no node of the cluster offers this resource. The nodes offer %s. Correct the name, or add a "
        "layout that provides it." % (_VARIABLE, quota.team, name, names)
        for quota in quotas
        for name in quota.resources
        if not offered.get(name)
    ]


def check_namespaces(quotas: Sequence[Quota], current: Container[str]) -> list[str]:
    """Return a problem for each namespace that the cluster does not have."""
    return [
        "%s.%s.namespaces: the cluster has no namespace %s. Create it, or correct the name."
        % (_VARIABLE, quota.team, name)
        for quota in quotas
        for name in quota.namespaces
        if name not in current
    ]


def warnings(quotas: Sequence[Quota], offered: Mapping[str, int]) -> list[str]:
    """Return a warning for each resource whose quotas exceed the offer."""
    sums = {name: sum(quota.resources.get(name, 0) for quota in quotas) for name in _names(quotas)}
    return [
        "%s: the quotas of %s add up to %d, and the nodes offer %d. Jobs within their quota can wait for a free node."
        % (_VARIABLE, name, total, offered.get(name, 0))
        for name, total in sums.items()
        if total > offered.get(name, 0)
    ]


def objects(quotas: Sequence[Quota]) -> list[dict[str, Any]]:
    """Return the objects of Kueue, in the order in which they can be created."""
    if not quotas:
        return []
    names = _names(quotas)
    flavor = _object(FLAVOR, {"name": NAME}, {})
    queues = [_object(QUEUE, {"name": quota.team}, _cluster_queue(quota, names)) for quota in quotas]
    local = [
        _object(LOCAL, {"name": _LOCAL_NAME, "namespace": namespace}, {"clusterQueue": quota.team})
        for quota in quotas
        for namespace in quota.namespaces
    ]
    return [flavor, *queues, *local]


def comparable(item: Any) -> Any:
    """Return an object with its quantities in one notation. Kueue writes 1000 as 1k."""
    if isinstance(item, Mapping):
        limits = ("nominalQuota", "borrowingLimit")
        return {name: _quantity(value) if name in limits else comparable(value) for name, value in item.items()}
    return [comparable(each) for each in item] if isinstance(item, list) else item


def _names(quotas: Sequence[Quota]) -> list[str]:
    return sorted({name for quota in quotas for name in quota.resources})


def _cluster_queue(quota: Quota, names: Sequence[str]) -> dict[str, Any]:
    """Return the `spec` of a team's ClusterQueue.

    It covers all teams' resources, so that a request beyond the quota waits with a message about the quota.
    """
    limit = {} if quota.borrow else {"borrowingLimit": "0"}
    rows = [{"name": name, "nominalQuota": str(quota.resources.get(name, 0)), **limit} for name in names]
    rows += [{"name": name, "nominalQuota": amount} for name, amount in _UNLIMITED.items()]
    return {
        "cohortName": NAME,
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(quota.namespaces)}
            ]
        },
        "resourceGroups": [
            {
                "coveredResources": [row["name"] for row in rows],
                "flavors": [{"name": NAME, "resources": rows}],
            }
        ],
    }


def _object(kind: str, metadata: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    named = {"apiVersion": API, "kind": kind, "metadata": {**metadata, "labels": dict(OWNED)}}
    return {**named, "spec": dict(spec)} if spec else named


def _quantity(value: Any) -> Any:
    """Return a quantity as a number, or any other value unchanged."""
    match = _QUANTITY.fullmatch(str(value))
    return Decimal(match.group(1)) * _SUFFIXES[match.group(2) or ""] if match else value
