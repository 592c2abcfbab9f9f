/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A bound on address space for a part of a test, in a process of its own.
 */
#ifndef SHERD_TESTS_LIMIT_H
#define SHERD_TESTS_LIMIT_H

#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A sanitizer has taken terabytes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMIT_WORKS 0
#else
#define LIMIT_WORKS 1
#endif

/* From now on this process can have so many bytes more than it has. Returns 0 if that cannot be. */
static inline int limit_spare(size_t spare)
{
    char line[64] = "";
    FILE *f = fopen("/proc/self/statm", "r");
    rlim_t pages = f && fgets(line, sizeof(line), f) ? strtoull(line, NULL, 10) : 0;
    if (f)
        fclose(f);
    struct rlimit limit = { pages * (rlim_t)sysconf(_SC_PAGESIZE) + spare, RLIM_INFINITY };
    return pages > 0 && setrlimit(RLIMIT_AS, &limit) == 0;
}

/* What work returns in a process of its own (0 = all was well) that has so many bytes to spare. */
static inline int limit_run(size_t spare, int (*work)(void))
{
    int status = -1;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        _exit(limit_spare(spare) ? work() : 100);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

#endif
