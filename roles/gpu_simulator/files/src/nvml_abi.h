/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The parts of NVML's binary interface that this library implements. The declarations are our own. Layouts and numbers
 * are published in the NVML API reference (docs.nvidia.com/deploy/nvml-api) and nvml.h.
 */
#ifndef NVML_ABI_H
#define NVML_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_IN_USE = 19,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

typedef struct handle *nvmlDevice_t, *nvmlGpuInstance_t, *nvmlComputeInstance_t;
typedef struct event_set *nvmlEventSet_t;

/* The version word of a versioned structure: the structure's size, with the version in the top byte. */
#define STRUCT_VERSION(type, version) ((unsigned)sizeof(type) | (version) << 24)

enum { NVML_INIT_FLAG_NO_GPUS = 1 };
enum { ADDRESSING_HMM = 1, ADDRESSING_ATS = 2 };
enum { POWER_SCOPE_GPU, POWER_SCOPE_MODULE, POWER_SCOPE_MEMORY };
enum { ARCHITECTURE_TURING = 6, ARCHITECTURE_AMPERE = 7, ARCHITECTURE_HOPPER = 9, ARCHITECTURE_BLACKWELL = 10 };
/* Value of nvmlGpuVirtualizationMode_t for a GPU in a vGPU guest. */
enum { VIRTUALIZATION_VGPU = 2 };
enum { COMPUTE_DEFAULT, COMPUTE_EXCLUSIVE_THREAD, COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE_PROCESS };
enum { CLOCK_CURRENT, CLOCK_APPLICATION, CLOCK_APPLICATION_DEFAULT, CLOCK_CUSTOMER_BOOST };
enum { CLOCK_LIMIT_START = 0xffffff00u, CLOCK_LIMIT_TDP, CLOCK_LIMIT_UNLIMITED };
enum { CLOCK_KIND_GRAPHICS, CLOCK_KIND_SM, CLOCK_KIND_MEMORY, CLOCK_KIND_VIDEO };
enum { THRESHOLD_SHUTDOWN, THRESHOLD_SLOWDOWN, THRESHOLD_MEMORY_MAX, THRESHOLD_GPU_MAX };
enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50, TOPOLOGY_UNKNOWN = 0xff };
enum { LINK_ERROR_KINDS = 5 };	/* NVML_NVLINK_ERROR_COUNT */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_UNKNOWN = 6 };
enum { P2P_INDEX_READ, P2P_INDEX_WRITE, P2P_INDEX_NVLINK, P2P_INDEX_ATOMICS, P2P_INDEX_PCI, P2P_INDEX_UNKNOWN };
enum { VALUE_DOUBLE, VALUE_UINT, VALUE_ULONG, VALUE_ULONGLONG, VALUE_LONGLONG, VALUE_INT };
enum { PROFILE_CAPABILITY_P2P = 1, PROFILE_CAPABILITY_GRAPHICS = 2 };
enum { GI_PROFILE_COUNT = 18, CI_PROFILE_COUNT = 8, CI_ENGINE_PROFILE_COUNT = 1 };

typedef struct {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
} nvmlPciInfo_t;

/* Versions 1 and 2 of the structure end with four reserved words. Version 3 has the long bus ID in their place. */
typedef struct {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id, reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
	unsigned version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
	char bus_id[32];
} nvmlPciInfoExt_v1_t;

