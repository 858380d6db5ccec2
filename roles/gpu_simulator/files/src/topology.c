/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Connections of GPUs: NVLinks, NUMA nodes, peer to peer.
 */
#include <string.h>

#include "call.h"
#include "pci.h"
#include "topology.h"

static nvmlReturn_t link_of(const target_t *on, unsigned link, int *peer)
{
	if (on->gpu->nvlink_links <= 0)
		return NVML_ERROR_NOT_SUPPORTED;
	/* Links beyond this GPU's number of links do not exist. nvidia-smi queries up to the maximum of all GPUs. */
	if (link >= on->gpu->nvlink_links)
		return link < MAX_LINKS ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
	*peer = on->gpu->nvlink_peers[link];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
	QUERY_GPU(nvmlDeviceGetNvLinkState);
	int peer;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	return give(active, peer != PEER_NONE);
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
	QUERY_GPU(nvmlDeviceGetNvLinkVersion);
	int peer;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	return give(version, on.gpu->nvlink_version);
}

/* Links to a Grace CPU. nvidia-smi -q shows them enabled on a GB200, disabled on H100 and B200, and N/A on T4 and
 * A100 (captures, see device.c). So GPUs of these generations have the links if they have NVLink, and CPUs other
 * than Grace do not use them. */
nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetC2cModeInfoV);
	bool has = on.gpu->architecture >= ARCHITECTURE_HOPPER && on.gpu->nvlink_links > 0;
	return give(out ? &out->enabled : NULL, on.gpu->c2c_links > 0 ? 1 : has ? 0 : UNKNOWN);
}

/* Capability 0 is peer to peer over NVLink. Capability 5 is whether the link is usable at all. */
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *out)
{
	QUERY_GPU(nvmlDeviceGetNvLinkCapability);
	int peer;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	return capability > 5 ? NVML_ERROR_INVALID_ARGUMENT : give(out, capability == 0 || capability == 5);
}

