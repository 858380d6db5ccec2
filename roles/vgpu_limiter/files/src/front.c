/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The front library: a libcuda.so.1 without code that containers find before the driver's libcuda.so.1. It depends
 * first on this library and second on the driver's file (Makefile). The dynamic loader searches dependencies in this
 * order. So intercepted names resolve to this library, and all other names resolve to the driver.
 */

/* Path of the driver's file. The front cannot find it as libcuda.so.1, because that is the front's own name
 * (resolve.c). */
__attribute__((visibility("default"))) extern const char openfleet_vgpu_driver[];
const char openfleet_vgpu_driver[] = FRONT_DRIVER;
