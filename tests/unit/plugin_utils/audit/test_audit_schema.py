# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that docs/audit.schema.json matches reports and names every key."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import model, report_json, usage_model
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import HostState, Price
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import Thresholds

SCHEMA = json.loads((Path(__file__).parents[4] / "docs" / "audit.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
NOW = 1700000000.0


def gpu(uuid, **more):
    holder = {"kind": "container", "who": "train", "watches": False}
    return {
        "uuid": uuid, "index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 80 << 30, "processes": [],
        "holders": [holder], "mig": {"instances": []}, **more,
    }  # fmt: skip


@pytest.fixture
def audit():
    """Return an audit in which every key of the schema has a value other than null."""
    hosts = {"a": HostState([gpu("GPU-1")])}
    made = make(Order(3600.0, hosts=hosts, hosts_asked=["a"], prices=[Price("H100*", 2.5)], currency="EUR"), NOW)
    stat = model.Stat(3600.0, 1.0, 0.1, 0.2, 0.3, 0.4, 0.15)
    (found,) = made.findings
    whole = dataclasses.replace(
        found.holding,
        holders=(model.Holder("slurm", "job 17", NOW - 60),), held_seconds=60.0, memory=stat, busy=stat, compute=stat,
        bandwidth=stat, tensor=stat, processes=stat, quiet=model.Quiet(3600.0, True), xid={"79": 1.0},
        throttled={"hw_thermal": 0.2}, denials=3.0, sharing="exclusive",
    )  # fmt: skip
    found = dataclasses.replace(found, holding=whole)
    total = usage_model.Total("alice", 1, 60.0, 60.0, 6.0, 0.1, 1e9, {"h100": 60.0})
    return dataclasses.replace(
        made,
        window=model.Window(NOW - 3600, NOW),
        findings=(found,),
        gone=(dataclasses.replace(found, state="gone"),),
        usage=usage_model.Usage(
            ("sacct on login",),
            NOW - 3600,
            NOW,
            1,
            (
                usage_model.JobUse(
                    "12_3",
                    "alice",
                    "a",
                    "RUNNING",
                    "h100:1",
                    ("n1",),
                    NOW - 60,
                    NOW,
                    60.0,
                    60.0,
                    6.0,
                    0.1,
                    1e9,
                    0.2,
                    ("n1 gpu 0",),
                    usage_model.HOLDERS,
                ),
            ),
            (total,),
            (total,),
            advice=("Ask for less.",),
        ),
        history=(model.Day(NOW - 86400, 8.0, 0.5, 0.4, 0.3), model.Day(NOW)),
    )


def written(audit):
    return json.loads(report_json.to_text(audit))


def test_schema_has_the_written_version():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].endswith(":%d" % model.SCHEMA_VERSION)
    assert SCHEMA["properties"]["schema_version"]["const"] == model.SCHEMA_VERSION


def test_full_report_matches_the_schema(audit):
    VALIDATOR.validate(written(audit))


def test_report_of_hosts_alone_matches_the_schema():
    hosts = {"a": HostState([gpu("GPU-1", holders=None, processes=None, memory_total_bytes=None)])}
    data = written(make(Order(3600.0, hosts=hosts, hosts_asked=["a", "b"]), NOW))
    VALIDATOR.validate(data)
    assert data["findings"][0]["holding"]["holders"] is None


def test_report_with_gone_findings_matches_the_schema(audit, tmp_path):
    (tmp_path / "audit.json").write_text(report_json.to_text(audit), encoding="utf-8")
    read = report_json.read_former(tmp_path / "audit.json")
    # Only a finding that asks for an action can be reported as gone.
    former = {name: dataclasses.replace(one, word="idle") for name, one in read.items()}
    data = written(make(Order(3600.0, hosts={"a": HostState([gpu("GPU-2")])}, former=former), NOW))
    VALIDATOR.validate(data)
    assert [found["holding"]["subject"]["gpu_uuid"] for found in data["gone"]] == ["GPU-1"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("findings", 0, "verdict", "word"), "lazy"),
        (("findings", 0, "id"), "881AF52558"),
        (("findings", 0, "holding", "memory", "max"), "80 GiB"),
        (("findings", 0, "holding", "memory", "coverage_ratio"), 1.5),
        (("findings", 0, "holding", "subject", "kind"), "board"),
        (("summary", "words", "lazy"), 1),
        (("summary", "findings"), None),
        (("schema_version",), 2),
        (("sources", "missing"), "nothing"),
        (("history", 0, "gpus"), "eight"),
        (("usage", "jobs", 0, "evidence"), "a guess"),
        (("usage", "users", 0, "jobs"), 0),
    ],
)
def test_schema_rejects_wrong_reports(audit, path, value):
    data = written(audit)
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    (error,) = VALIDATOR.iter_errors(data)
    assert tuple(error.absolute_path) in (path, path[:-1])


