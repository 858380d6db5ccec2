/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Data of a simulated host. The data contains no pointers, because it is stored in the state file. After any change of
 * these types, increase STATE_SCHEMA (state.h).
 */
#ifndef HOST_H
#define HOST_H

#include <stdbool.h>
#include <stdint.h>

enum {
	MAX_GPUS = 32,
	MAX_GI_PROFILES = 18,
	MAX_CI_PROFILES = 32,
	MAX_PLACEMENTS = 16,
	MAX_GIS = 15,		/* GPU instance ids are 0..14 */
	MAX_CIS = 8,		/* compute instance ids are 0..7 */
	MAX_LINKS = 18,
	MAX_MEMORY_CLOCKS = 8,
	MAX_PROCESSES = 512,
	MAX_SAMPLES = 65536,
	MAX_EVENTS = 128,	/* maximum number of unread events of a client. If there are more, the oldest are lost */
};

/* The configuration lacks the value, so queries return NOT_SUPPORTED. */
#define UNKNOWN (-1)

/* The other end of an NVLink: a switch, or nothing. */
enum { PEER_SWITCH = -2, PEER_NONE = -1 };

typedef struct { int32_t start, size; } span_t;
typedef struct { int32_t count; span_t at[MAX_PLACEMENTS]; } spans_t;

/* The supported memory clocks, highest first, each with its range of graphics clocks. */
typedef struct { int32_t memory_mhz, lowest_mhz, highest_mhz; } clock_range_t;
typedef struct { int32_t count; clock_range_t at[MAX_MEMORY_CLOCKS]; } clock_ranges_t;

typedef struct {
	int64_t enumeration, id, compute_slices, memory_mib, multiprocessors, max_instances;
	int64_t copy_engines, decoders, encoders, jpeg, ofa, p2p, graphics;
	spans_t placements;
	char name[40];
} gi_profile_t;

typedef struct {
	int64_t gi_slices, enumeration, id, slices, max_instances, multiprocessors;
	spans_t placements;
} ci_profile_t;

typedef enum { LOAD_NONE, LOAD_CONSTANT, LOAD_SQUARE, LOAD_SINE, LOAD_SAMPLES } pattern_t;

/* One sample of a load. If power_mw is UNKNOWN, power follows utilization. */
typedef struct { float utilization_percent; int32_t memory_mib, power_mw; } sample_t;

typedef struct {
	int32_t pattern;
	int32_t memory_utilization_percent;	/* UNKNOWN: half the utilization */
	int32_t sm_percent, occupancy_percent, tensor_percent, bandwidth_percent;	/* relative to utilization */
	int64_t since_ns;			/* CLOCK_BOOTTIME of the attachment */
	int64_t period_ns;			/* length of the pattern, or time between samples */
	sample_t low, high;
	int32_t first_sample, sample_count;	/* in host_t.samples */
} load_t;

/* Work done: the integral of utilization, in percent times seconds. */
typedef struct { double graphics, sm, occupancy, tensor, bandwidth; } activity_t;

/* `serial` is 0 in a free slot. Otherwise it is unique among all instances that were ever created. */
typedef struct {
	uint64_t serial;
	int32_t profile;			/* index in gpu_t.ci_profiles */
	int32_t compute_mode;
	span_t placement;
	char uuid[48];
} ci_t;

typedef struct {
	uint64_t serial;
	int32_t profile;			/* index in gpu_t.gi_profiles */
	span_t placement;
	activity_t activity;			/* activity up to the GPU's energy_since_ns */
	load_t load;
	ci_t cis[MAX_CIS];			/* indexed by id */
} gi_t;

/* Errors since the driver was loaded, and errors before that. */
typedef struct { int64_t volatile_count, before; } ecc_t;

/* A GPU's faults. If all values are zero, the GPU is healthy. */
typedef struct {
	int64_t throttle;			/* active nvmlClocksEventReason* */
	int64_t temperature_c;			/* 0: follows power */
	ecc_t ecc[2];				/* corrected, uncorrected */
	int64_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
} health_t;

