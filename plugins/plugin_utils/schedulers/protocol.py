# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a backend: offer a node's GPUs, and change the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Protocol, Sequence

from .model import Node, Offer


@dataclass(frozen=True)
class Place:
    """The node name, and where the backend's configuration is in the cluster.

    selector          label selector of the component's pods
    claim_namespaces  namespaces whose pods use claims of the node's GPUs
    changing          UUIDs of the GPUs that the layout will change
    """

    node: str
    namespace: str
    config_map: str
    selector: str = ""
    claim_namespaces: tuple[str, ...] = ()
    changing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changes:
    """Pending changes of a node.

    labels        node labels to set. The value None removes a label
    annotations   node annotations to set together with the labels
    opt_out       node metadata to set before the layout of the host is changed, or empty
    data          keys of the ConfigMap to write, with their content
    pending       resources that differ from the plan: (planned, offered) by resource name
    pending_text  `pending` as text, with the fix if the numbers show the cause
    restart       true if the backend's component must be restarted to detect changed devices
    delete        objects of the API to delete first, each with `apiVersion`, `kind` and the names in `metadata`
    write         objects of the API to create or change. Fields that are missing in an object are kept
    lost          pods of the node with a device that no longer exists: (UID, namespace/name)
    replaced      pods of the node with GPUs of another component, which must end first: (UID, namespace/name)
    cordon        JSON patch of the node that cordons GPUs before the layout changes
    uncordon      JSON patch of the node that removes these cordons
    cordoned      names of the GPUs that `uncordon` releases
    unseen        reason why the scheduler may not know the node's cordons yet, or empty
    problems      reasons why no change may be made
    warnings      dangers that need no change of the node
    lines         lines of the plan
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    opt_out: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    pending_text: str = ""
    restart: bool = False
    delete: tuple[Mapping[str, Any], ...] = ()
    write: tuple[Mapping[str, Any], ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    cordon: tuple[Mapping[str, Any], ...] = ()
    uncordon: tuple[Mapping[str, Any], ...] = ()
    cordoned: tuple[str, ...] = ()
    unseen: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def in_step(self) -> bool:
        """Return whether the node matches the offer."""
        pods = self.lost or self.replaced
        changed = self.labels or self.data or self.pending or self.delete or self.write or pods
        return not (self.problems or changed or self.cordon or self.uncordon)


@dataclass(frozen=True)
class Kind:
    """A kind of objects of the API.

    node_field  field selector for the node name, or empty for objects that belong to no node
    node_label  label with the node name. Only objects with this label and the templates that an offer names are read. A longer
                name is shortened to the 63 characters of a label
    namespaced  true to read only the namespace of the component
    of_pods     true to read only the ResourceClaims of the pods that an earlier kind lists
    """

    api_version: str
    kind: str
    node_field: str = ""
    node_label: str = ""
    namespaced: bool = False
    of_pods: bool = False


@dataclass(frozen=True)
class Seen:
    """GPUs that a component offers on a node now, as the cluster shows.

    component  name of the component, with its article
    resources  offered number of each resource
    cure       how to end this offer
    uuids      UUIDs of the offered GPUs. Empty if the cluster does not show them
    """

    component: str
    resources: Mapping[str, int]
    cure: str
    uuids: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Removal:
    """Changes that undo earlier changes of a node.

    The value None removes a label, an annotation, or a key of the ConfigMap (`data`). `delete` lists objects of the API.
    `uncordon` is a JSON patch of the node that releases GPUs that the role has cordoned. `leftovers` are annotations that the
    component leaves on the node, to remove when it has ended and the node offers none of its resources.
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, None] = field(default_factory=dict)
    data: Mapping[str, None] = field(default_factory=dict)
    delete: tuple[Mapping[str, Any], ...] = ()
    uncordon: tuple[Mapping[str, Any], ...] = ()
    leftovers: Mapping[str, None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """API objects to read: all of a kind, or the one with this name."""

    api_version: str
    kind: str
    name: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class Member:
    """A host of the inventory in a cluster.

    `offer` is the result of request.answer, or None if this run did not plan the host. `switch` is its top-of-rack switch.
    """

    host: str
    node: str
    backend: str
    offer: Mapping[str, Any] | None = None
    switch: str = ""


@dataclass(frozen=True)
class Shared:
    """Pending changes of objects that belong to the cluster.

    write     objects to create or change. Fields that are missing in an object are kept
    delete    objects to delete first
    lines     lines of the plan
    problems  reasons why no change may be made
    """

    write: tuple[Mapping[str, Any], ...] = ()
    delete: tuple[Mapping[str, Any], ...] = ()
    lines: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def in_step(self) -> bool:
        """Return whether the cluster needs no change."""
        return not (self.write or self.delete or self.problems)


class Backend(Protocol):
    """A component that offers the GPUs of a node to a scheduler.

    key      key of the backend in registry.py
    applies  true if the collection writes the offer. If false, the offer is only printed
    """

    key: str
    applies: bool

    def offer(self, node: Node) -> Offer:
        """Return the offer of the node's GPUs, or the refused entries."""


class ClusterBackend(Backend, Protocol):
    """A backend for Kubernetes. Its key is a value of `gpu_kubernetes_backend`.

    component     name of the software for messages. Empty if the role neither installs nor restarts the software
    defaults      default namespace, ConfigMap, selector and Helm release of the component
    chart_values  values that the role sets in the component's Helm chart
    refused       pattern of settings that may not be installed, with the reason. Both are empty if there is none
    config_label  node label that selects a key of the ConfigMap. Empty if the backend has no such label
    chart_config  chart value that names the ConfigMap, with %s for its name. Empty if the chart has none
    empty_config  ConfigMap content with which the component uses its defaults. Empty if the backend has no configuration
    config_key    key of the ConfigMap that holds the entries of all nodes. Empty if each configuration has its own key
    cordons_in    node annotation that lists cordoned GPUs. Empty if the scheduler cannot cordon single GPUs
    offered_in    kind of the objects that publish the node's GPUs
    reads         kinds of other objects that the comparison needs
    """

    component: str
    defaults: Mapping[str, str]
    chart_values: Mapping[str, Any]
    chart_config: Mapping[str, Any]
    refused: tuple[str, str]
    config_label: str
    empty_config: str
    config_key: str
    cordons_in: str
    offered_in: Kind
    reads: tuple[Kind, ...]

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        `offer` is the result of request.answer. `node` and `config_map` are API objects, or None. The changes create a
        missing ConfigMap. `objects` has those of `offered_in` and `reads`.
        """

    def removal(
        self,
        name: str,
        nodes: Sequence[Any],
        config_map: Any,
        objects: Sequence[Any] = (),
        removed: frozenset[str] = frozenset(),
    ) -> Removal:
        """Return the changes that undo earlier changes of the node `name`.

        `nodes` contains this node and all nodes that have `config_label`. `objects` are objects of `offered_in` and `reads`.
        Objects that several nodes share are deleted if they are among `objects`, and only nodes in `removed` need them.
        """

    def shared_reads(self, scheduler: tuple[str, str]) -> tuple[Read, ...]:
        """Return which cluster objects all nodes of the backend share.

        `scheduler` is the namespace and name of the ConfigMap of the backend's scheduler.
        """

    def shared(
        self,
        removed: frozenset[str],
        nodes: Sequence[Any],
        objects: Mapping[Read, Sequence[Any] | None],
    ) -> Shared:
        """Return the changes of these objects.

        `removed` has nodes from which this run removes the configuration, `nodes` the cluster's other nodes. `objects`
        has the current objects of `shared_reads`, or None if the cluster does not have their kind.
        """

    def merged(self, config_map: Any, entries: Mapping[str, Mapping[str, Any] | None]) -> tuple[str, str]:
        """Return the new content of `config_key`, and a problem or "".

        `entries` has entries by node name. None removes an entry. The ConfigMap's other entries stay.
        """
