/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Control interface of the simulated NVML library.
 *
 * These calls control the simulated hardware: which GPUs exist, what runs on them, what fails.
 * libnvidia-ml.so.1 exports them in addition to the nvml* functions, for the tool `gpusim`
 * (through ctypes) and for tests. They require no privilege beyond access to the state file.
 *
 * General rules
 * - Every call uses the state file GPUSIM_STATE (environment), by default /var/lib/gpusim/state.
 *   No call needs nvmlInit. Changes are atomic, even if the caller is killed.
 * - Every `int` result is an NVML return code: 0 SUCCESS, 2 INVALID_ARGUMENT, 3 NOT_SUPPORTED,
 *   6 NOT_FOUND, 7 INSUFFICIENT_SIZE, 9 DRIVER_NOT_LOADED (no state file, or one of another
 *   schema), 10 TIMEOUT, 15 GPU_IS_LOST, 19 IN_USE, 20 MEMORY, 23 INSUFFICIENT_RESOURCES, 999 UNKNOWN (system call failed).
 *   After a failure gpusimMessage() returns the reason as text.
 * - GPUs are identified by NVML index, GPU instances and compute instances by id.
 *   -1 means "none" (the whole GPU, or for gpusimSet the host).
 * - Text arguments are UTF-8 lines `key value`; the value is the rest of the line. Empty lines
 *   and lines that start with `#` are skipped. A line with only the name of a section opens it.
 */
#ifndef GPUSIM_H
#define GPUSIM_H

#include <stddef.h>
#include <stdint.h>

/* Returns this interface's version. Clients can recognize the simulated library by the presence of this symbol. Never
 * fails. Example: "gpusim 1 (state schema 7)". */
const char *gpusimVersion(void);

/* Returns the reason why the calling thread's last gpusim call failed, or "". */
const char *gpusimMessage(void);

