# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test connections of GPUs: NVLinks, NUMA, peer to peer and fabric.

The tests use nvml.h and nvidia-smi's private table.
"""

from __future__ import annotations

import ctypes
import os
import uuid

import pytest

NOT_SUPPORTED, INVALID_ARGUMENT = 3, 2
#: Entries of nvidia-smi's private table, and the topology levels that the table uses.
COMMON_ANCESTOR, PRIVATE_FIELDS, ENFORCED_POWER_LIMIT, NEAREST_CPU_NODES, MARGIN = 23, 165, 108, 223, 240
MARGIN_OF_525, HOST_LINK_GENERATION, ADDRESSING_MODE, SPARSE_MODE, LANE_ERRORS = 237, 230, 242, (243, 249), (197, 208)
NODE, SYSTEM = 3, 4
TABLE = uuid.UUID("6c3efec4-8fc9-4e6c-a327-ee696e12f7c4").bytes_le


def gpus_of(nvml):
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]


def field(nvml, gpu, number, scope=0):
    (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [(number, scope)])
    return value.value.uiVal if value.nvmlReturn == 0 else nvml.NVMLError(value.nvmlReturn)


def result_of(nvml, call, *arguments):
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        return error.value


def private(simulator, number, *arguments):
    """Call one of the private table's entries, and return its result."""
    table = ctypes.POINTER(ctypes.c_void_p)()
    assert simulator.library.nvmlInternalGetExportTable(ctypes.byref(table), TABLE) == 0
    return ctypes.CFUNCTYPE(ctypes.c_uint)(table[number])(*arguments)


def test_link_speed_is_equal_in_all_functions(simulator, nvml):
    simulator.create("h100", "h100", "l40s", nvlink_speed_mbps=26562)
    nvml.nvmlInit()
    h100, _, l40s = gpus_of(nvml)
    # Two links are connected. Fields 84 to 89 and 132 to 137 are links 0 to 11. Field 90 is the total. Field 164 takes
    # the link number as scope.
    asked = [84, 85, 89, 132, 137, 90]
    assert [field(nvml, h100, number) for number in asked] == [26562, 26562, 0, 0, 0, 26562]
    assert [field(nvml, h100, 164, link) for link in (0, 2, 17)] == [26562, 0, 0]
    for number in (*asked, 164, 147):
        assert isinstance(field(nvml, l40s, number), nvml.NVMLError_NotSupported)


def test_unknown_speed_is_not_supported(simulator, nvml):
    simulator.create("h100", "h100")
    nvml.nvmlInit()
    assert isinstance(field(nvml, gpus_of(nvml)[0], 84), nvml.NVMLError_NotSupported)


def test_links_of_other_models_are_not_supported_and_higher_ones_invalid(simulator, nvml):
    """Return INVALID_ARGUMENT only for higher links.

    nvidia-smi stops `topo -m` at INVALID_ARGUMENT, and queries 18 links of every GPU.
    """
    simulator.create("h100", "h100", nvlink_links=12)
    nvml.nvmlInit()
    gpu = gpus_of(nvml)[0]
    for call in (nvml.nvmlDeviceGetNvLinkState, nvml.nvmlDeviceGetNvLinkRemotePciInfo, nvml.nvmlDeviceGetNvLinkVersion):
        assert [result_of(nvml, call, gpu, link) for link in (12, 17, 18)] == [
            NOT_SUPPORTED,
            NOT_SUPPORTED,
            INVALID_ARGUMENT,
        ]


def test_links_have_no_errors(simulator, nvml):
    simulator.create("h100", "h100", "l40s")
    nvml.nvmlInit()
    h100, _, l40s = gpus_of(nvml)
    for kind in range(nvml.NVML_NVLINK_ERROR_COUNT):
        assert nvml.nvmlDeviceGetNvLinkErrorCounter(h100, 0, kind) == 0
        assert result_of(nvml, nvml.nvmlDeviceGetNvLinkErrorCounter, l40s, 0, kind) == NOT_SUPPORTED
    assert (
        result_of(nvml, nvml.nvmlDeviceGetNvLinkErrorCounter, h100, 0, nvml.NVML_NVLINK_ERROR_COUNT) == INVALID_ARGUMENT
    )
    assert [field(nvml, h100, number, 17) for number in (161, 162, 163)] == [0, 0, 0]
    assert isinstance(field(nvml, h100, 161, 18), nvml.NVMLError_NotSupported)


