# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test Xid errors, which a control command reports to event sets of all clients."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess

import pytest

NOBODY = 65534
NO_INSTANCE = 0xFFFFFFFF
INVALID_ARGUMENT, NOT_FOUND = 2, 6

#: A long timeout in milliseconds. Existing events arrive at once, and no test waits so long for an event that does not
#: arrive.
PATIENCE_MS = 180000

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="MIG mode is set by root: run as root")

WATCH = """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
while True:
    print(nvmlEventSetWait_v2(events, 180000).eventData, flush=True)
"""


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "l40s")
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def xid(simulator, number, gpu=0, gi=-1, ci=-1):
    return simulator.call("gpusimXid", gpu, gi, ci, ctypes.c_uint(number))


def registered(nvml, *handles):
    events = nvml.nvmlEventSetCreate()
    for handle in handles:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    return events


def received(nvml, events):
    """Return all of the set's pending events."""
    found = []
    while True:
        try:
            found.append(nvml.nvmlEventSetWait_v2(events, 0))
        except nvml.NVMLError_Timeout:
            return found


def numbers(nvml, events):
    return [event.eventData for event in received(nvml, events)]


def watcher(simulator, **more):
    child = simulator.python(WATCH, **more)
    assert child.stdout.readline() == "ready\n"
    return child


def test_an_event_names_gpu_type_and_number(simulator, nvml, gpu):
    events = registered(nvml, gpu)
    assert xid(simulator, 48) == 0
    event = nvml.nvmlEventSetWait_v2(events, PATIENCE_MS)
    assert nvml.nvmlDeviceGetUUID(event.device) == nvml.nvmlDeviceGetUUID(gpu)
    assert (event.eventType, event.eventData) == (nvml.nvmlEventTypeXidCriticalError, 48)
    assert (event.gpuInstanceId, event.computeInstanceId) == (NO_INSTANCE, NO_INSTANCE)
    assert received(nvml, events) == [], "an event comes once"


def test_every_set_of_every_process_gets_every_event(simulator, nvml, gpu):
    children = [watcher(simulator) for _ in range(3)]
    own = [registered(nvml, gpu), registered(nvml, gpu)]
    for number in (31, 94, 31):
        assert xid(simulator, number) == 0
    for child in children:
        assert [child.stdout.readline() for _ in range(3)] == ["31\n", "94\n", "31\n"]
    for events in own:
        assert numbers(nvml, events) == [31, 94, 31]


def test_events_between_two_waits_are_kept(simulator, nvml, gpu):
    events = registered(nvml, gpu)
    xid(simulator, 13)
    assert numbers(nvml, events) == [13]
    xid(simulator, 43)
    xid(simulator, 45)
    assert numbers(nvml, events) == [43, 45]


def test_events_before_the_registration_are_not_reported(simulator, nvml, gpu):
    xid(simulator, 31)
    events = registered(nvml, gpu)
    xid(simulator, 48)
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    xid(simulator, 62, gpu=1)
    nvml.nvmlDeviceRegisterEvents(other, nvml.nvmlEventTypeXidCriticalError, events)
    xid(simulator, 63, gpu=1)
    nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    assert numbers(nvml, events) == [48, 63], "registering once more loses nothing"


def test_only_registered_gpus_and_types_are_reported(simulator, nvml, gpu):
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    one, both, none = registered(nvml, gpu), registered(nvml, gpu, other), nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeDoubleBitEccError, none)
    xid(simulator, 61, gpu=1)
    xid(simulator, 48)
    assert (numbers(nvml, one), numbers(nvml, both), numbers(nvml, none)) == ([48], [61, 48], [])


def test_oldest_events_are_dropped_for_slow_clients(simulator, nvml, gpu):
    events = registered(nvml, gpu)
    for number in range(1, 201):
        xid(simulator, number)
    assert numbers(nvml, events) == list(range(73, 201))
    assert [event["xid"] for event in simulator.dump()["events"]] == list(range(73, 201))


def test_killed_client_affects_no_other(simulator, nvml, gpu):
    killed, other = watcher(simulator), watcher(simulator)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert xid(simulator, 79) == 0
    assert other.stdout.readline() == "79\n"
    assert [event["xid"] for event in simulator.dump()["events"]] == [79]


