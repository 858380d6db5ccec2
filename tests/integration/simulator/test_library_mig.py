# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test MIG: modes, placements, instances, and each error of these calls."""

from __future__ import annotations

import contextlib
import ctypes
import os

import pytest

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root, the simulated one's too: run as root"),
]

NOT_SUPPORTED, IN_USE, RESET_REQUIRED = 3, 19, 16


class Gpu:
    """A host's first GPU.

    The test selects the GPU's instances by profile id and placement start.
    """

    def __init__(self, nvml, handle):
        self.nvml, self.handle = nvml, handle

    def mode(self, on):
        return self.nvml.nvmlDeviceSetMigMode(self.handle, int(on))

    @property
    def modes(self):
        return tuple(self.nvml.nvmlDeviceGetMigMode(self.handle))

    def create(self, profile, start=None, size=None):
        if start is None:
            return self.nvml.nvmlDeviceCreateGpuInstance(self.handle, profile)
        place = self.nvml.c_nvmlGpuInstancePlacement_t(start, size)
        return self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile, ctypes.byref(place))

    def info(self, instance):
        info = self.nvml.nvmlGpuInstanceGetInfo(instance)
        return info.id, info.profileId, info.placement.start, info.placement.size

    def start(self, profile):
        return self.info(self.create(profile))[2]

    def remaining(self, profile):
        return self.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(self.handle, profile)

    def clear(self):
        for id_ in range(15):
            try:
                instance = self.nvml.nvmlDeviceGetGpuInstanceById(self.handle, id_)
            except self.nvml.NVMLError_NotFound:
                continue
            self.nvml.nvmlGpuInstanceDestroy(instance)


@pytest.fixture
def gpu_of(simulator, nvml):
    def make(model, mig=True, **overrides):
        simulator.create(model, **overrides)
        nvml.nvmlInit()
        gpu = Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
        if mig:
            assert gpu.mode(True) == 0
        return gpu

    return make


# --- profiles and placements


def test_a_profile_has_an_enum_and_an_id(nvml, gpu_of):
    gpu = gpu_of("a100", mig=False)
    ids = {}
    for enum in range(18):
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            ids[enum] = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu.handle, enum).id
    assert ids == {0: 19, 1: 14, 2: 9, 3: 5, 4: 0, 7: 20, 9: 15}
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu.handle, 18)


def test_a_driver_may_hide_profiles_while_mig_is_off(nvml, gpu_of):
    gpu = gpu_of("h100", mig=False, profiles_without_mig=0)
    for question in (nvml.nvmlDeviceGetGpuInstanceProfileInfo, nvml.nvmlDeviceGetGpuInstanceRemainingCapacity):
        with pytest.raises(nvml.NVMLError_NotSupported):
            question(gpu.handle, 0)
    gpu.mode(True)
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu.handle, 0).id == 19


def test_placement_by_the_driver_depends_on_order(nvml, gpu_of):
    gpu = gpu_of("a100")
    for profile in (19, 19, 14):
        gpu.create(profile)
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        gpu.create(9)
    gpu.clear()
    for profile in (9, 19, 19, 14):
        gpu.create(profile)


def test_driver_placements_match_the_user_guide(gpu_of):
    gpu = gpu_of("a100")
    assert [gpu.info(gpu.create(19))[::2] for _ in range(7)] == [
        (13, 6),
        (11, 4),
        (12, 5),
        (7, 0),
        (8, 1),
        (9, 2),
        (10, 3),
    ]
    gpu.clear()
    assert [gpu.info(gpu.create(9))[::2] for _ in range(2)] == [(2, 4), (1, 0)]
    gpu.clear()
    assert [gpu.start(profile) for profile in (19, 14, 5)] == [6, 4, 0]
    gpu.clear()
    assert gpu.info(gpu.create(0))[0] == 0