def test_links_to_switches_are_counted(simulator, nvml):
    simulator.create("h100", "h100", nvlink_peers="switch switch switch")
    nvml.nvmlInit()
    gpu = gpus_of(nvml)[0]
    assert field(nvml, gpu, nvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT) == 3
    # nvidia-smi 450 queries the same value by another number. It does so only in `topo -m`.
    value = nvml.c_nvmlFieldValue_t(fieldId=1)
    assert private(simulator, PRIVATE_FIELDS, gpu, 1, ctypes.byref(value)) == NOT_SUPPORTED
    addresses = [nvml.nvmlDeviceGetPciInfo(gpu).busId.encode() for gpu in gpus_of(nvml)]
    assert private(simulator, COMMON_ANCESTOR, *addresses, ctypes.byref(ctypes.c_uint())) == 0
    assert private(simulator, PRIVATE_FIELDS, gpu, 1, ctypes.byref(value)) == 0
    assert (value.fieldId, value.nvmlReturn, value.value.uiVal) == (1, 0, 3)


def test_links_to_a_grace_cpu_are_on_if_present(simulator, nvml):
    simulator.create("h100", "h100", c2c_links=10, c2c_speed_mbps=44712)
    nvml.nvmlInit()
    gpu = gpus_of(nvml)[0]
    assert nvml.nvmlDeviceGetC2cModeInfoV(gpu).isC2cEnabled == 1
    assert [field(nvml, gpu, number, 9) for number in (170, 171, 172)] == [10, 1, 44712]
    assert isinstance(field(nvml, gpu, 171, 10), nvml.NVMLError_NotSupported)


def test_links_to_a_grace_cpu_are_off_with_another_cpu_and_unknown_to_older_gpus(simulator, nvml):
    simulator.create("h100", "a100")
    nvml.nvmlInit()
    h100, a100 = gpus_of(nvml)
    assert nvml.nvmlDeviceGetC2cModeInfoV(h100).isC2cEnabled == 0
    assert result_of(nvml, nvml.nvmlDeviceGetC2cModeInfoV, a100) == NOT_SUPPORTED
    for number in (170, 171, 172):
        assert isinstance(field(nvml, h100, number), nvml.NVMLError_NotSupported)


def test_the_private_table_agrees_with_nvml_h_on_distances(simulator, nvml):
    simulator.create("h100", "h100", "l40s", "l40s")
    nvml.nvmlInit()
    levels = {nvml.NVML_TOPOLOGY_NODE: NODE, nvml.NVML_TOPOLOGY_SYSTEM: SYSTEM}
    gpus = gpus_of(nvml)
    for one in gpus:
        for other in gpus:
            if one is other:
                continue
            level = ctypes.c_uint(77)
            addresses = [nvml.nvmlDeviceGetPciInfo(gpu).busId.encode() for gpu in (one, other)]
            assert private(simulator, COMMON_ANCESTOR, *addresses, ctypes.byref(level)) == 0
            assert level.value == levels[nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)]
    assert private(simulator, COMMON_ANCESTOR, b"00000000:FF:00.0", addresses[0], ctypes.byref(level)) == 6


def test_affinities_follow_the_numa_node(simulator, nvml):
    simulator.create("h100", "h100")
    nvml.nvmlInit()
    cpus = os.sysconf("SC_NPROCESSORS_CONF")
    words = cpus // 64 + 1
    masks = []
    for node, gpu in enumerate(gpus_of(nvml)):
        assert list(nvml.nvmlDeviceGetMemoryAffinity(gpu, 1, nvml.NVML_AFFINITY_SCOPE_NODE)) == [1 << node]
        within = nvml.nvmlDeviceGetCpuAffinityWithinScope(gpu, words, nvml.NVML_AFFINITY_SCOPE_SOCKET)
        assert list(nvml.nvmlDeviceGetCpuAffinity(gpu, words)) == list(within)
        masks.append(sum(word << 64 * i for i, word in enumerate(within)))
        nodes = ctypes.c_ulong(99)
        assert private(simulator, NEAREST_CPU_NODES, gpu, 1, ctypes.byref(nodes)) == 0
        assert nodes.value == 1 << node
    assert all(masks) and masks[0] | masks[1] == (1 << cpus) - 1
    assert cpus == 1 or masks[0] & masks[1] == 0
    # The GPU itself is no NUMA node. Next to a Grace CPU, a GPU is one.
    assert result_of(nvml, nvml.nvmlDeviceGetNumaNodeId, gpu) == NOT_SUPPORTED


