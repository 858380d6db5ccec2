# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every recording rule with promtool.

The input is the text of each exporter (samples/). The expected results are tables written by hand (cases/).
"""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from tests.monitoring.rule_files import (
    ALERTS,
    HERE,
    INTERVAL,
    ROOT,
    RULES,
    as_series,
    input_series,
    parse,
    promtool_test,
    rules_of,
    tool,
)

SAMPLES = sorted((HERE / "samples").glob("*.prom"))
CASES = [
    pytest.param(case, id=f"{path.stem}-{case['case'].replace(' ', '_')}")
    for path in sorted((HERE / "cases").glob("*.yml"))
    for case in yaml.safe_load(path.read_text())
]
RULE_FILES = {path.stem: path for path in (*RULES, *ALERTS)}
_KEY = re.compile(r"([\w:]+)(?:\{(.*)\})?$")


def table(case: dict) -> dict[str, list[dict]]:
    """Return the expected samples of a case in promtool's form, by record."""
    expected: dict[str, list[dict]] = {}
    for key, values in case["expected"].items():
        record, more = _KEY.match(key).groups()
        more = dict(re.findall(r'(\w+)="([^"]*)"', more or ""))
        for device, value in values.items():
            labels = {**case["scrape"], **case["devices"][device], **more}
            # If a record does not keep a label of the scrape, the case sets the label to "".
            series = as_series(record, labels)
            expected.setdefault(record, []).append({"labels": series, "value": value})
    return expected


def targets(case: dict):
    """Return (labels, texts) of each scraped target of a case."""
    for target in case.get("targets", [case]):
        yield (
            {**case["scrape"], **target.get("scrape", {})},
            [name and (HERE / "samples" / name).read_text() for name in target["samples"]],
        )


def problems_with(case: dict, scraped, directory, only: str = "") -> str:
    """Return promtool's error for a case, or an empty text.

    `scraped` is the input. Only series that the matchers in `only` select are compared.
    """
    files = [RULE_FILES[name] for name in case["rules"]]
    expected = table(case)
    records = {rule.name for rule in rules_of(files) if rule.name.startswith("gpu:")}
    assert not set(expected) - records, "the table has series that no rule of the case records"
    scraped = list(scraped)
    scrapes = max(len(texts) for _, texts in scraped)
    return promtool_test(
        directory,
        files,
        [
            {
                "input_series": input_series(scraped),
                "promql_expr_test": [
                    {
                        "expr": record + only,
                        # promtool evaluates groups in any order. An interval later, every group has read the series of
                        # the others.
                        "eval_time": f"{scrapes * INTERVAL}s",
                        "exp_samples": expected.get(record, []),
                    }
                    for record in sorted(records)
                ],
            }
        ],
    )


@pytest.mark.parametrize("case", CASES)
def test_series_are_those_of_the_table_and_no_others(case, tmp_path):
    problems = problems_with(case, targets(case), tmp_path)
    assert not problems, problems


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_that_is_scraped_twice_counts_once(case, tmp_path):
    """Count a GPU once that two ServiceMonitors scrape with the same job and instance.

    Rules must not add up the values of both scrapes, and must not fail.
    """
    again = [({**scrape, "cluster": "zz"}, texts) for scrape, texts in targets(case)]
    problems = problems_with(case, [*targets(case), *again], tmp_path, '{cluster!="zz"}')
    assert not problems, problems


@pytest.mark.parametrize("case", CASES)
def test_a_host_with_two_names_costs_the_others_nothing(case, tmp_path):
    """Keep the series of other hosts if one host has several names.

    These names have the same job and instance. The `host` label was changed, or differs by mistake.
    """
    wrong = [
        ({**scrape, "job": "twice", "instance": "twice", "host": host}, texts)
        for scrape, texts in targets(case)
        for host in ("", "zy", "zz")
    ]
    problems = problems_with(case, [*targets(case), *wrong], tmp_path, '{host!~"z.", instance!="twice"}')
    assert not problems, problems


def test_every_recording_rule_has_a_value_in_some_table():
    """Check that each record has a value in a table.

    A record with other fixed labels counts separately, because each throttle reason has its own rule.
    """
    covered = {}
    for param in CASES:
        case = param.values[0]
        for name in case["rules"]:
            for record, samples in table(case).items():
                covered.setdefault((name, record), []).extend(sample["labels"] for sample in samples)
    missing = [
        f"{rule.file.name}: {as_series(rule.name, rule.labels)}"
        for rule in rules_of((*RULES, *ALERTS))
        if not rule.is_alert
        and rule.name.startswith("gpu:")
        and not any(
            all(f'{key}="{value}"' in series for key, value in rule.labels.items())
            for series in covered.get((rule.file.stem, rule.name), [])
        )
    ]
    assert not missing


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_in_prometheus_text_format(path):
    text = path.read_text()
    assert parse(text)
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    # promtool's status is 3 if its linter criticizes the names of the exporter.
    assert done.returncode in (0, 3), done.stderr


#: Fields of older DCGM releases or of other counter files. The rules read them if the role's own fields are missing.
OTHERS_FIELDS = {"DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"}


def test_the_role_collects_what_the_rules_read():
    counters = (ROOT / "roles" / "dcgm_exporter" / "files" / "counters.csv").read_text()
    collected = set(re.findall(r"^(DCGM_\w+),", counters, re.MULTILINE))
    text = " ".join(rule.expr for rule in rules_of([RULE_FILES["dcgm"]]))
    text = text.replace(
        "DCGM_FI_DEV_FB_(USED|FREE|RESERVED)", "DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_RESERVED"
    )
    read = set(re.findall(r"DCGM_\w+", text))
    assert read - collected == OTHERS_FIELDS


def test_every_sample_is_used():
    used = {
        name
        for param in CASES
        for target in param.values[0].get("targets", [param.values[0]])
        for name in target["samples"]
        if name
    }
    assert used == {path.name for path in SAMPLES}


def test_promtool_accepts_all_rule_files():
    done = subprocess.run(
        [tool("promtool"), "check", "rules", *map(str, (*RULES, *ALERTS))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_group_names_are_unique():
    """Check for duplicate names.

    Prometheus refuses a file with two groups of the same name, and the role writes all rules to one file.
    """
    names = [group["name"] for path in (*RULES, *ALERTS) for group in yaml.safe_load(path.read_text())["groups"]]
    assert len(names) == len(set(names))


def test_recorded_names_are_ours():
    """Check that recorded names start with gpu: or gpu_map: (for other rules)."""
    recorded = [rule.name for rule in rules_of((*RULES, *ALERTS)) if not rule.is_alert]
    assert not [name for name in recorded if not name.startswith(("gpu:", "gpu_map:"))]
