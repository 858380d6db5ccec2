# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the acceptance rules for readings of GPUs, and the parser of dcgmi's JSON."""

from __future__ import annotations

import json
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.hardware import dcgm
from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware.acceptance import Limits, accepted, verdicts

#: Readings of a healthy GPU with two NVLinks, by (NVML call, subject).
HEALTHY = {
    ("nvmlDeviceGetEccMode", ""): [1, 1],
    ("nvmlDeviceGetTotalEccErrors", "uncorrected volatile"): 0,
    ("nvmlDeviceGetTotalEccErrors", "uncorrected aggregate"): 0,
    ("nvmlDeviceGetRemappedRows", ""): [3, 0, 0, 0],
    ("nvmlDeviceGetNvLinkState", "link 0"): 1,
    ("nvmlDeviceGetNvLinkState", "link 1"): 1,
    ("nvmlDeviceGetNvLinkErrorCounter", "link 0 replay"): 0,
    ("nvmlDeviceGetCurrPcieLinkWidth", ""): 16,
    ("nvmlDeviceGetMaxPcieLinkWidth", ""): 16,
    ("nvmlDeviceGetCurrPcieLinkGeneration", ""): 5,
    ("nvmlDeviceGetMaxPcieLinkGeneration", ""): 5,
    ("nvmlDeviceGetCurrentClocksEventReasons", ""): 1,
    ("nvmlDeviceGetEnforcedPowerLimit", ""): 700000,
    ("nvmlDeviceGetPowerManagementDefaultLimit", ""): 700000,
    ("nvmlDeviceGetTemperature", "gpu"): 40,
    ("nvmlDeviceGetTemperatureThreshold", "gpu max"): 87,
    ("nvmlDeviceGetMigMode", ""): [0, 0],
}


class Error(str):
    """An NVML error code in place of a value."""


def gpu(index=0, changes=()):
    calls = []
    for (call, of), value in {**HEALTHY, **dict(changes)}.items():
        reading = {"call": call, "of": of}
        calls.append(
            dict(reading, error=str(value), code=0) if isinstance(value, Error) else dict(reading, value=value)
        )
    return {"index": index, "problem": None, "code_name": None, "calls": calls}


def host(*gpus, tests=None):
    reading = {"nvml": {"gpus": list(gpus)}}
    if tests is not None:
        reading["dcgm"] = {"level": 1, "missing": None, "problem": None, "tests": tests}
    return reading


def failed(reading, **limits):
    return {(v.gpu, v.rule): v for v in verdicts(reading, Limits(**limits)) if v.outcome == "fail"}


def test_healthy_host_is_accepted():
    found = verdicts(host(gpu(0), gpu(1)), Limits(gpus=2))
    assert accepted(found)
    assert {verdict.rule for verdict in found if verdict.outcome == "not run"} == {"DCGM", "temperature under load"}
    assert len([verdict for verdict in found if verdict.gpu == 0 and verdict.outcome == "pass"]) == 14


@pytest.mark.parametrize(
    ("call", "value", "rule", "word"),
    [
        (("nvmlDeviceGetEccMode", ""), [0, 0], "ECC mode", "nvidia-smi -i 1 -e 1"),
        (("nvmlDeviceGetEccMode", ""), [0, 1], "ECC mode", "Reboot"),
        (("nvmlDeviceGetTotalEccErrors", "uncorrected volatile"), 1, "uncorrected ECC errors, volatile", "dcgmi diag"),
        (
            ("nvmlDeviceGetTotalEccErrors", "uncorrected aggregate"),
            2,
            "uncorrected ECC errors, aggregate",
            "replacement",
        ),
        (("nvmlDeviceGetRemappedRows", ""), [0, 1, 1, 0], "pending row remap", "--gpu-reset -i 1"),
        (("nvmlDeviceGetRemappedRows", ""), [0, 1, 0, 1], "failed row remap", "Replace"),
        (("nvmlDeviceGetNvLinkState", "link 1"), 0, "NVLinks", "Reseat"),
        (("nvmlDeviceGetNvLinkErrorCounter", "link 0 replay"), 4, "NVLink errors", "cable"),
        (("nvmlDeviceGetCurrPcieLinkWidth", ""), 8, "PCIe width", "slot"),
        (("nvmlDeviceGetCurrentClocksEventReasons", ""), 0x40, "clocks", "fans"),
        (("nvmlDeviceGetCurrentClocksEventReasons", ""), 0x81, "clocks", "power cables"),
        (("nvmlDeviceGetEnforcedPowerLimit", ""), 500000, "power limit", "-pl 700"),
        (("nvmlDeviceGetTemperature", "gpu"), 83, "temperature", "airflow"),
        (("nvmlDeviceGetMigMode", ""), [0, 1], "MIG mode", "Reset"),
        (("nvmlDeviceGetRemappedRows", ""), Error("Unknown"), "remapped rows", "kernel log"),
    ],
)
def test_each_fault_fails_only_its_rule_with_a_remedy(call, value, rule, word):
    found = failed(host(gpu(0), gpu(1, {call: value})))
    assert list(found) == [(1, rule)]
    assert word in found[1, rule].cure
    assert str(found[1, rule]).startswith("gpu 1: %s: " % rule)