def test_no_affinity_without_a_numa_node(simulator, nvml):
    simulator.create("l40s", numa_node=None)
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    assert result_of(nvml, nvml.nvmlDeviceGetMemoryAffinity, gpu, 1, 0) == NOT_SUPPORTED
    assert result_of(nvml, nvml.nvmlDeviceGetCpuAffinity, gpu, 4) == NOT_SUPPORTED


def test_nearest_gpus_by_level_and_cpu(simulator, nvml):
    simulator.create("l40s", "l40s", "l40s")
    nvml.nvmlInit()
    gpus = gpus_of(nvml)

    def indices(devices):
        return [nvml.nvmlDeviceGetIndex(device) for device in devices]

    assert indices(nvml.nvmlDeviceGetTopologyNearestGpus(gpus[0], nvml.NVML_TOPOLOGY_NODE)) == [2]
    assert indices(nvml.nvmlDeviceGetTopologyNearestGpus(gpus[0], nvml.NVML_TOPOLOGY_SYSTEM)) == [1]
    assert indices(nvml.nvmlDeviceGetTopologyNearestGpus(gpus[0], nvml.NVML_TOPOLOGY_SINGLE)) == []
    assert set(indices(nvml.nvmlSystemGetTopologyGpuSet(0))) >= {0, 2}


def test_single_gpu_has_no_nearest_ones(simulator, nvml):
    """Compare with values recorded on an H200 with driver 580."""
    simulator.create("h100")
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    assert result_of(nvml, nvml.nvmlDeviceGetTopologyNearestGpus, gpu, nvml.NVML_TOPOLOGY_SYSTEM) == INVALID_ARGUMENT


def test_peer_to_peer_is_known_only_for_nvlink(simulator, nvml):
    simulator.create("h100", "h100", "l40s")
    nvml.nvmlInit()
    h100, other, l40s = gpus_of(nvml)
    ok, no, unknown = nvml.NVML_P2P_STATUS_OK, nvml.NVML_P2P_STATUS_NOT_SUPPORTED, nvml.NVML_P2P_STATUS_UNKNOWN
    # Indexes: read, write, NVLink, atomics, PCIe.
    assert [nvml.nvmlDeviceGetP2PStatus(h100, other, index) for index in range(5)] == [ok, ok, ok, ok, unknown]
    assert [nvml.nvmlDeviceGetP2PStatus(h100, l40s, index) for index in range(5)] == [
        unknown,
        unknown,
        no,
        unknown,
        unknown,
    ]
    assert result_of(nvml, nvml.nvmlDeviceGetP2PStatus, h100, other, 5) == INVALID_ARGUMENT
    nvml.nvmlDeviceSetMigMode(other, 1)
    assert [nvml.nvmlDeviceGetP2PStatus(h100, other, index) for index in range(5)] == [no] * 5


def test_the_fabric_is_joined_through_switches(simulator, nvml):
    simulator.create("h100", "h100", nvlink_peers="switch")
    nvml.nvmlInit()
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpus_of(nvml)[0], ctypes.byref(info))
    assert (info.state, info.status, info.cliqueId, bytes(info.clusterUuid)) == (
        nvml.NVML_GPU_FABRIC_STATE_COMPLETED, 0, 0, bytes(16))  # fmt: skip
    # Without these values, a Hopper reports in its state that it has no fabric (H200, driver 580). Other models do not
    # support fabrics.
    simulator.create("h100", "l40s")
    h100, l40s = gpus_of(nvml)
    nvml.nvmlDeviceGetGpuFabricInfoV(h100, ctypes.byref(info))
    assert (info.state, info.status) == (nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, 0)
    assert result_of(nvml, nvml.nvmlDeviceGetGpuFabricInfoV, l40s, ctypes.byref(info)) == NOT_SUPPORTED


def test_the_private_table_has_the_enforced_power_limit(simulator, nvml):
    simulator.create("h100")
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, 300000)
    limit = ctypes.c_uint()
    assert private(simulator, ENFORCED_POWER_LIMIT, gpu, ctypes.byref(limit)) == 0
    assert limit.value == nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 300000


