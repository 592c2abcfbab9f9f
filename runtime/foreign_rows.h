/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rows of the tables of another system's keys, for the files that hold one; a row is a struct foreign_key.
 */
#ifndef SHERD_RUNTIME_FOREIGN_ROWS_H
#define SHERD_RUNTIME_FOREIGN_ROWS_H

#include "runtime/foreign.h"

/* clang-format off */
/* Our key, or the words; then text, and FOREIGN_AUTO where "auto" has a meaning. */
#define SET(path, type, ...) { path, FOREIGN_##type, FOREIGN_SET, __VA_ARGS__ }
#define ONLY(path, type, ...) { path, FOREIGN_##type, FOREIGN_ONLY, __VA_ARGS__ }
/* Text, and FOREIGN_AUTO. */
#define NOTE(path, type, ...) { path, FOREIGN_##type, FOREIGN_NOTE, NULL, __VA_ARGS__ }
#define CODE(path, type, ...) { path, FOREIGN_##type, FOREIGN_CODE, NULL, __VA_ARGS__ }
/* clang-format on */
/* A block that can only be off. */
#define OFF(block, why)                                                                                      \
    ONLY(block ".enabled", BOOL, "false", why "; set it to false"),                                          \
        NOTE(block ".*", ANY, block " is not enabled")

#endif
