# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test GPUs that lack some NVML calls.

GB10 and Thor report no memory size. WSL and vGPU guests cannot set the compute mode.
"""

from __future__ import annotations

import json

import pytest

from tests.integration.command_host import CommandHost, build_command

MPS = {"name": "inference", "clients": 2, "active_thread_percentage": 50}
TENANT = {"name": "a", "memory": "1GiB", "sm_percent": 20}


@pytest.fixture(name="unified")
def of_two_gpus_without_memory_size(host):
    host.create([{"model": "L40S-48GB", "count": 2}])
    for gpu in "01":
        host.gpusim("set", gpu, "memory_info", "off")
    return host


def modes(host):
    return [gpu["compute_mode"] for gpu in host.module("gpu_info")["gpus"]]


@pytest.mark.host_python
def test_gpu_without_memory_size_can_be_shared(unified):
    seen = unified.module("gpu_info")
    assert [gpu["memory_total_bytes"] for gpu in seen["gpus"]] == [None, None] and not seen["lost_gpus"]
    assert not unified.module("layout", layout=[])["changed"]
    layout = [{"gpus": [0], "sharing": "exclusive"}, {"gpus": [1], "sharing": "shared"}]
    planned = unified.module("layout", check=True, layout=layout)
    assert unified.module("layout", layout=layout, plan=planned["plan_data"])["changed"]
    assert modes(unified) == ["exclusive_process", "default"]


def test_command_shows_and_exports_the_gpu(unified, tmp_path):
    command = CommandHost(unified, build_command(tmp_path / "gpu-layout"))
    assert "gpu 1  NVIDIA L40S" in command("show").stdout
    layout = json.loads(command("export", "--json").stdout)
    assert layout == {"gpu_layout": [{"gpus": "all", "sharing": "shared"}], "left_out": []}


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"sharing": "vgpu", "vgpu": {"tenants": [TENANT]}}, "gpu_layout[0].vgpu on gpu 0"),
        ({"sharing": "mps", "mps": dict(MPS, pinned_memory_limit="1GiB")}, "gpu_layout[0].mps on gpu 0"),
    ],
    ids=["tenants", "memory limit"],
)
def test_entry_that_needs_the_size_is_refused(unified, entry, where):
    failed = unified.module("layout", check=True, layout=[dict(entry, gpus=[0]), {"gpus": [1], "sharing": "exclusive"}])
    assert failed["failed"] and failed["where"].startswith(where), failed
    assert "reports no memory size" in failed["problem"]
    assert modes(unified) == ["default", "default"]


@pytest.mark.parametrize("answer", ["guest", "not told", "one not told"])
def test_unsettable_compute_mode_is_refused_in_the_dry_run(host, answer):
    host.create([{"model": "L40S-48GB", "count": 2}])
    if answer == "guest":
        host.gpusim("set", "0", "virtualization_mode", "2")
    else:
        for gpu in ("0", "1") if answer == "not told" else ("0",):
            host.gpusim("fail", "nvmlDeviceGetComputeMode", "--gpu", gpu, "--code", "NOT_SUPPORTED", "--lasting")
            host.gpusim("set", gpu, "compute_mode_fixed", "on")
    layout = [{"gpus": [1], "sharing": "exclusive"}, {"gpus": [0], "sharing": "exclusive"}]
    for check in (True, False):
        failed = host.module("layout", check=check, layout=layout)
        if answer == "one not told":
            # The other GPU of this model reports its mode, so the GPU that does not report it is sick.
            assert failed["where"] == "gpu_layout[1].gpus[0]", failed
            assert "does not work: the driver" in failed["problem"] and "gpu_layout_lost: skip" in failed["cure"]
        else:
            assert failed["where"].startswith("gpu_layout[1] on gpu 0"), failed
            assert "compute mode cannot be set" in failed["problem"] and "sharing: shared" in failed["cure"]
    if answer == "not told":
        assert not host.module("layout", layout=[{"gpus": "all", "sharing": "shared"}])["changed"]
        return
    assert modes(host)[1] == "default"
    layout = [{"gpus": [1], "sharing": "exclusive"}, {"gpus": [0], "sharing": "shared"}]
    assert host.module("layout", layout=layout)["changed"]
    assert modes(host)[1] == "exclusive_process"
    assert not host.module("layout", layout=layout)["changed"]


def test_unsettable_mode_found_during_the_run_is_rolled_back_with_a_fix(host):
    host.create([{"model": "L40S-48GB", "count": 2}])
    host.gpusim("set", "1", "compute_mode_fixed", "on")
    failed = host.module("layout", layout=[{"gpus": "all", "sharing": "exclusive"}])
    assert failed["failed"] and failed["outcome"] == "old" and "sharing: shared" in failed["cure"], failed
    assert modes(host) == ["default", "default"]


def test_gpu_without_pci_bus_can_be_shared(host):
    host.create([{"model": "L40S-48GB", "count": 1}])
    host.gpusim("fail", "nvmlDeviceGetPciInfo", "--gpu", "0", "--code", "NOT_SUPPORTED", "--lasting")
    (gpu,) = host.module("gpu_info")["gpus"]
    assert gpu["pci_address"] is None
    assert host.module("layout", layout=[{"gpus": "all", "sharing": "exclusive"}])["changed"]
    assert modes(host) == ["exclusive_process"]