def test_placements_exclude_each_other_where_they_overlap(nvml, gpu_of):
    gpu = gpu_of("h100")
    gpu.create(14, 2, 2)
    for profile, start, size in ((19, 3, 1), (9, 0, 4), (15, 2, 2), (0, 0, 8)):
        with pytest.raises(nvml.NVMLError_InsufficientResources):
            gpu.create(profile, start, size)
    gpu.create(9, 4, 4)
    for start, size in ((1, 2), (0, 4), (6, 2), (8, 2)):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            gpu.create(14, start, size)
    with pytest.raises(nvml.NVMLError_NotSupported):
        gpu.create(99)


def test_compute_slices_run_out_before_memory(nvml, gpu_of):
    gpu = gpu_of("h100")
    for start in (0, 2, 4):
        gpu.create(15, start, 2)
    gpu.create(15, 6, 2)
    assert gpu.remaining(19) == 0
    gpu.clear()
    gpu.create(5, 0, 4)
    gpu.create(9, 4, 4)
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        gpu.create(19)


def test_remaining_capacity_counts_what_still_fits(gpu_of):
    gpu = gpu_of("a100")
    profiles = (19, 20, 15, 14, 9, 5, 0)
    assert [gpu.remaining(profile) for profile in profiles] == [7, 1, 4, 3, 2, 1, 1]
    gpu.create(9, 4, 4)
    assert [gpu.remaining(profile) for profile in profiles] == [4, 1, 2, 2, 1, 1, 0]


def test_media_engines_are_a_separate_resource(nvml, gpu_of):
    gpu = gpu_of("a100")
    gpu.create(20)
    for profile in (20, 0):
        with pytest.raises(nvml.NVMLError_InsufficientResources):
            gpu.create(profile)
    assert gpu.remaining(19) == 6


def test_profile_with_all_media_engines_excludes_profiles_with_some(nvml, gpu_of):
    gpu = gpu_of("pro6000")
    gpu.create(65)
    assert {profile: gpu.remaining(profile) for profile in (14, 65, 67, 5, 0)} == {14: 0, 65: 0, 67: 3, 5: 0, 0: 0}
    gpu.clear()
    gpu.create(14)
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        gpu.create(65)


def test_twelve_unit_grid(gpu_of):
    gpu = gpu_of("pro6000")
    assert sorted(gpu.info(gpu.create(14))[2:] for _ in range(4)) == [(0, 3), (3, 3), (6, 3), (9, 3)]


# --- compute instances


def test_compute_instances_divide_a_gpu_instance(nvml, gpu_of):
    gpu = gpu_of("h100")
    instance = gpu.create(9)
    two = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    one = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    infos = [nvml.nvmlComputeInstanceGetInfo(ci) for ci in (two, one)]
    assert [(i.id, i.profileId, i.placement.start, i.placement.size) for i in infos] == [(0, 1, 0, 2), (1, 0, 2, 1)]
    for profile in (0, 1, 2):
        assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, profile) == 0
        with pytest.raises(nvml.NVMLError_InsufficientResources):
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 4)


def test_compute_instance_names_and_sms(nvml, gpu_of):
    gpu = gpu_of("a100")
    instance = gpu.create(9)
    infos = [nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0) for enum in (0, 1, 2)]
    assert [(i.name.decode() if isinstance(i.name, bytes) else i.name, i.multiprocessorCount) for i in infos] == [
        ("MIG 1c.3g.20gb", 14),
        ("MIG 2c.3g.20gb", 28),
        ("MIG 3g.20gb", 42),
    ]
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 8, 0)


def test_a_gpu_instance_stays_while_it_holds_a_compute_instance(nvml, gpu_of):
    gpu = gpu_of("h100")
    instance = gpu.create(19)
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlGpuInstanceDestroy(instance)
    nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(instance)
    for gone, call in ((instance, nvml.nvmlGpuInstanceGetInfo), (compute, nvml.nvmlComputeInstanceGetInfo)):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            call(gone)


