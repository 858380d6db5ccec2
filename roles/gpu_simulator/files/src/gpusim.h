/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Control interface of the simulated NVML library.
 *
 * NVML clients see the hardware's outside; these calls are its inside: which GPUs exist, what
 * runs on them, what breaks. They are exported by libnvidia-ml.so.1 beside the nvml* functions
 * and are meant for the tool `gpusim` (through ctypes) and for tests. They ask for no privilege
 * beyond access to the state file: whoever may turn these screws owns the simulated hardware.
 *
 * General rules
 * - Every call works on the state file GPUSIM_STATE (environment), else /var/lib/gpusim/state.
 *   None needs nvmlInit. None leaves a half-done change, whenever the caller is killed.
 * - Every `int` result is an NVML return code: 0 SUCCESS, 2 INVALID_ARGUMENT, 3 NOT_SUPPORTED,
 *   6 NOT_FOUND, 7 INSUFFICIENT_SIZE, 9 DRIVER_NOT_LOADED (no state file, or one of another
 *   schema), 10 TIMEOUT, 15 GPU_IS_LOST, 19 IN_USE, 20 MEMORY, 23 INSUFFICIENT_RESOURCES, 999 UNKNOWN (system call failed).
 *   After a failure gpusimMessage() says in words what was wrong.
 * - GPUs are named by their NVML index, GPU instances and compute instances by their ids.
 *   -1 stands for "none" (the whole GPU, or for gpusimSet the host).
 * - Text arguments are UTF-8 lines `key value`; the value is the rest of the line. Empty lines
 *   and lines that start with `#` are skipped. A line of one word that names a section opens it.
 */
#ifndef GPUSIM_H
#define GPUSIM_H

#include <stddef.h>
#include <stdint.h>

/* Version of this interface. A client can tell the simulated library from the real one by the
 * presence of this symbol alone. Never fails. Example: "gpusim 1 (state schema 7)". */
const char *gpusimVersion(void);

/* Reason of the calling thread's last failed gpusim call, "" when there was none. */
const char *gpusimMessage(void);

