/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What the program shows and how it ends: exit codes, failures, log lines, shapes, JSON.
 */
#ifndef SHERD_TOOLS_OUT_H
#define SHERD_TOOLS_OUT_H

#include <sherd/sherd.h>
#include <jansson.h>

/* Besides these, 128 + n says that signal n ended the program. */
enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,   /* the run failed */
    EXIT_USAGE = 2,    /* command line or configuration */
    EXIT_PEER = 3,     /* another rank failed first */
    EXIT_STOPPED = 75, /* stopped on request, state saved: run again to go on */
};

/* The exit code for a status of the library. */
int out_code(int status);
/* Shows the last error of the library on stderr; returns the exit code for the status. */
int out_fail(int status);
/* EIO, whose text out_fail shows, for a pipe or whatever else is no file; asked before a path is opened. */
int out_check_file(const char *path);

/* Shows what stands in the way on stderr; returns 2. */
int out_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Log lines go to stderr; those of a world above one show the rank. Ranks but the first keep to warnings. */
void out_log(int rank, int world);
/* From now on only warnings and errors are shown. */
void out_quiet(void);

/* A line of this rank about itself on stderr, whichever rank it is. */
void out_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether stderr is a terminal that can move its cursor. */
int out_terminal(void);
/* Shows a line that the next one replaces, for a terminal on stderr; NULL takes it away. Lines that come too
 * fast to be read are left out. */
void out_moving(const char *line);

/* "[1024, 64]" */
const char *out_shape(const int64_t *shape, int dims, char buf[96]);

/* Prints the value on stdout, indented, and frees it; returns the exit code. NULL = out of memory. */
int out_json(json_t *value);

#endif