typedef struct {
	/* configuration */
	char name[96], model[48], uuid[48], serial[32], board_part_number[32], vbios_version[32];
	char compute_capability[8], pci_address[32], gpu_part_number[32];
	char inforom_image[16], inforom_oem[8], inforom_ecc[8], inforom_power[8];
	int64_t brand, architecture, pci_device_id, pci_subsystem_id, minor_number, numa_node, board_id;
	int64_t memory_total_mib, memory_reserved_mib, bar1_total_mib, row_remapper_banks;
	int64_t multiprocessors, cores_per_multiprocessor, memory_bus_width_bits, ecc;
	int64_t power_default_mw, power_min_mw, power_max_mw, power_idle_mw, power_memory_mw;
	int64_t power_module_default_mw, power_module_min_mw, power_module_max_mw, power_module_idle_mw;
	int64_t clock_graphics_max_mhz, clock_graphics_idle_mhz, clock_memory_max_mhz, clock_video_max_mhz;
	int64_t clock_memory_idle_mhz, clock_video_idle_mhz, clock_graphics_application_mhz, performance_state_idle;
	clock_ranges_t supported_clocks;
	int64_t pcie_generation, pcie_width, nvlink_links, nvlink_version, nvlink_speed_mbps, c2c_links, c2c_speed_mbps;
	int64_t temperature_idle_c, temperature_max_c, temperature_slowdown_c, temperature_shutdown_c;
	int64_t temperature_margins, temperature_memory_idle_c, temperature_memory_max_c, module_id;
	int64_t fan_idle_percent, display;
	int64_t mig_capable, mig_needs_reset, mig_survives_reboot, profiles_without_mig, passthrough, reset_refused, held_by_kernel, timeslicing;
	int64_t memory_info, compute_mode_fixed, virtualization_mode;
	int64_t max_mig_devices, compute_slices, placement_units;
	int32_t nvlink_peers[MAX_LINKS];
	int32_t gi_profile_count, ci_profile_count;
	gi_profile_t gi_profiles[MAX_GI_PROFILES];
	ci_profile_t ci_profiles[MAX_CI_PROFILES];

	/* changing state */
	int64_t mig_current, mig_pending, compute_mode, timeslice, persistence_mode, power_limit_mw;
	int64_t locked_graphics_min_mhz, locked_graphics_max_mhz;	/* UNKNOWN: not locked */
	int64_t locked_memory_min_mhz, locked_memory_max_mhz;
	int64_t application_graphics_mhz, application_memory_mhz;
	int64_t lost;				/* fallen off the bus */
	health_t health;
	int64_t energy_mj, energy_since_ns;	/* energy up to energy_since_ns. Later energy is computed from the load */
	activity_t activity;			/* activity up to energy_since_ns */
	load_t load;
	gi_t gis[MAX_GIS];			/* indexed by id */
} gpu_t;

typedef enum { PROCESS_COMPUTE, PROCESS_GRAPHICS, PROCESS_MPS } process_type_t;

/* An entry counts only while its process is alive: `pid` with this start time. In a free entry, pid is 0. */
typedef struct {
	int32_t pid, gpu, gi, ci, type;
	uint64_t started_ticks;
	int64_t memory_bytes;
} process_t;

/* A host's events have numbers from 0. Event n is in host_t.events[n % MAX_EVENTS]. */
typedef struct {
	uint64_t data;				/* number of an Xid event */
	int32_t type, gpu, gi, ci;		/* type of the event (EVENT_XID). gi and ci may be UNKNOWN */
} event_t;

typedef struct {
	char boot[128];
	char driver_version[32], nvml_version[32], digest[96];
	int64_t cuda_version;
	uint64_t next_serial;
	int32_t gpu_count, sample_count;
	uint64_t event_count;			/* number of events so far */
	event_t events[MAX_EVENTS];
	process_t processes[MAX_PROCESSES];
	gpu_t gpus[MAX_GPUS];
	sample_t samples[MAX_SAMPLES];
} host_t;

#endif
