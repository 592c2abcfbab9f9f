/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How a program that measures ends where a call fails: the error behind the program's name, and status 1.
 */
#ifndef SHERD_BENCH_CHECK_H
#define SHERD_BENCH_CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <sherd/base.h>

static inline void check(int status)
{
    if (status == SHERD_OK)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, sherd_error());
    exit(1);
}

#endif
