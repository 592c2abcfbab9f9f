/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * For tests that need GPUs: are they there? What is missing goes to stderr.
 */
#ifndef SHERD_TESTS_GPU_GPUS_H
#define SHERD_TESTS_GPU_GPUS_H

#include <sherd/device.h>

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Opens it in this process, which is not to fork. */
static inline int gpus_one(void)
{
    struct sherd_device *dev = NULL;
    int st = sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cuda" });
    if (st != SHERD_OK)
        fprintf(stderr, "skipped: a GPU is needed: %s\n", sherd_error());
    sherd_device_close(dev);
    return st == SHERD_OK;
}

/* Asks in a process of its own, as CUDA does not survive a fork. */
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
