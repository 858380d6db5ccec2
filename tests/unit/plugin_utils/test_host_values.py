# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accept valid values from a host, and refuse others with their location."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.fleet_plan import fleet_plan
from ansible_collections.openfleet.gpu.plugins.filter.fleet_report import fleet_report
from ansible_collections.openfleet.gpu.plugins.filter.host_value import host_value
from ansible_collections.openfleet.gpu.plugins.filter.plan_without_driver import plan_without_driver
from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.model import to_data
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.plugin_utils import host_results
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import hosts_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.host_values import (
    KINDS,
    MOST_ENTRIES,
    HostValueError,
    bounded,
    checked,
    is_a,
    text,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import host_of, hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.today import fleet_today
from tests.audit.rightsize_hosts import gpu, state

#: These values are invalid for every kind of name and number.
HOSTILE = [
    "",
    "../../../etc/cron.d/x",
    "x86_64\n",
    "x86_64/../..",
    "--help",
    "-rf",
    "a b;c",
    "$(id)",
    "`id`",
    "{{ lookup('pipe', 'id') }}",
    "{% for x in y %}",
    '"} or vector(1) #',
    "<script>alert(1)</script>",
    "a\x1b[2Jb",
    "a\rb",
    "a\x85b",
    "a\u2028b",
    "a\u202eb",
    "a\x00b",
    "\udcff",
    "\uff21\uff22",
    "x" * 10_000,
    None,
    True,
    [],
    {},
    [["x"]],
    {"__ansible_unsafe": "x"},
    float("nan"),
    float("inf"),
    -1.5,
    -1,
    1 << 70,
    10**6000,
]


#: The tests have numbers as IDs, because pytest cannot print values that contain themselves.
each = pytest.mark.parametrize("value", HOSTILE, ids=map(str, range(len(HOSTILE))))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"text", "line", "flag", "number"}))
@each
def test_names_and_counts_are_validated(kind, value):
    with pytest.raises(HostValueError) as error:
        checked("gpu-1", "gpus[0].uuid", kind, value)
    message = str(error.value)
    assert message.startswith("gpu-1: gpus[0].uuid: the host sent ")
    assert len(message) < 400 and message.isprintable()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("architecture", "x86_64"),
        ("architecture", "aarch64"),
        ("gpu_uuid", "GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d"),
        ("mig_uuid", "MIG-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d"),
        ("mig_uuid", "MIG-GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d/7/0"),
        ("pci_address", "0000:3b:00.0"),
        ("pci_address", "10000:e1:00.0"),
        ("version", "580.65.06"),
        ("version", "13.580.65.06"),
        ("model", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("model", "NVIDIA TITAN X (Pascal)"),
        ("profile", "1g.10gb+me"),
        ("profile", "1g.24gb+me.all"),
        ("profile", "1g.24gb-me"),
        ("unit", "jupyter@alice.service"),
        ("unit", "dev-disk-by\\x2duuid.service"),
        ("container", "3f2a3f2a3f2a"),
        ("name", "device_handle"),
        ("small", 0),
        ("count", 80 << 30),
        ("number", 1795338000.5),
        ("flag", False),
        ("text", "any \u8bad\u7ec3"),
    ],
)
def test_real_values_are_accepted(kind, value):
    assert checked("gpu-1", "x", kind, value) == value and is_a(kind, value)


def test_every_model_and_profile_of_the_catalogue_is_accepted():
    for model in load_models().values():
        assert all(is_a("model", board.name) and is_a("pci_device", board.pci_device_id) for board in model.boards)
        assert all(is_a("profile", profile.name) for profile in model.profiles)


def test_texts_are_short_lines():
    assert text("a\x1b[2J\u2028b") == "a\\x1b[2J\\u2028b"
    for long in ("x" * 10_000_000, "\n" * 10_000_000):
        assert len(text(long)) == 1000 and text(long).endswith("...")
    assert text([1] * 10_000_000) == "list" and text(10**6000) == "int"
    assert len(text("x" * 1000)) == 1000 and text("x" * 1000) == "x" * 1000


# --- gpu_info ---------------------------------------------------------------------------------------------------------


