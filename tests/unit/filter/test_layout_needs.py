# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that playbooks and templates get a layout's needs from a filter.

They must never read parts of gpu_layout themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator

import jinja2
import pytest
import yaml
from jinja2 import nodes

from ansible_collections.openfleet.gpu.plugins.filter.layout_needs import layout_needs

pytestmark = pytest.mark.core

REPOSITORY = Path(__file__).resolve().parents[3]
TENANT = {"name": "b", "memory": "8GiB", "sm_percent": 30, "was": "a"}
VGPU = {
    "gpus": [0],
    "sharing": "vgpu",
    "vgpu": {"tenants": [TENANT, {"name": "c", "memory": "8GiB", "sm_percent": 30}]},
}
MPS = {"gpus": [1], "sharing": "mps", "mps": {"name": "inference", "clients": 4, "active_thread_percentage": 25}}
MPS_IN_MIG = {
    "gpus": [2],
    "sharing": "mig",
    "mig": [{"profile": "3g.40gb", "mps": {"name": "training", "clients": 4, "active_thread_percentage": 25}}],
}
MIG = {"gpus": [3], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}
SHARED = {"gpus": [4], "sharing": "shared"}
LEASED_MIG = {**MIG, "mig": [], "leases": {"by": "host", "groups": ["ml"], "profiles": ["1g.10gb"]}}
BY_PODS = {"gpus": [0], "sharing": "vgpu", "vgpu": {"policy": "fixed"}, "leases": {"by": "kubernetes"}}
LEASED_VGPU = {"gpus": [0], "sharing": "vgpu", "vgpu": {"policy": "fixed"}, "leases": {"by": "host", "groups": ["ml"]}}


@pytest.mark.parametrize(
    ("layout", "gpus", "cdi", "tenants"),
    [
        ([], False, False, []),
        ([SHARED, MIG], True, False, []),
        ([SHARED, MPS], True, True, []),
        ([MPS_IN_MIG], True, True, []),
        ([MIG, VGPU], True, True, ["b", "a", "c"]),
    ],
    ids=["nothing", "mig", "mps", "mps-in-mig", "vgpu"],
)
def test_needs_of_a_layout(layout, gpus, cdi, tenants):
    needs = {
        "gpus": gpus,
        "cdi": cdi,
        "tenants": tenants,
        "quotas": bool(tenants),
        "leases": False,
        "lenders": [],
        "problems": [],
    }
    assert layout_needs(layout) == needs


@pytest.mark.parametrize(
    ("entry", "cdi", "quotas", "lender"),
    [(LEASED_MIG, False, False, "host"), (LEASED_VGPU, True, True, "host"), (BY_PODS, True, True, "kubernetes")],
)
def test_leases_need_their_service_and_quotas_need_the_limiter(entry, cdi, quotas, lender):
    needs = {"gpus": True, "cdi": cdi, "tenants": [], "quotas": quotas, "leases": True, "lenders": [lender]}
    assert layout_needs([entry]) == {**needs, "problems": []}


@pytest.mark.parametrize("layout", [None, "all", 7, {"gpus": "all"}, [VGPU, VGPU], [{"vgpu": None}], [None]], ids=str)
def test_invalid_layout_needs_nothing_and_does_not_block_a_reset(layout):
    found = layout_needs(layout)
    assert found.pop("problems")
    assert found == {"gpus": True, "cdi": False, "tenants": [], "quotas": False, "leases": False, "lenders": []}


# ---------------------------------------------------------------------- who reads gpu_layout in YAML and Jinja

#: The values of these keys are expressions without braces.
EXPRESSIONS = {"when", "that", "until", "failed_when", "changed_when"}
#: These filters return the whole layout.
WHOLE = {"default", "d"}
TESTS = {"defined", "undefined"}


def sources(value: Any, bare: bool = False) -> Iterator[str]:
    """Return the Jinja templates in a value of YAML."""
    if isinstance(value, dict):
        for key, found in value.items():
            yield from sources(found, key in EXPRESSIONS)
    elif isinstance(value, list):
        for found in value:
            yield from sources(found, bare)
    elif isinstance(value, str):
        yield value if "{{" in value or "{%" in value or not bare else "{{ %s }}" % value


