# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that docs/monitoring.md lists every series and every file of rules."""

from __future__ import annotations

import re

from tests.monitoring.rule_files import ALERTS, ROOT, RULES, rules_of

PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def test_every_series_is_documented_and_no_other():
    recorded = {rule.name for rule in rules_of((*RULES, *ALERTS)) if rule.name.startswith("gpu:")}
    table = PAGE.partition("## Series")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(gpu:[\w:]+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    # In addition, the role writes a rule for each price in the inventory.
    assert documented - {"gpu:price_per_hour"} == recorded


def test_every_file_of_rules_is_documented_and_no_other():
    assert set(re.findall(r"^\| `(\w+\.yml)` \|", PAGE, re.MULTILINE)) == {path.name for path in RULES}


def test_kinds_and_reasons_are_documented():
    for rule in rules_of(RULES):
        for label in ("kind", "reason"):
            if label in rule.labels:
                assert re.search(rf"\b{rule.labels[label]}\b", PAGE), rule.labels[label]


def test_vendors_are_documented_and_no_other():
    (listed,) = re.findall(r"`vendor` is ([\w, ]+?)\.", PAGE)
    documented = set(re.split(r", | or ", listed))
    assert documented == {rule.labels["vendor"] for rule in rules_of(RULES) if "vendor" in rule.labels}


def test_every_file_of_a_vendors_rules_names_its_pages():
    # The collection itself exports the series in host.yml.
    silent = [path.name for path in RULES if "https://" not in path.read_text().partition("groups:")[0]]
    assert silent == ["host.yml"]