def honest() -> dict:
    instances = [(1, "3g.40gb", 4, "embed.service"), (2, "1g.10gb", 0, None)]
    tenant = {
        "name": "a", "aliases": ["b"],
        "memory_bytes": 1 << 30, "sm_percent": 30, "policy": "fixed", "priority": 0, "provider": "preload",
        "oversubscribe_managed": False, "gpus": [{"uuid": "GPU-gpu-1-0", "seat": 0, "used_bytes": 0}],
        "processes": 0, "problem": None,
    }  # fmt: skip
    there = state(
        gpu("gpu-1", 0, "H100-80GB", "train.service"),
        gpu("gpu-1", 1, "H100-80GB", instances=instances),
        tenants=[tenant],
    )
    there["gpus"][0]["holders"][0].update(listens=True, clients=3)
    there["gpus"][1]["mig"]["profiles"] = to_data(assumed_gpus(["H100-80GB"])[0].mig.profiles)
    return there


def test_result_of_gpu_info_is_read_completely():
    read = host_results.gpu_info("gpu-1", honest())
    # Right-sizing builds the same model from both results, so the models are compared.
    assert dataclasses.asdict(host_of("gpu-1", read)) == dataclasses.asdict(host_of("gpu-1", honest()))
    assert read["vgpu_tenants"][0]["memory_bytes"] == 1 << 30
    served, others = read["gpus"][0]["holders"][0], read["gpus"][1]["holders"]
    assert (served["listens"], served["clients"]) == (True, 3)
    assert not {"listens", "clients"} & set(others[0]), "not asked, or told by a host of before"
    assert json.loads(json.dumps(read)) == read


def places(value, path=()):
    """Yield (path, value) for every position in a result."""
    yield path, value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def kinds_of_places(value):
    """Return one path of each kind of value.

    Paths that differ only in list indexes have the same kind.
    """
    found = {}
    for path, inner in list(places(value))[1:]:
        found.setdefault(tuple(0 if isinstance(key, int) else key for key in path), (path, inner))
    return list(found.values())


def put(value, path, what):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = what


@each
def test_any_value_at_any_place_is_refused_or_harmless(value):
    """Raise only HostValueError, whatever value a host sends.

    Accepted values must be plain, printable and valid for their readers.
    """
    sent = honest()
    for path, was in kinds_of_places(sent):
        put(sent, path, value)
        try:
            read = host_results.gpu_info("gpu-1", sent)
        except HostValueError as error:
            assert str(error).isprintable() and str(error).startswith("gpu-1: ")
            continue
        finally:
            put(sent, path, was)
        for _path, inner in places(read):
            assert type(inner) in (dict, list, str, int, float, bool, type(None))
            assert not isinstance(inner, str) or (inner.isprintable() and len(inner) <= 1000)
        host_of("gpu-1", read)
        json.dumps(read, allow_nan=False)


def test_missing_keys_of_a_host_do_not_affect_others():
    """Remove each key in turn.

    Then the host must be refused, or its GPUs must still be usable.
    """
    refused = set()
    for path, was in kinds_of_places(honest()):
        if isinstance(path[-1], int):
            continue
        sent = honest()
        at = sent
        for key in path[:-1]:
            at = at[key]
        for left_out in (True, False):
            if left_out:
                del at[path[-1]]
            else:
                at[path[-1]] = None
            read, words = host_results.gpu_info_of_all({"gpu-1": sent, "gpu-2": honest()}, tenants_whole=True)
            assert "gpu-2" in read and all(line.startswith("gpu-1: ") for line in words)
            refused.update(path for _line in words)
            audit = make(Order(3600.0, hosts=hosts_of(read), hosts_asked=list(read)), 1e9)
            assert len(fleet_today(audit, hosts_today(read, {}), {})) == 2 * len(read), path
            at[path[-1]] = was
    tenant = {path[-1] for path in refused if path[0] == "vgpu_tenants"}
    assert tenant == {"name", "memory_bytes", "sm_percent", "uuid"}


def test_tenants_of_helpers_lack_quotas_and_unreadable_ones_everything():
    sent = honest()
    del sent["vgpu_tenants"][0]["sm_percent"]
    assert host_results.gpu_info("gpu-1", sent)["vgpu_tenants"][0]["name"] == "a"
    problem = "gpu-1: vgpu_tenants[0].sm_percent: the host sent "
    _read, (line,) = host_results.gpu_info_of_all({"gpu-1": sent}, tenants_whole=True)
    assert line.startswith(problem)
    sent["vgpu_tenants"] = [dict.fromkeys(sent["vgpu_tenants"][0], None)]
    sent["vgpu_tenants"][0].update(gpus=[], aliases=[], problem="it cannot be read")
    assert host_results.gpu_info("gpu-1", sent, tenants_whole=True)["vgpu_tenants"][0]["problem"]


