/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Output of the program.
 */
#include "tools/out.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_plain.h"
#include "tools/args.h"

#define MOVES_APART 0.1 /* seconds between two moving lines, which nobody could read faster */

static struct {
    int rank, world;
    int moving;   /* a line stands on the terminal that has to go before the next */
    double moved; /* when it was drawn */
} me = { 0, 1, 0, 0 };

int out_code(int status)
{
    switch (status) {
    case SHERD_OK:
        return EXIT_OK;
    case SHERD_ECONFIG:
    case SHERD_EINVAL:
        return EXIT_USAGE;
    case SHERD_EPEER:
        return EXIT_PEER;
    case SHERD_ESTOPPED:
        return EXIT_STOPPED;
    default:
        return EXIT_FAILED;
    }
}

int out_fail(int status)
{
    fprintf(stderr, "sherd: %s\n", sherd_error()[0] ? sherd_error() : sherd_status_text(status));
    return out_code(status);
}

int out_check_file(const char *path)
{
    const char *other = file_other(path);
    return other ? sherd_fail(SHERD_EIO, "cannot open '%s': it is %s", path, other) : SHERD_OK;
}

int out_refuse(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("sherd: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    return EXIT_USAGE;
}

void out_say(const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    if (me.world > 1)
        fprintf(stderr, "[rank %d] %s\n", me.rank, text); /* in one piece: others write there, too */
    else
        fprintf(stderr, "%s\n", text);
}

int out_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

/* Colour is for people at a terminal who have not said that they want none, and for who asks for it. */
static int has_colour(void)
{
    static const char *const forces[] = { "FORCE_COLOR", "CLICOLOR_FORCE" };
    if (is_set("NO_COLOR"))
        return 0;
    for (int i = 0; i < COUNT_OF(forces); i++)
        if (is_set(forces[i]) && strcmp(getenv(forces[i]), "0") != 0)
            return 1;
    return out_terminal();
}

void out_moving(const char *line)
{
    struct winsize size;
    if (line && me.moving && clock_seconds() - me.moved < MOVES_APART)
        return;
    me.moved = clock_seconds();
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    if (line)
        fprintf(stderr, "\r%-*.*s", width, width, line);
    else if (me.moving)
        fprintf(stderr, "\r%*s\r", width, "");
    me.moving = line != NULL;
}

static void print_line(void *ctx, enum sherd_log_level level, const char *text)
{
    static const char *const prefix[] = { "error: ", "warning: ", "", "debug: " };
    static const char *const colours[] = { "\033[1;31m", "\033[1;33m", "",
        "\033[2m" }; /* red, yellow, faint */
    int colour = colours[level][0] && has_colour();
    char rank[24] = "";
    (void)ctx;
    out_moving(NULL);
    int marked = strncmp(text, "[rank ", 6) == 0;
    if (me.world > 1 && level <= SHERD_LOG_WARN && !marked)
        snprintf(rank, sizeof(rank), "[rank %d] ", me.rank);
    fprintf(stderr, "%s%s%s%s%s\n", rank, colour ? colours[level] : "", prefix[level],
        colour ? "\033[0m" : "", text);
}

void out_log(int rank, int world)
{
    me.rank = rank;
    me.world = world;
    sherd_log_set(print_line, NULL, rank == 0 ? SHERD_LOG_INFO : SHERD_LOG_WARN);
}

void out_quiet(void)
{
    sherd_log_set(print_line, NULL, SHERD_LOG_WARN);
}

const char *out_shape(const int64_t *shape, int dims, char buf[96])
{
    int at = snprintf(buf, 96, "[");
    for (int i = 0; i < dims && i < 4; i++)
        at += snprintf(buf + at, (size_t)(96 - at), "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(buf + at, (size_t)(96 - at), "]");
    return buf;
}

int out_json(json_t *value)
{
    int failed = !value || json_dumpf(value, stdout, JSON_INDENT(2)) != 0;
    json_decref(value);
    if (failed) {
        fprintf(stderr, "sherd: the JSON result could not be made or written\n");
        return EXIT_FAILED;
    }
    putchar('\n');
    return EXIT_OK;
}