def test_forked_child_reads_independently(simulator, gpu):
    child = simulator.python("""
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, nvmlEventTypeXidCriticalError, events)
if os.fork():
    print("ready", flush=True)
    found = nvmlEventSetWait_v2(events, 180000).eventData
    os.wait()
    print("parent", found, flush=True)
else:
    print("child", nvmlEventSetWait_v2(events, 180000).eventData, flush=True)
""")
    assert child.stdout.readline() == "ready\n"
    xid(simulator, 31)
    assert child.stdout.read() == "child 31\nparent 31\n"


def test_a_new_layout_of_the_host_keeps_sets_usable(simulator, nvml, gpu):
    events = registered(nvml, gpu)
    xid(simulator, 31)
    simulator.create("h100")
    assert received(nvml, events) == [] and simulator.dump()["events"] == []
    xid(simulator, 48)
    assert numbers(nvml, events) == [48]


def test_the_first_version_writes_no_more_than_old_programs_have(simulator, nvml, gpu):
    events = registered(nvml, gpu)
    xid(simulator, 48)
    data = nvml.c_nvmlEventData_t(gpuInstanceId=7, computeInstanceId=8)
    assert simulator.library.nvmlEventSetWait(events, ctypes.byref(data), PATIENCE_MS) == 0
    assert (data.eventType, data.eventData) == (nvml.nvmlEventTypeXidCriticalError, 48)
    assert (data.gpuInstanceId, data.computeInstanceId) == (7, 8)


def test_unregistrable_events(nvml, gpu):
    events = nvml.nvmlEventSetCreate()
    assert nvml.nvmlDeviceGetSupportedEventTypes(gpu) & nvml.nvmlEventTypeXidCriticalError
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError | 1 << 40, events)


def test_errors_that_no_gpu_can_have_are_refused(simulator, gpu):
    assert xid(simulator, 48, gpu=2) == NOT_FOUND and "host has 2" in simulator.message()
    assert xid(simulator, 48, gi=1) == NOT_FOUND
    assert xid(simulator, 48, ci=0) == INVALID_ARGUMENT
    assert xid(simulator, 0) == INVALID_ARGUMENT
    assert simulator.dump()["events"] == []


# --- MIG


@pytest.fixture
def instance(simulator, nvml, gpu):
    """Return (GPU instance id, compute instance id)."""
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    made = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    part = nvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
    return nvml.nvmlGpuInstanceGetInfo(made).id, nvml.nvmlComputeInstanceGetInfo_v2(part).id


@needs_root
def test_an_event_names_the_instances_it_concerns(simulator, nvml, gpu, instance):
    gi, ci = instance
    events = registered(nvml, gpu)
    for place in ({}, {"gi": gi}, {"gi": gi, "ci": ci}):
        assert xid(simulator, 31, **place) == 0
    found = [(event.gpuInstanceId, event.computeInstanceId) for event in received(nvml, events)]
    assert found == [(NO_INSTANCE, NO_INSTANCE), (gi, NO_INSTANCE), (gi, ci)]


@needs_root
def test_events_of_instances_are_for_the_privileged(simulator, nvml, gpu, instance):
    child = watcher(simulator, user=NOBODY)
    xid(simulator, 31, gi=instance[0])
    xid(simulator, 48)
    assert child.stdout.readline() == "48\n"


@needs_root
def test_mig_device_has_no_events(nvml, gpu, instance):
    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    assert nvml.nvmlDeviceGetSupportedEventTypes(device) == 0
    with pytest.raises(nvml.NVMLError_NotSupported):
        registered(nvml, device)


def test_waiting_uses_almost_no_cpu(simulator, gpu):
    child = simulator.python("""
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, nvmlEventTypeXidCriticalError, events)
before, began = time.process_time(), time.monotonic()
try:
    nvmlEventSetWait_v2(events, 1000)
except NVMLError_Timeout:
    print(time.process_time() - before < (time.monotonic() - began) / 2, time.monotonic() - began >= 0.99)
""")
    assert child.wait(timeout=180) == 0
    assert child.stdout.read() == "True True\n"


def test_a_signal_ends_a_wait(simulator, gpu):
    child = simulator.python("""
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, nvmlEventTypeXidCriticalError, events)
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
try:
    nvmlEventSetWait_v2(events, 3600000)
except NVMLError_Timeout:
    print("woken")
""")
    try:
        assert child.wait(timeout=180) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the wait went on")
    assert child.stdout.read() == "woken\n"
