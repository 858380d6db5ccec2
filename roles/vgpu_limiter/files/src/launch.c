/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The hooks of launches.
 */
#include "internal.h"

#define KERNEL_PARAMETERS CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
	unsigned shared, CUstream stream
#define KERNEL_ARGUMENTS f, gx, gy, gz, bx, by, bz, shared, stream

CUresult cuLaunchKernel(KERNEL_PARAMETERS, void **p, void **e) { return REAL(cuLaunchKernel)(KERNEL_ARGUMENTS, p, e); }
CUresult cuLaunchKernel_ptsz(KERNEL_PARAMETERS, void **p, void **e) { return REAL(cuLaunchKernel_ptsz)(KERNEL_ARGUMENTS, p, e); }
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) { return REAL(cuLaunchKernelEx)(c, f, p, e); }
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **p, void **e) { return REAL(cuLaunchKernelEx_ptsz)(c, f, p, e); }
CUresult cuLaunchCooperativeKernel(KERNEL_PARAMETERS, void **p) { return REAL(cuLaunchCooperativeKernel)(KERNEL_ARGUMENTS, p); }
CUresult cuLaunchCooperativeKernel_ptsz(KERNEL_PARAMETERS, void **p) { return REAL(cuLaunchCooperativeKernel_ptsz)(KERNEL_ARGUMENTS, p); }
CUresult cuGraphLaunch(CUgraphExec g, CUstream s) { return REAL(cuGraphLaunch)(g, s); }
CUresult cuGraphLaunch_ptsz(CUgraphExec g, CUstream s) { return REAL(cuGraphLaunch_ptsz)(g, s); }
