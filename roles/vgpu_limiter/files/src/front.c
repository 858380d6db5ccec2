/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The front: a libcuda.so.1 that containers find before the driver's. It has no code. It depends on this library and
 * then on the driver's file (Makefile), and the dynamic loader searches dependencies in order. Intercepted names
 * resolve to this library, and all other names to the driver.
 */

/* Path of the driver's file for the front. libcuda.so.1 is the front's own name (resolve.c). */
__attribute__((visibility("default"))) extern const char openfleet_vgpu_driver[];
const char openfleet_vgpu_driver[] = FRONT_DRIVER;
