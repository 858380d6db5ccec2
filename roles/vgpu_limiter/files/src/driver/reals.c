/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the driver's functions in its library.
 */
#include "driver/reals.h"

#include <errno.h>

#include "driver/loader.h"

/* Functions of hooks.h, in the order of enum real. */
static const struct { const char *symbol; bool nvml; } LISTED[REAL_COUNT] = {
#define HOOK(s, n, v, p) [REAL_##s] = { #s, false },
#define HOOK_NVML(s) [REAL_##s] = { #s, true },
#define CALLED(s) [REAL_##s] = { #s, false },
#define CALLED_NVML(s) [REAL_##s] = { #s, true },
#include "driver/hooks.h"
};

_Atomic(void *) vgpu_reals[REAL_COUNT];
static _Atomic(bool) resolved[2];	/* whether the functions were resolved: [0] of the driver, [1] of NVML */

/* A library with the driver's soname may be the front library (front.c). The front exports the intercepted names,
 * and contains the path of the driver's file. */
static void *driver_handle(void)
{
	void *handle = loader_open("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	const char *behind = handle ? real_dlsym()(handle, "openfleet_vgpu_driver") : NULL;
	return behind ? loader_open(behind, RTLD_LAZY | RTLD_NOLOAD) : handle;
}

/* The library must already be loaded with this soname, from any path. Keep the handle, so that no dlclose unloads the
 * library. Two threads that do this at once find the same library. */
static bool resolve(bool nvml)
{
	void *handle = nvml ? loader_open("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) : driver_handle();
	if (!handle)
		return false;
	for (int i = 0; i < REAL_COUNT; i++)
		if (LISTED[i].nvml == nvml)
			atomic_store_explicit(&vgpu_reals[i], real_dlsym()(handle, LISTED[i].symbol), memory_order_release);
	atomic_store_explicit(&resolved[nvml], true, memory_order_release);
	return true;
}

void *vgpu_find_real(enum real which)
{
	bool nvml = LISTED[which].nvml;
	if (!atomic_load_explicit(&resolved[nvml], memory_order_acquire) && !resolve(nvml))
		return NULL;
	return atomic_load_explicit(&vgpu_reals[which], memory_order_acquire);
}

bool vgpu_load_nvml(void)
{
	if (atomic_load_explicit(&resolved[true], memory_order_acquire))
		return true;
	return loader_open("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) && resolve(true);
}

/* Replaces a missing function, or all functions if no driver is loaded. Accepts any arguments. */
static CUresult no_such_driver_function(void) { return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND; }
static nvmlReturn_t no_such_nvml_function(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

void *vgpu_real_or_refusal(enum real which)
{
	int error = errno;
	void *found = vgpu_find_real(which);
	errno = error;
	if (found)
		return found;
	return LISTED[which].nvml ? (void *)no_such_nvml_function : (void *)no_such_driver_function;
}
