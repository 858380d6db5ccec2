# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query the Kubernetes API for the pods that hold GPUs.

Hosts report the UIDs of the pods on their GPUs (docs/holders.md). The API returns the namespace, name, owner and labels
of a pod. Each query is limited to the node that the inventory lists for the host, so that a host cannot claim other
nodes' pods. The controller sends the queries, and never copies a kubeconfig to a host.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.holders.model import KUBELET
from ...module_utils.kubernetes.client import core_api, has_client, pods_of
from ..host_values import text
from ..plain import plain
from .model import Pod

#: Host variables that describe the cluster, without the prefix `gpu_kubernetes_`.
KEYS = ("backend", "node", "kubeconfig", "context", "delegate_to")
#: Values of `delegate_to` that mean the controller.
_HERE = ("localhost", "127.0.0.1", "::1")
#: Maximum number of concurrent requests.
_AT_A_TIME = 8
#: Label that the Deployment controller adds to pods: https://kubernetes.io/docs/concepts/workloads/controllers/deployment/
_TEMPLATE_HASH = "pod-template-hash"
#: Maximum number of a pod's labels that are kept. The API has no limit.
_MOST_LABELS = 64
#: Maximum lengths in the API of a name, a label key with its prefix, and a label value.
_NAME, _KEY, _VALUE = 253, 317, 63


class PlaceError(FleetError):
    """The option `kubernetes` has an unknown key or an invalid value."""


@dataclass(frozen=True)
class Place:
    """A host's node name, and the access to its cluster.

    If `kubeconfig` or `context` is empty, kubectl's default applies.
    """

    node: str
    kubeconfig: str = ""
    context: str = ""
    delegate_to: str = "localhost"


def places(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Place]:
    """Return the Place of each host that is in a cluster.

    `given` has the values of each variable in KEYS, by host. Hosts without a backend are not in a cluster. Raises
    PlaceError.
    """
    given = plain(given)
    for key in given:
        if key not in KEYS:
            raise PlaceError("kubernetes", "unknown key %r" % key, "Known keys: %s." % ", ".join(KEYS))
    for key, by_host in given.items():
        for host, value in by_host.items():
            if not isinstance(value, str):
                where = "kubernetes.%s of %s" % (key, host)
                raise PlaceError(where, "%r is not text" % (value,), "Write text.")
    found = {}
    for host, backend in given.get("backend", {}).items():
        if backend:
            named = {key: given.get(key, {}).get(host) for key in KEYS[1:]}
            found[host] = Place(**{"node": host, **{key: value for key, value in named.items() if value}})
    return found


def look_up(
    states: Mapping[str, Mapping[str, Any]], where: Mapping[str, Place]
) -> tuple[dict[str, dict[str, Pod]], list[str]]:
    """Query the API for the pods that hold GPUs according to the results of gpu_info.

    Makes one request for each host with pods on its GPUs. Returns (pods by host and UID, sentences about unknown pods).
    """
    wanted = {host: uids for host in where if host in states and (uids := set(_uids(states[host])))}
    if not wanted:
        return {}, []
    if not has_client():
        cure = "Install the Python package kubernetes on the controller."
        return {}, ["Owners and labels of pods on %s are unknown. %s" % (_hosts(wanted), cure)]
    elsewhere = {host for host in wanted if where[host].delegate_to not in _HERE}
    missing = []
    if elsewhere:
        missing.append(
            "Owners and labels of pods on %s are unknown: the audit queries the Kubernetes API only from the controller,"
            " and gpu_kubernetes_delegate_to names another host." % _hosts(elsewhere)
        )
    asked = sorted(set(wanted) - elsewhere)
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        answers = list(pool.map(lambda host: _of_node(where[host], wanted[host]), asked))
    found = {}
    for host, answer in zip(asked, answers):
        if isinstance(answer, FleetError):
            missing.append("Owners and labels of pods on %s are unknown. %s" % (host, answer))
        else:
            found[host] = answer
    return found, missing


def named(
    states: Mapping[str, Mapping[str, Any]], pods: Mapping[str, Mapping[str, Pod]]
) -> dict[str, Mapping[str, Any]]:
    """Return results of gpu_info with pods' names and owners in the holders' text.

    `pods` is a result of `look_up`. For a pod that the API does not know, the text has the name that the host reported.
    """
    return {host: _named(state, pods[host]) if pods.get(host) else state for host, state in states.items()}


def pod_of(item: Mapping[str, Any]) -> Pod:
    """Convert an item in an API response to a Pod.

    If a Deployment's ReplicaSet owns the pod, `owner` is the Deployment.
    """
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    owners = metadata.get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    kind, name = (text(owner["kind"], _VALUE), text(owner["name"], _NAME)) if owner else ("", "")
    template = labels.get(_TEMPLATE_HASH)
    if kind == "ReplicaSet" and template and name.endswith("-%s" % template):
        kind, name = "Deployment", name[: -len(template) - 1]
    return Pod(
        text(metadata["namespace"], _VALUE),
        text(metadata["name"], _NAME),
        "%s/%s" % (kind, name) if owner else "",
        dict(sorted((text(key, _KEY), text(value, _VALUE)) for key, value in labels.items())[:_MOST_LABELS]),
    )


def _named(state: Mapping[str, Any], pods: Mapping[str, Pod]) -> dict[str, Any]:
    def with_names(part: Mapping[str, Any]) -> dict[str, Any]:
        rows = part.get("holders")
        return {**part, "holders": [_row(row, pods.get(str(row.get("job")))) for row in rows]} if rows else dict(part)

    gpus = []
    for gpu in map(with_names, state.get("gpus") or ()):
        mig = gpu.get("mig") or {}
        instances = mig.get("instances")
        gpus.append({**gpu, "mig": {**mig, "instances": [*map(with_names, instances)]}} if instances else gpu)
    return {**state, "gpus": gpus}


def _row(row: Mapping[str, Any], pod: Pod | None) -> Mapping[str, Any]:
    if pod is None:
        return row
    return {**row, "who": str(pod) if row.get("kind") == KUBELET else "%s, %s" % (row.get("who"), pod)}


def _of_node(place: Place, uids: set[str]) -> dict[str, Pod] | FleetError:
    try:
        items = pods_of(core_api(place.kubeconfig, place.context), place.node)
    except FleetError as error:
        return error
    return {item["metadata"]["uid"]: pod_of(item) for item in items if item["metadata"]["uid"] in uids}


def _uids(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pod UIDs of all holders of a host's GPUs.

    Skips numeric job IDs, which are Slurm jobs.
    """
    for gpu in state.get("gpus") or ():
        for row in (gpu, *((gpu.get("mig") or {}).get("instances") or ())):
            for holder in row.get("holders") or ():
                job = str(holder.get("job") or "")
                if job and not job.isdecimal():
                    yield job


def _hosts(names: Any, most: int = 8) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
