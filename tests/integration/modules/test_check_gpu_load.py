# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""make check-gpu with --load: a simulated NVML, the limiter as it ships, and a stub of the CUDA driver."""

from __future__ import annotations

import json
import sys

import pytest
from card import Card
from limiter_lab import Built
from simulated_host import ROOT

TOOL = ROOT / "tools" / "check_gpu.py"
sys.path.append(str(ROOT / "tools" / "gpu_load"))

import judge
import measure

QUOTA, CONTEXT = 1 << 30, 400 << 20


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return Built(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def run(host, built, tmp_path):
    """Run the command on a host of one GPU, and return its report's checks by area."""

    def run(*options, cuda=True):
        host.create([{"model": "H100-80GB"}])
        libraries = [str(host.library), *([str(built.stub)] if cuda else [])]
        variables = {**Card(tmp_path / "card").environment(), "LD_LIBRARY_PATH": ":".join(libraries)}
        command = ["env", *("%s=%s" % one for one in variables.items()), sys.executable, str(TOOL)]
        folder = tmp_path / "report"
        done = host.run([*command, "--directory", str(folder), "--library", "none", "--load", *options], check=False)
        assert done.returncode in (0, 1), done.stderr
        checks = json.loads((folder / "gpu-check.json").read_text())["checks"]
        return {area: [check for check in checks if check["area"] == area] for area in ("load", "vGPU limiter", "MPS")}

    return run


def test_a_tenant_gets_its_quota_and_what_no_stub_shows_is_not_run(run):
    found = run()
    limiter = {check["what"]: check for check in found["vGPU limiter"]}
    got = [int(check["found"]) for what, check in limiter.items() if what.endswith("bytes that a tenant got")]
    # To the byte; rows, arrays and physical memory have units of their own.
    assert len(got) == 6 and all(QUOTA - (2 << 20) < each <= QUOTA for each in got), limiter
    not_run = {what for what, check in limiter.items() if check["outcome"] == "not run"}
    assert not_run == {what for what in limiter if "percent" in what} and len(not_run) == 4
    # The cost of a launch depends on what else this machine does.
    others = {what: check for what, check in limiter.items() if what not in not_run and "cost" not in what}
    assert [check for check in others.values() if check["outcome"] != "held"] == []
    assert {check["outcome"] for check in found["load"]} == {"not run"}
    assert [check["reason"] for check in found["MPS"]] == ["nvidia-cuda-mps-control is not installed"]


def test_without_cuda_nothing_is_measured_and_the_reason_is_named(run):
    found = run(cuda=False)
    assert all("libcuda.so.1" in check["reason"] for check in found["load"] + found["vGPU limiter"])


def test_a_gpu_that_is_not_there(run):
    assert {check["reason"] for check in run("--gpu", "7")["load"]} == {"there is no GPU 7"}


def test_shares_are_measured_in_the_time_of_the_card(built, tmp_path, monkeypatch):
    """In the stub's own time, which does not depend on this machine."""
    preload = str(built.stub / "libcuda.so.1")
    for name, value in {**Card(tmp_path / "card").environment(), "LD_PRELOAD": preload}.items():
        monkeypatch.setenv(name, value)
    card = measure.Card(0, "#0", tmp_path, 600, lambda text: None)
    took = {}
    for percent in (None, 20, 80):
        monkeypatch.setenv("STUB_CLOCK", str(tmp_path / ("clock-%s" % percent)))
        tenant = measure._tenant(card, built.library, "share-%s" % percent, sm_percent=percent) if percent else {}
        took[percent] = {"took": measure._kernel_seconds(card, tenant)}
    found = measured(bare_seconds=took.pop(None), shares={str(percent): said for percent, said in took.items()})
    shares = {what: outcome for what, outcome in judged(found).items() if what.startswith("share of")}
    assert shares == {"share of 20 percent": "held", "share of 80 percent": "held"}


# --- the judgement, on figures ------------------------------------------------------------------------------------------


def measured(**limiter):
    state = {"utilization": 100, "power_watts": 300.0, "sm_mhz": 1980, "processes": {7: CONTEXT}}
    rest = {"utilization": 0, "power_watts": 70.0, "sm_mhz": 345, "processes": {}}
    memory = {"held": QUOTA, "code": 2, "total": QUOTA, "free": QUOTA, "free_after": QUOTA, "card": QUOTA + CONTEXT}
    found = {
        "quota": QUOTA,
        "memory": {"linear": memory},
        "two_processes": {"held": QUOTA, "codes": [2, 2]},
        "launch_seconds": {"bare": 2e-6, "tenant": 2.1e-6, "throttled": 4e-6},
        "bare_seconds": {"took": 1.5},
        "shares": {"20": {"took": 7.5}, "50": {"took": 3.0}},
        "two_tenants": {"kernels": [300, 700]},
    }
    load = {"rest": rest, "busy": state, "after": rest, "pid": 7, "nodes": ["/dev/nvidia0"]}
    return {"load": load, "limiter": {**found, **limiter}, "mps": {"pid": 7, "servers": ["9"], "clients": ["7"]}}


def judged(found):
    return {check.what: check.outcome for check in judge.checks(0, found, False, 1.5)}


def test_a_card_that_does_what_it_should():
    assert set(judged(measured()).values()) == {"held"}


@pytest.mark.parametrize(
    "limiter, what",
    [
        ({"two_processes": {"held": QUOTA + 1, "codes": [2, 2]}}, "two processes of a tenant: bytes together"),
        ({"shares": {"20": {"took": 5.0}}}, "share of 20 percent"),
        ({"two_tenants": {"kernels": [500, 500]}}, "two tenants of 30 and 70 percent: part of the first"),
        (
            {"launch_seconds": {"bare": 2e-6, "tenant": 4e-6, "throttled": 4e-6}},
            "cost of a launch of an unthrottled tenant, added",
        ),
    ],
)
def test_a_limiter_that_does_not_hold_differs(limiter, what):
    assert [name for name, outcome in judged(measured(**limiter)).items() if outcome == "differs"] == [what]


@pytest.mark.parametrize(
    "change", [{"held": QUOTA + 1}, {"code": 0}, {"total": 80 << 30}, {"free_after": 0}, {"card": 2 * QUOTA}]
)
def test_memory_beyond_the_quota_differs(change):
    found = measured()
    found["limiter"]["memory"]["linear"].update(change)
    assert list(judged(found).values()).count("differs") == 1


@pytest.mark.parametrize("change", [{"utilization": 3}, {"power_watts": 60.0}, {"sm_mhz": 210}, {"processes": {8: 1}}])
def test_a_load_that_nvml_does_not_see_differs(change):
    found = measured()
    found["load"]["busy"].update(change)
    assert list(judged(found).values()).count("differs") == 1
