# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the result of the filter kubernetes_mapping.

The result is the offer of a layout for a host's current or expected GPUs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from ...module_utils.change.lost_gpus import FAIL, POLICIES, answering
from ...module_utils.errors import FleetError, LayoutError
from ...module_utils.layout.types import Layout
from ...module_utils.model import Gpu, Host, to_data
from ...module_utils.plan.assumed import assumed_gpus, gpus_on_the_bus
from ...module_utils.techniques.forms import parse_layout
from ..host_results import gpu_info, lost_gpu
from ..host_values import Reader
from ..rightsize.observed import host_of
from .kubernetes.backend import label_lines
from .model import MIG_STRATEGIES, MIXED, Offer
from .node import node_gpus
from .offers import offer_node
from .other_offers import offered_gpus
from .registry import KEYS
from .text import lines

# Format of a host's list of GPUs on its PCI bus, with the maximum number of GPUs.
_ON_THE_BUS = [{"address": "pci_address", "device_id!": "pci_device"}, 64]


@dataclasses.dataclass(frozen=True)
class Request:
    """Input of the filter, with unchecked values from the inventory.

    `state` is the host's result of gpu_info. Without a driver, `expected_gpus` (a list of models) replaces it, or if
    that is empty, `pci_gpus` (devices on the host's PCI bus).
    """

    layout: object
    backend: str
    state: dict[str, Any] | None = None
    expected_gpus: Sequence[str] = ()
    pci_gpus: Sequence[dict[str, Any]] = ()
    node: str = ""
    mig_strategy: str = MIXED
    lost: str = FAIL


@dataclasses.dataclass(frozen=True)
class Offered:
    """The offer of a layout, and its input.

    `gpus` is empty if the GPUs are unknown. `problems` has refused entries, and problems with the input.
    """

    offer: Offer
    layout: Layout | None = None
    gpus: Sequence[Gpu] = ()
    warnings: Sequence[str] = ()
    problems: Sequence[str] = ()
    checked: bool = True


def answer(request: Request) -> dict[str, Any]:
    """Return the node's resources, configuration, labels, problems and plan.

    Invalid input raises no error, but is one of the problems.
    """
    found = offered(request, KEYS)
    given = as_data(found)
    if found.gpus and not found.problems:
        given["plan"] = [*lines(found.offer, request.node or "this host"), *found.warnings]
    given["label_lines"] = label_lines(request.node or "this host", found.offer.labels)
    return given


def offered(request: Request, keys: Sequence[str], version: tuple[int, ...] | None = None) -> Offered:
    """Return the requested backend's offer of a layout.

    `keys` are the backends that may be requested. `version` is the scheduler's version. Invalid input raises no error,
    but is one of the problems.
    """
    name, backend, state = request.node or "this host", request.backend, request.state or {}
    warnings: Sequence[str] = ()
    gpus: Sequence[Gpu]
    try:
        _check_word("backend", backend, keys)
        _check_word("mig_strategy", request.mig_strategy, MIG_STRATEGIES)
        _check_word("lost", request.lost, POLICIES)
        layout = parse_layout(request.layout)
        if state.get("driver_present") is True:
            host = _host(name, state)
            answers = answering(layout, host, request.lost)
            layout, warnings, gpus = answers.layout, answers.warnings, host.gpus
        else:
            gpus = _gpus(name, layout, request.expected_gpus, request.pci_gpus)
        offer = Offer(backend)
        if gpus:
            offer = offer_node(layout, gpus, backend, request.node, request.mig_strategy, version)
    except LayoutError as error:
        return Offered(Offer(backend), problems=[str(problem) for problem in error.problems])
    except FleetError as error:
        return Offered(Offer(backend), problems=[str(error)])
    return Offered(offer, layout, gpus, warnings, list(map(str, offer.refusals)), checked=bool(gpus))


def as_data(found: Offered) -> dict[str, Any]:
    """Return an offer as plain data, with the offered GPUs and an empty plan."""
    known = found.layout is not None and found.gpus and not found.problems
    gpus = offered_gpus(found.offer, node_gpus(found.layout, found.gpus)) if known and found.layout else []
    return dict(to_data(found.offer), problems=list(found.problems), checked=found.checked, plan=[], offered=gpus)


def _host(name: str, state: dict[str, Any]) -> Host:
    """Convert a result of gpu_info to a Host, with its lost GPUs."""
    read = gpu_info(name, state)
    lost = tuple(lost_gpu(row) for row in read.get("lost_gpus") or ())
    return dataclasses.replace(host_of(name, read), lost=lost)


def _gpus(name: str, layout: Layout, expected_gpus: Sequence[str], pci_gpus: Sequence[dict[str, Any]]) -> Sequence[Gpu]:
    """Return the expected GPUs, or the GPUs on the PCI bus if none are expected.

    Returns an empty list if the layout selects GPUs by values that only a driver reports.
    """
    if any(selector.kind in ("uuid", "pci") for entry in layout.entries for selector in entry.selectors):
        return ()
    if expected_gpus:
        return assumed_gpus(expected_gpus)
    rows = Reader(name).read("pci_gpus", pci_gpus, _ON_THE_BUS)
    return gpus_on_the_bus([(gpu.get("address", "").lower(), gpu["device_id"]) for gpu in rows])


def _check_word(option: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise FleetError(option, '"%.60s" is not a value of this option' % word, "Use one of %s." % ", ".join(words))