@pytest.mark.parametrize("error", ["NotSupported", "NoPermission"])
@pytest.mark.parametrize("call", list(HEALTHY))
def test_missing_or_hidden_features_are_no_failure(call, error):
    assert failed(host(gpu(0, {call: Error(error)}))) == {}


@pytest.mark.parametrize(
    ("call", "value", "limits"),
    [
        (("nvmlDeviceGetTotalEccErrors", "uncorrected aggregate"), 2, {"ecc_errors": 2}),
        (("nvmlDeviceGetNvLinkErrorCounter", "link 0 replay"), 4, {"nvlink_errors": 4}),
        (("nvmlDeviceGetTemperature", "gpu"), 83, {"temperature_margin": 4}),
    ],
)
def test_limit_is_inclusive(call, value, limits):
    assert failed(host(gpu(0, {call: value})), **limits) == {}
    assert len(failed(host(gpu(0, {call: value + 1})), **limits)) == 1


def test_reduced_clock_of_an_idle_or_capped_gpu_is_no_failure():
    # These bits mean an idle GPU, applications clocks, and the software power cap (nvml.h).
    assert failed(host(gpu(0, {("nvmlDeviceGetCurrentClocksEventReasons", ""): 0x7}))) == {}


def test_unresponsive_gpu_fails_the_host():
    lost = {
        "index": 1,
        "problem": "nvmlDeviceGetHandleByIndex failed: GPU is lost.",
        "code_name": "GpuIsLost",
        "calls": [],
    }
    found = failed(host(gpu(0), lost), gpus=2)
    assert list(found) == [(1, "answers")]
    assert "reseat" in found[1, "answers"].cure


@pytest.mark.parametrize(
    ("there", "wanted", "fails"), [(0, None, True), (2, None, False), (2, 2, False), (1, 2, True), (3, 2, True)]
)
def test_number_of_gpus(there, wanted, fails):
    found = failed(host(*(gpu(index) for index in range(there))), gpus=wanted)
    assert ((None, "number of GPUs") in found) is fails


def test_gpu_without_links_next_to_gpus_with_links_fails():
    down = {("nvmlDeviceGetNvLinkState", "link %d" % link): 0 for link in (0, 1)}
    assert list(failed(host(gpu(0), gpu(1, down)))) == [(1, "NVLinks")]
    assert failed(host(gpu(0, down), gpu(1, down))) == {}
    assert failed(host(gpu(0, down))) == {}


def dcgm_tests(results, tests=1):
    return [{"category": "Stress", "name": "diagnostic", "results": results}] * tests


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("Pass", "pass"),
        ("PASS", "pass"),
        ("Warn", "pass"),
        ("Fail", "fail"),
        ("Skip", "not run"),
        ("Not Run", "not run"),
        ("Odd", "fail"),
    ],
)
def test_dcgm_output_is_quoted(status, outcome):
    found = verdicts(host(gpu(), tests=dcgm_tests([{"of": "GPU 0", "status": status, "warnings": []}])), Limits())
    (verdict,) = [verdict for verdict in found if verdict.rule.startswith("dcgmi")]
    assert verdict.outcome == outcome


