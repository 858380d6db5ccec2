# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the state that all clients of a host share.

The tests cover visibility, kills, faults, boots and permissions.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.integration.patience import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root, the simulated one's too: run as root"),
]

NOBODY = 65534


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "h100")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    return handle


def instances(simulator):
    return [(i["id"], i["profile"]) for i in simulator.dump()["gpus"][0]["gpu_instances"]]


def wait_for_line(child):
    return child.stdout.readline().strip()


def ended(child):
    child.wait(PATIENCE_SECONDS)
    return child.returncode


# --- several clients


def test_waiter_is_woken_by_a_change_of_another_process(simulator, gpu):
    seen = ctypes.c_uint32(0)
    simulator.call("gpusimWait", ctypes.byref(seen), 0)
    before, codes = seen.value, []
    waiting = threading.Thread(
        target=lambda: codes.append(simulator.call("gpusimWait", ctypes.byref(seen), 3_600_000)), daemon=True
    )
    waiting.start()
    stat = f"/proc/self/task/{waiting.native_id}/stat"
    # The thread sleeps in the call. The call ends in time only if the change wakes the thread.
    wait_until(lambda: Path(stat).read_text().rpartition(")")[2].split()[0] == "S", "the thread waits")
    assert ended(simulator.python("nvmlDeviceCreateGpuInstance(gpu, 9)")) == 0
    waiting.join(PATIENCE_SECONDS)
    assert codes == [0] and seen.value > before


def test_a_wait_ends_without_a_change(simulator, gpu):
    seen = ctypes.c_uint32(0)
    assert simulator.call("gpusimWait", ctypes.byref(seen), 0) == 0
    before = seen.value
    assert simulator.call("gpusimWait", ctypes.byref(seen), 50) == 10
    assert seen.value == before


def test_processes_see_each_other_s_changes(simulator, nvml, gpu):
    create = "print(nvmlGpuInstanceGetInfo(nvmlDeviceCreateGpuInstance(gpu, 9)).id, flush=True)"
    child = simulator.python(create + "; time.sleep(300)")
    made = int(wait_for_line(child))
    instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, made)
    nvml.nvmlGpuInstanceDestroy(instance)
    other = simulator.python("print(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 9))")
    assert wait_for_line(other) == "2"


def test_concurrent_clients_never_overbook_or_lose_changes(simulator, gpu, tmp_path):
    """Let eight clients compete for seven slices.

    If another client overwrote a client's change, the client could not destroy its instance.
    """
    code = f"""
while not os.path.exists("{tmp_path}/go"):
    time.sleep(0.001)
made = 0
for _ in range(300):
    try:
        gi = nvmlDeviceCreateGpuInstance(gpu, 19)
    except NVMLError_InsufficientResources:
        continue
    made += 1
    nvmlGpuInstanceDestroy(gi)
print(made)
"""
    clients = [simulator.python("print('ready', flush=True)" + code) for _ in range(8)]
    assert [wait_for_line(client) for client in clients] == ["ready"] * 8
    (tmp_path / "go").touch()
    counts = [int(wait_for_line(client) or -1) for client in clients]
    assert [ended(client) for client in clients] == [0] * 8 and min(counts) > 0
    assert instances(simulator) == []


def test_threads_of_a_client_do_not_disturb_each_other(nvml, gpu):
    wrong = []

    def work():
        try:
            for _ in range(1500):
                instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
                assert nvml.nvmlGpuInstanceGetInfo(instance).profileId == 19
                nvml.nvmlGpuInstanceDestroy(instance)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_forked_child_has_its_own_locks(simulator, gpu):
    code = """
done = []
for _ in range(4):
    if not (pid := os.fork()):
        for _ in range(200):
            nvmlGpuInstanceDestroy(nvmlDeviceCreateGpuInstance(gpu, 19))
        os._exit(0)
    done.append(pid)
print([os.waitpid(pid, 0)[1] for pid in done])
"""
    child = simulator.python(code)
    assert wait_for_line(child) == "[0, 0, 0, 0]"
    assert instances(simulator) == []


# --- clients killed


