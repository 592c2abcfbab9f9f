/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A folder of a test's own: in memory where the host has a place for that, since checkpoints sync every file
 * and a slow disk would be most of the time; else in TMPDIR, else in /tmp. tests/cli/lib.sh does the same.
 */
#ifndef SHERD_TESTS_FOLDER_H
#define SHERD_TESTS_FOLDER_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FOLDER_BYTES 128
#define FOLDER_ROOM ((uint64_t)256 << 20) /* what a place in memory must have left */

static inline const char *folder_place(void)
{
    struct statvfs info;
    const char *memory = "/dev/shm", *given = getenv("TMPDIR");
    if (access(memory, W_OK | X_OK) == 0 && statvfs(memory, &info) == 0 &&
        (uint64_t)info.f_bavail * info.f_frsize >= FOLDER_ROOM)
        return memory;
    return given && given[0] ? given : "/tmp";
}

/* Makes a new folder and writes its path to out; 0, or -1. The test removes it with file_remove_tree. */
static inline int folder_make(char out[FOLDER_BYTES], const char *name)
{
    int n = snprintf(out, FOLDER_BYTES, "%s/sherd-test-%s-XXXXXX", folder_place(), name);
    return n < FOLDER_BYTES && mkdtemp(out) ? 0 : -1;
}

/* A path in a folder, in one of a few rotating buffers; of one thread at a time. */
__attribute__((format(printf, 2, 3))) static inline const char *folder_path(
    const char *folder, const char *format, ...)
{
    static char buf[8][512];
    static int next;
    va_list args;
    next = (next + 1) % 8;
    int n = snprintf(buf[next], sizeof(buf[next]), "%s/", folder);
    va_start(args, format);
    vsnprintf(buf[next] + n, sizeof(buf[next]) - (size_t)n, format, args);
    va_end(args);
    return buf[next];
}

#endif
