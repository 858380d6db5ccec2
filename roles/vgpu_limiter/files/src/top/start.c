/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * glibc 2.34 gave the function that calls main() a new version, which older ones lack. vgpu-top is linked so that its first
 * instructions call the function here (--wrap in the Makefile), and this the version that every glibc since 2.17 has. A program
 * without constructors may do that: what the old version calls before main() is given as its arguments.
 */
#include <features.h>

#if defined(__GLIBC__)
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "which version of the C library had __libc_start_main first on this processor?"
#endif
int first_start_main(int main(int, char **, char **), int, char **, void init(void), void end(void), void end_of_loader(void), void *);
__asm__(".symver first_start_main, __libc_start_main@" FIRST_GLIBC);

int __wrap___libc_start_main(int main(int, char **, char **), int, char **, void init(void), void end(void),
                             void end_of_loader(void), void *);
int __wrap___libc_start_main(int main(int, char **, char **), int count, char **words, void init(void), void end(void),
                             void end_of_loader(void), void *stack_end)
{
	return first_start_main(main, count, words, init, end, end_of_loader, stack_end);
}
#endif
