# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare claims with leases, and publish the node's GPUs.

The plugin gives back leases that the kubelet does not know.
"""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Sequence, Tuple

from . import checkpoint, claims, devices
from .claims import ClaimError
from .cluster import Cluster, ClusterError
from .lease_client import LeaseError, Leases

_SLICES = "/apis/%s/resourceslices" % devices.API
_POD = "/api/v1/namespaces/%s/pods/%s"
_CLAIM = "/apis/%s/namespaces/%%s/resourceclaims/%%s" % devices.API


class Plugin:
    """A node's plugin.

    `kubelet` is the kubelet's root folder. `log` writes one line.
    """

    def __init__(self, node: str, cluster: Cluster, leases: Leases, kubelet: Path, log: Callable[[str], None]) -> None:
        self._node, self._cluster, self._leases = node, cluster, leases
        self._kubelet, self._log = kubelet, log
        #: Claims with a lease that the last check did not find in the kubelet's checkpoint.
        self._stale: FrozenSet[str] = frozenset()
        self._problem = ""

    # -- Calls of the kubelet ----------------------------------------------------------------------------------------

    def prepare(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        """Take a lease for each claim.

        If a claim fails, the answer has an error for this claim.
        """
        return {"claims": {claim["uid"]: self._attempt(self._prepare, claim) for claim in request["claims"]}}

    def unprepare(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        """Give back each claim's lease."""
        return {"claims": {claim["uid"]: self._attempt(self._unprepare, claim) for claim in request["claims"]}}

    def _attempt(self, call: Callable[[Mapping[str, Any]], Dict[str, Any]], claim: Mapping[str, Any]) -> Dict[str, Any]:
        try:
            return call(claim)
        except (ClaimError, ClusterError, LeaseError) as error:
            text = "claim %s/%s: %s" % (claim["namespace"], claim["name"], error)
            self._log(text)
            return {"error": text}

    def _prepare(self, claim: Mapping[str, Any]) -> Dict[str, Any]:
        quoted = tuple(urllib.parse.quote(claim[key], safe="") for key in ("namespace", "name"))
        current = self._cluster.find(_CLAIM % quoted)
        if current is None or current["metadata"]["uid"] != claim["uid"]:
            raise ClaimError("it was deleted.")
        pool = self._leases.ask(op="pool")
        found = claims.read(current, self._node, pool)
        if found is None:
            return {"devices": []}
        if isinstance(found, claims.Tenant):
            return {"devices": claims.prepared(self._node, found, found.cdi)}
        shape = {"memory_bytes": found.memory_bytes, "sm_percent": found.sm_percent}
        name = "%s/%s" % (claim["namespace"], claim["name"])
        answer = self._leases.ask(
            op="prepare",
            claim=claim["uid"],
            name=name,
            shape=shape,
            uuids=list(found.uuids),
            priority_class=self._priority_class(current) if pool["by_priority_class"] else "",
        )
        return {"devices": claims.prepared(self._node, found, tuple(answer["cdi"]))}

    def _priority_class(self, claim: Mapping[str, Any]) -> str:
        """Return the priority class that all pods of a claim have, or "".

        The class of a pod never changes.
        """
        found = set()
        for pod in claims.pods(claim):
            path = _POD % tuple(
                urllib.parse.quote(each, safe="") for each in (claim["metadata"]["namespace"], pod.name)
            )
            current = self._cluster.find(path)
            same = current is not None and current["metadata"]["uid"] == pod.uid
            found.add((current["spec"].get("priorityClassName") or "") if current is not None and same else "")
        return found.pop() if len(found) == 1 else ""

    def _unprepare(self, claim: Mapping[str, Any]) -> Dict[str, Any]:
        self._leases.ask(op="unprepare", claim=claim["uid"])
        return {}

    # -- Regular work ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Publish the devices, and give back stale leases.

        Log each problem only once.
        """
        problems = []
        for call in (self.publish, self.give_back_stale):
            try:
                call()
            except (ClusterError, LeaseError) as error:
                problems.append(str(error))
        problem = " ".join(problems)
        if problem and problem != self._problem:
            self._log(problem)
        self._problem = problem

    def publish(self) -> None:
        """Make the node's ResourceSlices match the layout."""
        pool = self._leases.ask(op="pool")
        node = self._cluster.send("GET", "/api/v1/nodes/%s" % urllib.parse.quote(self._node, safe=""))
        uid = node["metadata"]["uid"]
        # The API server permits a kubelet only this selector.
        selected = urllib.parse.quote("spec.nodeName=%s" % self._node)
        listed = self._cluster.send("GET", "%s?fieldSelector=%s" % (_SLICES, selected))["items"]
        current = [item for item in listed if item["spec"]["driver"] == devices.DRIVER]
        shared = devices.slices(self._node, uid, devices.devices(pool, True), devices.newest(current))
        if devices.same(shared, current):
            return
        if any(item["spec"]["devices"] for item in shared) and not self._keeps_shares(shared[0], current):
            shared = devices.slices(self._node, uid, devices.devices(pool, False), devices.newest(current))
            if devices.same(shared, current):
                return
        self._write(shared, current)

    def _keeps_shares(self, item: Mapping[str, Any], current: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the cluster has the feature DRAConsumableCapacity.

        The request is a dry run, so the API server stores nothing.
        """
        if not devices.keeps_shares(item):
            return True
        answer = self._put(item, current, "?dryRun=All")
        return devices.keeps_shares(answer)

    def _write(self, desired: Sequence[Dict[str, Any]], current: Sequence[Mapping[str, Any]]) -> None:
        generation = devices.newest(current) + 1
        for item in desired:
            item["spec"]["pool"]["generation"] = generation
            self._put(item, current)
        names = {item["metadata"]["name"] for item in desired}
        for old in current:
            if old["metadata"]["name"] not in names:
                self._cluster.send("DELETE", "%s/%s" % (_SLICES, old["metadata"]["name"]))
        published: List[str] = [device["name"] for item in desired for device in item["spec"]["devices"]]
        self._log("published %d devices: %s" % (len(published), ", ".join(published)))

    def _put(self, item: Mapping[str, Any], current: Sequence[Mapping[str, Any]], options: str = "") -> Dict[str, Any]:
        name = item["metadata"]["name"]
        known = next((each for each in current if each["metadata"]["name"] == name), None)
        if known is None:
            return self._cluster.send("POST", _SLICES + options, item)
        # The API server refuses a change if the object has changed since the plugin read it.
        metadata = {**item["metadata"], "resourceVersion": known["metadata"]["resourceVersion"]}
        return self._cluster.send("PUT", "%s/%s%s" % (_SLICES, name, options), {**item, "metadata": metadata})

    def give_back_stale(self) -> None:
        """Give back leases whose claims the kubelet does not know, in two checks in a row.

        The kubelet normally gives leases back itself. The kubelet cannot do so if it lost its state, for example
        because an administrator installed the node again.
        """
        known = checkpoint.claims(self._kubelet)
        if known is None:
            self._stale = frozenset()
            return
        stale = frozenset(self._leases.ask(op="claims")["claims"]) - known
        again: Tuple[str, ...] = tuple(sorted(stale & self._stale))
        self._stale = stale
        for uid in again:
            self._leases.ask(op="unprepare", claim=uid)
            self._log("gave back the lease of claim %s, which the kubelet does not know" % uid)
