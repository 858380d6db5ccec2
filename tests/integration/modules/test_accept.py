# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run accept.yml on simulated hosts with simulated faults.

dcgmi is a stand-in that prints the JSON of DCGM 4.
"""

from __future__ import annotations

import json

import pytest

from tests.integration.patience import wait_until
from tests.integration.simulated_fleet import Fleet

#: Simulator commands that cause a fault. The values are the rule that then fails, and a word from the rule's advice.
FAULTS = {
    ("set", "0", "remap_pending", "on"): ("pending row remap", "--gpu-reset"),
    ("set", "0", "remap_failed", "on"): ("failed row remap", "Replace"),
    ("set", "0", "ecc_uncorrected", "2"): ("uncorrected ECC errors, volatile", "dcgmi diag"),
    ("set", "0", "throttle", "hw_power_brake"): ("clocks", "power cables"),
    ("set", "0", "temperature_c", "86"): ("temperature", "airflow"),
    ("lose", "0"): ("answers", "reseat"),
    ("fail", "nvmlDeviceGetEccMode", "--code", "UNKNOWN"): ("ECC mode", "kernel log"),
}


def stand_in_dcgmi(host, status, warning=""):
    """Install a stand-in for dcgmi diag -j that prints JSON and records its arguments."""
    result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": status}
    if warning:
        result["warnings"] = [{"error_category": 8, "error_id": 29, "error_severity": 5, "warning": warning}]
    test = {"name": "software", "results": [result], "test_summary": {"status": status}}
    printed = {"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [test]}]}}
    (host.folder / "printed.json").write_text(json.dumps(printed))
    code = 0 if status == "Pass" else 226
    tool = host.bin / "dcgmi"
    tool.write_text(f'#!/bin/sh\necho "$@" >>{host.folder}/dcgmi.log\ncat {host.folder}/printed.json\nexit {code}\n')
    tool.chmod(0o755)


def verdicts(report):
    return {(v["gpu"], v["rule"]): v for v in report["acceptance"]["verdicts"]}


def test_faulty_hosts_are_rejected_with_remedies(library, tmp_path):
    fleet = Fleet(tmp_path, library, ["good", "rows", "diagnosed", "lost"])
    stand_in_dcgmi(fleet.hosts["good"], "Pass")
    stand_in_dcgmi(fleet.hosts["diagnosed"], "Fail", "Persistence mode is off.")
    fleet.hosts["rows"].gpusim("set", "0", "remap_pending", "on")
    fleet.hosts["lost"].gpusim("lose", "0")
    directory = tmp_path / "acceptance"
    options = ("-e", f"gpu_accept_dir={directory}", "-e", "gpu_accept_gpus=1", "-e", "gpu_accept_dcgm_level=2")
    run = fleet.play(dict.fromkeys(fleet.hosts), *options, playbook="playbooks/accept.yml")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 2, said
    assert "Traceback" not in said
    assert (directory / "accepted").read_text() == "good\n"
    assert "good: accepted" in said
    assert (
        "gpu 0: pending row remap: pending. Reset the GPU (nvidia-smi --gpu-reset -i 0) or reboot, and check again."
        in said
    )
    assert "host: dcgmi diag -r 2: software: GPU 0: Fail (Persistence mode is off.)." in said
    assert "gpu 0: answers: " in said and "reseat or replace the GPU" in said
    reports = {name: json.loads((directory / name / "gpu-check.json").read_text()) for name in fleet.hosts}
    assert {name: report["acceptance"]["accepted"] for name, report in reports.items()} == {
        "good": True, "rows": False, "diagnosed": False, "lost": False,
    }  # fmt: skip
    assert (fleet.hosts["good"].folder / "dcgmi.log").read_text() == "diag -r 2 -j\n"
    assert verdicts(reports["rows"])[None, "dcgmi diag -r 2"]["found"] == "dcgmi is not installed"
    page = (directory / "rows" / "gpu-check.html").read_text()
    assert "Not accepted" in page and "--gpu-reset -i 0" in page
    assert "<h2>Accepted</h2>" in (directory / "good" / "gpu-check.html").read_text()


@pytest.mark.thorough
def test_a_dry_run_judges_without_dcgm_and_writes_nothing(library, tmp_path):
    fleet = Fleet(tmp_path, library, ["good"])
    stand_in_dcgmi(fleet.hosts["good"], "Fail")
    directory = tmp_path / "acceptance"
    run = fleet.play({"good": None}, "--check", "-e", f"gpu_accept_dir={directory}", playbook="playbooks/accept.yml")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 0, said
    assert "good: accepted" in said
    assert not directory.exists()
    assert not (fleet.hosts["good"].folder / "dcgmi.log").exists()


def test_unreadable_host_is_rejected_and_others_are_judged(library, tmp_path):
    fleet = Fleet(tmp_path, library, ["broken", "good"])
    fleet.hosts["broken"].gpusim("fail", "nvmlInitWithFlags", "--code", "UNKNOWN")
    directory = tmp_path / "acceptance"
    run = fleet.play(dict.fromkeys(fleet.hosts), "-e", f"gpu_accept_dir={directory}", playbook="playbooks/accept.yml")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 2, said
    assert (directory / "accepted").read_text() == "good\n"
    assert "NVML does not start" in said


def test_dcgm_is_not_started_on_busy_gpus(host, judge):
    host.create([{"model": "L40S-48GB", "count": 1}])
    stand_in_dcgmi(host, "Pass")
    job = host.popen(["gpusim", "run", "--gpu", "0", "--memory", "1MiB", "--", "sleep", "300"])
    try:
        wait_until(lambda: host.module("gpu_info")["gpus"][0]["processes"], "the job to be on the GPU")
        reading = host.module("gpu_check", accept={"dcgm_level": 3})["reading"]
    finally:
        job.kill()
        job.wait()
    (verdict,) = [verdict for verdict in judge(reading) if verdict.outcome == "fail"]
    assert (verdict.rule, verdict.found) == ("dcgmi diag -r 3", "not run, because processes use gpu 0")
    assert not (host.folder / "dcgmi.log").exists()


@pytest.fixture(scope="module")
def judge():
    from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware import acceptance

    return lambda reading: acceptance.verdicts(reading, acceptance.Limits())


def reading_of(host):
    result = host.module("gpu_check")
    assert "reading" in result, result
    return result["reading"]


@pytest.mark.host_python
def test_every_simulated_fault_fails_only_its_rule(host, judge):
    host.create([{"model": "A100-40GB", "count": 2}])
    assert not [verdict for verdict in judge(reading_of(host)) if verdict.outcome == "fail"]
    for command, (rule, cure) in FAULTS.items():
        host.create([{"model": "A100-40GB", "count": 2}], host="before")
        host.create([{"model": "A100-40GB", "count": 2}])
        host.gpusim(*command)
        found = [verdict for verdict in judge(reading_of(host)) if verdict.outcome == "fail"]
        assert {verdict.gpu for verdict in found} == {0}, (command, found)
        assert rule in [verdict.rule for verdict in found], (command, found)
        others = {verdict.rule for verdict in found} - {rule}
        # An uncorrected error increments both the volatile and the aggregate counter.
        assert others <= {"uncorrected ECC errors, aggregate"}, (command, found)
        assert cure in next(verdict.cure for verdict in found if verdict.rule == rule)