def test_a_process_holds_its_compute_instance_and_nothing_else(simulator, nvml, gpu_of):
    gpu = gpu_of("h100")
    held, free = gpu.create(14, 0, 2), gpu.create(14, 2, 2)
    parts = [nvml.nvmlGpuInstanceCreateComputeInstance(held, 0) for _ in range(2)]
    other = nvml.nvmlGpuInstanceCreateComputeInstance(free, 1)
    worker = simulator.idle_process()
    simulator.do("gpusimAttach", worker.pid, 0, gpu.info(held)[0], 0, "compute", ctypes.c_uint64(1 << 30))
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlComputeInstanceDestroy(parts[0])
    nvml.nvmlComputeInstanceDestroy(parts[1])
    nvml.nvmlComputeInstanceDestroy(other)
    worker.kill()
    worker.wait()
    nvml.nvmlComputeInstanceDestroy(parts[0])
    nvml.nvmlGpuInstanceDestroy(held)


# --- MIG devices


def devices(nvml, gpu):
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
        with contextlib.suppress(nvml.NVMLError_NotFound):
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index))
    return found


def test_a_mig_device_is_a_compute_instance(nvml, gpu_of):
    gpu = gpu_of("h100")
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle) == 7 and devices(nvml, gpu) == []
    instance = gpu.create(9)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    (device,) = devices(nvml, gpu)
    assert [nvml.nvmlDeviceIsMigDeviceHandle(handle).value for handle in (device, gpu.handle)] == [1, 0]
    assert (nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)) == (
        gpu.info(instance)[0],
        0,
    )
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(gpu.handle)
    attributes = nvml.nvmlDeviceGetAttributes(device)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 2)
    assert (attributes.memorySizeMB, attributes.sharedDecoderCount) == (40448, 3)
    assert nvml.nvmlDeviceGetMemoryInfo(device).total == 40448 << 20
    assert nvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb"


def test_mig_device_uuid_lasts_as_long_as_its_instance(nvml, gpu_of):
    gpu = gpu_of("h100")
    instance = gpu.create(19)
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    (device,) = devices(nvml, gpu)
    uuid = nvml.nvmlDeviceGetUUID(device)
    gpu.create(9)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetUUID(device)
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID(uuid)
    (again,) = devices(nvml, gpu)
    assert nvml.nvmlDeviceGetUUID(again) != uuid


def test_compute_mode_belongs_to_the_mig_device(nvml, gpu_of):
    gpu = gpu_of("h100")
    nvml.nvmlGpuInstanceCreateComputeInstance(gpu.create(9), 2)
    (device,) = devices(nvml, gpu)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceSetComputeMode(gpu.handle, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    nvml.nvmlDeviceSetComputeMode(device, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert nvml.nvmlDeviceGetComputeMode(device) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert nvml.nvmlDeviceGetComputeMode(gpu.handle) == nvml.NVML_COMPUTEMODE_DEFAULT


# --- MIG mode


def test_with_mig_off_there_are_no_instances(nvml, gpu_of):
    gpu = gpu_of("h100", mig=False)
    for call in (gpu.create, lambda profile: nvml.nvmlDeviceGetGpuInstanceById(gpu.handle, profile)):
        with pytest.raises(nvml.NVMLError_NotSupported):
            call(0)
    buffer, count = (ctypes.c_void_p * 7)(), ctypes.c_uint()
    # An H200 with driver 580 returns the same.
    count.value = 9
    assert nvml.nvmlLib.nvmlDeviceGetGpuInstances(gpu.handle, 19, buffer, ctypes.byref(count)) == 0
    assert count.value == 0 == nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)
    assert [gpu.remaining(profile) for profile in (19, 14, 9, 0)] == [7, 3, 2, 1]


def test_a_gpu_without_mig(nvml, gpu_of):
    gpu = gpu_of("l40s", mig=False)
    with pytest.raises(nvml.NVMLError_NotSupported):
        gpu.mode(True)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetMigMode(gpu.handle)
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle) == 0


