/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The hooks of launches. A tenant that is not throttled, or no tenant, pays for two loads and a counter:
 * the arguments stay where the caller has put them and the driver's function is jumped to.
 */
#include "internal.h"

#define KERNEL_PARAMETERS CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
	unsigned shared, CUstream stream
#define KERNEL_ARGUMENTS f, gx, gy, gz, bx, by, bz, shared, stream

/* Every so many launches of a thread the quota file's turn comes; one that launches less than that in a
 * quarter of a second asks each time. */
enum { LOOK_EVERY = 32 };
static __thread struct { int left; int64_t looked_ns; } look __attribute__((tls_model("initial-exec")));

static inline bool throttle_is_off(void)
{
	struct state *state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
	return state && atomic_load_explicit(&state->throttle.off, memory_order_relaxed) && look.left-- > 0;
}

static void count_looks(void)
{
	int64_t now = vgpu_coarse_ns();
	look.left = now - look.looked_ns < INT64_C(250000000) ? LOOK_EVERY : 0;
	look.looked_ns = now;
}

static uint64_t mix(uint64_t hash, unsigned a, unsigned b, unsigned c)
{
	hash = (hash ^ a) * UINT64_C(1099511628211);
	hash = (hash ^ b) * UINT64_C(1099511628211);
	return (hash ^ c) * UINT64_C(1099511628211);
}

/* 0 is no shape. */
static uint64_t shape_of(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
	uint64_t hash = mix(mix(UINT64_C(14695981039346656037), gx, gy, gz), bx, by, bz);
	return (hash ^ hash >> 32) | UINT64_C(1) << 32;
}

static bool is_dependent(const CUlaunchConfig *c)
{
	for (unsigned i = 0; c->attributes && i < c->attribute_count; i++)
		if (c->attributes[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION && c->attributes[i].value.allowed)
			return true;
	return false;
}

static struct work work_of_config(const CUlaunchConfig *c, CUfunction f)
{
	if (!c)
		return (struct work){ f, 0, false };
	return (struct work){ f, shape_of(c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z), is_dependent(c) };
}

#define WORK_OF_KERNEL ((struct work){ f, shape_of(gx, gy, gz, bx, by, bz), false })
#define WORK_OF_FUNCTION ((struct work){ f, 0, false })

/* The stream that 0 stands for is another one in the _ptsz form. */
static CUstream own_default(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }
static CUstream as_it_is(CUstream stream) { return stream; }

#define LAUNCH(symbol, parameters, arguments, work, stream_given, stream_meant) \
	static __attribute__((noinline)) CUresult slow_##symbol parameters \
	{ \
		count_looks(); \
		struct passage passage = throttle_enter(work, stream_meant(stream_given)); \
		CUresult result = REAL(symbol) arguments; \
		throttle_leave(&passage, result); \
		return result; \
	} \
	CUresult symbol parameters \
	{ \
		if (LIKELY(throttle_is_off())) \
			return REAL(symbol) arguments; \
		return slow_##symbol arguments; \
	}

LAUNCH(cuLaunchKernel, (KERNEL_PARAMETERS, void **p, void **e), (KERNEL_ARGUMENTS, p, e), WORK_OF_KERNEL, stream, as_it_is)
LAUNCH(cuLaunchKernel_ptsz, (KERNEL_PARAMETERS, void **p, void **e), (KERNEL_ARGUMENTS, p, e), WORK_OF_KERNEL, stream, own_default)
LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction f, void **p, void **e), (c, f, p, e), work_of_config(c, f),
	c ? c->stream : NULL, as_it_is)
LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *c, CUfunction f, void **p, void **e), (c, f, p, e), work_of_config(c, f),
	c ? c->stream : NULL, own_default)
LAUNCH(cuLaunchCooperativeKernel, (KERNEL_PARAMETERS, void **p), (KERNEL_ARGUMENTS, p), WORK_OF_KERNEL, stream, as_it_is)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (KERNEL_PARAMETERS, void **p), (KERNEL_ARGUMENTS, p), WORK_OF_KERNEL, stream, own_default)

LAUNCH(cuLaunch, (CUfunction f), (f), WORK_OF_FUNCTION, NULL, as_it_is)
LAUNCH(cuLaunchGrid, (CUfunction f, int w, int h), (f, w, h), WORK_OF_FUNCTION, NULL, as_it_is)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int w, int h, CUstream stream), (f, w, h, stream), WORK_OF_FUNCTION, stream, as_it_is)

/* One launch on each of several devices, each in its own stream. More than there can be the driver refuses. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	struct passage passages[DEVICES];
	if (!list || count > DEVICES || LIKELY(throttle_is_off()))
		return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	count_looks();
	for (unsigned i = 0; i < count; i++)
		passages[i] = throttle_enter((struct work){ list[i].function, 0, false }, list[i].stream);
	CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	for (unsigned i = 0; i < count; i++)
		throttle_leave(&passages[i], result);
	return result;
}

/* A graph may also take memory, which its launch charges (graphs.c). */
static CUresult and_its_memory(CUresult result, CUstream stream)
{
	CUdevice device;
	if (!vgpu_quota_now())
		return result;
	bool entered = vgpu_enter_stream(stream);
	if (REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
		vgpu_graph_memory(device);
	vgpu_leave_stream(entered);
	return result;
}

#define LAUNCH_GRAPH(symbol, stream_meant, per_thread) \
	CUresult symbol(CUgraphExec graph, CUstream stream) \
	{ \
		if (vgpu_graph_admit(graph, stream, per_thread) != CUDA_SUCCESS) \
			return CUDA_ERROR_OUT_OF_MEMORY; \
		if (LIKELY(throttle_is_off())) \
			return and_its_memory(REAL(symbol)(graph, stream), stream); \
		count_looks(); \
		struct passage passage = throttle_enter((struct work){ graph, 0, false }, stream_meant(stream)); \
		CUresult result = REAL(symbol)(graph, stream); \
		throttle_leave(&passage, result); \
		return and_its_memory(result, stream); \
	}

LAUNCH_GRAPH(cuGraphLaunch, as_it_is, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, own_default, true)

/* The next stream of this address may be another context's. */
CUresult cuStreamDestroy(CUstream stream)
{
	throttle_stream_gone(stream);
	return REAL(cuStreamDestroy)(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	throttle_stream_gone(stream);
	return REAL(cuStreamDestroy_v2)(stream);
}