def test_million_holders_are_shortened_to_unknown():
    sent = honest()
    row = sent["gpus"][0]["holders"][0]
    sent["gpus"][0]["holders"] = [row] * 1_000_000
    sent["gpus"][0]["processes"] = [{"pid": 1, "kind": "compute", "name": "x" * 100}] * 1_000_000
    read = host_results.gpu_info("gpu-1", sent)["gpus"][0]
    assert len(read["processes"]) == MOST_ENTRIES and len(read["holders"]) == MOST_ENTRIES + 1
    last = read["holders"][-1]
    assert last["kind"] == "unknown" and last["who"].startswith("%d more" % (1_000_000 - MOST_ENTRIES))


def test_total_length_of_lists_is_limited():
    sent = honest()
    row = sent["gpus"][0]["holders"][0]
    sent["gpus"] = [dict(sent["gpus"][0], index=n, holders=[row] * 1000) for n in range(64)]
    read = host_results.gpu_info("gpu-1", sent)
    assert sum(len(one["holders"]) + len(one["processes"]) for one in read["gpus"]) <= 5000 + 64


@pytest.mark.parametrize("most", [65, 1_000_000])
def test_too_many_gpus_are_refused(most):
    sent = honest()
    sent["gpus"] = sent["gpus"][:1] * most
    with pytest.raises(
        HostValueError, match=r'gpu-1: gpus: the host sent "a list of %d", which is not one of at most 64' % most
    ):
        host_results.gpu_info("gpu-1", sent)


def test_only_the_hostile_host_is_refused():
    deep: list = []
    for _level in range(5000):
        deep = [deep]
    read, refused = host_results.gpu_info_of_all(
        {"a": honest(), "b": {"gpus": deep}, "c": {"failed": True}, "d": {"gpus": [{"uuid": "GPU-1"}]}, "e": "text"}
    )
    assert sorted(read) == ["a"]
    assert [line.split(": ")[0] for line in refused] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"unreachable": True, "msg": "No route to host"}, "a: it could not be reached: No route to host"),
        ({"failed": True, "msg": "pynvml is\nmissing"}, "a: reading its GPUs failed: pynvml is\\x0amissing"),
        (
            {"gpus": [], "driver_present": False, "driver_absent_reason": "libnvidia-ml.so.1 is not there"},
            "a: its GPUs were not read: libnvidia-ml.so.1 is not there",
        ),
    ],
)
def test_result_without_gpus_is_no_answer(result, reason):
    """Refuse a result without GPUs.

    The host may have GPUs and holders, but could not report them.
    """
    assert host_results.gpu_info_of_all({"a": result}) == ({}, [reason])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        # ansible-core returns these results if sudo is missing, with and without a terminal.
        (
            {"module_stdout": "/bin/sh: 1: sudo: not found\r\n", "module_stderr": "Shared connection to a closed.\r\n"},
            'No start of json char found. The host printed: "/bin/sh: 1: sudo: not found". Check on the host '
            "that Python runs and that the account can become root.",
        ),
        (
            {"module_stderr": "Traceback\n  File x\nImportError: No module named 'json'\n"},
            "No start of json char found. The host printed: \"ImportError: No module named 'json'\". Check on the host "
            "that Python runs and that the account can become root.",
        ),
        ({"module_stderr": "No start of json char found"}, "No start of json char found"),
        (
            {"module_stdout": "\n", "module_stderr": "Shared connection to a closed."},
            "The host stopped answering while the module ran. Check its power and its kernel log (journalctl --boot=-1 --dmesg), "
            "then run again. A run completes or undoes an interrupted change.",
        ),
    ],
)
def test_output_instead_of_a_result_is_in_the_message(more, message):
    result = {"failed": True, "msg": "No start of json char found", **more}
    assert host_results.failure(result)["msg"] == message
    assert host_results.layout_result(result)["msg"] == message


def test_host_that_was_not_queried_differs_from_an_unanswered_one():
    assert host_results.gpu_info_of_all({"a": {}, "b": {"skipped": True}}) == ({}, [])


# --- layout, plans and others -----------------------------------------------------------------------------------------


