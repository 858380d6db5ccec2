# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interface of a backend: offer the GPUs of a node, and change the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Protocol, Sequence

from .model import Node, Offer


@dataclass(frozen=True)
class Place:
    """Name of the node, and location of the backend's configuration in the cluster."""

    node: str
    namespace: str
    config_map: str


@dataclass(frozen=True)
class Changes:
    """Pending changes of a node.

    labels        node labels to set
    annotations   node annotations to set with them
    opt_out       node metadata to set before the layout of the host changes, or empty
    data          keys of the ConfigMap to write, with their content
    pending       resources that differ: name, (planned, offered)
    pending_text  the same as text, with the fix if the numbers show the cause
    restart       whether the backend's plugin must restart to notice changed devices
    problems      reasons against any change
    lines         lines of the plan
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    opt_out: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    pending_text: str = ""
    restart: bool = False
    problems: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def in_step(self) -> bool:
        """Return whether the node matches the offer."""
        return not (self.problems or self.labels or self.data or self.pending)


@dataclass(frozen=True)
class Removal:
    """Undo of the changes of a node.

    None removes a label, an annotation, or a key of the ConfigMap (`data`).
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, None] = field(default_factory=dict)
    data: Mapping[str, None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Backend(Protocol):
    """A component that offers the GPUs of a node to a scheduler.

    key           its value of `gpu_kubernetes_backend`
    applies       whether the collection writes to the cluster. Without it, the offer is only printed.
    config_label  node label that selects a key of the ConfigMap, or empty if the backend does not use one
    empty_config  content of a key of the ConfigMap that changes nothing

    Without `config_label`, the role neither installs nor restarts a plugin of the backend.
    """

    key: str
    applies: bool
    config_label: str
    empty_config: str

    def offer(self, node: Node) -> Offer:
        """Return the offer of the node's GPUs, or refusals."""

    def changes(self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        `offer` is the result of request.answer. `node` and `config_map` are objects of the API, or None. A missing ConfigMap is
        created.
        """

    def removal(self, name: str, nodes: Sequence[Any], config_map: Any) -> Removal:
        """Return the undo of the node `name`.

        `nodes` are the node itself and all nodes with `config_label`.
        """