def test_client_killed_at_any_time_leaves_a_consistent_state(simulator, nvml, gpu):
    code = """
print("ready", flush=True)
while True:
    gi = nvmlDeviceCreateGpuInstance(gpu, 19)
    ci = nvmlGpuInstanceCreateComputeInstance(gi, 0)
    nvmlComputeInstanceDestroy(ci)
    nvmlGpuInstanceDestroy(gi)
"""
    chance = random.Random(2)
    ends = set()
    for kills in range(60):
        if kills >= 10 and ends >= {0, 1}:
            break
        child = simulator.python(code)
        assert wait_for_line(child) == "ready"
        time.sleep(chance.uniform(0, 0.02))
        child.send_signal(signal.SIGKILL)
        child.wait()
        state = simulator.dump()
        left = state["gpus"][0]["gpu_instances"]
        assert state["gpus"][1]["gpu_instances"] == [] and len(left) <= 1
        for instance in left:
            assert (instance["profile_id"], instance["placement"]["size"]) == (19, 1)
            assert all(part["uuid"].startswith("MIG-") for part in instance["compute_instances"])
        ends.add(sum(1 + len(instance["compute_instances"]) for instance in left))
        simulator.do("gpusimReset", 0)
        # The killed client's lock is free, so other clients can change the state.
        nvml.nvmlGpuInstanceDestroy(nvml.nvmlDeviceCreateGpuInstance(gpu, 0))
    else:
        pytest.fail("no client was killed in the middle of its work")


CREATE = "nvmlDeviceCreateGpuInstance(gpu, 9); print('lived', flush=True)"


@pytest.mark.parametrize("action, left", [("kill", []), ("kill-inside", []), ("kill-after", [(2, "3g.40gb")])])
def test_a_client_can_be_killed_before_inside_and_after_a_change(simulator, nvml, gpu, action, left):
    simulator.do("gpusimFail", "nvmlDeviceCreateGpuInstance", 1, action)
    child = simulator.python(CREATE)
    assert (ended(child), child.stdout.read()) == (-signal.SIGKILL, "")
    assert instances(simulator) == left
    # The next client finds a valid state and no fault.
    nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    assert len(instances(simulator)) == len(left) + 1 and simulator.dump()["faults"] == []


def test_a_client_can_be_killed_in_a_call_that_changes_nothing(simulator, gpu):
    for action in ("kill", "kill-inside", "kill-after"):
        simulator.do("gpusimFail", "nvmlDeviceGetName", 1, action)
        assert ended(simulator.python("nvmlDeviceGetName(gpu)")) == -signal.SIGKILL


def test_client_stopped_before_a_change_blocks_no_other(simulator, nvml, gpu):
    simulator.do("gpusimFail", "nvmlDeviceCreateGpuInstance", 1, "stop")
    child = simulator.python(CREATE)
    _pid, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status) and instances(simulator) == []
    # Another client can change the state during the stopped call. The call then continues with the changed state.
    nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    child.send_signal(signal.SIGCONT)
    assert (ended(child), child.stdout.read()) == (0, "lived\n")
    assert len(instances(simulator)) == 2


# --- faults


def test_the_nth_call_fails_once(simulator, nvml, gpu):
    simulator.do("gpusimFail", "nvmlDeviceCreateGpuInstance", 2, "NVML_ERROR_IN_USE")
    assert simulator.dump()["faults"] == [{"function": "nvmlDeviceCreateGpuInstance", "nth": 2, "action": "IN_USE"}]
    nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    assert len(instances(simulator)) == 2


def test_calls_of_all_processes_count(simulator, nvml, gpu):
    simulator.do("gpusimFail", "nvmlDeviceGetName", 3, "999")
    assert ended(simulator.python("nvmlDeviceGetName(gpu)")) == 0
    nvml.nvmlDeviceGetName(gpu)
    with pytest.raises(nvml.NVMLError_Unknown):
        nvml.nvmlDeviceGetName(gpu)


def test_any_function_can_fail_even_unimplemented_ones(simulator, nvml, gpu):
    simulator.do("gpusimFail", "nvmlVgpuTypeGetName", 1, "GPU_IS_LOST")
    assert [simulator.library.nvmlVgpuTypeGetName() for _ in range(2)] == [15, 3]
    simulator.do("gpusimFail", "nvmlInitWithFlags", 1, "TIMEOUT")
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlInit()


def test_faults_are_refused_and_cleared(simulator, nvml, gpu):
    assert simulator.call("gpusimFail", "nvmlNoSuchThing", 1, "IN_USE") == 6
    assert simulator.call("gpusimFail", "nvmlDeviceGetName", 0, "IN_USE") == 2
    assert simulator.call("gpusimFail", "nvmlDeviceGetName", 1, "OOPS") == 2
    assert "OOPS" in simulator.message()
    for _ in range(16):
        simulator.do("gpusimFail", "nvmlDeviceGetName", 1, "IN_USE")
    assert simulator.call("gpusimFail", "nvmlDeviceGetName", 1, "IN_USE") == 23
    simulator.do("gpusimFailClear")
    nvml.nvmlDeviceGetName(gpu)