/*
 * Lays out a host. Creates the state file (mode 0666; its directory must exist) or replaces all
 * that an existing one holds: MIG instances, loads, pending faults and call counts are dropped.
 * IN_USE when a live GPU process is attached. INVALID_ARGUMENT names the line.
 *
 * Sections and keys. An omitted integer is unknown: the query it would answer gives
 * NOT_SUPPORTED. Keys marked * are mandatory. Booleans are 0 or 1. At most 32 GPUs.
 *
 * host                              (once, first)
 *   driver_version *                "580.65.06"
 *   nvml_version                    default: "13." + driver_version
 *   cuda_version *                  NVML's number: 1000 * major + 10 * minor, 13000 for 13.0
 *   digest                          any text up to 95 bytes; given back by gpusimDump, for the tool
 *
 * gpu                               (once per GPU, in NVML index order)
 *   name *                          as NVML gives it, "NVIDIA H100 80GB HBM3"
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
 *   row_remapper_banks              banks of memory of which rows can be remapped
 *   multiprocessors *               SM count of the whole GPU
 *   cores_per_multiprocessor
 *   memory_bus_width_bits
 *   ecc                             boolean, default 1
 *   power_default_mw *, power_min_mw *, power_max_mw *
 *   power_idle_mw                   default: a tenth of power_default_mw
 *   power_memory_mw                 draw of the memory alone, whatever runs
 *   power_module_default_mw, power_module_min_mw, power_module_max_mw, power_module_idle_mw
 *                                   limits and idle draw of a module of which the GPU is a part (Grace)
 *   clock_graphics_max_mhz *, clock_memory_max_mhz *, clock_video_max_mhz
 *   clock_graphics_idle_mhz         default: a tenth of the maximum
 *   clock_memory_idle_mhz, clock_video_idle_mhz   default: the maximum
 *   clock_graphics_application_mhz  default application clock; omitted: the GPU has no application clocks
 *   supported_clocks                "memory:lowest-highest ..." in MHz: memory clocks, the highest first, with the
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
 *                                   `switch`; shorter lists leave the remaining links inactive
 *   temperature_idle_c, temperature_max_c, temperature_slowdown_c, temperature_shutdown_c
 *                                   defaults 32, 85, 90, 95
 *   temperature_margins             boolean, default 0: thresholds are reported as distances from
 *                                   temperature_max_c (T.Limit), not as temperatures
 *   temperature_memory_idle_c       omitted: no sensor in the memory; temperature_memory_max_c
 *   inforom_image, inforom_oem, inforom_ecc, inforom_power   versions; gpu_part_number
 *   module_id                       place of the module on its board, from 1; of a card 0 or 1
 *   fan_idle_percent                fan speed of an idle GPU, 0 of boards that have no fan and say so; omitted: none is reported
 *   display                         boolean, display active; default 0
 *   mig_capable                     boolean, default 0
 *   mig_needs_reset                 boolean, default 0: a mode change needs a reset (Ampere)
 *   mig_survives_reboot             boolean, default: mig_needs_reset. Unconfirmed for Hopper and later
 *   profiles_without_mig            boolean, default 1: profiles can be queried with MIG mode off
 *   passthrough                     boolean, default 0: a reset by the driver is impossible
 *   reset_refused                   boolean, default 0: a reset from outside is impossible too, only a reboot helps
 *   held_by_kernel                  boolean, default 0: another module of the kernel has the GPU open, as nvidia_drm does for
 *                                   a display, so that it is in use without a process; a reboot ends that
 *   timeslicing                     boolean, default 1: the compute policy "timeslice" can be read and set
 *   memory_info                     boolean, default 1; 0: nvmlDeviceGetMemoryInfo is NOT_SUPPORTED
 *   compute_mode_fixed              boolean, default 0; 1: nvmlDeviceSetComputeMode is NOT_SUPPORTED
 *   virtualization_mode             nvmlGpuVirtualizationMode_t, default 0; 2 (a guest of vGPU) fixes the compute mode too
 *   max_mig_devices                 default: placement_units, at most compute_slices
 *   compute_slices, placement_units mandatory when mig_capable
 *
 * profile                           (of the last gpu; a GPU instance profile, at most 18)
 *   enum *                          argument of nvmlDeviceGetGpuInstanceProfileInfo, 0..17
 *   id *                            profile id, the number that create and list calls take
 *   name                            "3g.40gb"; NVML's names are "MIG " and this
 *   compute_slices *, memory_mib *, multiprocessors *, max_instances *
 *   copy_engines, decoders, encoders, jpeg, ofa                       default 0
 *   p2p                             boolean, default 0; graphics: boolean, default 0
 *   placements *                    "start:size start:size ..." in placement units, at most 16
 *
 * compute_profile                   (of the last gpu; at most 32)
 *   gi_slices *                     compute slices of the GPU instances that offer this profile
 *   enum *, id *, slices *          nvml enum 0..7, profile id, compute slices
 *   max_instances                   default: number of placements
 *   multiprocessors                 default: the whole GPU instance's; of a part, per slice those of
 *                                   the smallest GPU instance
 *   placements *                    "start:size ..." in compute slices
 *
 * Media engines of the whole GPU are the most that instances of any one profile hold at once
 * (engines times max_instances). A profile that has them all (+me.all) so excludes every profile
 * that has any.
 */
int gpusimCreate(const char *configuration);

/*
 * The whole state as JSON text (NUL-terminated): an object of
 *   schema, boot                    numbers and the identity of the boot that the state belongs to
 *   host                            the keys of the section host
 *   gpus                            each: index, the keys of the sections gpu, with `profiles` and
 *                                   `compute_profiles` (placements as {start, size}, unknown figures null);
 *                                   mig {current, pending} 0 or 1; compute_mode DEFAULT | PROHIBITED |
 *                                   EXCLUSIVE_PROCESS; persistence_mode, lost 0 or 1; power_limit_mw, power_mw,
 *                                   energy_mj, temperature_c, utilization_percent; memory {total_bytes,
 *                                   reserved_bytes, used_bytes, free_bytes}; load; health (what gpusimSet says is wrong);
 *                                   gpu_instances, each: id,
 *                                   profile_id, profile, placement, memory_mib, load, compute_instances,
 *                                   each: id, profile_id, slices, placement, uuid, mig_index, compute_mode
 *   processes                       live ones: pid, gpu, gpu_instance, compute_instance (null: none), type,
 *                                   memory_bytes
 *   events                          the last ones, oldest first: number (from 0), xid, gpu, gpu_instance,
 *                                   compute_instance (null: none)
 *   faults                          waiting: function (or "any"), gpu (of a fault for one GPU), nth (calls until it strikes),
 *                                   lasting (1, of a fault that strikes from then on), action
 *   calls                           {function: number of calls}, those that were called
 * A load is null or: pattern, age_seconds, period_seconds or interval_seconds and samples, what
 * it does now (utilization_percent, memory_mib, power_mw, null: follows), its high and low values.
 * *size: in, bytes of `buffer`; out, bytes needed including the NUL. INSUFFICIENT_SIZE when the
 * buffer is too small (buffer may be NULL); ask again then, the state may have grown meanwhile.
 */
