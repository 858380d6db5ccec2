# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every alert with promtool, using the cases in alerts/.

Each alert must fire and clear at the right time and have the correct text. No other alert may fire.
"""

from __future__ import annotations

import re

import pytest
import yaml

from tests.monitoring.rule_files import ALERTS, HERE, ROOT, promtool_test, rules_of


class CaseLoader(yaml.SafeLoader):
    """A YAML loader without integers.

    In promtool's notation, `0x20` is not a hexadecimal number but 21 samples of 0.
    """


CaseLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:int"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

ALERT_RULES = [rule for rule in rules_of(ALERTS) if rule.is_alert]
NAMES = sorted({rule.name for rule in ALERT_RULES})
CASES = [
    pytest.param(case, id=case["case"].replace(" ", "_"))
    for path in sorted((HERE / "alerts").glob("*.yml"))
    for case in yaml.load(path.read_text(), Loader=CaseLoader)
]
FIRING = 'group by (alertname, severity) (ALERTS{alertstate="firing"})'


def as_sample(alert: str) -> dict:
    """Return a sample of the series ALERTS for a text such as `GpuLost critical`."""
    name, severity = alert.split()
    return {"labels": f'{{alertname="{name}", severity="{severity}"}}', "value": 1}


@pytest.mark.parametrize("case", CASES)
def test_alerts_fire_and_clear_and_no_others(case, tmp_path):
    problems = promtool_test(
        tmp_path,
        ALERTS,
        [
            {
                "input_series": [{"series": name, "values": values} for name, values in case["series"].items()],
                "promql_expr_test": [
                    {"expr": FIRING, "eval_time": when, "exp_samples": [as_sample(alert) for alert in alerts]}
                    for when, alerts in case["firing"].items()
                ],
                "alert_rule_test": case.get("texts", []),
            }
        ],
    )
    assert not problems, problems


def test_values_of_series_are_read_as_they_stand():
    assert yaml.load("{a: 0x20, b: 1x5 stale}", Loader=CaseLoader) == {"a": "0x20", "b": "1x5 stale"}


def test_every_alert_fires_and_clears_in_some_case():
    fires, clears = set(), set()
    for param in CASES:
        seen = set()
        for alerts in param.values[0]["firing"].values():
            clears |= seen - set(alerts)
            seen |= set(alerts)
        fires |= seen
    wanted = {f"{rule.name} {rule.labels['severity']}" for rule in ALERT_RULES}
    assert fires == wanted
    assert clears == wanted


def test_every_alert_keeps_silent_in_some_case_that_is_about_it():
    """Check that each alert has a case that is about it and in which it never fires.

    For example, a series ends, or a value is just below the threshold.
    """
    silent = {
        name
        for param in CASES
        for name in param.values[0].get("silent", [])
        if not any(alert.split()[0] == name for alerts in param.values[0]["firing"].values() for alert in alerts)
    }
    assert silent == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_alert_is_documented_with_what_to_do(name):
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert re.search(rf"^## {name}$", page, re.MULTILINE), f"docs/alerts.md has no section {name}"
    for rule in ALERT_RULES:
        if rule.name == name:
            assert set(rule.annotations) == {"summary", "description", "runbook"}
            assert rule.annotations["runbook"].endswith(f" docs/alerts.md#{name.lower()}")
            assert rule.labels["severity"] in ("critical", "warning", "info")


def test_documentation_knows_no_alert_that_is_not_there():
    headings = re.findall(r"^## (Gpu\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert sorted(headings) == NAMES


# PromQL keywords, which look like names of series. Functions are recognized by the parenthesis after their name.
_WORDS = {"and", "or", "unless", "on", "by", "without", "ignoring", "group_left", "group_right", "bool", "offset"}


def series_of(expr: str) -> set[str]:
    """Return the names of the series that an expression reads."""
    expr = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)
    expr = re.sub(r"\b(?:on|by|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expr)
    expr = re.sub(r"\{[^}]*\}", "{}", expr)
    expr = re.sub(r"\[[^]]*\]", "", expr)
    names = re.findall(r"(?<![\w:.])([a-zA-Z_][\w:]*)(?!\s*\(|[\w:])", expr)
    return {name for name in names if name not in _WORDS}


def test_names_of_series_are_found():
    assert series_of('max by (a, b) (increase(gpu:x{kind=~"y|z"}[5m])) > 1 unless on (job) up{job="z"} == 1') == {
        "gpu:x",
        "up",
    }
    assert series_of("time() - DCGM_FI_DEV_GPU_TEMP > 900") == {"DCGM_FI_DEV_GPU_TEMP"}


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule.name)
def test_alerts_read_only_our_series(rule):
    """Check that alerts read only series that are the same for every exporter.

    Exceptions are `up`, which Prometheus itself writes, and gpu_map:*, which the rule files record.
    """
    found = series_of(rule.expr)
    assert found
    ours = {"up", *(other.name for other in rules_of(ALERTS) if not other.is_alert)}
    assert not [name for name in found if not name.startswith("gpu:") and name not in ours]


@pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: rule.name)
def test_texts_name_only_labels_that_the_alert_has(rule):
    kept = re.search(r"\b(?:max|count) by \(([^)]*)\)", rule.expr)
    there = set(kept[1].replace(" ", "").split(",")) if kept else {"job", "instance", "host"}
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
    assert used <= there
