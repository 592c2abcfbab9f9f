/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * For tests that need two GPUs: asks in a process of its own, as CUDA does not survive a fork.
 */
#ifndef SHERD_TESTS_GPU_GPUS_H
#define SHERD_TESTS_GPU_GPUS_H

#include <sherd/device.h>

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static inline int gpus_two(void)
{
    int pid = (int)fork(), status = 0;
    if (pid == 0) {
        struct sherd_device *dev = NULL;
        int st = sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cuda:1" });
        if (st != SHERD_OK)
            fprintf(stderr, "skipped: two GPUs are needed: %s\n", sherd_error());
        _exit(st == SHERD_OK ? 0 : 1);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#endif