def keys_and_places(schema, data, place="report"):
    """Yield (place, schema, mapping) of each mapping whose keys the schema lists."""
    schema = {**SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], **schema} if "$ref" in schema else schema
    if isinstance(data, dict) and "properties" in schema:
        yield place, schema, data
        for name, value in data.items():
            yield from keys_and_places(schema["properties"].get(name, {}), value, "%s.%s" % (place, name))
    for value in data if isinstance(data, list) else ():
        yield from keys_and_places(schema.get("items", {}), value, place + "[]")


def test_schema_requires_every_written_key(audit):
    seen = list(keys_and_places(SCHEMA, written(audit)))
    for place, schema, data in seen:
        assert set(schema["properties"]) == set(schema["required"]) == set(data), place
    kinds = {place.rpartition(".")[2] for place, _schema, _data in seen}
    assert kinds >= {
        "subject",
        "holders[]",
        "memory",
        "quiet",
        "verdict",
        "history[]",
        "summary",
        "window",
        "sources",
        "usage",
    }
    assert kinds >= {"jobs[]", "users[]", "accounts[]", "teams[]", "workloads[]"}


def test_schema_has_all_verdicts_and_thresholds():
    words = list(model.WORDS)
    summary = SCHEMA["properties"]["summary"]["properties"]["words"]
    assert SCHEMA["$defs"]["word"]["enum"] == words and summary["required"] == words
    thresholds = SCHEMA["properties"]["settings"]["properties"]["thresholds"]["required"]
    assert thresholds == [field.name for field in dataclasses.fields(Thresholds)]
    assert SCHEMA["$defs"]["holding"]["properties"]["subject"]["properties"]["kind"]["enum"] == list(model.KINDS)
    assert SCHEMA["$defs"]["finding"]["properties"]["state"]["enum"] == ["new", "still", "gone", "unseen"]


def test_each_verdict_is_documented():
    page = (Path(__file__).parents[4] / "docs" / "audit.md").read_text(encoding="utf-8")
    table = page.partition("\n## Verdicts\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(model.WORDS)


def with_further_keys(data):
    if isinstance(data, dict):
        return {**{name: with_further_keys(value) for name, value in data.items()}, "later": {"than": "this"}}
    return [with_further_keys(value) for value in data] if isinstance(data, list) else data


def test_additional_keys_of_later_releases_are_accepted(audit, tmp_path):
    data = with_further_keys(copy.deepcopy(written(audit)))
    del (
        data["summary"]["words"]["later"],
        data["summary"]["ledger"]["classes"]["later"],
        data["settings"]["thresholds"]["later"],
    )
    for total in (*data["usage"]["users"], *data["usage"]["accounts"]):
        del total["held_by_type"]["later"]
    for found in (*data["findings"], *data["gone"]):
        del found["holding"]["xid"]["later"], found["holding"]["throttled"]["later"]
    VALIDATOR.validate(data)
    (tmp_path / "audit.json").write_text(json.dumps(data), encoding="utf-8")
    former = report_json.read_former(tmp_path / "audit.json")
    assert list(former) == [audit.findings[0].id]
    assert former[audit.findings[0].id].finding.holding.subject == audit.findings[0].holding.subject
