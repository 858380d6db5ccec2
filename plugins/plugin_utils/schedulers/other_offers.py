# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find GPUs that two schedulers or components would offer at once. Pure.

Each would give the same GPU to another job or pod.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from ..host_values import text
from .model import NodeGpu, Offer
from .protocol import Seen

# Maximum number of GPUs in a message.
_MOST = 16


def offered_gpus(offer: Offer, gpus: Sequence[NodeGpu]) -> list[dict[str, Any]]:
    """Return the offered GPUs, each with its entry (`where`), index and UUID."""
    left_out = {(group.where, index) for group in offer.left_out for index in group.gpus}
    return [
        {"where": each.where, "index": each.gpu.index, "uuid": each.gpu.uuid if each.has_uuid else ""}
        for each in gpus
        if (each.where, each.gpu.index) not in left_out and each.instances != ()
    ]


def between_schedulers(node: str, offers: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a problem for each two schedulers that would offer the same GPUs.

    `offers` has each scheduler's result of `offered_gpus`, by the variable that requests the scheduler.
    """
    names = list(offers)
    problem = (
        "node %s: %s and %s would offer the same GPUs: %s. Set only one of the two variables for the host. "
        "Nothing was changed."
    )
    problems = []
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            indexes = {gpu["index"] for gpu in offers[second]}
            both = [gpu for gpu in offers[first] if gpu["index"] in indexes]
            if both:
                problems.append(problem % (node, first, second, _titles(both)))
    return problems


def in_cluster(node: str, component: str, gpus: Sequence[Mapping[str, Any]], seen: Iterable[Seen]) -> list[str]:
    """Return a problem for each other component that already offers the GPUs.

    `component` would offer `gpus`, a result of `offered_gpus`. `seen` has other components' current offers.
    """
    problem = "node %s: %s offers %s, and %s would offer the same GPUs again: %s. %s Nothing was changed."
    offers = list(seen)
    exact = {name for offer in offers if offer.uuids for name in offer.resources}
    problems = []
    for offer in offers:
        # Two plugins can have the same resource name. The one that registered the GPUs offers it.
        resources = {name: count for name, count in offer.resources.items() if offer.uuids or name not in exact}
        both = [gpu for gpu in gpus if not offer.uuids or gpu["uuid"] in offer.uuids]
        if resources and both:
            amounts = ", ".join("%s %d" % item for item in resources.items())
            problems.append(problem % (node, offer.component, amounts, component, _titles(both), offer.cure))
    return problems


def _titles(gpus: Sequence[Mapping[str, Any]]) -> str:
    titles = []
    for gpu in gpus[:_MOST]:
        uuid = " (%s)" % text(gpu["uuid"], 64) if gpu["uuid"] else ""
        place = "" if gpu["where"].startswith("gpu ") else "%s " % gpu["where"]
        titles.append("%sgpu %d%s" % (place, gpu["index"], uuid))
    more = len(gpus) - _MOST
    return ", ".join(titles + (["and %d more" % more] if more > 0 else []))
