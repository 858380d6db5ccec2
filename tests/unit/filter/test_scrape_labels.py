# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse labels of a site that the rules of gpu_monitoring use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter import price_rules
from ansible_collections.openfleet.gpu.plugins.filter.scrape_plan import RULES_LABELS, scrape_plan

pytestmark = pytest.mark.core

FILES = Path(__file__).parents[3] / "roles" / "gpu_monitoring" / "files"
PATHS = sorted([*FILES.glob("rules/*.yml"), *FILES.glob("alerts/*.yml"), *FILES.glob("*.yml")])
#: Tokens that matter for labels: strings, brackets, names and matcher operators.
TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([a-zA-Z_:][\w:]*)|(=~|!~|!=|==|[(){}\[\],=])')
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
#: For each function, the position of its first label argument, and later positions that are not labels.
FUNCTIONS = {"label_replace": (1, {2, 4}), "label_join": (1, {2}), "count_values": (0, set())}


def labels_of(expr):
    """Return the names of labels in a PromQL expression."""
    found, stack, earlier, before = set(), [], "", ""
    for text, name, sign in TOKEN.findall(expr):
        inside = stack[-1] if stack else None
        if sign in ("(", "{", "["):
            stack.append({"of": before if sign == "(" else sign, "argument": 0, "behind": earlier})
        elif sign in (")", "}", "]"):
            ended = stack.pop()
            if ended["of"] in LISTS:
                # A label list may come between a name and its arguments, as in `sum by (job) (up)`. The next
                # parenthesis then belongs to `sum`.
                earlier, before = "", ended["behind"]
                continue
        elif sign == "," and inside:
            inside["argument"] += 1
        elif name and inside and inside["of"] in LISTS | {"{"}:
            found.add(name)
        elif not name and not sign and inside and inside["of"] in FUNCTIONS:
            first, none = FUNCTIONS[inside["of"]]
            if inside["argument"] >= first and inside["argument"] not in none and text:
                found.add(text)
        earlier, before = before, name
    return found


def rules():
    return [
        rule for path in PATHS for group in yaml.safe_load(path.read_text("utf-8"))["groups"] for rule in group["rules"]
    ]


def test_labels_are_found_in_expressions():
    expr = (
        'sum by (a, b) (x{c="d", e=~"f", g!="}"} * on (h) group_left (i) label_join(y, "j", "k", "l", "m")) == 1 or z'
    )
    assert labels_of(expr) == set("abceghijlm")
    assert labels_of('label_replace(label_replace(x, "a", "$1", "b", "(c)"), "d", "e", "", "")') == set("abd")
    assert labels_of('count_values by (a) ("b", x) and topk by (c) (1, last_over_time(y[15m]))') == set("abc")


def test_labels_of_rules_are_in_rules_labels():
    """A new rule's labels must be added to RULES_LABELS, and unused labels removed."""
    # The price rules are made from the inventory. They also read the model of a GPU.
    found = {"model", *price_rules.PART_LABELS.split(", ")}
    for rule in rules():
        found |= labels_of(rule["expr"]) | set(rule.get("labels", {}))
        found |= {
            name for text in rule.get("annotations", {}).values() for name in re.findall(r"\$labels\.(\w+)", text)
        }
    # Names with a leading __ are reserved for Prometheus, and are always refused.
    assert {name for name in found if not name.startswith("__")} == set(RULES_LABELS)
    assert list(RULES_LABELS) == sorted(RULES_LABELS)


@pytest.mark.parametrize("name", ["cluster", "site", "rack", "zone", "team"])
def test_labels_of_the_site_are_allowed(name):
    host = {"gpu_monitoring_address": "a", "gpu_monitoring_labels": {name: "1"}}
    extra = [{"targets": ["npu-01:8082"], "labels": {"host": "npu-01", "job": "npu", name: "1"}}]
    plan = scrape_plan(["a"], {"a": host}, extra=extra)
    assert plan["problems"] == []
    assert {group["labels"][name] for group in plan["targets"]} == {"1"}


@pytest.mark.parametrize("name", RULES_LABELS)
def test_label_of_the_rules_is_refused_with_its_place(name):
    """The label would change series, or keep two sides of a rule from matching."""
    host = {"gpu_monitoring_address": "a", "gpu_monitoring_labels": {name: "1"}}
    plan = scrape_plan(["a"], {"a": host}, extra=[{"targets": ["npu-01:8082"], "labels": {name: "1"}}])
    mine = "a: gpu_monitoring_labels has the label %s, which " % name
    further = "gpu_monitoring_extra_targets[0] has the label %s, which the rules read or write." % name
    said = [problem for problem in plan["problems"] if problem.startswith(mine)]
    assert len(said) == 1 and said[0].endswith("Rename it.")
    # An additional target may have these two labels, because they set its host and job.
    expected = [] if name in ("host", "job") else [further + " Rename it."]
    assert plan["problems"][1:] == expected
