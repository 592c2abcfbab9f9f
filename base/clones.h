/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Several instruction sets from one source.
 */
#ifndef SHERD_BASE_CLONES_H
#define SHERD_BASE_CLONES_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLONES_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define CLONES_SANITIZED 1
#endif
#endif

/* A function compiled for each level of x86-64, chosen when the program is loaded. It needs resolvers, which
 * run before sanitizers are ready. Its name must be unique in the library, static or not: clang's resolvers
 * are global. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(CLONES_SANITIZED)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#endif