@pytest.mark.parametrize("margins", [0, 1])
def test_temperature_limits_are_distances_if_the_model_has_them(simulator, nvml, margins):
    limits = {
        "temperature_idle_c": 29,
        "temperature_max_c": 87,
        "temperature_slowdown_c": 89,
        "temperature_shutdown_c": 95,
    }
    simulator.create("h100", temperature_margins=margins, temperature_memory_idle_c=37, **limits)
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    assert field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP) == 37
    margin = ctypes.c_int(99)
    assert private(simulator, MARGIN, gpu, ctypes.byref(margin)) == (0 if margins else NOT_SUPPORTED)
    values = nvml.nvmlDeviceGetFieldValues(gpu, [193, 194, 195, 196])
    if margins:
        assert margin.value == 58
        # Values of an H100 from nvidia-smi on a real board: shutdown, slowdown, memory, GPU.
        assert [(value.nvmlReturn, value.value.siVal) for value in values] == [(0, -8), (0, -2), (0, 0), (0, 0)]
    else:
        assert {value.nvmlReturn for value in values} == {NOT_SUPPORTED}


def one_number(simulator, entry, gpu):
    """Return the number from a private table's entry, or its error code."""
    number = ctypes.c_int(99)
    return private(simulator, entry, gpu, ctypes.byref(number)) or ("value", number.value)


@pytest.mark.parametrize(
    "model, keys, host_link, addressing, sparse",
    [
        ("h100", {}, ("value", 5), ("value", 1), ("value", 0)),
        ("h100", {"c2c_links": 10}, NOT_SUPPORTED, ("value", 2), ("value", 0)),
        ("l40s", {}, ("value", 5), ("value", 1), NOT_SUPPORTED),
        ("l40s", {"architecture": 5}, ("value", 5), NOT_SUPPORTED, NOT_SUPPORTED),
    ],
)
def test_private_table_has_values_without_function_in_old_drivers(
    simulator, nvml, model, keys, host_link, addressing, sparse
):
    simulator.create(model, **keys)
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    found = [one_number(simulator, entry, gpu) for entry in (HOST_LINK_GENERATION, ADDRESSING_MODE, *SPARSE_MODE)]
    assert found == [host_link, addressing, sparse, sparse]


def test_one_number_of_the_private_table_has_two_meanings(simulator, nvml):
    simulator.create("h100", temperature_margins=1, temperature_max_c=87, temperature_idle_c=29)
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    assert one_number(simulator, MARGIN_OF_525, gpu) == NOT_SUPPORTED
    simulator.do("gpusimSet", -1, "driver_version", "525.147.05")
    assert one_number(simulator, MARGIN_OF_525, gpu) == ("value", 58)


def test_the_private_table_counts_no_errors_of_lanes(simulator, nvml):
    simulator.create("h100", "l40s")
    nvml.nvmlInit()
    h100, l40s = gpus_of(nvml)
    for entry in LANE_ERRORS:
        lanes = (ctypes.c_uint * 9)(*[7] * 9)
        assert private(simulator, entry, h100, 17, 4, 4, lanes) == 0
        # Four pairs of a counter and an overflow flag.
        assert list(lanes) == [0] * 8 + [7]
        assert private(simulator, entry, h100, 18, 4, 4, lanes) == INVALID_ARGUMENT
        assert private(simulator, entry, l40s, 0, 4, 4, lanes) == INVALID_ARGUMENT


def test_the_private_table_has_the_reset_status_by_other_numbers(simulator, nvml):
    simulator.create("h100")
    nvml.nvmlInit()
    (gpu,) = gpus_of(nvml)
    values = (nvml.c_nvmlFieldValue_t * 2)()
    values[0].fieldId, values[1].fieldId = 4, 5
    assert private(simulator, PRIVATE_FIELDS, gpu, 2, values) == 0
    assert [(value.fieldId, value.nvmlReturn, value.value.uiVal) for value in values] == [(4, 0, 0), (5, 0, 0)]
    assert private(simulator, PRIVATE_FIELDS, gpu, 1, values) == NOT_SUPPORTED
    values[1].fieldId = 6
    assert private(simulator, PRIVATE_FIELDS, gpu, 2, values) == NOT_SUPPORTED
