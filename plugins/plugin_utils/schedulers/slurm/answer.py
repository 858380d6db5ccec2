# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the result of the filter slurm_mapping.

The result is the GRES of a layout, compared with the current node in Slurm.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Mapping, Sequence

from ....module_utils.errors import FleetError
from ....module_utils.model import Gpu
from ....module_utils.slurm.mig_devices import DeviceNodes
from ...host_values import Reader
from ..model import Node, Offer
from ..node import node_gpus
from ..request import Offered, Request, as_data, offered
from .change import Current, Desired, Job, change, needs_restart
from .devices import desired as desired_devices
from .devices import matches_layout
from .gres import GPU, MPS, SHARD, Gres, joined, parse
from .gres_conf import GresConfError, lines, uuids
from .offer import KEY, node_gres, room, shared_gres
from .record import in_order, record
from .topology import MOST_THREADS, Core, Cpus, parse_cpus, placement

# Format of a result of slurm_info. Its limits are well above the needs of one node.
_SLURM_INFO = {
    "node!": "name",
    "version!": "version",
    "node_version": "version?",
    "gres!": "text",
    "gres_types!": "text",
    "jobs!": [
        {
            "id!": "name",
            "gres": [{"name!": "name", "count!": "count", "numbers": ["small", 1024]}, 16],
        },
        4096,
    ],
    "recorded": [{"type!": "text", "uuid": "text"}, 1024],
    "minors!": [{"uuid!": "gpu_uuid", "minor!": "small", "local_cpus": "text"}, 64],
    "sockets": "small?",
    "cores_per_socket": "small?",
    "cores": [{"package!": "small", "cpus!": "text"}, 8192],
    "topology_plugin": "text",
    "capabilities!": [{"name!": "text", "number!": "count"}, 16384],
    "gres_conf": ["text", 4096],
    "pad_problem": "text",
}
_VERSION = re.compile(r"([0-9]{2})\.([0-9]{2})(?:\.([0-9]{1,3}))?")
_UNCHECKED = "the host did not report whether jobs can get one"
_NOTHING: dict[str, Any] = {"gres": "", "gres_conf": [], "devices": [], "current": [], "restart": False, "change": {}}


def answer(request: Request, node: Mapping[str, Any] | None, kept: Sequence[str] = ()) -> dict[str, Any]:
    """Return a node's GRES, lines of gres.conf and pending change.

    `node` is a result of slurm_info, or None if Slurm was not asked. `kept` has the UUIDs of MIG devices that the
    layout's plan keeps. Invalid input raises no error, but is one of the problems.
    """
    name = request.node or "this host"
    try:
        info = Reader(name).read("slurm_info", node, _SLURM_INFO) if node else None
        current = _current(info) if info else None
        cpus = _cpus(info) if info else Cpus()
        staying = frozenset(Reader(name).read("kept", list(kept), ["mig_uuid", 1024]))
    except FleetError as error:
        return {**as_data(Offered(Offer(KEY), problems=[str(error)])), **_NOTHING}
    found = offered(dataclasses.replace(request, backend=KEY), (KEY,), _version(info) if info else None)
    given = {**as_data(found), **_NOTHING}
    if found.problems or not found.gpus or found.layout is None:
        return given
    desired = node_gpus(found.layout, found.gpus)
    gres = node_gres(desired)
    given["gres"] = joined(gres)
    if info is None or current is None:
        given["plan"] = ["node %s: gres %s" % (name, given["gres"] or "none"), *found.offer.notes, *found.warnings]
        return given
    name = info["node"]
    refused = _shared_types(name, gres, info["gres_types"])
    if refused:
        return {**given, **_NOTHING, "problems": [refused]}
    nodes = _device_nodes(info)
    current = dataclasses.replace(current, record=_record(current, info, found.gpus, nodes))
    devices = desired_devices(desired, staying)
    pending = change(name, Desired(devices, shared_gres(desired), room(desired)), current)
    missing: list[str] = []
    if all(map(matches_layout, desired)):
        near = placement(pending.order, cpus, current.version)
        missing = ["node %s: %s" % (name, note) for note in near.notes]
        try:
            given.update(gres_conf=lines(Node(desired, name), nodes, pending.order, near), devices=uuids(pending.order))
        except GresConfError as error:
            # This error blocks only gres.conf and not the layout, because the driver creates missing device nodes on
            # demand.
            missing = [str(error)]
    line = pending.line or "node %s: gres %s (no change)" % (name, joined(current.gres) or "none")
    given.update(
        gres=pending.gres,
        current=[{"type": kind, "uuid": uuid} for kind, uuid in current.record],
        restart=needs_restart(current.version),
        change={"way": pending.way, "jobs": list(pending.jobs), "restart": pending.restart},
        plan=[line, *filter(None, [pending.note]), *missing, *found.offer.notes, *found.warnings],
    )
    return given