/* The simulated links have no errors. */
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter, unsigned long long *out)
{
	QUERY_GPU(nvmlDeviceGetNvLinkErrorCounter);
	int peer;
	if (!out || counter >= LINK_ERROR_KINDS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	*out = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t remote_pci(function_t function, nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out)
{
	QUERY_GPU_AS(function);
	int peer;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	/* The addresses of switches are unknown here. The returned address must differ from every GPU's. */
	if (peer < 0 || peer >= host->gpu_count)
		return NVML_ERROR_NOT_SUPPORTED;
	pci_fill(&host->gpus[peer], out);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out)
{
	return remote_pci(F_nvmlDeviceGetNvLinkRemotePciInfo_v2, device, link, out);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_v2_t *out)
{
	nvmlPciInfo_t info;
	nvmlReturn_t result = remote_pci(F_nvmlDeviceGetNvLinkRemotePciInfo, device, link, &info);
	if (result != NVML_SUCCESS)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	memcpy(out, &info, offsetof(nvmlPciInfo_v2_t, reserved));
	return NVML_SUCCESS;
}

unsigned topology_between(const gpu_t *one, const gpu_t *other)
{
	if (one == other)
		return TOPOLOGY_INTERNAL;
	if (one->numa_node == UNKNOWN || other->numa_node == UNKNOWN)
		return TOPOLOGY_UNKNOWN;
	return one->numa_node == other->numa_node ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
	QUERY(nvmlDeviceGetTopologyCommonAncestor);
	target_t to;
	if ((call.result = handle_device(host, other, &to)) != NVML_SUCCESS)
		return call.result;
	unsigned between = topology_between(on.gpu, to.gpu);
	return between == TOPOLOGY_UNKNOWN ? NVML_ERROR_NOT_SUPPORTED : give(level, between);
}

/* Returns the other GPUs at this level, as in nvml.h. On input, `count` is the capacity. If the list is NULL, only the
 * number is returned. */
nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *out)
{
	QUERY_GPU(nvmlDeviceGetTopologyNearestGpus);
	/* If there are no other GPUs, a count of 0 without a buffer is also valid (H200, driver 580.159.04). */
	if (!count || level > TOPOLOGY_SYSTEM || level % 10 || host->gpu_count == 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned found = 0, room = out ? *count : 0;
	for (int i = 0; i < host->gpu_count; i++)
		if (i != on.gpu_index && topology_between(on.gpu, &host->gpus[i]) == level && found++ < room)
			out[found - 1] = handle_of_gpu(i);
	*count = out && room < found ? room : found;
	return NVML_SUCCESS;
}

static int64_t numa_nodes(const host_t *host)
{
	int64_t last = 0;
	for (int i = 0; i < host->gpu_count; i++)
		if (host->gpus[i].numa_node > last)
			last = host->gpus[i].numa_node;
	return last + 1;
}

/* A node's CPUs. The simulated host's nodes share the machine's CPUs evenly. Each node has at least one. */
typedef struct { int64_t first, end; } cpus_t;

static cpus_t cpus_of_node(const host_t *host, int64_t node)
{
	int64_t nodes = numa_nodes(host), cpus = sysconf(_SC_NPROCESSORS_CONF);
	cpus_t on = { node * cpus / nodes, (node + 1) * cpus / nodes };
	return on.first == on.end ? (cpus_t){ node % cpus, node % cpus + 1 } : on;
}

/* Returns the GPUs on the NUMA node of a CPU (nvml.h, nvmlSystemGetTopologyGpuSet). */
nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *out)
{
	CALL(nvmlSystemGetTopologyGpuSet);
	host_t *host READING = state_read();
	if (!host || !count || cpu >= (unsigned)sysconf(_SC_NPROCESSORS_CONF))
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned found = 0, room = out ? *count : 0;
	for (int i = 0; i < host->gpu_count; i++) {
		if (host->gpus[i].numa_node == UNKNOWN)
			continue;
		cpus_t near = cpus_of_node(host, host->gpus[i].numa_node);
		if (cpu >= near.first && cpu < near.end && found++ < room)
			out[found - 1] = handle_of_gpu(i);
	}
	*count = out && room < found ? room : found;
	return NVML_SUCCESS;
}

/* Sets bits in a bitmap of `words` longs. Returns INSUFFICIENT_SIZE if the bitmap is too small. */
static nvmlReturn_t give_bits(unsigned long *out, unsigned words, int64_t first, int64_t end)
{
	const int64_t width = 8 * sizeof *out;
	if (!out || !words)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (end > words * width)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memset(out, 0, words * sizeof *out);
	for (int64_t bit = first; bit < end; bit++)
		out[bit / width] |= 1ul << bit % width;
	return NVML_SUCCESS;
}

/* Here, the node and the socket are the same, so the scope (0: node, 1: socket) changes nothing. */
static nvmlReturn_t affinity(function_t function, nvmlDevice_t device, unsigned words, unsigned long *out, unsigned scope, bool memory)
{
	QUERY_AS(function);
	if (scope > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (on.gpu->numa_node == UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	if (memory)
		return give_bits(out, words, on.gpu->numa_node, on.gpu->numa_node + 1);
	cpus_t near = cpus_of_node(host, on.gpu->numa_node);
	return give_bits(out, words, near.first, near.end);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *out, unsigned scope)
{
	return affinity(F_nvmlDeviceGetMemoryAffinity, device, words, out, scope, true);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *out)
{
	return affinity(F_nvmlDeviceGetCpuAffinity, device, words, out, 0, false);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *out, unsigned scope)
{
	return affinity(F_nvmlDeviceGetCpuAffinityWithinScope, device, words, out, scope, false);
}

static bool has_switch(const gpu_t *gpu)
{
	for (int i = 0; i < gpu->nvlink_links; i++)
		if (gpu->nvlink_peers[i] == PEER_SWITCH)
			return true;
	return false;
}

static bool nvlink_connects(const gpu_t *one, const gpu_t *other, int other_index)
{
	if (other->nvlink_links <= 0)
		return false;
	for (int i = 0; i < one->nvlink_links; i++)
		if (one->nvlink_peers[i] == other_index)
			return true;
	return has_switch(one) && has_switch(other);
}

/*
 * Reports whether one GPU can access another GPU's memory. Over NVLink: read, write and atomics. Over PCIe, this
 * depends on the chipset and the driver, which are unknown here. In MIG mode, there is no peer to peer access over PCIe
 * or NVLink (MIG User Guide).
 */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned index, unsigned *status)
{
	QUERY_GPU(nvmlDeviceGetP2PStatus);
	target_t to;
	if ((call.result = handle_device(host, other, &to)) != NVML_SUCCESS)
		return call.result;
	if (index >= P2P_INDEX_UNKNOWN || to.gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	bool linked = nvlink_connects(on.gpu, to.gpu, to.gpu_index);
	if (on.gpu->mig_current || to.gpu->mig_current)
		return give(status, P2P_NOT_SUPPORTED);
	if (index == P2P_INDEX_NVLINK)
		return give(status, linked ? P2P_OK : P2P_NOT_SUPPORTED);
	return give(status, linked && index != P2P_INDEX_PCI ? P2P_OK : P2P_UNKNOWN);
}

/*
 * Hopper and later GPUs join the fabric of their switches. On boards with 8 GPUs, nvidia-smi reports: completed,
 * success, clique 0, and a cluster UUID of zeros (github.com/NVIDIA/k8s-test-infra
 * tests/e2e/go/assertions/nvidiasmi/testdata/hardware, H100, B200). A B200 reports only a health summary, and an H100
 * reports no health.
 */
enum { FABRIC_NOT_SUPPORTED = 0, FABRIC_COMPLETED = 3, FABRIC_HEALTHY = 1 };

/* If a Hopper GPU has no fabric, its state reports this (H200 with NVLinks off, driver 580.159.04). */
static bool knows_fabric(const gpu_t *gpu)
{
	return gpu->architecture >= ARCHITECTURE_HOPPER;
}

static unsigned char fabric_state(const gpu_t *gpu)
{
	return has_switch(gpu) ? FABRIC_COMPLETED : FABRIC_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
	QUERY_GPU(nvmlDeviceGetGpuFabricInfo);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!knows_fabric(on.gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	*out = (nvmlGpuFabricInfo_t){ .status = NVML_SUCCESS, .state = fabric_state(on.gpu) };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *out)
{
	QUERY_GPU(nvmlDeviceGetGpuFabricInfoV);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	bool third = out->version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3u);
	if (!third && out->version != STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!knows_fabric(on.gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	bool joined = fabric_state(on.gpu) == FABRIC_COMPLETED;
	*out = (nvmlGpuFabricInfo_v2_t){ .version = out->version, .status = NVML_SUCCESS, .state = fabric_state(on.gpu) };
	if (third)
		((nvmlGpuFabricInfo_v3_t *)out)->health_summary =
			joined && on.gpu->architecture >= ARCHITECTURE_BLACKWELL ? FABRIC_HEALTHY : 0;
	return NVML_SUCCESS;
}