def test_calls_are_counted(simulator, nvml, gpu):
    simulator.do("gpusimClearCalls")
    for _ in range(3):
        nvml.nvmlDeviceGetName(gpu)
    assert ended(simulator.python("nvmlDeviceGetName(gpu)")) == 0
    calls = simulator.dump()["calls"]
    assert (calls["nvmlDeviceGetName"], calls["nvmlInitWithFlags"]) == (4, 1)


# --- boots


def test_first_client_after_a_boot_performs_the_restart(simulator, nvml, gpu, monkeypatch):
    nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    monkeypatch.setenv("GPUSIM_BOOT", simulator.dump()["boot"])
    assert len(instances(simulator)) == 1
    monkeypatch.setenv("GPUSIM_BOOT", "another")
    assert ended(simulator.python("pass", user=NOBODY)) == 0
    state = simulator.dump()
    assert (state["boot"], state["gpus"][0]["gpu_instances"], state["gpus"][0]["mig"]["current"]) == ("another", [], 0)


def test_a_new_pid_1_is_another_boot(simulator, nvml, gpu):
    prefix = ("unshare", "--pid", "--mount-proc", "--fork")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine permits no new PID namespace (unshare --pid --mount-proc)")
    nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    assert ended(simulator.python("pass")) == 0
    assert len(instances(simulator)) == 1, "a client of the same boot changes nothing"
    child = simulator.python("print(nvmlDeviceGetMigMode(gpu), flush=True)", prefix=prefix)
    assert wait_for_line(child) == "[0, 0]"


# --- permissions


CODES = """
def codes(calls):
    found = []
    for call in calls:
        try:
            call()
            found.append(0)
        except NVMLError as error:
            found.append(error.value)
    return found

"""


def test_unprivileged_user_can_read_but_not_change(simulator, nvml, gpu):
    nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
    code = """
mig = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
gi = nvmlDeviceGetGpuInstanceById(gpu, 13)
ci = nvmlGpuInstanceGetComputeInstanceById(gi, 0)
os.seteuid(%d)
place = c_nvmlGpuInstancePlacement_t(0, 4)
calls = [
    lambda: nvmlDeviceSetMigMode(gpu, 0),
    lambda: nvmlDeviceSetPersistenceMode(gpu, 1),
    lambda: nvmlDeviceSetComputeMode(mig, 3),
    lambda: nvmlDeviceSetPowerManagementLimit(gpu, 300000),
    lambda: nvmlDeviceCreateGpuInstance(gpu, 19),
    lambda: nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, byref(place)),
    lambda: nvmlGpuInstanceCreateComputeInstance(gi, 0),
    lambda: nvmlComputeInstanceDestroy(ci),
    lambda: nvmlGpuInstanceDestroy(gi),
]
print(codes(calls), nvmlDeviceGetUUID(mig)[:4])
"""
    child = simulator.python(CODES + code % NOBODY)
    assert wait_for_line(child) == f"{[nvml.NVML_ERROR_NO_PERMISSION] * 9} MIG-"


def test_placements_capacities_and_instances_need_root(simulator, nvml, gpu):
    """Require root for exactly the functions that nvml.h names.

    nvml.h marks them with "Requires privileged user".
    """
    nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
    code = """
gi = nvmlDeviceGetGpuInstanceById(gpu, 13)
ci = nvmlGpuInstanceGetComputeInstanceById(gi, 0)
import pynvml
room = lambda: byref(c_uint(32))
places, instances = (c_nvmlGpuInstancePlacement_t * 32)(), (c_nvmlGpuInstance_t * 32)()
compute_places, compute_instances = (c_nvmlComputeInstancePlacement_t * 32)(), (c_nvmlComputeInstance_t * 32)()
told_to_root = [
    lambda: nvmlDeviceGetGpuInstancePossiblePlacements(gpu, 19, places, room()),
    lambda: pynvml._nvmlCheckReturn(pynvml.nvmlLib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, 19, places, room())),
    lambda: nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19),
    lambda: nvmlDeviceGetGpuInstances(gpu, 19, instances, room()),
    lambda: nvmlDeviceGetGpuInstanceById(gpu, 13),
    lambda: nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0),
    lambda: nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, 0, compute_places, room()),
    lambda: nvmlGpuInstanceGetComputeInstances(gi, 0, compute_instances, room()),
    lambda: nvmlGpuInstanceGetComputeInstanceById(gi, 0),
]
told_to_all = [
    lambda: nvmlDeviceGetMigMode(gpu),
    lambda: nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0),
    lambda: nvmlDeviceGetMaxMigDeviceCount(gpu),
    lambda: nvmlGpuInstanceGetInfo(gi),
    lambda: nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 0, 0),
    lambda: nvmlComputeInstanceGetInfo(ci),
]
print(codes(told_to_root), codes(told_to_all))
os.seteuid(%d)
print(codes(told_to_root), codes(told_to_all))
"""
    child = simulator.python(CODES + code % NOBODY)
    assert wait_for_line(child) == f"{[0] * 9} {[0] * 6}"
    assert wait_for_line(child) == f"{[nvml.NVML_ERROR_NO_PERMISSION] * 9} {[0] * 6}"


