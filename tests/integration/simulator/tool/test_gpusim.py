# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the tool gpusim with NVML clients."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

PROCESSES = "result = [p.pid for p in N.nvmlDeviceGetComputeRunningProcesses(gpu)]"


def running(child) -> None:
    """Wait until cat, which `gpusim run` started, responds."""
    child.stdin.write(b"ready\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"ready\n"


# --- init ---------------------------------------------------------------------------------------


def configured(host, tmp_path, data) -> str:
    path = tmp_path / "gpus.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


@pytest.mark.host_python
def test_init_reports_changes(h100, tmp_path):
    config = configured(h100, tmp_path, {"host": "h1", "gpus": [{"model": "h100-80gb"}]})
    assert h100.gpusim("init", "--config", config, "--check").startswith("changed: would lay out 1 ")
    assert h100.nvml("result = N.nvmlDeviceGetCount()") == 2
    assert h100.gpusim("init", "--config", config).startswith("changed: laid out 1 ")
    assert h100.nvml("result = N.nvmlDeviceGetCount()") == 1
    assert h100.gpusim("init", "--config", config).startswith("unchanged: 1 ")


def test_identities_are_derived_from_host_and_index(make_host, tmp_path):
    host = make_host({"model": "T4-16GB"})
    identities = {}
    for name in ("one", "other", "one"):
        gpus = [{"model": "L40S-48GB", "count": 3}]
        host.gpusim("init", "--config", configured(host, tmp_path, {"host": name, "gpus": gpus}))
        found = host.nvml("""
            handles = [N.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
            result = [[N.nvmlDeviceGetUUID(h), N.nvmlDeviceGetSerial(h)] for h in handles]
        """)
        assert identities.setdefault(name, found) == found
    everything = [value for gpus in identities.values() for gpu in gpus for value in gpu]
    assert len(set(everything)) == 12


@pytest.mark.parametrize(
    "data, problem",
    [
        ("{", "not JSON"),
        ([], "is not an object"),
        ({}, "gpus: is not a list"),
        ({"gpus": []}, "gpus: is not a list"),
        ({"gpus": ["H100-80GB"]}, 'gpus[0]: is "H100-80GB"'),
        ({"gpus": [{"model": "H100-80GB", "number": 2}]}, "gpus[0]: is"),
        ({"gpus": [{"model": "H100-80GB", "count": 0}]}, "gpus[0].count: is 0"),
        ({"gpus": [{"model": "H100-80GB", "count": True}]}, "gpus[0].count: is true"),
        ({"gpus": [{"model": "H100-80GB", "count": 33}]}, "more than a simulated host can have"),
        ({"gpus": [{"model": "H9000"}]}, "gpus[0].model: H9000 is not in the catalogue"),
        ({"gpus": [{"model": "T4-16GB"}], "driver": "1"}, "driver: is not a field"),
        ({"gpus": [{"model": "T4-16GB"}], "driver_version": 580}, "driver_version: is 580"),
        ({"gpus": [{"model": "T4-16GB"}], "driver_version": "new"}, "driver_version: new is not a version"),
    ],
)
def test_a_malformed_configuration_names_the_field_and_changes_nothing(make_host, tmp_path, data, problem):
    host = make_host({"model": "T4-16GB"})
    assert problem in host.refused("init", "--config", configured(host, tmp_path, data))
    assert host.nvml("result = N.nvmlDeviceGetCount()") == 1


def test_the_configuration_reaches_nvml(make_host):
    host = make_host({"model": "A100-80GB", "count": 2}, {"model": "T4-16GB"})
    found = host.nvml("""
        handles = [N.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        result = {
            "driver": N.nvmlSystemGetDriverVersion(),
            "cuda": N.nvmlSystemGetCudaDriverVersion(),
            "names": [N.nvmlDeviceGetName(h) for h in handles],
            "memory": [N.nvmlDeviceGetMemoryInfo(h).total >> 20 for h in handles],
            "power": [N.nvmlDeviceGetPowerManagementDefaultLimit(h) for h in handles],
            "pci": [N.nvmlDeviceGetPciInfo(h).busId for h in handles],
            "ids": [hex(N.nvmlDeviceGetPciInfo(h).pciDeviceId) for h in handles],
            "capability": [N.nvmlDeviceGetCudaComputeCapability(h) for h in handles],
            "links": [sum(N.nvmlDeviceGetNvLinkState(h, i) for i in range(12)) for h in handles[:2]],
            "link": [N.nvmlDeviceGetNvLinkVersion(handles[0], 0), N.nvmlDeviceGetFieldValues(handles[0], [90])[0].value.uiVal],
            "states": [N.nvmlDeviceGetPerformanceState(h) for h in handles],
            "idle": [N.nvmlDeviceGetClockInfo(handles[2], kind) for kind in range(4)],
            "watts": [N.nvmlDeviceGetPowerUsage(h) // 1000 for h in handles],
            "modules": [N.nvmlDeviceGetModuleId(h) for h in handles],
            "inforom": [N.nvmlDeviceGetInforomImageVersion(h) for h in handles],
        }
    """)
    assert found == {
        "driver": "580.105.08",
        "cuda": 13000,
        "names": ["NVIDIA A100-SXM4-80GB"] * 2 + ["Tesla T4"],
        "memory": [81920, 81920, 15360],
        "power": [400000, 400000, 70000],
        "pci": ["00000000:1A:00.0", "00000000:28:00.0", "00000000:36:00.0"],
        "ids": ["0x20b210de", "0x20b210de", "0x1eb810de"],
        "capability": [[8, 0], [8, 0], [7, 5]],
        "links": [12, 12],
        # NVLink 3.0 with 25 GB/s.
        "link": [4, 25000],
        "states": [0, 0, 8],
        "idle": [300, 300, 405, 540],
        "watts": [59, 59, 9],
        "modules": [1, 2, 1],
        "inforom": ["G506.0210.00.03"] * 2 + ["G183.0200.00.02"],
    }


# --- naming GPUs --------------------------------------------------------------------------------


def test_a_gpu_is_named_by_index_uuid_or_pci_address(h100):
    gpus = h100.state()["gpus"]
    for name in ("1", gpus[1]["uuid"], gpus[1]["pci_address"], gpus[1]["pci_address"][4:].lower(), "28:00.0"):
        h100.gpusim("load", name, "--pattern", "constant", "--utilization", 7)
        found = "result = N.nvmlDeviceGetUtilizationRates(N.nvmlDeviceGetHandleByIndex(1)).gpu"
        assert h100.nvml(found) == 7, name
        h100.gpusim("load", name, "--clear")
        assert h100.nvml(found) == 0
    for name in ("2", "GPU-0", "28:00.1", "00000001:28:00.0", "", "-1"):
        assert "none of the 2 GPUs" in h100.refused("load", "--clear", "--", name)


def test_missing_gpu_instance_is_an_error(h100):
    assert "GPU 0 has no GPU instance '3'. It has none" in h100.refused("load", "0/3", "--clear")
    assert "no MIG device of this host" in h100.refused("load", "MIG-1", "--clear")


# --- run ----------------------------------------------------------------------------------------


@pytest.mark.host_python
def test_a_command_counts_as_gpu_process_until_it_is_killed(h100):
    child = h100.start("--gpu", 0, "--memory", "4GiB", "--", "cat")
    running(child)
    found = h100.nvml("""
        result = [[p.pid, p.usedGpuMemory] for p in N.nvmlDeviceGetComputeRunningProcesses(gpu)]
    """)
    assert found == [[child.pid, 4 << 30]]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert h100.nvml(PROCESSES) == []
    assert h100.state()["processes"] == []


def test_the_type_of_a_process(h100):
    running(h100.start("--gpu", 1, "--type", "graphics", "--", "cat"))
    assert h100.nvml("""
        other = N.nvmlDeviceGetHandleByIndex(1)
        lists = (N.nvmlDeviceGetComputeRunningProcesses, N.nvmlDeviceGetGraphicsRunningProcesses)
        result = [len(f(other)) for f in lists]
    """) == [0, 1]


def test_run_gives_the_commands_exit_status_and_output(h100):
    done = h100.try_gpusim("run", "--gpu", 0, "--", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")


def test_run_refuses_invalid_requests(h100, as_root):
    assert "no command" in h100.refused("run", "--gpu", 0)
    assert "cannot be run" in h100.refused("run", "--gpu", 0, "--", "/no/such/program")
    assert h100.nvml(PROCESSES) == []
    h100.refused("run", "--gpu", 0, "--memory", "80GiB", "--", "true")
    h100.refused("run", "--gpu", 0, "--gi", 1, "--", "true")
    h100.nvml("N.nvmlDeviceSetComputeMode(gpu, N.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS); result = 0")
    running(h100.start("--gpu", 0, "--", "cat"))
    h100.refused("run", "--gpu", 0, "--", "true")
    h100.nvml("N.nvmlDeviceSetComputeMode(gpu, N.NVML_COMPUTEMODE_PROHIBITED); result = 0")
    h100.refused("run", "--gpu", 0, "--", "true")


def test_process_in_a_compute_instance_blocks_its_destruction(h100, as_root):
    instance = h100.create_instance(14, 0)
    uuid = h100.nvml("result = N.nvmlDeviceGetUUID(N.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))")
    child = h100.start("--gpu", uuid, "--memory", "1GiB", "--", "cat")
    running(child)
    destroy = """
        gi = N.nvmlDeviceGetGpuInstanceById(gpu, INSTANCE)
        N.nvmlComputeInstanceDestroy(N.nvmlGpuInstanceGetComputeInstanceById(gi, 0))
        result = "gone"
    """.replace("INSTANCE", str(instance))
    assert "NVMLError_InUse" in h100.try_nvml(destroy).stderr
    child.kill()
    child.wait()
    assert h100.nvml(destroy) == "gone"


# --- reset and reboot ---------------------------------------------------------------------------


def test_reset_applies_a_pending_mig_mode(a100, as_root):
    child = a100.start("--gpu", 0, "--", "cat")
    running(child)
    modes = "result = N.nvmlDeviceGetMigMode(gpu)"
    assert a100.nvml("result = N.nvmlDeviceSetMigMode(gpu, 1)") == 19
    assert a100.nvml(modes) == [0, 1]
    refused = a100.refused("reset", 0)
    assert a100.nvml(modes) == [0, 1] and refused
    child.kill()
    child.wait()
    assert a100.gpusim("reset", a100.state()["gpus"][0]["uuid"]) == "GPU 0 was reset\n"
    assert a100.nvml(modes) == [1, 1]


def test_passthrough_leaves_the_mode_pending_until_a_reset(a100, as_root):
    a100.gpusim("set", 0, "passthrough", "on")
    assert a100.nvml("result = N.nvmlDeviceSetMigMode(gpu, 1)") == 16
    assert a100.nvml("result = N.nvmlDeviceGetMigMode(gpu)") == [0, 1]
    a100.gpusim("reset", 0)
    assert a100.nvml("result = N.nvmlDeviceGetMigMode(gpu)") == [1, 1]


def test_mode_without_reset_changes_at_the_reboot(a100, as_root):
    a100.gpusim("set", 0, "passthrough", "on")
    a100.gpusim("set", 0, "reset_refused", "on")
    a100.nvml("result = N.nvmlDeviceSetMigMode(gpu, 1)")
    assert "cannot be reset here; reboot the host" in a100.refused("reset", 0)
    assert a100.nvml("result = N.nvmlDeviceGetMigMode(gpu)") == [0, 1]
    a100.gpusim("reboot")
    assert a100.nvml("result = N.nvmlDeviceGetMigMode(gpu)") == [1, 1]


def test_gpu_held_by_the_kernel_is_in_use_until_the_reboot(a100, as_root):
    a100.gpusim("set", 0, "held_by_kernel", "on")
    assert a100.nvml("result = N.nvmlDeviceSetMigMode(gpu, 1)") == 19
    assert a100.nvml("result = N.nvmlDeviceGetMigMode(gpu)") == [0, 1]
    assert a100.state()["processes"] == []
    assert "a kernel module holds GPU 0" in a100.refused("reset", 0)
    a100.gpusim("reboot")
    assert a100.nvml("result = N.nvmlDeviceGetMigMode(gpu)") == [1, 1]
    assert a100.nvml("result = N.nvmlDeviceSetMigMode(gpu, 0)") == 0
    assert "held_by_kernel" in a100.gpusim("set", "--help")


def test_reboot_resets_volatile_state(h100, as_root):
    h100.create_instance(9, 0)
    h100.nvml("N.nvmlDeviceSetPersistenceMode(gpu, 1); result = 0")
    h100.gpusim("load", 1, "--pattern", "constant", "--utilization", 50)
    child = h100.start("--gpu", 1, "--", "cat")
    running(child)
    h100.gpusim("reboot")
    state = h100.state()
    assert state["processes"] == [] and state["gpus"][0]["gpu_instances"] == []
    assert h100.nvml("result = N.nvmlDeviceGetPersistenceMode(gpu)") == 0
    assert h100.nvml("result = N.nvmlDeviceGetUtilizationRates(N.nvmlDeviceGetHandleByIndex(1)).gpu") == 0


# --- faults and switches ------------------------------------------------------------------------


def test_the_nth_call_fails_once(h100):
    h100.gpusim("fail", "nvmlDeviceGetName", "--nth", 2, "--code", "in_use")
    assert "nvmlDeviceGetName" in h100.gpusim("show")
    assert h100.nvml("""
        def name():
            try:
                return N.nvmlDeviceGetName(gpu)
            except N.NVMLError as error:
                return error.value
        result = [name() for _ in range(3)]
    """) == ["NVIDIA H100 80GB HBM3", 19, "NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize("code", ["kill", "kill-after"])
def test_the_caller_dies(h100, as_root, code):
    h100.gpusim("fail", "DeviceSetPersistenceMode", "--code", code)
    assert h100.try_nvml("result = N.nvmlDeviceSetPersistenceMode(gpu, 1)").returncode == -signal.SIGKILL
    assert h100.nvml("result = N.nvmlDeviceGetPersistenceMode(gpu)") == (1 if code == "kill-after" else 0)


def test_calls_on_one_gpu_fail_until_the_faults_are_cleared(h100):
    h100.gpusim("fail", "DeviceGetMemoryInfo", "--gpu", 0, "--code", "unknown", "--lasting")
    h100.gpusim("fail", "any", "--gpu", h100.state()["gpus"][1]["uuid"], "--code", 11, "--lasting")
    shown = h100.gpusim("show")
    assert "nvmlDeviceGetMemoryInfo on GPU 0: UNKNOWN, each time until it is cleared" in shown
    assert "any call on GPU 1: IRQ_ISSUE, each time until it is cleared" in shown
    codes = """
        result = []
        for i in range(2):
            try:
                result.append(N.nvmlDeviceGetMemoryInfo(N.nvmlDeviceGetHandleByIndex(i)) and 0)
            except N.NVMLError as error:
                result.append(error.value)
    """
    assert h100.nvml(codes) == [999, 11]
    h100.gpusim("fail", "--clear")
    assert h100.nvml(codes) == [0, 0]
    h100.gpusim("fail", "any", "--gpu", 1, "--nth", 7, "--code", 11, "--lasting")
    assert "IRQ_ISSUE, on call 7 from now and each after it until it is cleared" in h100.gpusim("show")
    h100.gpusim("fail", "--clear")
    assert "name the GPU" in h100.refused("fail", "any", "--code", "UNKNOWN", "--lasting")


def test_faults_can_be_cleared_and_are_validated(h100):
    h100.gpusim("fail", "nvmlDeviceGetName", "--code", "kill")
    h100.gpusim("fail", "--clear")
    assert h100.nvml("result = N.nvmlDeviceGetName(gpu)") == "NVIDIA H100 80GB HBM3"
    assert "nvmlDeviceGetNome" in h100.refused("fail", "nvmlDeviceGetNome", "--code", "IN_USE")
    h100.refused("fail", "nvmlDeviceGetName", "--code", "SOMETHING")
    h100.refused("fail", "nvmlDeviceGetName", "--nth", 0, "--code", "IN_USE")
    assert "CALL or --code is missing" in h100.refused("fail", "nvmlDeviceGetName")


def test_switches_of_the_host(h100):
    h100.gpusim("set", "driver_version", "535.261.03")
    h100.gpusim("set", "cuda_version", "12.2")
    found = "result = [N.nvmlSystemGetDriverVersion(), N.nvmlSystemGetCudaDriverVersion()]"
    assert h100.nvml(found) == ["535.261.03", 12020]
    h100.refused("set", "0", "colour", "green")
    assert "takes a GPU" in h100.refused("set", "0", "1", "passthrough", "on")
    assert "takes a GPU" in h100.refused("set", "passthrough")


def test_calls_are_counted(h100):
    h100.gpusim("calls", "--clear")
    h100.nvml("result = [N.nvmlDeviceGetName(gpu) for _ in range(5)]")
    assert re.search(r"^ +5 nvmlDeviceGetName$", h100.gpusim("calls"), re.MULTILINE)


# --- show ---------------------------------------------------------------------------------------


def test_show_prints_everything(h100, as_root):
    instance = h100.create_instance(9, 4)
    h100.gpusim("load", f"0/{instance}", "--pattern", "sine", "--memory", "1GiB..2GiB", "--period", 30)
    uuid = h100.nvml("result = N.nvmlDeviceGetUUID(N.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))")
    child = h100.start("--gpu", uuid, "--memory", "512MiB", "--", "cat")
    running(child)
    shown = h100.gpusim("show")
    gpu = h100.state()["gpus"][0]
    for part in (
        gpu["uuid"],
        gpu["pci_address"],
        "NVIDIA H100 80GB HBM3",
        "3g.40gb",
        "4:4",
        uuid,
        "sine",
        str(child.pid),
    ):
        assert part in shown, part


@pytest.mark.host_python
def test_models_lists_the_catalogue(h100):
    listed = h100.gpusim("models")
    assert "B200-180GB" in listed and "1g.23gb+me" in listed and "no MIG" in listed


@pytest.mark.host_python
def test_missing_configuration_is_an_error_with_a_fix(h100):
    h100.state_file.unlink()
    assert "gpusim init --config" in h100.refused("show")
    assert "gpusim init --config" in h100.refused("run", "--gpu", 0, "--", "true")


def test_missing_library_is_an_error_with_a_fix(h100):
    h100.environment["GPUSIM_LIBRARY"] = "/no/such/library.so"
    assert "/no/such/library.so" in h100.refused("show")
    h100.environment["GPUSIM_LIBRARY"] = "libc.so.6"
    assert "not the simulated NVML" in h100.refused("show")


def test_every_command_has_help(h100):
    listed = h100.gpusim("--help")
    for command in (
        "init",
        "show",
        "load",
        "run",
        "xid",
        "lose",
        "restore",
        "reset",
        "reboot",
        "fail",
        "set",
        "models",
        "calls",
    ):
        assert command in listed
        assert "usage: gpusim " + command in h100.gpusim(command, "--help")
