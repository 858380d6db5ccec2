/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The list of intercepted and called functions. This header has no include guard: each file that includes it defines
 * the macros that it needs, and the other macros expand to nothing. The Makefile derives the exported names from these
 * lines.
 *
 *   HOOK(symbol, name, version, per_thread)
 *       an exported name of the driver. The function of the same name in this library intercepts it. The other three
 *       values are arguments of cuGetProcAddress: the name, the CUDA version that introduced this form, and whether
 *       this form uses per-thread default streams.
 *   HOOK_NVML(symbol)   an exported name of NVML that this library intercepts
 *   HOOK_LIBC(symbol)   dlsym, dlvsym
 *   CALLED(symbol)      a driver function that this library calls but does not intercept
 *   CALLED_NVML(symbol) an NVML function that this library calls but does not intercept
 */
#ifndef HOOK
#define HOOK(symbol, name, version, per_thread)
#endif
#ifndef HOOK_NVML
#define HOOK_NVML(symbol)
#endif
#ifndef HOOK_LIBC
#define HOOK_LIBC(symbol)
#endif
#ifndef CALLED
#define CALLED(symbol)
#endif
#ifndef CALLED_NVML
#define CALLED_NVML(symbol)
#endif

/* resolve.c */
HOOK_LIBC(dlsym)
HOOK_LIBC(dlvsym)
HOOK(cuGetProcAddress, "cuGetProcAddress", 11030, 0)
HOOK(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)

/* memory.c */
HOOK(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)
HOOK(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)
HOOK(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0)
HOOK(cuMemFree_v2, "cuMemFree", 3020, 0)
HOOK(cuMemAlloc, "cuMemAlloc", 2000, 0)
HOOK(cuMemAllocPitch, "cuMemAllocPitch", 2000, 0)
HOOK(cuMemFree, "cuMemFree", 2000, 0)
HOOK(cuCtxDestroy, "cuCtxDestroy", 2000, 0)
HOOK(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0)
HOOK(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0)
HOOK(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)
HOOK(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0)
HOOK(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0)

/* contexts.c */
HOOK(cuCtxCreate, "cuCtxCreate", 2000, 0)
HOOK(cuCtxCreate_v2, "cuCtxCreate", 3020, 0)
HOOK(cuCtxCreate_v3, "cuCtxCreate", 11040, 0)
HOOK(cuCtxCreate_v4, "cuCtxCreate", 12050, 0)
HOOK(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0)
HOOK(cuCtxSetLimit, "cuCtxSetLimit", 3010, 0)

/* arrays.c */
HOOK(cuArrayCreate_v2, "cuArrayCreate", 3020, 0)
HOOK(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0)
HOOK(cuArrayCreate, "cuArrayCreate", 2000, 0)
HOOK(cuArray3DCreate, "cuArray3DCreate", 2000, 0)
HOOK(cuArrayDestroy, "cuArrayDestroy", 2000, 0)
HOOK(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0)
HOOK(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0)

/* pools.c */
HOOK(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)
HOOK(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 1)
HOOK(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0)
HOOK(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 1)
HOOK(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)
HOOK(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 1)
HOOK(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0)
HOOK(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0)
HOOK(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0)

/* waits.c */
HOOK(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)
HOOK(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0)
HOOK(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)
HOOK(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 1)
HOOK(cuEventSynchronize, "cuEventSynchronize", 2000, 0)

/* graphs.c */
HOOK(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, 0)
HOOK(cuGraphUpload, "cuGraphUpload", 11010, 0)
HOOK(cuGraphUpload_ptsz, "cuGraphUpload", 11010, 1)
HOOK(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0)

/* vmm.c */
HOOK(cuMemCreate, "cuMemCreate", 10020, 0)
HOOK(cuMemRelease, "cuMemRelease", 10020, 0)
HOOK(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0)
HOOK(cuMemMap, "cuMemMap", 10020, 0)
HOOK(cuMemUnmap, "cuMemUnmap", 10020, 0)

/* report.c */
HOOK(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0)
HOOK(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0)
HOOK(cuMemGetInfo, "cuMemGetInfo", 2000, 0)
HOOK(cuDeviceTotalMem, "cuDeviceTotalMem", 2000, 0)
HOOK_NVML(nvmlDeviceGetMemoryInfo)
HOOK_NVML(nvmlDeviceGetMemoryInfo_v2)
HOOK_NVML(nvmlDeviceGetComputeRunningProcesses)
HOOK_NVML(nvmlDeviceGetComputeRunningProcesses_v2)
HOOK_NVML(nvmlDeviceGetComputeRunningProcesses_v3)
HOOK_NVML(nvmlDeviceGetMPSComputeRunningProcesses)
HOOK_NVML(nvmlDeviceGetMPSComputeRunningProcesses_v2)
HOOK_NVML(nvmlDeviceGetMPSComputeRunningProcesses_v3)
HOOK_NVML(nvmlDeviceGetGraphicsRunningProcesses)
HOOK_NVML(nvmlDeviceGetGraphicsRunningProcesses_v2)
HOOK_NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)

/* launch.c */
HOOK(cuLaunchKernel, "cuLaunchKernel", 4000, 0)
HOOK(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 1)
HOOK(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 0)
HOOK(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, 1)
HOOK(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, 0)
HOOK(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, 1)
HOOK(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, 0)
HOOK(cuLaunch, "cuLaunch", 2000, 0)
HOOK(cuLaunchGrid, "cuLaunchGrid", 2000, 0)
HOOK(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, 0)
HOOK(cuGraphLaunch, "cuGraphLaunch", 10000, 0)
HOOK(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, 1)
HOOK(cuStreamDestroy, "cuStreamDestroy", 2000, 0)
HOOK(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)

CALLED(cuCtxGetDevice)
CALLED(cuCtxGetCurrent)
CALLED(cuCtxPushCurrent_v2)
CALLED(cuCtxPopCurrent_v2)
CALLED(cuDeviceGetUuid)
CALLED(cuDeviceGetUuid_v2)
CALLED(cuDeviceGetCount)
CALLED(cuDevicePrimaryCtxGetState)
CALLED(cuDeviceGetAttribute)
CALLED(cuCtxGetLimit)
CALLED(cuDeviceGetMemPool)
CALLED(cuDeviceGetDefaultMemPool)
CALLED(cuMemPoolGetAttribute)
CALLED(cuDeviceGetGraphMemAttribute)
CALLED(cuStreamGetCtx)
CALLED(cuStreamIsCapturing)
CALLED(cuStreamIsCapturing_ptsz)
CALLED(cuThreadExchangeStreamCaptureMode)
CALLED(cuEventCreate)
CALLED(cuEventDestroy_v2)
CALLED(cuEventRecord)
CALLED(cuEventRecord_ptsz)
CALLED(cuEventQuery)
CALLED(cuEventElapsedTime)

CALLED_NVML(nvmlInit_v2)
CALLED_NVML(nvmlDeviceGetHandleByUUID)
CALLED_NVML(nvmlDeviceGetUUID)

#undef HOOK
#undef HOOK_NVML
#undef HOOK_LIBC
#undef CALLED
#undef CALLED_NVML
