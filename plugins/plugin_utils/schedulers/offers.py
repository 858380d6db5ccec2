# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer a layout to a scheduler, with one of the backends."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ...module_utils.layout.leases import KUBERNETES
from ...module_utils.layout.types import Layout
from ...module_utils.model import Gpu
from .model import MIXED, Node, Offer, by_entry, refusal
from .node import node_gpus
from .registry import KEYS, any_backend


def offer_node(
    layout: Layout,
    gpus: Sequence[Gpu],
    key: str,
    name: str = "",
    mig_strategy: str = MIXED,
    version: tuple[int, ...] | None = None,
) -> Offer:
    """Return the offer of a node's GPUs by one backend.

    `key` is the backend's key (one of registry.ALL_KEYS). `name` is the node name. `mig_strategy` (one of
    MIG_STRATEGIES) applies only to the device plugin, and `version` only to Slurm. Each refusal lists other backends
    for Kubernetes that can offer all of its entry's GPUs. Raises SelectorError if a selector matches nothing or a GPU
    is selected twice.
    """
    desired = node_gpus(layout, gpus)
    allocator = getattr(any_backend(key), "allocator", None)
    leasing = [
        group
        for group in by_entry(desired)
        if group[0].entry is not None and group[0].entry.leases is not None and group[0].entry.leases.by != allocator
    ]
    if leasing and not _gives_leases(key):
        problem = "it has leases, and a scheduler would offer the same parts of its GPUs"
        cure = "Remove leases, or do not manage the host with this scheduler."
        able = {other: any_backend(other).offer(Node(desired, name)) for other in KEYS if _gives_leases(other)}
        return Offer(
            key,
            refusals=tuple(
                dataclasses.replace(
                    refusal(group, problem, cure),
                    backends=tuple(other for other, offer in able.items() if _offers(offer, group[0].where))
                    if group[0].entry.leases.by == KUBERNETES
                    else (),
                )
                for group in leasing
                if group[0].entry is not None and group[0].entry.leases is not None
            ),
        )
    offer = any_backend(key).offer(Node(desired, name, mig_strategy, version))
    if not offer.refusals:
        return offer
    alternatives = [any_backend(other).offer(Node(desired, name)) for other in KEYS if other != key]
    refusals = (
        dataclasses.replace(
            refused, backends=tuple(other.backend for other in alternatives if _offers(other, refused.where))
        )
        for refused in offer.refusals
    )
    return dataclasses.replace(offer, refusals=tuple(refusals))


def _gives_leases(key: str) -> bool:
    return getattr(any_backend(key), "leases", False)


def _offers(offer: Offer, where: str) -> bool:
    refused = {refusal.where for refusal in offer.refusals}
    return where not in refused | {left_out.where for left_out in offer.left_out}
