# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module gpu_info with the simulated NVML."""

from __future__ import annotations

import os
import shutil

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import find_model
from tests.integration.patience import wait_until

pytestmark = [pytest.mark.core, pytest.mark.host_python]

#: An H100-80GB's profiles.
PROFILES = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb"]


def test_facts_of_the_host(host):
    host.create([{"model": "H100-80GB", "count": 2}, {"model": "L40S-48GB", "count": 1}], driver_version="580.65.06")
    info = host.module("gpu_info")
    assert info["driver_present"]
    assert info["simulated"]
    assert info["driver_version"] == "580.65.06"
    assert [g["index"] for g in info["gpus"]] == [0, 1, 2]
    model = find_model("H100-80GB")
    h100, l40s = info["gpus"][0], info["gpus"][2]
    assert h100["name"] == model.name
    assert h100["memory_total_bytes"] == model.memory_total_mib << 20
    assert (h100["architecture"], h100["compute_capability"]) == ("hopper", "9.0")
    assert h100["mig"] == {"capable": True, "enabled": False, "pending": False, "instances": []}
    assert l40s["mig"]["capable"] is False
    assert len({g["uuid"] for g in info["gpus"]} | {g["pci_address"] for g in info["gpus"]}) == 6
    assert len(h100["nvlinks"]) == model.nvlink_links
    assert l40s["nvlinks"] == []


def test_telemetry_follows_a_load_and_can_be_disabled(host):
    host.create([{"model": "L40S-48GB", "count": 1}])
    host.gpusim("load", "0", "--pattern", "constant", "--utilization", "80", "--memory", "4GiB", "--power", "200")
    seen = host.module("gpu_info")["gpus"][0]["telemetry"]
    assert seen["gpu_utilization_percent"] == 80
    assert seen["memory_used_bytes"] >= 4 << 30
    assert abs(seen["power_watts"] - 200) < 10
    assert host.module("gpu_info", telemetry=False)["gpus"][0]["telemetry"] is None


def test_instances_profiles_and_processes(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    host.module(
        "mig", layout=[{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]}]
    )
    gpu = host.module("gpu_info", profiles=True)["gpus"][0]
    assert [p["name"] for p in gpu["mig"]["profiles"]] == PROFILES
    small = next(p for p in gpu["mig"]["profiles"] if p["name"] == "1g.10gb")
    assert (small["profile_id"], small["enum"], len(small["placements"])) == (19, 0, 7)
    # The result includes the memory that an MPS daemon in an instance reserves.
    known = find_model("H100-80GB")
    sizes = {p.name: known.profile_memory_mib(p) for p in known.profiles}
    assert {p["name"]: p["memory_mib"] for p in gpu["mig"]["profiles"]} == {p: sizes[p] for p in PROFILES}
    big = next(i for i in gpu["mig"]["instances"] if i["profile"] == "3g.40gb")
    assert big["placement"]["size"] == 4
    process = host.popen(
        ["gpusim", "run", "--gpu", "0", "--gi", str(big["id"]), "--memory", "2GiB", "--", "sleep", "300"]
    )
    try:

        def looked() -> dict:
            return host.module("gpu_info")["gpus"][0]

        wait_until(lambda: process.poll() is not None or looked()["processes"], "the process")
        gpu = looked()
        (found,) = gpu["processes"]
        assert (found["kind"], found["gpu_instance_id"]) == ("compute", big["id"])
        assert found["gpu_memory_bytes"] == 2 << 30
        inside = {i["profile"]: len(i["processes"]) for i in gpu["mig"]["instances"]}
        assert inside == {"3g.40gb": 1, "1g.10gb": 0}
    finally:
        process.kill()
        process.wait()
    assert host.module("gpu_info")["gpus"][0]["processes"] == []


def test_mps_client_is_one_process(host):
    """Count an MPS client once.

    NVML lists it as a compute process too.
    """
    host.create([{"model": "H200-141GB", "count": 1}])
    with host.popen(["gpusim", "run", "--gpu", "0", "--type", "mps", "--", "sleep", "300"]) as process:
        try:
            wait_until(lambda: process.poll() is not None or _processes(host), "the process")
            assert [(found["pid"], found["kind"]) for found in _processes(host)] == [(process.pid, "mps")]
        finally:
            process.kill()


def test_process_name_is_one_line_of_text(host):
    """Clean up process names.

    A user chooses the name, which may be invalid UTF-8.
    """
    host.create([{"model": "L40S-48GB", "count": 1}])
    program = shutil.copy("/bin/sleep", os.fsencode(host.folder) + "/\x1b[2J\u2028\r".encode() + b"\xff")
    with host.popen(["gpusim", "run", "--gpu", "0", "--", os.fsdecode(program), "300"]) as process:
        try:
            wait_until(lambda: process.poll() is not None or _processes(host), "the process")
            (found,) = _processes(host)
            assert found["name"].endswith("/\\x1b[2J\\u2028\\x0d\ufffd")
        finally:
            process.kill()


def _processes(host):
    return host.module("gpu_info")["gpus"][0]["processes"]


def test_missing_driver_is_a_result_not_a_failure(host):
    info = host.module("gpu_info")
    assert not info.get("failed")
    assert (info["driver_present"], info["gpus"], info["driver_version"]) == (False, [], None)
    assert "driver" in info["driver_absent_reason"]


def test_any_user_can_read_without_mig_capable_gpus(host):
    host.create([{"model": "L40S-48GB", "count": 1}])
    assert len(host.module("gpu_info", user=65534)["gpus"]) == 1


def test_reading_mig_capable_gpus_needs_root(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    result = host.module("gpu_info", user=65534)
    assert result["failed"]
    assert "become: true" in result["msg"]