/*
 * Creates a host's GPUs. Creates the state file (mode 0666, its directory must exist) or replaces
 * the content of an existing one, including MIG instances, loads, pending faults and call counts.
 * Returns IN_USE if a live GPU process is attached. The message of INVALID_ARGUMENT contains the line.
 *
 * Sections and keys. An omitted integer is unknown: its query returns NOT_SUPPORTED.
 * Keys marked * are mandatory. Booleans are 0 or 1. At most 32 GPUs.
 *
 * host                              (once, first)
 *   driver_version *                "580.65.06"
 *   nvml_version                    default: "13." + driver_version
 *   cuda_version *                  NVML's number: 1000 * major + 10 * minor, 13000 for 13.0
 *   digest                          any text up to 95 bytes, returned by gpusimDump for the tool
 *
 * gpu                               (once per GPU, in NVML index order)
 *   name *                          as reported by NVML, "NVIDIA H100 80GB HBM3"
 *   model                           catalogue key, for gpusimDump only
 *   uuid *                          "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
 *   serial, board_part_number, vbios_version
 *   brand                           nvmlBrandType_t, default 14 (NVML_BRAND_NVIDIA)
 *   architecture *                  nvmlDeviceArchitecture_t: 6 Turing 7 Ampere 8 Ada 9 Hopper 10 Blackwell
 *   compute_capability *            "9.0"
 *   pci_address *                   "00000000:1B:00.0" (domain:bus:device.function, hexadecimal)
 *   pci_device_id *                 NVML's combined number, decimal or 0x: 0x233010DE
 *   pci_subsystem_id                likewise
 *   minor_number                    of /dev/nvidiaN, default: the index
 *   numa_node, board_id
 *   memory_total_mib *              as nvmlDeviceGetMemoryInfo reports it
 *   memory_reserved_mib             default 0
 *   bar1_total_mib
 *   row_remapper_banks              memory banks with remappable rows
 *   multiprocessors *               SM count of the whole GPU
 *   cores_per_multiprocessor
 *   memory_bus_width_bits
 *   ecc                             boolean, default 1
 *   power_default_mw *, power_min_mw *, power_max_mw *
 *   power_idle_mw                   default: a tenth of power_default_mw
 *   power_memory_mw                 power of the memory, independent of load
 *   power_module_default_mw, power_module_min_mw, power_module_max_mw, power_module_idle_mw
 *                                   limits and idle power of the GPU's module (Grace)
 *   clock_graphics_max_mhz *, clock_memory_max_mhz *, clock_video_max_mhz
 *   clock_graphics_idle_mhz         default: a tenth of the maximum
 *   clock_memory_idle_mhz, clock_video_idle_mhz   default: the maximum
 *   clock_graphics_application_mhz  default application clock; omitted: no application clocks
 *   supported_clocks                "memory:lowest-highest ..." in MHz: memory clocks from the highest, with the
 *                                   graphics clocks of each; default: the highest memory clock with graphics clocks
 *                                   from the idle to the highest
 *   performance_state_idle          P-state of an idle GPU, default 0
 *   pcie_generation *, pcie_width * (maximum and current alike; in P8 the generation is 1)
 *   nvlink_links                    links of this GPU, default 0
 *   nvlink_version                  nvmlNvlinkVersion_t: 2 for 2.0, 4 for 3.0, 6 for 4.0, 7 for 5.0
 *   nvlink_speed_mbps               MB/s of one link in one direction
 *   c2c_links                       links of this GPU to a Grace CPU, default 0
 *   c2c_speed_mbps                  MB/s of one of them in one direction
 *   nvlink_peers                    one entry per link, blank-separated: index of the peer GPU, or
 *                                   `switch`; links beyond the list are inactive
 *   temperature_idle_c, temperature_max_c, temperature_slowdown_c, temperature_shutdown_c
 *                                   defaults 32, 85, 90, 95
 *   temperature_margins             boolean, default 0: thresholds are reported as distances from
 *                                   temperature_max_c (T.Limit), not as temperatures
 *   temperature_memory_idle_c       omitted: no memory sensor; temperature_memory_max_c
 *   inforom_image, inforom_oem, inforom_ecc, inforom_power   versions; gpu_part_number
 *   module_id                       position of the module on its board, from 1; 0 or 1 for a card
 *   fan_idle_percent                fan speed of an idle GPU, 0 for boards that report 0 without a fan; omitted: not reported
 *   display                         boolean, display active; default 0
 *   mig_capable                     boolean, default 0
 *   mig_needs_reset                 boolean, default 0: a mode change needs a reset (Ampere)
 *   mig_survives_reboot             boolean, default: mig_needs_reset. Unconfirmed for Hopper and later
 *   profiles_without_mig            boolean, default 1: profiles can be queried with MIG mode off
 *   passthrough                     boolean, default 0: a reset by the driver is impossible
 *   reset_refused                   boolean, default 0: resets by tools are impossible too; only a reboot works
 *   held_by_kernel                  boolean, default 0: another kernel module, such as nvidia_drm for a display, has the GPU open, so that
 *                                   it is in use without a process, until a reboot
 *   timeslicing                     boolean, default 1: the compute policy "timeslice" can be read and set
 *   memory_info                     boolean, default 1; 0: nvmlDeviceGetMemoryInfo is NOT_SUPPORTED
 *   compute_mode_fixed              boolean, default 0; 1: nvmlDeviceSetComputeMode is NOT_SUPPORTED
 *   virtualization_mode             nvmlGpuVirtualizationMode_t, default 0; 2 (a vGPU guest) also fixes the compute mode
 *   max_mig_devices                 default: placement_units, at most compute_slices
 *   compute_slices, placement_units mandatory when mig_capable
 *
 * profile                           (of the last gpu; a GPU instance profile, at most 18)
 *   enum *                          argument of nvmlDeviceGetGpuInstanceProfileInfo, 0..17
 *   id *                            profile id, the argument of create and list calls
 *   name                            "3g.40gb"; NVML adds the prefix "MIG "
 *   compute_slices *, memory_mib *, multiprocessors *, max_instances *
 *   copy_engines, decoders, encoders, jpeg, ofa                       default 0
 *   p2p                             boolean, default 0; graphics: boolean, default 0
 *   placements *                    "start:size start:size ..." in placement units, at most 16
 *
 * compute_profile                   (of the last gpu; at most 32)
 *   gi_slices *                     compute slices of the GPU instances that offer this profile
 *   enum *, id *, slices *          nvml enum 0..7, profile id, compute slices
 *   max_instances                   default: number of placements
 *   multiprocessors                 default: that of the GPU instance; for a part, per slice that of
 *                                   the smallest GPU instance
 *   placements *                    "start:size ..." in compute slices
 *
 * The media engines of the whole GPU are the maximum of engines times max_instances over all
 * profiles. A profile with all engines (+me.all) therefore excludes every profile with any.
 */
int gpusimCreate(const char *configuration);

