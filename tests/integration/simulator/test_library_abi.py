# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the binary interface: names, struct versions, buffer sizes, start and end."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

NOT_SUPPORTED, INSUFFICIENT_SIZE, VERSION_MISMATCH = 3, 7, 25


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "l40s")
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def symbols(library: Path) -> set[str]:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines()}


def test_every_name_that_nvidia_ml_py_resolves_is_exported(nvml_library, nvml):
    source = Path(nvml.__file__).read_text()
    wanted = set(re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)", source))
    assert len(wanted) > 350
    assert wanted <= symbols(nvml_library)


def test_nothing_else_is_exported(nvml_library):
    strangers = {name for name in symbols(nvml_library) if not name.startswith(("nvml", "gpusim"))}
    assert strangers == set()


def test_unversioned_names_of_the_header_are_exported(nvml_library):
    hidden = "Init DeviceGetCount DeviceGetHandleByIndex DeviceGetPciInfo EventSetWait DeviceGetAttributes ComputeInstanceGetInfo"
    hidden += (
        " DeviceGetComputeRunningProcesses DeviceGetMPSComputeRunningProcesses DeviceRemoveGpu InternalGetExportTable"
    )
    assert {"nvml" + name for name in hidden.split()} <= symbols(nvml_library)


def test_soname_is_the_drivers(nvml_library):
    dynamic = subprocess.run(["readelf", "-d", str(nvml_library)], check=True, capture_output=True, text=True).stdout
    assert "[libnvidia-ml.so.1]" in dynamic


def test_nothing_works_before_init(simulator, nvml):
    simulator.create("h100")
    count = ctypes.c_uint()
    assert simulator.library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == nvml.NVML_ERROR_UNINITIALIZED
    assert simulator.library.nvmlVgpuTypeGetName() == nvml.NVML_ERROR_UNINITIALIZED
    assert simulator.library.nvmlShutdown() == nvml.NVML_ERROR_UNINITIALIZED


def test_init_is_counted(simulator, nvml):
    simulator.create("h100")
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetCount() == 1
    nvml.nvmlShutdown()
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()


def test_an_unimplemented_function_is_not_supported(simulator, gpu):
    assert simulator.library.nvmlVgpuTypeGetName() == NOT_SUPPORTED
    assert simulator.library.nvmlDeviceGetBridgeChipInfo(gpu, None) == NOT_SUPPORTED


def test_without_a_state_file_there_is_no_driver(nvml):
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()


