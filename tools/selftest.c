/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Checks of one rank's device: see tools/selftest.h. Values are whole numbers that every type holds exactly.
 */
#include "tools/selftest.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/text_plain.h"
#include "tools/out.h"

#define COPIES 4
#define SIDE 67 /* of the matrices: no multiple of any tile */

int selftest_device(struct sherd_device *dev, struct finding *out)
{
    char what[160], total_text[32], free_text[32];
    size_t total = 0, available = 0;
    int st = sherd_device_describe(dev, what, sizeof(what));
    if (st == SHERD_OK)
        st = sherd_device_memory(dev, &total, &available);
    if (st == SHERD_OK)
        snprintf(out->text, sizeof(out->text), "%s: %s; %s of memory, %s free", sherd_device_name(dev), what,
            text_human_bytes((double)total, total_text), text_human_bytes((double)available, free_text));
    return st;
}

/* ---- memory ---- */

struct room {
    struct sherd_device *dev;
    struct sherd_queue *queue;
    char *host, *back;
    void *a, *b;
};

static int room_open(struct room *r, struct sherd_device *dev, size_t bytes)
{
    *r = (struct room){ .dev = dev };
    int st = sherd_queue_create(&r->queue, dev, SHERD_QUEUE_COMPUTE);
    if (st == SHERD_OK)
        st = sherd_host_alloc(dev, (void **)&r->host, bytes);
    if (st == SHERD_OK)
        st = sherd_host_alloc(dev, (void **)&r->back, bytes);
    if (st == SHERD_OK)
        st = sherd_device_alloc(dev, &r->a, bytes);
    return st == SHERD_OK ? sherd_device_alloc(dev, &r->b, bytes) : st;
}

static void room_close(struct room *r)
{
    sherd_queue_destroy(r->queue);
    sherd_host_free(r->dev, r->host);
    sherd_host_free(r->dev, r->back);
    sherd_device_free(r->dev, r->a);
    sherd_device_free(r->dev, r->b);
}

static int copy(struct room *r, void *dst, const void *src, size_t bytes)
{
    return sherd_copy(r->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes });
}

/* Seconds for COPIES copies, after one that touches the memory. */
static int clock_copies(struct room *r, void *dst, const void *src, size_t bytes, double *seconds)
{
    int st = copy(r, dst, src, bytes);
    if (st == SHERD_OK)
        st = sherd_queue_sync(r->queue);
    double start = clock_seconds();
    for (int i = 0; i < COPIES && st == SHERD_OK; i++)
        st = copy(r, dst, src, bytes);
    if (st == SHERD_OK)
        st = sherd_queue_sync(r->queue);
    *seconds = clock_seconds() - start;
    return st;
}

static double rate(size_t bytes, double seconds)
{
    return seconds > 0 ? 1e-9 * COPIES * (double)bytes / seconds : 0;
}

/* There, to another place, and back. */
static int travel(struct room *r, size_t bytes, struct finding *out)
{
    double in, within, back;
    uint32_t x = 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        r->host[i] = (char)(x >> 24);
    }
    int st = clock_copies(r, r->a, r->host, bytes, &in);
    if (st == SHERD_OK)
        st = clock_copies(r, r->b, r->a, bytes, &within);
    if (st == SHERD_OK)
        st = clock_copies(r, r->back, r->b, bytes, &back);
    if (st != SHERD_OK)
        return st;
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += r->host[i] != r->back[i];
    out->wrong = wrong > 0;
    out->has_value = 1;
    out->value = rate(bytes, within);
    snprintf(out->text, sizeof(out->text),
        "%zu of %zu bytes wrong after a way through it; GB/s in %.1f, within %.1f, out %.1f", wrong, bytes,
        rate(bytes, in), rate(bytes, within), rate(bytes, back));
    return SHERD_OK;
}

int selftest_memory(struct sherd_device *dev, size_t bytes, struct finding *out)
{
    struct room r;
    int st = room_open(&r, dev, bytes);
    if (st == SHERD_OK)
        st = travel(&r, bytes, out);
    room_close(&r);
    return st;
}

/* ---- a product ---- */

static float entry(int row, int col, int seed)
{
    return (float)((row * 7 + col * 13 + seed) % 11 - 5);
}

static int multiply(struct room *r, struct finding *out)
{
    float *a = (void *)r->host, *b = a + SIDE * SIDE, *c = (void *)r->back;
    float *dev_a = r->a, *dev_b = dev_a + SIDE * SIDE;
    int wrong = 0;
    for (int i = 0; i < SIDE; i++)
        for (int k = 0; k < SIDE; k++) {
            a[i * SIDE + k] = entry(i, k, 1);
            b[i * SIDE + k] = entry(i, k, 4);
        }
    int st = copy(r, dev_a, a, 2 * SIDE * SIDE * sizeof(*a));
    if (st == SHERD_OK)
        st = sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->b,
                                        .a = dev_a,
                                        .b = dev_b,
                                        .m = SIDE,
                                        .n = SIDE,
                                        .k = SIDE,
                                        .type = SHERD_F32,
                                        .c_type = SHERD_F32 });
    if (st == SHERD_OK)
        st = copy(r, c, r->b, SIDE * SIDE * sizeof(*c));
    if (st == SHERD_OK)
        st = sherd_queue_sync(r->queue);
    for (int i = 0; i < SIDE && st == SHERD_OK; i++)
        for (int j = 0; j < SIDE; j++) {
            float sum = 0;
            for (int k = 0; k < SIDE; k++)
                sum += a[i * SIDE + k] * b[k * SIDE + j];
            wrong += c[i * SIDE + j] != sum;
        }
    out->wrong = wrong > 0;
    snprintf(out->text, sizeof(out->text), "%d of %d elements of a product of whole numbers wrong", wrong,
        SIDE * SIDE);
    return st;
}

int selftest_matmul(struct sherd_device *dev, struct finding *out)
{
    struct room r;
    int st = room_open(&r, dev, 2 * SIDE * SIDE * sizeof(float));
    if (st == SHERD_OK)
        st = multiply(&r, out);
    room_close(&r);
    return st;
}