def _current(info: Mapping[str, Any]) -> Current:
    gres, others = parse(info["gres"], "node %s" % info["node"])
    jobs = tuple(Job(job["id"], _job_gres(job.get("gres"))) for job in info["jobs"])
    return Current(gres, others, jobs=jobs, version=_version(info), pad_problem=info.get("pad_problem", _UNCHECKED))


def _job_gres(rows: Sequence[Mapping[str, Any]] | None) -> tuple[tuple[str, int, tuple[int, ...] | None], ...]:
    """Return a job's GRES, or if they are unknown, one GPU without a number."""
    if rows is None:
        return ((GPU, 1, None),)
    return tuple((row["name"], row["count"], tuple(row["numbers"]) if row.get("numbers") else None) for row in rows)


def removal(node: Mapping[str, Any], host: str) -> dict[str, Any]:
    """Return a result like `answer`, for a node that gives up its GPU GRES."""
    name = host or "this host"
    empty = {"problems": [], "checked": True, "plan": [], "config": {}, **_NOTHING}
    try:
        info = Reader(name).read("slurm_info", node, _SLURM_INFO)
        current = _current(info)
    except FleetError as error:
        return {**empty, "problems": [str(error)]}
    pending = change(info["node"], Desired((), keeps_total=False), current)
    return {
        **empty,
        "plan": [pending.line or "node %s: gres none (no change)" % info["node"]],
        "gres": pending.gres,
        "restart": needs_restart(current.version),
        "change": {"way": pending.way, "jobs": list(pending.jobs), "restart": pending.restart},
    }


def _record(
    current: Current, info: Mapping[str, Any], gpus: Sequence[Gpu], nodes: DeviceNodes
) -> tuple[tuple[str, str], ...]:
    """Return type and UUID of each device that Slurm has for the node, by number.

    These are the recorded devices if they match the node's GRES, and otherwise those in gres.conf. The record is
    preferred: after an interrupted change of the layout, the files in gres.conf may belong to new devices.
    """
    rows = [(row["type"], row.get("uuid") or "") for row in info.get("recorded") or ()]
    return in_order(rows, current.gres) or record(info.get("gres_conf") or (), info["node"], current.gres, gpus, nodes)


def _version(info: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the older one of slurmctld's and slurmd's versions.

    Returns None if one of them is unknown. A node that has not registered yet has slurmctld's version.
    """
    texts = [info["version"], info.get("node_version") or info["version"]]
    matches = [_VERSION.match(text) for text in texts]
    versions = [tuple(int(part or 0) for part in match.groups()) for match in matches if match]
    return min(versions) if len(versions) == len(texts) else None


def _cpus(info: Mapping[str, Any]) -> Cpus:
    where = "node %s" % info["node"]
    cores = [Core(row["package"], parse_cpus(row["cpus"], where, MOST_THREADS)) for row in info.get("cores") or ()]
    local = {row["uuid"]: parse_cpus(row.get("local_cpus") or "", where) for row in info["minors"]}
    known = [core for core in cores if core.cpus]
    return Cpus(info.get("sockets") or 0, info.get("cores_per_socket") or 0, known, local)


def _device_nodes(info: Mapping[str, Any]) -> DeviceNodes:
    return DeviceNodes(
        {row["uuid"]: row["minor"] for row in info["minors"]},
        {row["name"]: row["number"] for row in info["capabilities"]},
    )


def _shared_types(name: str, gres: Sequence[Gres], types: str) -> str:
    """Return a problem if the cluster has both shards and gres/mps.

    In such a cluster, Slurm 22.05 and 24.11 set no CUDA_VISIBLE_DEVICES for jobs on shards, and 0 percent for jobs with
    gres/mps.
    """
    configured = types.split(",")
    for used, other in ((SHARD, MPS), (MPS, SHARD)):
        if other in configured and any(each.name == used for each in gres):
            return (
                "node %s: the layout needs gres/%s, and Slurm sets wrong devices for its jobs while GresTypes also has %s. "
                "Remove %s from GresTypes in slurm.conf." % (name, used, other, other)
            )
    return ""
