/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of launches. For an unthrottled program, a launch costs two loads and a counter more. The arguments stay in
 * place, and the hook jumps to the driver's function.
 */
#include "base/clock.h"
#include "driver/reals.h"
#include "driver/streams.h"
#include "hooks/graphs.h"
#include "process/state.h"
#include "throttle/throttle.h"

#define KERNEL_PARAMETERS CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
	unsigned shared, CUstream stream
#define KERNEL_ARGUMENTS f, gx, gy, gz, bx, by, bz, shared, stream

/* A thread checks the quota file once in this many launches. If the thread launched less often in the last quarter
 * of a second, it checks at each launch. */
enum { LOOK_EVERY = 32 };
static __thread struct { int left; int64_t looked_ns; } look __attribute__((tls_model("initial-exec")));

static inline bool throttle_is_off(void)
{
	struct state *state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
	return state && atomic_load_explicit(&state->unthrottled, memory_order_relaxed) && look.left-- > 0;
}

static void count_looks(void)
{
	int64_t now = coarse_ns();
	look.left = now - look.looked_ns < NS_PER_SECOND / 4 ? LOOK_EVERY : 0;
	look.looked_ns = now;
}

static uint64_t mix(uint64_t hash, unsigned a, unsigned b, unsigned c)
{
	hash = (hash ^ a) * UINT64_C(1099511628211);
	hash = (hash ^ b) * UINT64_C(1099511628211);
	return (hash ^ c) * UINT64_C(1099511628211);
}

/* Return a hash of the grid and block sizes. It is never 0, which means "no shape". */
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

static struct work work_of_kernel(KERNEL_PARAMETERS)
{
	(void)shared;
	(void)stream;
	return (struct work){ f, shape_of(gx, gy, gz, bx, by, bz), false };
}

static struct work work_of_config(const CUlaunchConfig *c, CUfunction f)
{
	if (!c)
		return (struct work){ f, 0, false };
	return (struct work){ f, shape_of(c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z), is_dependent(c) };
}

/* In functions with the suffix _ptsz, stream 0 is the per-thread default stream. */
static CUstream own_default(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

/* Wait until the throttle permits the launch. */
static struct passage held(struct work work, CUstream stream)
{
	count_looks();
	return throttle_enter(work, stream);
}

static CUresult launched(const struct passage *passage, CUresult result)
{
	throttle_leave(passage, result);
	return result;
}

/* --- kernels: first the throttled path, then the hook --- */

static __attribute__((noinline)) CUresult slow_cuLaunchKernel(KERNEL_PARAMETERS, void **p, void **e)
{
	struct passage passage = held(work_of_kernel(KERNEL_ARGUMENTS), stream);
	return launched(&passage, REAL(cuLaunchKernel)(KERNEL_ARGUMENTS, p, e));
}

CUresult cuLaunchKernel(KERNEL_PARAMETERS, void **p, void **e)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchKernel)(KERNEL_ARGUMENTS, p, e);
	return slow_cuLaunchKernel(KERNEL_ARGUMENTS, p, e);
}

static __attribute__((noinline)) CUresult slow_cuLaunchKernel_ptsz(KERNEL_PARAMETERS, void **p, void **e)
{
	struct passage passage = held(work_of_kernel(KERNEL_ARGUMENTS), own_default(stream));
	return launched(&passage, REAL(cuLaunchKernel_ptsz)(KERNEL_ARGUMENTS, p, e));
}

CUresult cuLaunchKernel_ptsz(KERNEL_PARAMETERS, void **p, void **e)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchKernel_ptsz)(KERNEL_ARGUMENTS, p, e);
	return slow_cuLaunchKernel_ptsz(KERNEL_ARGUMENTS, p, e);
}

static __attribute__((noinline)) CUresult slow_cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e)
{
	struct passage passage = held(work_of_config(c, f), c ? c->stream : NULL);
	return launched(&passage, REAL(cuLaunchKernelEx)(c, f, p, e));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchKernelEx)(c, f, p, e);
	return slow_cuLaunchKernelEx(c, f, p, e);
}