int gpusimDump(char *buffer, size_t *size);

/*
 * Waits until the state has changed: until the number of changes is another than `*seen`, at most timeout_ms. Puts
 * the number there. TIMEOUT (10) when it is the same. A change of another process ends the wait at once; one whose
 * process is killed at its end, or of another state file of that name, only the next call sees.
 */
int gpusimWait(uint32_t *seen, unsigned timeout_ms);

/*
 * Changes one switch. gpu >= 0: passthrough, reset_refused, held_by_kernel, timeslicing, mig_survives_reboot, profiles_without_mig,
 * mig_needs_reset, memory_info, compute_mode_fixed, virtualization_mode, temperature_idle_c, power_idle_mw, numa_node. gpu = -1: driver_version, nvml_version,
 * cuda_version, digest.
 *
 * What is wrong with a GPU is set so too, and what a GPU has not, is NOT_SUPPORTED:
 *   throttle                        sw_power_cap, hw_slowdown, sync_boost, sw_thermal, hw_thermal, hw_power_brake (the last
 *                                   two with hw_slowdown), thermal (sw_thermal), power (sw_power_cap); several with
 *                                   commas; off. All but sync_boost halve the clock of a GPU in use
 *   temperature_c                   0: follows power again. Nothing else follows from it
 *   ecc_corrected, ecc_uncorrected  volatile counts, of device memory; aggregate ones are theirs and those of before.
 *                                   Only with `ecc`
 *   remapped_rows_correctable, remapped_rows_uncorrectable, remap_pending, remap_failed (0 or 1)
 *                                   only on Ampere and later
 * A reset and a reboot begin volatile counts anew and do pending remappings; a reboot ends throttling and the
 * temperature set. The rest stays with the board.
 */
int gpusimSet(int gpu, const char *key, const char *value);

/*
 * Attaches a load pattern, evaluated from the time since this call whenever a client reads.
 * gpu_instance -1: the GPU itself; used for utilisation only while its MIG mode is off.
 * load NULL: takes the pattern away. Keys:
 *   pattern *                       constant | square | sine | samples
 *   period_seconds                  of square (first half high) and sine (starts low); default 60
 *   utilization_percent             high value, 0..100, default 0; utilization_low_percent default 0
 *   memory_mib                      high value, default 0; memory_low_mib default: memory_mib
 *   power_mw                        high value; power_low_mw default: power_mw. Default of both:
 *                                   follows utilisation between idle power and the power limit
 *   memory_utilization_percent      default: half of the utilisation
 *   sm_percent, occupancy_percent, tensor_percent, bandwidth_percent
 *                                   what GPM tells of SMs, warps, tensor cores and DRAM bandwidth, in percent
 *                                   of the utilisation; defaults 100, 50, 50, 50
 *   interval_seconds                between samples, default 1; the series repeats from its start
 *   sample U M P                    one line per sample: percent, MiB, milliwatts (-1: follows U);
 *                                   65536 samples in all loads of a host
 * INSUFFICIENT_RESOURCES: more memory than the GPU or the instance has, or no room for samples.
 */
int gpusimLoad(int gpu, int gpu_instance, const char *load);