def test_one_failed_result_fails_the_test_with_dcgms_text():
    results = [
        {"of": "GPU 0", "status": "Pass", "warnings": []},
        {"of": "GPU 1", "status": "Fail", "warnings": ["ECC double bit errors. Run a field diagnostic."]},
    ]
    found = failed(host(gpu(), tests=dcgm_tests(results)))
    verdict = found[None, "dcgmi diag -r 1: diagnostic"]
    assert verdict.found == "GPU 1: Fail (ECC double bit errors. Run a field diagnostic.)"


VERSION_4 = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [
                            {
                                "entity_group": "GPU",
                                "entity_group_id": 1,
                                "entity_id": 0,
                                "status": "Fail",
                                "warnings": [
                                    {
                                        "error_category": 8,
                                        "error_id": 29,
                                        "error_severity": 5,
                                        "warning": "Persistence mode is off.",
                                    }
                                ],
                            },
                            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 1, "status": "Pass"},
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            }
        ]
    },
    "metadata": {"Driver Version Detected": "580.105.08", "version": "4.2.3"},
}
VERSION_3 = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]},
                    None,
                    {"name": "Inforom", "results": [{"gpu_ids": 1, "status": "FAIL", "warnings": "Corrupt inforom."}]},
                ],
            }
        ],
        "version": "3.1.0",
    }
}


def test_the_json_of_dcgm_4():
    read = dcgm.parse("WARNING: something\n" + json.dumps(VERSION_4, indent=8))
    assert read["problem"] is None
    assert read["tests"] == [
        {
            "category": "Deployment",
            "name": "software",
            "results": [
                {"of": "GPU 0", "status": "Fail", "warnings": ["Persistence mode is off."]},
                {"of": "GPU 1", "status": "Pass", "warnings": []},
            ],
        }
    ]


def test_the_json_of_dcgm_3():
    read = dcgm.parse(json.dumps(VERSION_3))
    assert [(test["name"], test["results"][0]["of"], test["results"][0]["status"]) for test in read["tests"]] == [
        ("Denylist", "GPU 0,1", "PASS"),
        ("Inforom", "GPU 1", "FAIL"),
    ]
    assert read["tests"][1]["results"][0]["warnings"] == ["Corrupt inforom."]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Error: unable to establish a connection to the specified host", "unable to establish"),
        ("", "no results"),
        ("{}", "no results"),
        ('{"DCGM Diagnostic": []}', "no results"),
        ('{"DCGM Diagnostic": {"test_categories": []}}', "ran no test"),
        ('{"DCGM Diagnostic": {"runtime_error": "The hostengine is busy"}}', "hostengine is busy"),
    ],
)
def test_output_without_results_fails_the_host(text, word):
    read = dcgm.parse(text, 226)
    assert word in read["problem"]
    reading = dict(host(gpu()), dcgm=dict(read, level=2, missing=None))
    assert list(failed(reading)) == [(None, "dcgmi diag -r 2")]


def test_unexplained_exit_status_fails_the_host():
    passed = json.dumps(VERSION_4).replace('"Fail"', '"Pass"')
    assert dcgm.parse(passed, 0)["problem"] is None
    assert dcgm.parse(passed, 1)["problem"] == "dcgmi diag ended with status 1, though no test failed"
    assert dcgm.parse(json.dumps(VERSION_4), 226)["problem"] is None


def test_a_host_without_dcgm_is_not_judged_by_it():
    def missing(_command, **_options):
        raise FileNotFoundError

    reading = dict(host(gpu()), dcgm=dcgm.read_dcgm(1, 5, missing))
    found = {verdict.rule: verdict for verdict in verdicts(reading, Limits())}
    assert (found["dcgmi diag -r 1"].outcome, found["dcgmi diag -r 1"].found) == ("not run", "dcgmi is not installed")


def test_hanging_diagnostic_fails_the_host():
    def hanging(command, timeout_seconds):
        raise subprocess.TimeoutExpired(command, timeout_seconds)

    reading = dict(host(gpu()), dcgm=dcgm.read_dcgm(3, 5, hanging))
    assert "did not end within 5 s" in failed(reading)[None, "dcgmi diag -r 3"].found