def is_layout(node: nodes.Node) -> bool:
    """Return whether a template's node is the variable gpu_layout of any host."""
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "gpu_layout"
    return getattr(
        node, "attr" if isinstance(node, nodes.Getattr) else "name", None
    ) == "gpu_layout" and not isinstance(node, (nodes.Filter, nodes.Test))


def taken_apart(source: str) -> list[int]:
    """Return the line numbers in which a template reads a part of gpu_layout.

    A template may pass the whole variable to a filter of the collection.
    """
    tree = jinja2.Environment().parse(source)
    found = []
    parents = {id(child): node for node in tree.find_all(nodes.Node) for child in node.iter_child_nodes()}
    for child in tree.iter_child_nodes():
        parents[id(child)] = tree
    for node in tree.find_all(nodes.Node):
        # An expression such as map(attribute='gpu_layout.0') reads a part too.
        if isinstance(node, nodes.Const) and re.match(r"gpu_layout[.\[]", str(node.value)):
            found.append(node.lineno)
        if not is_layout(node):
            continue
        parent = parents[id(node)]
        while isinstance(parent, nodes.Filter) and parent.name in WHOLE:
            parent = parents[id(parent)]
        handed = isinstance(parent, nodes.Filter) and parent.name.startswith("openfleet.gpu.")
        looked_at = isinstance(parent, nodes.Test) and parent.name in TESTS
        if not (handed or looked_at or isinstance(parent, nodes.Output)):
            found.append(node.lineno)
    return found


FILES = sorted(
    path
    for folder in ("roles", "playbooks")
    for path in (REPOSITORY / folder).rglob("*")
    if path.suffix in (".yml", ".yaml", ".j2") and "files" not in path.parts
)


def templates(path: Path) -> list[str]:
    """Return the Jinja templates of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".j2":
        return [text]
    return [source for document in yaml.safe_load_all(text) for source in sources(document) if "gpu_layout" in source]


@pytest.mark.slow
def test_playbooks_do_not_read_parts_of_gpu_layout():
    found = {path: [source for source in templates(path) if taken_apart(source)] for path in FILES}
    assert {str(path.relative_to(REPOSITORY)): lines for path, lines in found.items() if lines} == {}
    # The search must cover all folders that use layouts.
    readers = {
        path.relative_to(REPOSITORY).parts[:2] for path in FILES for each in templates(path) if "gpu_layout" in each
    }
    assert {("roles", "gpu_layout"), ("roles", "vgpu_limiter"), ("playbooks", "site.yml")} <= readers


@pytest.mark.parametrize(
    "source",
    [
        "{{ gpu_layout | selectattr('vgpu', 'defined') | list }}",
        "{{ gpu_layout | default([]) | to_json }}",
        "{{ gpu_layout | length == 0 }}",
        "{{ gpu_layout[0].vgpu }}",
        "{{ hostvars[name].gpu_layout.0 }}",
        "{{ hostvars[name]['gpu_layout'] | first }}",
        "{{ names | map(attribute='gpu_layout.0.gpus') }}",
        "{% for entry in gpu_layout %}{% endfor %}",
        "{% if 'vgpu' in gpu_layout %}{% endif %}",
        "{{ gpu_layout ~ '' }}",
    ],
)
def test_each_way_to_read_parts_is_detected(source):
    assert taken_apart(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ gpu_layout }}",
        "{{ gpu_layout | default([]) }}",
        "{{ 1 if gpu_layout is defined else 2 }}",
        "{{ (gpu_layout | default([]) | openfleet.gpu.layout_needs).tenants | length }}",
        "{{ gpu_layout_planned.plan | length }}",
        "{{ hosts | map(attribute='gpu_layout', default=[]) }}",
    ],
)
def test_passing_the_whole_layout_is_allowed(source):
    assert not taken_apart(source)


def test_expressions_without_braces_are_read():
    assert [taken_apart(each) for each in sources([{"when": ["gpu_layout | length > 0"]}])] == [[1]]