def test_state_file_of_another_schema_is_refused_with_a_message(simulator):
    simulator.create("h100")
    with simulator.state.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")
    code = "import ctypes; l = ctypes.CDLL('libnvidia-ml.so.1'); print(l.nvmlInit_v2(), l.nvmlInit_v2())"
    done = subprocess.run(
        ["python3", "-c", code], env=simulator.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["9", "9"]
    assert done.stderr.count(str(simulator.state)) == 1 and "gpusim init" in done.stderr
    simulator.create("h100")


def test_an_unreadable_configuration_changes_nothing_and_names_its_line(simulator):
    simulator.create("h100")
    before = simulator.dump()["gpus"][0]["uuid"]
    assert simulator.call("gpusimCreate", "host\ndriver_version 1\ncuda_version 1\ngpu\nname x\nslices 3\n") == 2
    assert "line 6, slices" in simulator.message()
    assert simulator.call("gpusimCreate", "host\ndriver_version 1\ncuda_version 1\ngpu\nname x\n") == 2
    assert "uuid is missing" in simulator.message()
    assert simulator.dump()["gpus"][0]["uuid"] == before


@pytest.mark.parametrize(
    "function, size, right",
    [
        ("nvmlDeviceGetMemoryInfo_v2", 40, 0x02000028),
        ("nvmlDeviceGetPciInfoExt", 64, 0x01000040),
        ("nvmlDeviceGetTemperatureV", 12, 0x0100000C),
    ],
)
def test_a_wrong_struct_version_is_a_mismatch(simulator, gpu, function, size, right):
    buffer = (ctypes.c_uint * (size // 4))(right + 1)
    assert getattr(simulator.library, function)(gpu, buffer) == VERSION_MISMATCH
    buffer[0] = right
    assert getattr(simulator.library, function)(gpu, buffer) == 0


def test_profile_info_comes_in_two_versions(simulator, nvml, gpu):
    v2 = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, nvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    assert (v2.id, v2.sliceCount, v2.memorySizeMB, v2.multiprocessorCount) == (9, 3, 40448, 60)
    v3 = (ctypes.c_uint * 40)((3 << 24) | 152)
    assert simulator.library.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 2, v3) == 0
    assert list(v3[1:5]) == [9, 3, 2, 60]
    v3[0] = (4 << 24) | 152
    assert simulator.library.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 2, v3) == VERSION_MISMATCH
    assert simulator.library.nvmlDeviceGetGpuInstanceProfileInfoByIdV(gpu, 9, v3) == VERSION_MISMATCH


def test_short_texts_are_insufficient_size(simulator, gpu):
    short = ctypes.create_string_buffer(8)
    for function in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
        assert getattr(simulator.library, function)(gpu, short, 8) == INSUFFICIENT_SIZE
    assert simulator.library.nvmlSystemGetDriverVersion(short, 8) == INSUFFICIENT_SIZE
    assert simulator.library.nvmlSystemGetDriverVersion(short, 0) == INSUFFICIENT_SIZE


def test_short_process_lists_return_their_length(simulator, nvml, gpu):
    pids = {simulator.idle_process().pid for _ in range(3)}
    for pid in pids:
        simulator.do("gpusimAttach", pid, 0, -1, -1, "compute", ctypes.c_uint64(1 << 20))
    for function, entry in (
        ("nvmlDeviceGetComputeRunningProcesses", 16),
        ("nvmlDeviceGetComputeRunningProcesses_v2", 24),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 24),
    ):
        call = getattr(simulator.library, function)
        buffer, count = (ctypes.c_uint * (entry // 4 * 3 + 1))(), ctypes.c_uint(2)
        assert (call(gpu, ctypes.byref(count), buffer), count.value) == (INSUFFICIENT_SIZE, 3)
        assert (call(gpu, ctypes.byref(count), None), count.value) == (INSUFFICIENT_SIZE, 3)
        buffer[-1] = 0xDEADBEEF
        assert (call(gpu, ctypes.byref(count), buffer), count.value) == (0, 3)
        assert {buffer[i * entry // 4] for i in range(3)} == pids
        assert buffer[-1] == 0xDEADBEEF, "written past the entries of this layout"
    for function in ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses"):
        count = ctypes.c_uint(0)
        assert (getattr(simulator.library, function)(gpu, ctypes.byref(count), None), count.value) == (0, 0)


def test_number_of_placements_is_output_only(simulator, nvml, gpu):
    """Ignore the initial value.

    nvidia-smi 450 and 460 pass uninitialized memory.
    """
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    functions = [
        ("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, 19, 7),
        ("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpu, 19, 7),
        ("nvmlGpuInstanceGetComputeInstancePossiblePlacements", instance, 0, 3),
    ]
    for function, handle, profile, length in functions:
        call = getattr(simulator.library, function)
        for left_over in (0, 1, 0xDEADBEEF):
            places, count = (ctypes.c_uint * 16)(), ctypes.c_uint(left_over)
            assert (call(handle, profile, places, ctypes.byref(count)), count.value) == (0, length), function
            assert list(places)[: 2 * length] == [n for start in range(length) for n in (start, 1)]
            assert not any(list(places)[2 * length :])
        assert (call(handle, profile, None, ctypes.byref(count)), count.value) == (0, length)


def test_power_scope_is_one_byte(simulator, nvml, gpu):
    """Ignore the bytes after the scope.

    nvidia-smi 535 and 550 leave garbage in them (`-pl`).
    """
    words = (ctypes.c_uint * 3)(0x0200000C, 0xABCDEF00, 300000)
    assert simulator.library.nvmlDeviceSetPowerManagementLimit_v2(gpu, words) == 0
    assert nvml.nvmlDeviceGetPowerManagementLimit(gpu) == 300000
    words[1] = 0xABCDEF01
    assert simulator.library.nvmlDeviceSetPowerManagementLimit_v2(gpu, words) == NOT_SUPPORTED


def test_foreign_pointers_are_no_handles(simulator, nvml, gpu):
    name = ctypes.create_string_buffer(96)
    for stranger in (None, ctypes.c_void_p(8), ctypes.c_void_p(ctypes.addressof(name))):
        assert simulator.library.nvmlDeviceGetName(stranger, name, 96) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert simulator.library.nvmlGpuInstanceDestroy(gpu) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_gpu_is_found_by_index_uuid_serial_and_address(nvml, gpu):
    same = [
        nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(gpu)),
        nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(gpu)),
        nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(gpu).busId),
        nvml.nvmlDeviceGetHandleByPciBusId("0000:10:00.0"),
    ]
    address = ctypes.cast(gpu, ctypes.c_void_p).value
    assert [ctypes.cast(handle, ctypes.c_void_p).value for handle in same] == [address] * 4
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByPciBusId("0000:FF:00.0")
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(2)


def test_values_without_configuration_are_not_supported(simulator, nvml):
    simulator.create("l40s", numa_node=None, serial=None)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    for question in (nvml.nvmlDeviceGetSerial, nvml.nvmlDeviceGetModuleId, nvml.nvmlDeviceGetBAR1MemoryInfo):
        with pytest.raises(nvml.NVMLError_NotSupported):
            question(gpu)


def test_nvlinks_name_their_peers(simulator, nvml):
    simulator.create("h100", "h100", "h100", "l40s")
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(4)]
    assert [nvml.nvmlDeviceGetNvLinkState(gpus[0], link) for link in range(5)] == [1, 1, 1, 0, 0]
    remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpus[0], 1)
    assert remote.busId == nvml.nvmlDeviceGetPciInfo(gpus[2]).busId
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetNvLinkState(gpus[3], 0)
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[0], gpus[2]) == nvml.NVML_TOPOLOGY_NODE
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[0], gpus[1]) == nvml.NVML_TOPOLOGY_SYSTEM


def test_fields_are_answered_one_by_one(nvml, gpu):
    ids = [nvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED, nvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, 305, 199]
    fields = nvml.nvmlDeviceGetFieldValues(gpu, ids)
    assert [field.nvmlReturn for field in fields] == [0, 0, NOT_SUPPORTED, 0]
    assert [fields[i].value.uiVal for i in (0, 1, 3)] == [1, 700000, 1]


def test_waiting_for_an_event_ends_at_its_timeout(nvml, gpu):
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 20)
    nvml.nvmlEventSetFree(events)


def test_every_error_has_a_text(nvml, simulator):
    simulator.library.nvmlErrorString.restype = ctypes.c_char_p
    words = [simulator.library.nvmlErrorString(code).decode() for code in (*range(31), 999)]
    assert len(set(words)) == 32
    assert words[23] == "Insufficient Resources" and words[-1] == "Unknown Error"
