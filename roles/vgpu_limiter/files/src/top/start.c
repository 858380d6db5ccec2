/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Start vgpu-top with old C libraries. glibc 2.34 introduced a new version of the function that calls main(), and older
 * versions lack it. The start code of vgpu-top calls the function in this file instead (--wrap in the Makefile). This
 * function calls the version that every glibc since 2.17 has. This works for programs without constructors, because the
 * start code passes the functions that run before main() as arguments.
 */
#include <features.h>

#if defined(__GLIBC__)
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "unknown first C library version of __libc_start_main on this processor"
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
