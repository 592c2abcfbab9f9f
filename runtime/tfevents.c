/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * TensorBoard's event files: see runtime/tfevents.h. Numbers are little-endian, as on all hosts of sherd's.
 */
#include "runtime/tfevents.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"

/* Fields of the messages: number << 3 | wire type (0 varint, 1 eight bytes, 2 length, 5 four bytes). */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3 | 0,
    SESSION_START = 1,
};

static void put_byte(struct text *t, unsigned byte)
{
    char c = (char)byte;
    text_put(t, &c, 1);
}

static void put_varint(struct text *t, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        put_byte(t, (unsigned)(v & 0x7f) | 0x80);
    put_byte(t, (unsigned)v);
}

static void put_block(struct text *t, unsigned field, const void *data, size_t bytes)
{
    put_byte(t, field);
    put_varint(t, bytes);
    text_put(t, data, bytes);
}

static void put_event(struct text *t, double wall, int64_t step)
{
    put_byte(t, EVENT_WALL_TIME);
    text_put(t, (const char *)&wall, sizeof(wall));
    if (step != 0) {
        put_byte(t, EVENT_STEP);
        put_varint(t, (uint64_t)step);
    }
}

static uint32_t masked(const void *data, size_t bytes)
{
    uint32_t crc = sum_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Length, its sum, the message, its sum; and the message is empty again. */
static void put_frame(struct text *out, struct text *message)
{
    uint64_t bytes = message->len;
    uint32_t head = masked(&bytes, sizeof(bytes)), body = masked(message->data, message->len);
    text_put(out, (const char *)&bytes, sizeof(bytes));
    text_put(out, (const char *)&head, sizeof(head));
    text_put(out, message->data, message->len);
    text_put(out, (const char *)&body, sizeof(body));
    out->failed |= message->failed;
    text_finish(message);
}

void tfevents_put_version(struct text *out, double wall)
{
    static const char version[] = "brain.Event:2";
    struct text m = { 0 };
    put_event(&m, wall, 0);
    put_block(&m, EVENT_FILE_VERSION, version, strlen(version));
    put_frame(out, &m);
}

void tfevents_put_scalars(
    struct text *out, double wall, int64_t step, const struct tfevents_scalar *scalars, int n)
{
    struct text m = { 0 }, summary = { 0 };
    for (int i = 0; i < n; i++) {
        struct text value = { 0 };
        float v = (float)scalars[i].value;
        put_block(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_byte(&value, VALUE_SIMPLE);
        text_put(&value, (const char *)&v, sizeof(v));
        if (value.failed)
            out->failed = 1;
        else
            put_block(&summary, SUMMARY_VALUE, value.data, value.len);
        text_finish(&value);
    }
    put_event(&m, wall, step);
    if (summary.failed)
        out->failed = 1;
    else
        put_block(&m, EVENT_SUMMARY, summary.data, summary.len);
    text_finish(&summary);
    put_frame(out, &m);
}

void tfevents_put_resume(struct text *out, double wall, int64_t step)
{
    const char start[] = { SESSION_STATUS, SESSION_START };
    struct text m = { 0 };
    put_event(&m, wall, step);
    put_block(&m, EVENT_SESSION_LOG, start, sizeof(start));
    put_frame(out, &m);
}

static double wall_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Writes what was built, and frees it. */
static int write_out(struct tfevents *t, struct text *built)
{
    int st = built->failed ? MEM_OUT("a record of %s", t->path)
                           : file_append(t->fd, built->data, built->len, t->path);
    text_finish(built);
    return st;
}

int tfevents_open(struct tfevents *t, const char *dir)
{
    char host[65] = "host";
    struct text version = { 0 };
    double wall = wall_seconds();
    *t = (struct tfevents){ .fd = -1 };
    gethostname(host, sizeof(host) - 1);
    char *folder = mem_printf("%s/tensorboard", dir);
    int st = folder ? file_mkdirs(folder) : SHERD_ENOMEM;
    for (int i = 0; st == SHERD_OK && t->fd < 0 && i < 1000; i++) { /* the first name that is free */
        mem_free(t->path);
        t->path = mem_printf(
            "%s/events.out.tfevents.%010lld.%s.%d.%d", folder, (long long)wall, host, (int)getpid(), i);
        if (!t->path)
            st = SHERD_ENOMEM;
        else if (!file_exists(t->path))
            st = file_open_new(&t->fd, t->path);
    }
    mem_free(folder);
    if (st == SHERD_OK && t->fd < 0)
        st = SHERD_FAIL(SHERD_EEXISTS, "%s and all names before it exist already", t->path);
    if (st == SHERD_OK) {
        tfevents_put_version(&version, wall);
        st = write_out(t, &version);
    }
    if (st != SHERD_OK)
        tfevents_close(t);
    return st;
}

void tfevents_close(struct tfevents *t)
{
    (void)file_close(t->fd, t->path);
    mem_free(t->path);
    *t = (struct tfevents){ .fd = -1 };
}

int tfevents_write(struct tfevents *t, int64_t step, const struct tfevents_scalar *scalars, int n)
{
    struct text built = { 0 };
    if (t->fd < 0)
        return SHERD_OK;
    tfevents_put_scalars(&built, wall_seconds(), step, scalars, n);
    return write_out(t, &built);
}

int tfevents_resume(struct tfevents *t, int64_t step)
{
    struct text built = { 0 };
    if (t->fd < 0)
        return SHERD_OK;
    tfevents_put_resume(&built, wall_seconds(), step);
    return write_out(t, &built);
}