@pytest.mark.parametrize("model", ["a100", "h100"])
def test_an_idle_gpu_changes_mode_at_once(gpu_of, model):
    gpu = gpu_of(model, mig=False)
    assert (gpu.mode(True), gpu.modes) == (0, (1, 1))
    assert (gpu.mode(False), gpu.modes) == (0, (0, 0))


@pytest.mark.parametrize("model", ["a100", "h100"])
def test_busy_gpu_keeps_its_mode_with_a_separate_status(simulator, nvml, gpu_of, model):
    gpu = gpu_of(model, mig=False)
    worker = simulator.idle_process()
    simulator.do("gpusimAttach", worker.pid, 0, -1, -1, "compute", ctypes.c_uint64(0))
    assert (gpu.mode(True), gpu.modes) == (IN_USE, (0, 1))
    assert simulator.call("gpusimReset", 0) == IN_USE
    worker.kill()
    worker.wait()
    assert gpu.modes == (0, 1)
    simulator.do("gpusimReset", 0)
    assert gpu.modes == (1, 1)


def test_pending_change_can_be_reverted(simulator, gpu_of):
    gpu = gpu_of("a100", mig=False)
    worker = simulator.idle_process()
    simulator.do("gpusimAttach", worker.pid, 0, -1, -1, "compute", ctypes.c_uint64(0))
    gpu.mode(True)
    assert (gpu.mode(False), gpu.modes) == (0, (0, 0))


def test_an_ampere_gpu_in_passthrough_needs_a_reset_from_outside(simulator, gpu_of):
    gpu = gpu_of("a100", mig=False, passthrough=1)
    assert (gpu.mode(True), gpu.modes) == (RESET_REQUIRED, (0, 1))
    simulator.do("gpusimReset", 0)
    assert gpu.modes == (1, 1)


def test_hopper_gpu_in_passthrough_needs_no_reset(gpu_of):
    gpu = gpu_of("h100", mig=False, passthrough=1)
    assert (gpu.mode(True), gpu.modes) == (0, (1, 1))


def test_instances_hold_mig_mode(gpu_of):
    gpu = gpu_of("h100")
    gpu.create(19)
    assert (gpu.mode(False), gpu.modes) == (IN_USE, (1, 0))
    gpu.clear()
    assert (gpu.mode(False), gpu.modes) == (0, (0, 0))


# --- reset and reboot


def test_only_amperes_mode_survives_a_reboot(simulator, nvml, gpu_of):
    for model, after in (("a100", (1, 1)), ("h100", (0, 0))):
        gpu = gpu_of(model)
        nvml.nvmlGpuInstanceCreateComputeInstance(gpu.create(9), 2)
        nvml.nvmlDeviceSetPersistenceMode(gpu.handle, 1)
        nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, 300000)
        nvml.nvmlShutdown()
        nvml.nvmlInit()
        assert len(devices(nvml, gpu)) == 1
        simulator.do("gpusimReboot")
        assert devices(nvml, gpu) == [] and gpu.modes == after
        assert nvml.nvmlDeviceGetPersistenceMode(gpu.handle) == 0
        assert nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle) == nvml.nvmlDeviceGetPowerManagementDefaultLimit(
            gpu.handle
        )
        nvml.nvmlShutdown()


def test_a_pending_mode_is_current_after_a_reboot(simulator, gpu_of):
    gpu = gpu_of("a100", mig=False, passthrough=1)
    gpu.mode(True)
    simulator.do("gpusimReboot")
    assert gpu.modes == (1, 1)


def test_a_reset_drops_instances(simulator, nvml, gpu_of):
    gpu = gpu_of("h100")
    gpu.create(9)
    simulator.do("gpusimReset", 0)
    assert gpu.remaining(9) == 2 and gpu.modes == (1, 1)
