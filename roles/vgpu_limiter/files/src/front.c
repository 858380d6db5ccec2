/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The front: a libcuda.so.1 of its own, which containers find before the driver's. It has no code. It needs this
 * library and then the driver's file, in this order (Makefile), and the dynamic loader looks a name up in what a library
 * needs: an intercepted name is found here, every other name in the driver, whatever names that one has.
 */

/* Path of the driver's file for the front. libcuda.so.1 is the front's own name (resolve.c). */
__attribute__((visibility("default"))) extern const char openfleet_vgpu_driver[];
const char openfleet_vgpu_driver[] = FRONT_DRIVER;
