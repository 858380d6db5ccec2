# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filter kubernetes_mapping answers: a layout mapped for a host as it is, or as it is expected."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ...module_utils.assumed import assumed_gpus, gpus_on_the_bus
from ...module_utils.change.lost_gpus import FAIL, POLICIES, answering
from ...module_utils.errors import FleetError, LayoutError
from ...module_utils.model import to_data
from ...module_utils.techniques.forms import parse_layout
from ..host_results import gpu_info, lost_gpu
from ..host_values import Reader
from ..rightsize.observed import host_of
from .device_plugin import CONFIG_LABEL
from .mapping import map_node
from .model import BACKENDS, MIG_STRATEGIES, MIXED, NodeMapping
from .text import lines

#: What a host says of its PCI bus: at most so many GPUs.
_ON_THE_BUS = [{"address": "pci_address", "device_id!": "pci_device"}, 64]


@dataclasses.dataclass(frozen=True)
class Request:
    """What the filter is asked: raw values of the inventory, and what gpu_info told of the host.

    Where no driver answers, `expected_gpus` (models) or else `pci_gpus` (what the host says of its PCI bus) stand in for `state`.
    """

    layout: object
    backend: str
    state: dict | None = None
    expected_gpus: Sequence[str] = ()
    pci_gpus: Sequence[dict] = ()
    node: str = ""
    mig_strategy: str = MIXED
    lost: str = FAIL


def answer(asked: Request) -> dict:
    """Return the resources, configuration, labels, problems and plan of the node.

    Mistakes in what is asked are among the problems: nothing is raised for them.
    """
    name, backend, state, warnings = asked.node or "this host", asked.backend, asked.state or {}, ()
    try:
        _check_word("backend", backend, BACKENDS)
        _check_word("mig_strategy", asked.mig_strategy, MIG_STRATEGIES)
        _check_word("lost", asked.lost, POLICIES)
        layout = parse_layout(asked.layout)
        if state.get("driver_present") is True:
            host = _host(name, state)
            answers = answering(layout, host, asked.lost)
            layout, warnings, gpus = answers.layout, answers.warnings, host.gpus
        else:
            gpus = _gpus(name, layout, asked.expected_gpus, asked.pci_gpus)
        mapping = map_node(layout, gpus, backend, asked.node, asked.mig_strategy) if gpus else NodeMapping(backend)
    except LayoutError as error:
        return _answer(NodeMapping(backend), [str(problem) for problem in error.problems], checked=True)
    except FleetError as error:
        return _answer(NodeMapping(backend), [str(error)], checked=True)
    given = _answer(mapping, list(map(str, mapping.refusals)), checked=bool(gpus))
    if gpus and not mapping.refusals:
        given["plan"] = [*lines(mapping, name), *warnings]
    return given


def _host(name, state):
    """The host that gpu_info told of, lost GPUs included."""
    read = gpu_info(name, state)
    lost = tuple(lost_gpu(row) for row in read.get("lost_gpus") or ())
    return dataclasses.replace(host_of(name, read), lost=lost)


def _gpus(name, layout, expected_gpus, pci_gpus):
    """The GPUs that are expected, or on the host's bus; none where only a driver could say which GPUs the layout names."""
    if any(selector.kind in ("uuid", "pci") for entry in layout.entries for selector in entry.selectors):
        return ()
    if expected_gpus:
        return assumed_gpus(expected_gpus)
    found = Reader(name).read("pci_gpus", pci_gpus, _ON_THE_BUS)
    return gpus_on_the_bus([(gpu.get("address", "").lower(), gpu["device_id"]) for gpu in found])


def _check_word(option, word, words):
    if word not in words:
        raise FleetError(option, '"%.60s" is no value of this option' % word, "Write one of %s." % ", ".join(words))


def _answer(mapping, problems, checked):
    data = to_data(mapping)
    return dict(data, config_name=mapping.labels.get(CONFIG_LABEL, ""), problems=problems, checked=checked, plan=[])
