# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the GPUs of a node as Slurm's generic resources (GRES).

Sources: https://slurm.schedmd.com/gres.html, https://slurm.schedmd.com/gres.conf.html, and tests with Slurm 22.05 and 24.11.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Sequence

from ...techniques.access import Clients, Turns
from ..model import Node, NodeGpu, Offer, Refusal, Request, by_entry, gpus_text, refusal
from .devices import desired, gpu_types
from .gres import GPU, MPS, QUOTA, SHARD, Gres, joined
from .quotas import leases_of, quota_gres, quota_notes, refuse_quotas, without_leases

KEY = "slurm"
# gres/mps counts percent of the GPU's SMs (gres.html, "MPS Management").
PERCENT = 100
# First release in which shards on a node do not split the MIG devices' files (NEWS of 23.02.7: "gpu/nvml - Fix issue
# that resulted in the wrong MIG devices being constrained to a job"). In 22.05, jobs on such a node run without a GPU.
SHARDS_BESIDE_MIG = (23, 2, 7)
# Release with which leases of jobs were tested. With 22.05.8, jobs had no lease until slurmd restarted, even after
# `scontrol reconfigure`.
LEASES = (24, 11)
_CURE = "Change the entry."


def offer(node: Node) -> Offer:
    """Return the GRES of the node, or the refused entries."""
    listed = dataclasses.replace(node, gpus=without_leases(node.gpus))
    refusals = [
        *_refuse_others(listed),
        *_refuse_nameless(listed),
        *_refuse_clients(listed),
        *_refuse_shards(listed),
        *_refuse_leases(node),
        *refuse_quotas(node.gpus),
    ]
    if refusals:
        return Offer(KEY, refusals=tuple(refusals))
    gres = node_gres(node.gpus)
    names = list(dict.fromkeys(each.name for each in gres))
    config = {
        "Gres": joined(gres),
        "GresTypes": names,
        "AccountingStorageTRES": [
            *("gres/%s" % name for name in names),
            *("gres/%s" % each.kind for each in gres if each.type),
        ],
    }
    return Offer(
        KEY,
        {each.kind: each.count for each in gres},
        config if gres else {},
        requests=tuple(_requests(node.gpus)),
        notes=tuple(_notes(node.gpus)),
    )


def node_gres(gpus: Sequence[NodeGpu]) -> list[Gres]:
    """Return the layout's GRES in the order of the node's `Gres=`."""
    counts = Counter(device.type for device in desired(gpus))
    return [*(Gres(GPU, kind, count) for kind, count in counts.items()), *shared_gres(gpus)]


def shared_gres(gpus: Sequence[NodeGpu]) -> list[Gres]:
    """Return the GRES of shared GPUs: shards, gres/mps and quotas."""
    gres = []
    shards = sum(replicas(each) for each in gpus)
    if shards:
        gres.append(Gres(SHARD, "", shards))
    if any(isinstance(each.access, Clients) for each in gpus):
        gres.append(Gres(MPS, "", PERCENT))
    return [*gres, *quota_gres(gpus)]


def room(gpus: Sequence[NodeGpu]) -> int:
    """Return the maximum number of devices that the GPUs can have.

    Assumes that each GPU's MIG mode stays as it is.
    """
    largest = 0
    for each in without_leases(gpus):
        most = max((profile.max_instances for profile in each.gpu.mig.profiles), default=0)
        largest += 1 if each.instances is None else max(most, len(each.instances))
    return largest


def replicas(each: NodeGpu) -> int:
    """Return the number of shards of a GPU, or 0 if jobs do not share it."""
    return each.access.pods if isinstance(each.access, Turns) and each.access.pods > 1 else 0


def _refuse_others(node: Node) -> list[Refusal]:
    """Refuse techniques without a GRES. For example, shards have no quotas."""
    found = []
    for group in by_entry(node.gpus):
        here = group[0]
        if here.technique is not None and here.access is None:
            found.append(refusal(group, "Slurm does not support %s" % here.technique.title, _CURE))
        inside = next(
            (part for part in here.instances or () if part.technique and not isinstance(part.access, Clients)), None
        )
        if inside is not None and inside.technique is not None:
            found.append(refusal(group, "Slurm has no %s inside MIG instances" % inside.technique.title, _CURE))
    return found


def _refuse_nameless(node: Node) -> list[Refusal]:
    """Refuse GPUs without a name.

    Slurm refuses a node with both typed and untyped GRES of one name.
    """
    types = gpu_types(each.gpu for each in node.gpus)
    nameless = [each for each in node.gpus if each.instances is None and not types[each.gpu.uuid]]
    problem = "the driver reports no model of the GPU, and Slurm refuses GRES without a type beside GRES with types"
    return [refusal(group, problem, "Check the GPU with nvidia-smi -L.") for group in by_entry(nameless)]