typedef struct { unsigned long long total, free, used; } nvmlMemory_t, nvmlBAR1Memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned version, sensor; int temperature; } nvmlTemperature_v1_t;
typedef struct { unsigned version; int celsius; } nvmlMarginTemperature_v1_t;
/* The scope is one byte (nvmlPowerScopeType_t). nvidia-smi does not clear the bytes after it. */
typedef struct { unsigned version; unsigned char scope; unsigned milliwatts; } nvmlPowerValue_v2_t;
typedef struct { unsigned sessions, fps, latency_us; } nvmlFBCStats_t;
typedef struct { unsigned enabled; } nvmlC2cModeInfo_v1_t;
typedef struct { unsigned version, mask; } nvmlDeviceCapabilities_v1_t;
typedef struct { unsigned version, value; } nvmlDeviceAddressingMode_v1_t;
typedef struct { unsigned version; unsigned long long value; } nvmlPdi_v1_t;
typedef struct { unsigned version, channel_pending, tpc_pending; } nvmlRepairStatus_v1_t;
typedef struct { unsigned max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;

/* State of a GPU's registration in the NVLink fabric. Version 3 adds a health summary to version 2. */
typedef struct {
	unsigned char cluster_uuid[16];
	nvmlReturn_t status;
	unsigned clique_id;
	unsigned char state;
} nvmlGpuFabricInfo_t;
typedef struct {
	unsigned version;
	unsigned char cluster_uuid[16];
	nvmlReturn_t status;
	unsigned clique_id;
	unsigned char state;
	unsigned health_mask;
} nvmlGpuFabricInfo_v2_t;
typedef struct {
	nvmlGpuFabricInfo_v2_t second;
	unsigned char health_summary;
} nvmlGpuFabricInfo_v3_t;

typedef struct { unsigned pid; unsigned long long memory_bytes; } nvmlProcessInfo_v1_t;
typedef struct {
	unsigned pid;
	unsigned long long memory_bytes;
	unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;
typedef struct {
	unsigned pid;
	unsigned long long timestamp_us;
	unsigned sm_percent, memory_percent, encoder_percent, decoder_percent;
} nvmlProcessUtilizationSample_t;

typedef struct {
	unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned gpu_instance_slices, compute_instance_slices;
	unsigned long long memory_mib;
} nvmlDeviceAttributes_t;

typedef struct { unsigned start, size; } nvmlPlacement_t;

typedef struct {
	unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
} nvmlGpuInstanceProfileInfo_t;
typedef struct {
	unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
	char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
typedef struct {
	unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
	char name[96];
	unsigned capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;
typedef struct {
	nvmlDevice_t device;
	unsigned id, profile_id;
	nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
} nvmlComputeInstanceProfileInfo_t;
typedef struct {
	unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
typedef struct {
	unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	char name[96];
	unsigned capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;
typedef struct {
	nvmlDevice_t device;
	nvmlGpuInstance_t gpu_instance;
	unsigned id, profile_id;
	nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
	unsigned field, scope;
	long long timestamp_us, latency_us;
	unsigned value_type;
	nvmlReturn_t result;
	union { double d; int i; unsigned u; unsigned long ul; unsigned long long ull; long long ll; } value;
} nvmlFieldValue_t;

enum { EVENT_XID = 8, EVENTS_SUPPORTED = 0x1f };	/* nvmlEventType*: ECC errors, performance state, Xid, clock */
#define NO_INSTANCE 0xffffffffu				/* value for an event that belongs to no instance */

typedef struct {
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;	/* nvmlEventSetWait without _v2 does not fill this */
} nvmlEventData_t;

typedef struct gpm_sample *nvmlGpmSample_t;
typedef struct { unsigned version, supported; } nvmlGpmSupport_t;
typedef struct { const char *short_name, *long_name, *unit; } nvmlGpmMetricInfo_t;
typedef struct {
	unsigned id;
	nvmlReturn_t result;
	double value;
	nvmlGpmMetricInfo_t info;
} nvmlGpmMetric_t;
/* The maximum number of metrics depends on the client's nvml.h. `count` is the number that the client requests. */
typedef struct {
	unsigned version, count;
	nvmlGpmSample_t sample1, sample2;
	nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

/* Version words that a real client sends (nvidia-ml-py 13.615). */
static_assert(STRUCT_VERSION(nvmlMemory_v2_t, 2u) == 0x02000028, "nvmlMemory_v2");
static_assert(STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1u) == 0x01000040, "nvmlPciInfoExt_v1");
static_assert(STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2u) == 0x02000024, "nvmlGpuFabricInfo_v2");
static_assert(STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3u) == 0x03000028, "nvmlGpuFabricInfo_v3");
static_assert(STRUCT_VERSION(nvmlTemperature_v1_t, 1u) == 0x0100000c, "nvmlTemperature_v1");
static_assert(STRUCT_VERSION(nvmlPowerValue_v2_t, 2u) == 0x0200000c, "nvmlPowerValue_v2");
static_assert(STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2u) == 0x02000098, "nvmlGpuInstanceProfileInfo_v2");
static_assert(STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2u) == 0x02000088, "nvmlComputeInstanceProfileInfo_v2");
static_assert(sizeof(nvmlGpmMetric_t) == 40 && offsetof(nvmlGpmMetricsGet_t, metrics) == 24, "nvmlGpmMetricsGet");
static_assert(sizeof(nvmlEventData_t) == 32 && offsetof(nvmlEventData_t, gpu_instance) == 24, "nvmlEventData");
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo");

#endif