/*
 * Writes the whole state as JSON text (NUL-terminated): an object of
 *   schema, boot                    schema number, and identity of the state's boot
 *   host                            the keys of the section host
 *   gpus                            each: index, the keys of the sections gpu, with `profiles` and
 *                                   `compute_profiles` (placements as {start, size}, unknown figures null);
 *                                   mig {current, pending} 0 or 1; compute_mode DEFAULT | PROHIBITED |
 *                                   EXCLUSIVE_PROCESS; persistence_mode, lost 0 or 1; power_limit_mw, power_mw,
 *                                   energy_mj, temperature_c, utilization_percent; memory {total_bytes,
 *                                   reserved_bytes, used_bytes, free_bytes}; load; health (faults set with gpusimSet);
 *                                   gpu_instances, each: id,
 *                                   profile_id, profile, placement, memory_mib, load, compute_instances,
 *                                   each: id, profile_id, slices, placement, uuid, mig_index, compute_mode
 *   processes                       live ones: pid, gpu, gpu_instance, compute_instance (null: none), type,
 *                                   memory_bytes
 *   events                          the latest, oldest first: number (from 0), xid, gpu, gpu_instance,
 *                                   compute_instance (null: none)
 *   faults                          pending: function (or "any"), gpu (for a fault of one GPU), nth (calls until it strikes),
 *                                   lasting (1 if it strikes from then on), action
 *   calls                           {function: number of calls}, without uncalled functions
 * A load is null or: pattern, age_seconds, period_seconds or interval_seconds and samples, current
 * values (utilization_percent, memory_mib, power_mw, null: follows), high and low values.
 * *size: in, bytes of `buffer`; out, bytes needed including the NUL. INSUFFICIENT_SIZE if the
 * buffer is too small (it may be NULL). Call again then, because the state may have grown.
 */
int gpusimDump(char *buffer, size_t *size);

/*
 * Waits at most timeout_ms until the number of changes differs from `*seen`, and stores the number there. Returns
 * TIMEOUT (10) without a difference. A change by another process ends the wait. If a process was killed at the end of
 * its change, or if another file has replaced the state file, only the next call detects the change.
 */
int gpusimWait(uint32_t *seen, unsigned timeout_ms);

/*
 * Changes one switch. gpu >= 0: passthrough, reset_refused, held_by_kernel, timeslicing, mig_survives_reboot,
 * profiles_without_mig, mig_needs_reset, memory_info, compute_mode_fixed, virtualization_mode, temperature_idle_c,
 * power_idle_mw, numa_node. gpu = -1: driver_version, nvml_version, cuda_version, digest.
 *
 * Sets a GPU's faults too. Returns NOT_SUPPORTED if the GPU lacks the feature:
 *   throttle                        sw_power_cap, hw_slowdown, sync_boost, sw_thermal, hw_thermal, hw_power_brake (the last
 *                                   two with hw_slowdown), thermal (sw_thermal), power (sw_power_cap); several with
 *                                   commas; off. All but sync_boost halve the clock of a GPU in use
 *   temperature_c                   0: follows power again. It has no other effect
 *   ecc_corrected, ecc_uncorrected  volatile counts of device memory, added to the aggregate counts.
 *                                   Only with `ecc`
 *   remapped_rows_correctable, remapped_rows_uncorrectable, remap_pending, remap_failed (0 or 1)
 *                                   only on Ampere and later
 * A reset or reboot clears volatile counts and applies pending remappings. A reboot also ends throttling and a set
 * temperature. Other faults remain.
 */
int gpusimSet(int gpu, const char *key, const char *value);

/*
 * Attaches a load pattern, evaluated from the time since this call whenever a client reads.
 * gpu_instance -1: the GPU itself. Its utilization counts only while its MIG mode is off.
 * load NULL: removes the pattern. Keys:
 *   pattern *                       constant | square | sine | samples
 *   period_seconds                  of square (first half high) and sine (starts low); default 60
 *   utilization_percent             high value, 0..100, default 0; utilization_low_percent default 0
 *   memory_mib                      high value, default 0; memory_low_mib default: memory_mib
 *   power_mw                        high value; power_low_mw default: power_mw. Default of both:
 *                                   follows utilization between idle power and the power limit
 *   memory_utilization_percent      default: half of the utilization
 *   sm_percent, occupancy_percent, tensor_percent, bandwidth_percent
 *                                   GPM values of SMs, warps, tensor cores and DRAM bandwidth, in percent
 *                                   of utilization; defaults 100, 50, 50, 50
 *   interval_seconds                between samples, default 1; the series repeats from its start
 *   sample U M P                    one line per sample: percent, MiB, milliwatts (-1: follows U);
 *                                   65536 samples in all loads of a host
 * INSUFFICIENT_RESOURCES: more memory than the GPU or the instance has, or too many samples.
 */
