/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Threads of the library: they leave signals to the threads of the program, and say why they cannot be.
 */
#ifndef SHERD_BASE_THREAD_H
#define SHERD_BASE_THREAD_H

#include <pthread.h>

/* Starts fn(arg). `what` tells of the thread ("the thread that saves"): ENOMEM where there is no memory for
 * it, EDEVICE where the system has another reason, such as a limit of threads. */
int thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg, const char *what);

#endif