def _refuse_clients(node: Node) -> list[Refusal]:
    found = []
    served = [each for each in node.gpus if isinstance(each.access, Clients)]
    partitioned = [each.gpu.index for each in node.gpus if each.instances is not None]
    sharded = [each.gpu.index for each in node.gpus if replicas(each)]
    for group in by_entry(served):
        access = group[0].access
        if not isinstance(access, Clients):
            raise AssertionError("a shared GPU without clients")
        if len(served) > 1:
            gpus = gpus_text([each.gpu.index for each in served])
            found.append(
                refusal(group, "Slurm has gres/mps on one GPU of a node, and the layout has it on %s" % gpus, _CURE)
            )
        if partitioned:
            problem = "Slurm has no gres/mps on a node with MIG, and %s in MIG mode" % _are(partitioned)
            found.append(refusal(group, problem, _CURE))
        if sharded:
            # With both, Slurm 22.05 and 24.11 set no CUDA_VISIBLE_DEVICES for shards, and 0 percent for MPS: each
            # plugin sets the environment, and the last one in GresTypes wins.
            problem = (
                "Slurm sets wrong devices for jobs if gres/mps and gres/shard are used together, and %s shards"
                % (_have(sharded))
            )
            found.append(refusal(group, problem, _CURE))
        share, clients = access.sm_percent, access.pods
        if share * clients > PERCENT:
            problem = "Slurm divides 100 percent of the SMs, and %d clients with %d percent need more" % (
                clients,
                share,
            )
            found.append(refusal(group, problem, _CURE))
    return found


def _refuse_shards(node: Node) -> list[Refusal]:
    partitioned = [each.gpu.index for each in node.gpus if each.instances is not None]
    if not partitioned or (node.version is not None and node.version >= SHARDS_BESIDE_MIG):
        return []
    shown = "an unknown version" if node.version is None else version_text(node.version)
    problem = (
        "Slurm before %s gives jobs wrong devices if a node has shards and MIG, %s in MIG mode, and the node runs %s"
        % (
            version_text(SHARDS_BESIDE_MIG),
            _are(partitioned),
            shown,
        )
    )
    cure = "Update Slurm, or change the entry."
    return [refusal(group, problem, cure) for group in by_entry([each for each in node.gpus if replicas(each)])]


def _refuse_leases(node: Node) -> list[Refusal]:
    if node.version is None or node.version >= LEASES:
        return []
    problem = "jobs get leases with Slurm %s or later, and the node runs %s" % (
        version_text(LEASES),
        version_text(node.version),
    )
    groups = by_entry([each for each in node.gpus if leases_of(each) is not None])
    return [refusal(group, problem, "Update Slurm, or change the entry.") for group in groups]


def version_text(version: Sequence[int]) -> str:
    """Return a version as Slurm writes it: 23.02.7."""
    return ".".join("%02d" % part if place < 2 else str(part) for place, part in enumerate(version))


def _requests(gpus: Sequence[NodeGpu]) -> list[Request]:
    found = []
    for group in by_entry(gpus):
        access = group[0].access
        if isinstance(access, Clients):
            found.append(Request(group[0].where, access.name, {MPS: access.sm_percent}))
        elif replicas(group[0]):
            found.append(Request(group[0].where, SHARD, {SHARD: 1}))
        elif leases_of(group[0]) is not None:
            found.append(Request(group[0].where, QUOTA, {QUOTA: 1}))
    return found


def _notes(gpus: Sequence[NodeGpu]) -> list[str]:
    notes = quota_notes(gpus)
    empty = [each.gpu.index for each in gpus if each.instances == ()]
    if empty:
        notes.append(
            "%s no MIG instance, so Slurm cannot allocate %s." % (_have(empty), "them" if len(empty) > 1 else "it")
        )
    inside = [each.gpu.index for each in gpus if any(isinstance(part.access, Clients) for part in each.instances or ())]
    if inside:
        notes.append(
            "%s: Slurm gives an instance with MPS to one job. The role's TaskProlog connects the job to the daemon."
            % gpus_text(inside)
        )
    if any(isinstance(each.access, Clients) for each in gpus):
        notes.append(
            "Jobs with gres/mps use the layout's MPS daemon. Remove the MPS daemons of Slurm's example Prolog."
        )
    unlisted = [each.gpu.index for each in gpus if each.entry is None]
    if unlisted:
        notes.append("No entry lists %s, so Slurm gets the current state." % gpus_text(unlisted))
    return notes


def _are(indexes: Sequence[int]) -> str:
    return "%s %s" % (gpus_text(indexes), "are" if len(indexes) > 1 else "is")


def _have(indexes: Sequence[int]) -> str:
    return "%s %s" % (gpus_text(indexes), "have" if len(indexes) > 1 else "has")