int gpusimLoad(int gpu, int gpu_instance, const char *load);

/*
 * Counts process `pid` as a client of a GPU (gpu_instance and compute_instance -1, MIG mode off)
 * or of a compute instance, until it dies or is detached. type: "compute", "graphics" or "mps".
 * Attaching the same pid to the same place again changes its memory.
 * NOT_FOUND: no such pid, GPU or instance. INSUFFICIENT_RESOURCES: not enough free memory.
 * IN_USE: refused by the compute mode (EXCLUSIVE_PROCESS with another process, or PROHIBITED).
 * INVALID_ARGUMENT: the whole GPU while MIG mode is on.
 */
int gpusimAttach(int pid, int gpu, int gpu_instance, int compute_instance, const char *type, uint64_t memory_bytes);

/* Removes all of the process's entries. Returns NOT_FOUND if it has none. */
int gpusimDetach(int pid);

/*
 * Raises an Xid event on a GPU, or on one of its instances (-1: the whole GPU, the whole GPU instance). In each
 * process, every event set with nvmlEventTypeXidCriticalError on the GPU receives the event once. Only root's sets
 * receive an instance's events (nvml.h, nvmlEventSetWait_v2). A client with 128 unread events loses the oldest.
 * `number` starts at 1 (NVIDIA's table of Xid errors).
 */
int gpusimXid(int gpu, int gpu_instance, int compute_instance, unsigned number);

/*
 * Drops a GPU off the bus and raises Xid 79. All calls on the GPU, its instances or MIG devices return GPU_IS_LOST, and
 * so do searches for its handle by index, PCI address, UUID and serial number. The number of GPUs still includes it.
 * gpusimRestore restores the GPU with its state, and a reboot restores it with a reboot's effects. A lost GPU accepts
 * no process, and tools cannot reset it. Losing a lost GPU has no effect and raises no event.
 */
int gpusimLose(int gpu);
int gpusimRestore(int gpu);

/*
 * Like `nvidia-smi --gpu-reset` on hardware: applies a pending MIG mode, drops GPU instances and loads. Returns IN_USE
 * while a process uses the GPU.
 */
int gpusimReset(int gpu);

/*
 * Applies the effects of a host restart: drops processes, instances, loads, compute mode, persistence
 * mode and power limit. A pending MIG mode becomes current, then MIG mode stays only with
 * mig_survives_reboot. A real restart has the same effect: the state records its boot (kernel boot id
 * and start time of PID 1), and the first client after another boot applies this first (unless /proc
 * hides PID 1 from it). A container that shares its host's GPUs has its own PID 1: set GPUSIM_BOOT to
 * the host's identity in its environment (any text; gpusimDump shows the value).
 */
int gpusimReboot(void);

/*
 * Faults: the nth call (1 = the next) of `function`, an exported nvml* name, by any process of
 * the host fails once. Up to 16 faults may be pending.
 * action: "NVML_ERROR_IN_USE" or "IN_USE" (any NVML error name) or its number: the call returns the
 * error without any effect. "kill": the caller dies of SIGKILL before any effect. "kill-inside": it dies inside its
 * first transaction, before the change is visible (or on return from a call without a change).
 * "kill-after": it dies on return, after the complete effect. "stop": it stops before any effect, as if
 * the driver hung, and continues the call at SIGCONT. A caller that asked to be killed with its parent
 * (prctl(2), PR_SET_PDEATHSIG) is part of the parent's run and dies together with it.
 */
int gpusimFail(const char *function, unsigned nth, const char *action);

/*
 * Arms a fault like gpusimFail, restricted to calls on one GPU (-1: all calls): on its handle, instances and MIG
 * devices, and searches for its handle by index, UUID, PCI address or serial number. `function` "any" means every call
 * on that GPU. lasting 1: the nth call and all later ones, until gpusimFailClear. A name without a version
 * ("nvmlDeviceGetMemoryInfo") then means all versions of the function. Lasting faults also strike clients that can
 * only read the state file. A reboot clears no fault. A process that was stopped in a call on a GPU gets UNKNOWN from
 * it when it continues.
 */
int gpusimFailOn(const char *function, int gpu, unsigned nth, int lasting, const char *action);
int gpusimFailClear(void);

/* Resets the counts of all processes' nvml* calls (gpusimDump shows them). */
int gpusimClearCalls(void);

#endif