def result(**changes) -> dict:
    row = {
        "index": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "entry": "gpu_layout[0]", "asked": "mig", "before": "MIG off",
        "after": "MIG on", "changed": True, "placement_units": 8,
        "instances": [{"profile": "1g.10gb", "placement": {"start": 0, "size": 1}, "mig_uuids": ["MIG-1", None]}],
    }  # fmt: skip
    counts = {"create": 1, "destroy": 0, "keep": 0, "gpus_changed": 1}
    return {"counts": counts, "gpus": [{**row, **changes}]}


@each
def test_invalid_values_of_a_host_do_not_prevent_the_report(value):
    sent = result()
    for path, was in kinds_of_places(sent):
        put(sent, path, value)
        report = fleet_report({"good": result(), "bad": sent})
        assert report["hosts"][0]["gpus"][0]["name"] == "NVIDIA H100"
        assert report["totals"]["create"] >= 1
        assert all(inner.isprintable() for _path, inner in places(report) if isinstance(inner, str))
        put(sent, path, was)


def test_report_explains_an_invalid_result():
    report = fleet_report({"bad": result(uuid="GPU-0; rm -rf /")})
    (row,) = report["hosts"]
    assert row["gpus"] == []
    assert row["note"].startswith('gpus[0].uuid: the host sent "GPU-0; rm -rf /", which is not the UUID of a GPU')


def test_plan_is_kept_and_limited():
    plan = {"schema": 4, "gpus": [{"uuid": "GPU-0", "plan": "gpu 0: nothing to do", "steps": [], "asked": None}]}
    assert fleet_plan({"a": {"plan_data": plan}})["hosts"]["a"] == plan
    huge = {"schema": 4, "gpus": ["\x1b[2J" + "x" * 5000, *["x"] * 1_000_000]}
    kept = fleet_plan({"a": {"plan_data": huge}})["hosts"]["a"]
    assert len(kept["gpus"]) <= 20_001 and kept["gpus"][0].startswith("\\x1b[2Jx") and len(kept["gpus"][0]) == 1000
    for none in (None, {}, {"plan_data": "x"}, []):
        with pytest.raises(Exception, match="a: the host returned no plan"):
            fleet_plan({"a": none})


@each
def test_values_of_the_pci_bus_are_checked(value):
    layout = [{"gpus": "all", "sharing": "shared"}]
    for sent in (value, [value], [{"device_id": value}]):
        found = plan_without_driver(layout, [], sent)
        # An empty result is valid too: the host has no GPUs.
        assert found["problems"] or not sent
        assert all(problem.isprintable() and len(problem) < 400 for problem in found["problems"])


def test_copies_are_plain_and_limited():
    deep = "x"
    for _level in range(500):
        deep = [deep]
    copied = bounded({"a": deep, "b\x1b": [1, True, None, 1.5, float("nan"), 1 << 70, "\u2028"], "c": range(3)})
    json.dumps(copied, allow_nan=False)
    assert copied["b\\x1b"] == [1, True, None, 1.5, "nan", "int", "\\u2028"] and copied["c"] == "range"
    assert bounded(list(range(10)), 3) == [0, 1, 2, "and 7 more"]


def test_filter_reports_invalid_values():
    assert host_value("aarch64", "architecture", "gpu-1") == {"value": "aarch64", "problem": ""}
    found = host_value("x86_64/../../x", "architecture", "gpu-1")
    assert "value" not in found
    assert found["problem"].startswith(
        'gpu-1: its result: the host sent "x86_64/../../x", which is not x86_64 or aarch64.'
    )
    with pytest.raises(Exception, match="unknown kind 'path'"):
        host_value("x", "path")


@pytest.mark.parametrize(
    "result",
    [
        {"msg": "Module result deserialization failed: No start of json char found", "module_stdout": "", "rc": 137},
        {
            "msg": "MODULE FAILURE\nSee stdout/stderr for the exact error",
            "module_stderr": "Shared connection to h1 closed.\r\n",
        },
    ],
)
def test_host_that_dies_during_the_module_is_reported_so(result):
    message = host_results.layout_result({**result, "failed": True})["msg"]
    assert message.startswith("The host stopped answering while the module ran")
    assert "run again" in message and "deserialization" not in message and "MODULE" not in message


def test_line_is_one_line_of_a_message():
    said = checked("h", "x", "line", "HTTP response body:\r\n  forged\x1b[2J\u2028" + "y" * 5000)
    assert said.startswith("HTTP response body: forged\\x1b[2J") and said.isprintable() and len(said) == 1000