static __attribute__((noinline)) CUresult slow_cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **p, void **e)
{
	struct passage passage = held(work_of_config(c, f), own_default(c ? c->stream : NULL));
	return launched(&passage, REAL(cuLaunchKernelEx_ptsz)(c, f, p, e));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **p, void **e)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchKernelEx_ptsz)(c, f, p, e);
	return slow_cuLaunchKernelEx_ptsz(c, f, p, e);
}

static __attribute__((noinline)) CUresult slow_cuLaunchCooperativeKernel(KERNEL_PARAMETERS, void **p)
{
	struct passage passage = held(work_of_kernel(KERNEL_ARGUMENTS), stream);
	return launched(&passage, REAL(cuLaunchCooperativeKernel)(KERNEL_ARGUMENTS, p));
}

CUresult cuLaunchCooperativeKernel(KERNEL_PARAMETERS, void **p)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchCooperativeKernel)(KERNEL_ARGUMENTS, p);
	return slow_cuLaunchCooperativeKernel(KERNEL_ARGUMENTS, p);
}

static __attribute__((noinline)) CUresult slow_cuLaunchCooperativeKernel_ptsz(KERNEL_PARAMETERS, void **p)
{
	struct passage passage = held(work_of_kernel(KERNEL_ARGUMENTS), own_default(stream));
	return launched(&passage, REAL(cuLaunchCooperativeKernel_ptsz)(KERNEL_ARGUMENTS, p));
}

CUresult cuLaunchCooperativeKernel_ptsz(KERNEL_PARAMETERS, void **p)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchCooperativeKernel_ptsz)(KERNEL_ARGUMENTS, p);
	return slow_cuLaunchCooperativeKernel_ptsz(KERNEL_ARGUMENTS, p);
}

static __attribute__((noinline)) CUresult slow_cuLaunch(CUfunction f)
{
	struct passage passage = held((struct work){ f, 0, false }, NULL);
	return launched(&passage, REAL(cuLaunch)(f));
}

CUresult cuLaunch(CUfunction f)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunch)(f);
	return slow_cuLaunch(f);
}

static __attribute__((noinline)) CUresult slow_cuLaunchGrid(CUfunction f, int w, int h)
{
	struct passage passage = held((struct work){ f, 0, false }, NULL);
	return launched(&passage, REAL(cuLaunchGrid)(f, w, h));
}

CUresult cuLaunchGrid(CUfunction f, int w, int h)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchGrid)(f, w, h);
	return slow_cuLaunchGrid(f, w, h);
}

static __attribute__((noinline)) CUresult slow_cuLaunchGridAsync(CUfunction f, int w, int h, CUstream stream)
{
	struct passage passage = held((struct work){ f, 0, false }, stream);
	return launched(&passage, REAL(cuLaunchGridAsync)(f, w, h, stream));
}

CUresult cuLaunchGridAsync(CUfunction f, int w, int h, CUstream stream)
{
	if (LIKELY(throttle_is_off()))
		return REAL(cuLaunchGridAsync)(f, w, h, stream);
	return slow_cuLaunchGridAsync(f, w, h, stream);
}

/* This call launches once on each of several devices, in the device's own stream. If `count` exceeds the maximum, the
 * driver refuses the call. */
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

/* A graph may also allocate memory, so charge this memory after the launch (graphs.c). */
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

static CUresult launch_graph(CUgraphExec graph, CUstream stream, bool per_thread, CUresult real(CUgraphExec, CUstream))
{
	if (vgpu_graph_admit(graph, stream, per_thread) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (LIKELY(throttle_is_off()))
		return and_its_memory(real(graph, stream), stream);
	struct passage passage = held((struct work){ graph, 0, false }, per_thread ? own_default(stream) : stream);
	return and_its_memory(launched(&passage, real(graph, stream)), stream);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, false, REAL(cuGraphLaunch)); }
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, true, REAL(cuGraphLaunch_ptsz)); }

/* Forget the stream, because a new stream at the same address may belong to another context. */
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
