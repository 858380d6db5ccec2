#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_objects
short_description: List objects of several kinds of a Kubernetes cluster
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Lists objects of all given kinds in one execution. M(kubernetes.core.k8s_info) needs one execution per kind.
  - Requests and answers are limited in time and size.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - the Python package kubernetes
options:
  kinds:
    description: The kinds of objects to list.
    type: list
    elements: dict
    required: true
    suboptions:
      api_version:
        description: Version of the API.
        type: str
        required: true
      kind:
        description: Kind of the objects.
        type: str
        required: true
      namespace:
        description: Namespace of the objects. If empty, the objects of all namespaces are listed.
        type: str
        default: ""
      field_selector:
        description: Field selector of the objects, such as C(spec.nodeName=h100-01).
        type: str
        default: ""
      label_selector:
        description: Label selector of the objects, such as C(openfleet.gpu/node=h100-01).
        type: str
        default: ""
      names:
        description: Further objects to read if they exist, although the selectors do not match them, as C(namespace/name).
        type: list
        elements: str
        default: []
      of_pods:
        description: Read only the ResourceClaims of the pods that the kinds before this one list, each by its name.
        type: bool
        default: false
  kubeconfig:
    description:
      - Path of a kubeconfig. Defaults to the environment variable E(K8S_AUTH_KUBECONFIG), or to kubectl's default.
    type: path
  context:
    description:
      - Context of the kubeconfig. Defaults to the environment variable E(K8S_AUTH_CONTEXT), or to the current context.
    type: str
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: kubernetes.core.k8s_info
"""

EXAMPLES = r"""
- name: List the devices of a node, and its pods
  openfleet.gpu.kubernetes_objects:
    kinds:
      - {api_version: resource.k8s.io/v1, kind: ResourceSlice, field_selector: spec.nodeName=h100-01}
      - {api_version: v1, kind: Pod, field_selector: spec.nodeName=h100-01}
      - {api_version: resource.k8s.io/v1, kind: ResourceClaim, of_pods: true}
      - {api_version: resource.k8s.io/v1, kind: ResourceClaimTemplate, label_selector: openfleet.gpu/node=h100-01}
  delegate_to: localhost
"""

RETURN = r"""
objects:
  description: The objects of all kinds in the order of O(kinds), without C(managedFields).
  returned: success
  type: list
  elements: dict
  sample: [{apiVersion: v1, kind: Pod, metadata: {name: serve-0, namespace: team-b}}]
missing:
  description: The kinds that the API server does not have, as C(version kind).
  returned: success
  type: list
  elements: str
  sample: [resource.k8s.io/v1 ResourceSlice]
"""

from typing import Any, Mapping

from ansible.module_utils.basic import AnsibleModule, env_fallback, missing_required_lib

from ..module_utils.kubernetes.claims import claims_of
from ..module_utils.kubernetes.client import core_api, has_client
from ..module_utils.kubernetes.objects import Objects, Reader
from ..module_utils.runner import run


def argspec() -> dict[str, Any]:
    kind = {
        "api_version": {"type": "str", "required": True},
        "kind": {"type": "str", "required": True},
        "namespace": {"type": "str", "default": ""},
        "field_selector": {"type": "str", "default": ""},
        "label_selector": {"type": "str", "default": ""},
        "names": {"type": "list", "elements": "str", "default": []},
        "of_pods": {"type": "bool", "default": False},
    }
    return {
        "kinds": {"type": "list", "elements": "dict", "required": True, "options": kind},
        "kubeconfig": {"type": "path", "fallback": (env_fallback, ["K8S_AUTH_KUBECONFIG"])},
        "context": {"type": "str", "fallback": (env_fallback, ["K8S_AUTH_CONTEXT"])},
    }


def read(params: Mapping[str, Any]) -> dict[str, Any]:
    """List the objects, and return the module's result."""
    reader = Reader(core_api(params["kubeconfig"], params["context"]))
    objects: list[dict[str, Any]] = []
    missing: list[str] = []
    for each in params["kinds"]:
        if each["of_pods"]:
            claims = {claim for item in objects if item["kind"] == "Pod" for claim in claims_of(item)}
            items = reader.named(each["api_version"], each["kind"], sorted(claims))
        else:
            items = _listed(reader, each)
        if items is None:
            missing.append("%s %s" % (each["api_version"], each["kind"]))
        objects += items or ()
    return {"changed": False, "objects": objects, "missing": missing}


def _listed(reader: Reader, kind: Mapping[str, Any]) -> Objects | None:
    """Return the selected and the named objects of a kind.

    Returns None if the API lacks the kind.
    """
    version, name = kind["api_version"], kind["kind"]
    items = reader.list(version, name, kind["namespace"], kind["field_selector"], kind["label_selector"])
    if items is None or not kind["names"]:
        return items
    metadata = [item["metadata"] for item in items if isinstance(item.get("metadata"), dict)]
    listed = {(each.get("namespace"), each.get("name")) for each in metadata}
    pairs = ((namespace, item) for namespace, _slash, item in (each.partition("/") for each in kind["names"]))
    return [*items, *(reader.named(version, name, [pair for pair in pairs if pair not in listed]) or ())]


def main() -> None:
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    if not has_client():
        module.fail_json(msg=missing_required_lib("kubernetes"))
    run(module, lambda: read(module.params))


if __name__ == "__main__":
    main()
