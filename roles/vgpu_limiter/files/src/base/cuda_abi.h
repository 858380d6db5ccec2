/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The parts of the binary interfaces of the CUDA driver and NVML that this library uses. Types, layouts and numbers are
 * taken from the CUDA driver API reference (docs.nvidia.com/cuda/cuda-driver-api) and the NVML API reference
 * (docs.nvidia.com/deploy/nvml-api). Functions are declared with their exported names, which the linker uses. In
 * NVIDIA's headers, macros replace some of the documented names with these exported names.
 */
#ifndef CUDA_ABI_H
#define CUDA_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
	CUDA_ERROR_NOT_READY = 600,
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct { unsigned char bytes[16]; } CUuuid;

/* Streams without a stream object: the legacy default stream and the per-thread default stream. */
#define CU_STREAM_LEGACY     ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

enum { CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_PRINTF_FIFO_SIZE = 1, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };
enum { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39 };
enum { CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5, CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7 };
enum { CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2 };
enum {
	CUDA_ARRAY3D_LAYERED = 0x01,
	CUDA_ARRAY3D_CUBEMAP = 0x04,
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

typedef struct { int type, id; } CUmemLocation;

typedef struct {
	int type;
	int requested_handle_types;
	CUmemLocation location;
	void *win32_metadata;
	struct {
		unsigned char compression_type, gpu_direct_rdma_capable;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} CUmemAllocationProp;
static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp_v1");

typedef struct {
	int alloc_type;
	int handle_types;
	CUmemLocation location;
	void *win32_security_attributes;
	size_t max_size;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;
static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps_v1");

typedef struct {
	size_t width, height;
	unsigned format, channels;
} CUDA_ARRAY_DESCRIPTOR;
static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "CUDA_ARRAY_DESCRIPTOR_v2");

typedef struct {
	size_t width, height, depth;
	unsigned format, channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;
static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "CUDA_ARRAY3D_DESCRIPTOR_v2");

typedef struct {
	int id;
	int padding;
	union { int allowed; char bytes[64]; } value;
} CUlaunchAttribute;
static_assert(sizeof(CUlaunchAttribute) == 72, "CUlaunchAttribute");
/* The launch may begin before the stream's previous launch has ended. */
enum { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef struct {
	unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
	CUstream stream;
	CUlaunchAttribute *attributes;
	unsigned attribute_count;
} CUlaunchConfig;
static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");

typedef struct {
	CUfunction function;
	unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
	CUstream stream;
	void **parameters;
} CUDA_LAUNCH_PARAMS;
static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA_LAUNCH_PARAMS_v1");

/* Before CUDA 3.2, device pointers and sizes had 32 bits, even on 64-bit processors. Functions without a suffix
 * still use 32 bits (cuda.h, "CUDA API made obselete at API version 3020"; cudaTypedefs.h, PFN_cuMemAlloc_v2000 and
 * similar). */
typedef unsigned CUdeviceptr_v1;
typedef struct { unsigned width, height, format, channels; } CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct { unsigned width, height, depth, format, channels, flags; } CUDA_ARRAY3D_DESCRIPTOR_v1;

/* Intercepted functions (hooks.h). */
CUresult cuGetProcAddress(const char *, void **, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *, void **, int version, uint64_t flags, int *status);

CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *pitch, size_t width_bytes, size_t height, unsigned element_bytes);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuMemAlloc(CUdeviceptr_v1 *, unsigned);
CUresult cuMemAllocPitch(CUdeviceptr_v1 *, unsigned *pitch, unsigned width_bytes, unsigned height, unsigned element_bytes);
CUresult cuMemFree(CUdeviceptr_v1);
CUresult cuArrayCreate(CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *);
CUresult cuArray3DCreate(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *);
CUresult cuArrayDestroy(CUarray);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned levels);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray);
CUresult cuCtxCreate(CUcontext *, unsigned flags, CUdevice);
CUresult cuCtxCreate_v2(CUcontext *, unsigned flags, CUdevice);
CUresult cuCtxCreate_v3(CUcontext *, void *affinity, int affinities, unsigned flags, CUdevice);
CUresult cuCtxCreate_v4(CUcontext *, void *parameters, unsigned flags, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetLimit(int limit, size_t value);
CUresult cuCtxDestroy(CUcontext);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuDevicePrimaryCtxRelease(CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t keep);
CUresult cuDeviceGraphMemTrim(CUdevice);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuGraphUpload_ptsz(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);

CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *, void *address);
CUresult cuMemMap(CUdeviceptr, size_t, size_t offset, CUmemGenericAllocationHandle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr, size_t);

CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuMemGetInfo(unsigned *free, unsigned *total);
CUresult cuDeviceTotalMem(unsigned *, CUdevice);

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *, unsigned count, unsigned flags);
CUresult cuLaunch(CUfunction);
CUresult cuLaunchGrid(CUfunction, int width, int height);
CUresult cuLaunchGridAsync(CUfunction, int width, int height, CUstream);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphLaunch_ptsz(CUgraphExec, CUstream);

CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuEventSynchronize(CUevent);

/* Functions that are called but not intercepted. cuCtxGetDevice has CUDA 2.0's signature, without a context. */
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuDeviceGetUuid(CUuuid *, CUdevice);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
CUresult cuDeviceGetCount(int *);
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active);
CUresult cuDeviceGetAttribute(int *, int attribute, CUdevice);
CUresult cuCtxGetLimit(size_t *, int limit);
CUresult cuDeviceGetMemPool(CUmemoryPool *, CUdevice);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuMemPoolGetAttribute(CUmemoryPool, int attribute, void *value);
CUresult cuDeviceGetGraphMemAttribute(CUdevice, int attribute, void *value);
CUresult cuStreamDestroy(CUstream);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamIsCapturing(CUstream, int *status);
CUresult cuStreamIsCapturing_ptsz(CUstream, int *status);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuEventCreate(CUevent *, unsigned flags);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventRecord_ptsz(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventElapsedTime(float *milliseconds, CUevent, CUevent);

typedef int nvmlReturn_t;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
/* An entry of a process list, in version 1 of the structure, and then in versions 2 and 3. */
typedef struct { unsigned pid; unsigned long long memory_bytes; } nvmlProcessInfo_v1_t;
typedef struct {
	unsigned pid;
	unsigned long long memory_bytes;
	unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo");

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned);

#endif