def test_total_use_of_all_instances_needs_root(simulator, nvml, gpu):
    """Require root for the total of all instances.

    nvml.h: "In MIG mode, if device handle is provided, the API returns aggregate information, only if the caller has
    appropriate privileges". A MIG device, or a GPU without MIG mode, returns the information to every user.
    """
    nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
    code = """
def questions(device):
    return [
        lambda: nvmlDeviceGetMemoryInfo(device),
        lambda: nvmlDeviceGetMemoryInfo(device, version=nvmlMemory_v2),
        lambda: nvmlDeviceGetComputeRunningProcesses(device),
        lambda: nvmlDeviceGetGraphicsRunningProcesses(device),
        lambda: nvmlDeviceGetMPSComputeRunningProcesses(device),
    ]

mig, whole = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0), nvmlDeviceGetHandleByIndex(1)
for device in (gpu, mig, whole):
    print(codes(questions(device)))
print(codes([lambda: nvmlDeviceGetBAR1MemoryInfo(gpu)]))
"""
    child = simulator.python(CODES + code, user=NOBODY)
    assert [wait_for_line(child) for _ in range(4)] == ["[4, 4, 4, 4, 4]", "[0, 0, 0, 0, 0]", "[0, 0, 0, 0, 0]", "[4]"]
    child = simulator.python(CODES + code)
    assert [wait_for_line(child) for _ in range(3)] == ["[0, 0, 0, 0, 0]"] * 3


def test_power_limits_have_bounds(nvml, gpu):
    for milliwatts in (199999, 700001):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceSetPowerManagementLimit(gpu, milliwatts)
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, 200000)
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 200000
    value = (ctypes.c_uint * 3)(0x0200000C, 0, 650000)
    assert nvml.nvmlLib.nvmlDeviceSetPowerManagementLimit_v2(gpu, value) == 0
    value[0] += 1
    assert nvml.nvmlLib.nvmlDeviceSetPowerManagementLimit_v2(gpu, value) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 650000


def test_client_with_read_only_state_sees_everything(simulator, nvml, gpu):
    """Run a client like a service with ProtectSystem=strict.

    For such a service, /var/lib is read-only.
    """
    nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
    simulator.state.chmod(0o444)
    code = """
mig = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
print(nvmlDeviceGetMigMode(gpu), nvmlDeviceGetUUID(mig)[:4], nvmlDeviceGetName(gpu))
"""
    child = simulator.python(code, user=NOBODY)
    assert wait_for_line(child) == "[1, 1] MIG- NVIDIA H100 80GB HBM3"


def test_client_with_hidden_processes_keeps_them(simulator, nvml, gpu):
    """Run a client like a service with ProtectProc=invisible.

    In /proc, the client sees neither PID 1 nor other users' processes.
    """
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine permits no mount of /proc with hidepid")
    nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    worker = simulator.idle_process()
    simulator.do("gpusimAttach", worker.pid, 1, -1, -1, "compute", ctypes.c_uint64(0))
    code = """
assert not os.path.exists("/proc/1")
second = nvmlDeviceGetHandleByIndex(1)
print(nvmlDeviceGetMigMode(gpu), [process.pid for process in nvmlDeviceGetComputeRunningProcesses(second)])
"""
    child = simulator.python(code, user=NOBODY, prefix=hide)
    assert wait_for_line(child) == f"[1, 1] [{worker.pid}]"
    worker.kill()
    worker.wait()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(second) == [] and len(instances(simulator)) == 1
