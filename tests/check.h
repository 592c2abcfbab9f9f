/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What every test needs: cmocka with its headers, and assertions on a status that show the error text.
 */
#ifndef SHERD_TESTS_CHECK_H
#define SHERD_TESTS_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/status.h"

/* How many of something: fewer under the thread sanitizer, where all takes ten times as long. Every case is
 * run there, too, and what the code divides at is still passed. */
#ifdef __SANITIZE_THREAD__
#define CHECK_MANY(plain, tsan) (tsan)
#else
#define CHECK_MANY(plain, tsan) (plain)
#endif

/* The call succeeds. */
#define ASSERT_OK(x)                                                                                         \
    do {                                                                                                     \
        int ok_st_ = (x);                                                                                    \
        if (ok_st_ != SHERD_OK)                                                                              \
            fail_msg("%s: %s: %s", #x, sherd_status_name(ok_st_), sherd_error());                            \
    } while (0)

/* The call fails with this status, and the error text contains `text`. */
#define ASSERT_FAILS(x, status, text)                                                                        \
    do {                                                                                                     \
        int fails_st_ = (x);                                                                                 \
        if (fails_st_ != (status))                                                                           \
            fail_msg("%s: %s, wanted %s (%s)", #x, sherd_status_name(fails_st_), sherd_status_name(status),  \
                sherd_error());                                                                              \
        ASSERT_CONTAINS(sherd_error(), text);                                                                \
    } while (0)

#define ASSERT_CONTAINS(whole, part)                                                                         \
    do {                                                                                                     \
        if (!strstr(whole, part))                                                                            \
            fail_msg("'%s' does not contain '%s'", whole, part);                                             \
    } while (0)

#endif