/*
 * Counts process `pid` as a client of a GPU (gpu_instance and compute_instance -1, MIG mode off)
 * or of a compute instance, until it dies or is detached. type: "compute", "graphics" or "mps".
 * Attaching the same pid to the same place again changes its memory.
 * NOT_FOUND: no such pid, GPU or instance. INSUFFICIENT_RESOURCES: not so much memory is free.
 * IN_USE: the compute mode refuses (EXCLUSIVE_PROCESS with another process, or PROHIBITED).
 * INVALID_ARGUMENT: the whole GPU named while MIG mode is on.
 */
int gpusimAttach(int pid, int gpu, int gpu_instance, int compute_instance, const char *type, uint64_t memory_bytes);

/* Takes every entry of `pid` away. NOT_FOUND when it has none. */
int gpusimDetach(int pid);

/*
 * Raises an Xid event on a GPU, or on one of its instances (-1: the whole GPU, the whole GPU instance).
 * Every event set that registered nvmlEventTypeXidCriticalError on the GPU gets it once, in all
 * processes; of those of an instance only root's (nvml.h, nvmlEventSetWait_v2). A client that does not
 * ask for 128 events misses the oldest. `number` from 1; NVIDIA's table of Xid errors says what they mean.
 */
int gpusimXid(int gpu, int gpu_instance, int compute_instance, unsigned number);

/*
 * Lets a GPU fall off the bus, which raises Xid 79 on it: all questions and changes that concern it, its
 * instances or its MIG devices give GPU_IS_LOST, its handles by index, PCI address, UUID and serial
 * number too. It still counts. Nothing is lost with it: gpusimRestore, or a reboot (which drops
 * what a reboot drops), brings it back as it was. Meanwhile it takes no process and cannot be reset.
 * A GPU that is lost already stays so, without another event.
 */
int gpusimLose(int gpu);
int gpusimRestore(int gpu);

/*
 * What `nvidia-smi --gpu-reset` does on hardware: a pending MIG mode becomes current, GPU
 * instances, and loads are dropped. IN_USE while a process uses the GPU.
 */
int gpusimReset(int gpu);

/*
 * What a restart of the host does: processes, instances, loads, compute mode, persistence mode and
 * power limit are dropped; a pending MIG mode becomes current, then MIG mode stays only where
 * mig_survives_reboot says so. A real restart has the same effect: the state remembers its boot
 * (kernel boot id and start time of PID 1), and the first client of another one performs this
 * before anything else (one from which /proc hides PID 1 leaves that to others). A container that shares its host's GPUs has its own PID 1: give it the
 * host's identity in the environment variable GPUSIM_BOOT (any text; gpusimDump shows the value).
 */
int gpusimReboot(void);

/*
 * Faults: the nth call (1 = the next) of `function`, an exported nvml* name, by any process of
 * the host fails once. Several faults may wait at a time (16).
 * action: "NVML_ERROR_IN_USE" or "IN_USE" (any NVML error name) or its number: returned without
 * effect; "kill": the caller dies of SIGKILL before any effect; "kill-inside": it dies inside its
 * first transaction, before the change is visible (or on return, of a call that changes nothing);
 * "kill-after": it dies on return, the effect being complete; "stop": it stops before any effect, as if
 * the driver hung, and goes on with the call at SIGCONT. A caller that is part of its parent's run, which is
 * one that asked to be killed with its parent (prctl(2), PR_SET_PDEATHSIG), dies together with the parent.
 */
int gpusimFail(const char *function, unsigned nth, const char *action);

/*
 * The same for calls on one GPU (-1: all calls): those on its handle, on its instances and MIG devices, and those that ask for
 * the handle by index, UUID, PCI address or serial number. `function` "any" is every call on that GPU.
 * lasting 1: the nth call and each after it, until gpusimFailClear; a name without a version ("nvmlDeviceGetMemoryInfo")
 * then stands for all versions of the function. Faults that last strike in clients too that may only read the state file. A reboot clears no fault.
 * A process that "stop" stopped in a call on a GPU gets UNKNOWN from the call when it continues.
 */
int gpusimFailOn(const char *function, int gpu, unsigned nth, int lasting, const char *action);
int gpusimFailClear(void);

/* Sets the counts of nvml* calls (shown by gpusimDump, all processes together) to zero. */
int gpusimClearCalls(void);

#endif
