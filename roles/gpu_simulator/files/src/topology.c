/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How GPUs are connected: NVLinks and NUMA nodes.
 */
#include <string.h>

#include "call.h"
#include "pci.h"

static nvmlReturn_t link_of(const target_t *on, unsigned link, int *peer)
{
	if (on->gpu->nvlink_links <= 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (link >= on->gpu->nvlink_links)
		return NVML_ERROR_INVALID_ARGUMENT;
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

/* 0: peer to peer over NVLink; 5: the link is usable at all. */
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *out)
{
	QUERY_GPU(nvmlDeviceGetNvLinkCapability);
	int peer;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	return capability > 5 ? NVML_ERROR_INVALID_ARGUMENT : give(out, capability == 0 || capability == 5);
}

static nvmlReturn_t remote_pci(function_t function, nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out)
{
	QUERY_GPU_AS(function);
	int peer;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = link_of(&on, link, &peer)) != NVML_SUCCESS)
		return call.result;
	/* A switch has an address of its own, which nothing here tells; nobody may take it for a GPU's. */
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

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
	QUERY(nvmlDeviceGetTopologyCommonAncestor);
	target_t to;
	if ((call.result = handle_device(host, other, &to)) != NVML_SUCCESS)
		return call.result;
	if (on.gpu == to.gpu)
		return give(level, TOPOLOGY_INTERNAL);
	if (on.gpu->numa_node == UNKNOWN || to.gpu->numa_node == UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	return give(level, on.gpu->numa_node == to.gpu->numa_node ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM);
}
