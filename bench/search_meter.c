/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How candidates are timed. Roughly: one call to have its plan and its code, and two more that are timed
 * where that was not slow. Cool: short bursts with the GPU idle between them, the best of three. Hot: a
 * warm-up until the GPU is at its power limit, then turns of a sixth of a second without a pause between
 * them; the energy is the difference of the GPU's own counter between two of its changes within a turn.
 */
#include "bench/search.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/half.h"
#include "base/mem.h"
#include "base/status.h"

#define ROUGH_MOST 2.0f   /* times the best: not called again */
#define KIN_TRIED 3       /* so many of a kind */
#define KIN_WITHIN 1.5f   /* and none of them as near to the best: the others are not called */
#define FORCED 2          /* candidates that are always measured: sherd's, the library's first */
#define COOL_WITHIN 1.30f /* of the roughly best */
#define COOL_MOST 16
#define COOL_BURST_MS 3.0f
#define COOL_IDLE_US 8000
#define HOT_MOST 5
#define HOT_TURNS 3
#define WARM_MS 1000.0f /* the clock swings most at first */
#define LEAD_MS 20.0f   /* of a turn, not timed: the one before has left its heat */
#define TURN_MS 150.0f
#define WRONG 0.02 /* further from sherd's result than this is another result */
#define BLOCK_ELEMS (INT64_C(8) << 20)
#define NVML_CLOCK_SM 1

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the GPU's meters ---- */

static void *symbol(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

/* The header of this library is not part of every toolkit. All functions give 0 for success. */
static void open_nvml(struct meter *m)
{
    int (*init)(void) = NULL, (*find)(const char *, void **) = NULL;
    char pci[32] = "";
    int device = 0;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    void *at[] = { symbol(library, "nvmlInit_v2"), symbol(library, "nvmlDeviceGetHandleByPciBusId_v2"),
        symbol(library, "nvmlDeviceGetTotalEnergyConsumption"), symbol(library, "nvmlDeviceGetClockInfo") };
    memcpy(&init, &at[0], sizeof(init));
    memcpy(&find, &at[1], sizeof(find));
    memcpy(&m->energy, &at[2], sizeof(m->energy));
    memcpy(&m->clock, &at[3], sizeof(m->clock));
    if (init && find && m->energy && m->clock && cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetPCIBusId(pci, sizeof(pci), device) == cudaSuccess && init() == 0 &&
        find(pci, &m->gpu) == 0)
        m->nvml = library;
    else
        fprintf(stderr, "no energy and no clocks: NVML does not answer\n");
}

int meter_open(struct meter *m)
{
    SHERD_TRY(sherd_device_open(&m->device, &(struct sherd_device_desc){ .name = "cuda", .tune = m->tuned }));
    SHERD_TRY(sherd_queue_create(&m->queue, m->device, SHERD_QUEUE_COMPUTE));
    m->stream = ((struct cuda_queue *)m->queue->impl)->stream;
    CU_TRY(cudaEventCreate(&m->from));
    CU_TRY(cudaEventCreate(&m->to));
    open_nvml(m);
    return SHERD_OK;
}

void meter_close(struct meter *m)
{
    (void)cudaEventDestroy(m->from);
    (void)cudaEventDestroy(m->to);
    sherd_queue_destroy(m->queue);
    sherd_device_close(m->device);
}

/* ---- operands ---- */

/* The sum of twelve even numbers of six bits is near enough to normal; other bits fill the mantissa, whose
 * switching is what a product's power comes from. */
static float normal(uint64_t *state)
{
    int sum = 0;
    for (int part = 0; part < 2; part++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        for (int i = 0; i < 6; i++)
            sum += (int)(*state >> (28 + 6 * i) & 63);
    }
    return ((float)sum - 12 * 31.5f + (float)(*state & 0xffff) / 65536 - 0.5f) / 64;
}

static void *make_block(enum sherd_dtype type, size_t *bytes)
{
    *bytes = (size_t)BLOCK_ELEMS * sherd_dtype_bytes(type);
    void *block = mem_zalloc(*bytes, 1);
    float *floats = block;
    uint16_t *halves = block;
    uint64_t state = 1;
    for (int64_t i = 0; block && i < BLOCK_ELEMS; i++) {
        float x = normal(&state);
        if (type == SHERD_F32)
            floats[i] = x;
        else
            halves[i] = type == SHERD_BF16 ? bf16_from_float(x) : f16_from_float(x);
    }
    return block;
}

int meter_fill(const struct meter *m, void *to, int64_t elems, enum sherd_dtype type)
{
    static char *blocks[3]; /* of F32, BF16 and F16; kept for the child's life */
    static size_t sizes[3];
    int kind = type == SHERD_F32 ? 0 : type == SHERD_BF16 ? 1 : 2;
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type), at = 0;
    if (!blocks[kind])
        blocks[kind] = make_block(type, &sizes[kind]);
    if (!blocks[kind])
        return SHERD_ENOMEM;
    at = MIN(bytes, sizes[kind]);
    CU_TRY(cudaMemcpy(to, blocks[kind], at, cudaMemcpyHostToDevice));
    for (; at < bytes; at += MIN(at, bytes - at))
        CU_TRY(
            cudaMemcpyAsync((char *)to + at, to, MIN(at, bytes - at), cudaMemcpyDeviceToDevice, m->stream));
    return CU_CHECK(cudaStreamSynchronize(m->stream));
}

/* ---- timing ---- */

static void beat(const struct meter *m)
{
    *m->beat = seconds_now();
}

/* Milliseconds a call; below 0 for one that is refused. A failure of the GPU is returned. */
static int time_calls(struct meter *m, const struct runner *r, int i, int calls, float *ms)
{
    *ms = -1;
    beat(m);
    CU_TRY(cudaEventRecord(m->from, m->stream));
    for (int k = 0; k < calls; k++)
        if (r->enqueue(r->ctx, i) != SHERD_OK)
            return CU_CHECK(cudaStreamSynchronize(m->stream));
    CU_TRY(cudaEventRecord(m->to, m->stream));
    CU_TRY(cudaEventSynchronize(m->to));
    CU_TRY(cudaEventElapsedTime(ms, m->from, m->to));
    *ms /= (float)calls;
    return SHERD_OK;
}

/* Milliseconds from the end of enqueuing on, an upper bound where the GPU was ahead of it: making a plan and
 * loading or compiling its code are done by then. Below 0 for a candidate that is refused. */
static int call_first(struct meter *m, const struct runner *r, int i, float *ms)
{
    beat(m);
    int st = r->enqueue(r->ctx, i);
    double from = seconds_now();
    CU_TRY(cudaStreamSynchronize(m->stream));
    *ms = st == SHERD_OK ? (float)(1e3 * (seconds_now() - from)) : -1;
    return SHERD_OK;
}

static int call_roughly(struct meter *m, struct candidate *k, const struct runner *r, int i, float best)
{
    float first, ms;
    SHERD_TRY(call_first(m, r, i, &first));
    k->bad = first < 0;
    k->rough = k->bad ? 0 : first;
    if (k->bad || first > fmaxf(ROUGH_MOST * best, best + 1))
        return SHERD_OK;
    SHERD_TRY(time_calls(m, r, i, 1, &k->rough));
    if (k->rough < ROUGH_MOST * best) {
        SHERD_TRY(time_calls(m, r, i, 1, &ms));
        k->rough = fminf(k->rough, ms);
    }
    k->bad = k->rough <= 0;
    return SHERD_OK;
}

static float roughly_best(const struct contest *c)
{
    float best = INFINITY;
    for (int i = 0; i < c->n; i++)
        if (!c->all[i].bad && c->all[i].rough > 0)
            best = fminf(best, c->all[i].rough);
    return best;
}

int meter_slow_kin(const struct contest *c, uint32_t kin, int of)
{
    float limit = KIN_WITHIN * roughly_best(c);
    int slow = 0;
    for (int i = 0; i < c->n && kin; i++) {
        const struct candidate *k = &c->all[i];
        if (k->kin[of] != kin || k->bad || k->rough <= 0)
            continue;
        if (k->rough <= limit)
            return 0;
        slow++;
    }
    return slow >= KIN_TRIED;
}

int meter_rough(struct meter *m, struct contest *c, const struct runner *r, int first, double seconds)
{
    const double until = seconds_now() + seconds;
    float best = roughly_best(c);
    for (int i = first; i < c->n && (i == SHERDS || seconds_now() < until); i++) {
        struct candidate *k = &c->all[i];
        if (k->bad || k->rough > 0 || meter_slow_kin(c, k->kin[0], 0) || meter_slow_kin(c, k->kin[1], 1))
            continue;
        c->current = i;
        SHERD_TRY(call_roughly(m, k, r, i, best));
        best = k->bad ? best : fminf(best, k->rough);
    }
    c->current = -1;
    return SHERD_OK;
}

enum by { BY_ROUGH, BY_COOL };

static float value_of(const struct candidate *k, enum by by)
{
    float v = by == BY_ROUGH ? k->rough : k->cool;
    return k->bad || v <= 0 ? INFINITY : v;
}

static int is_among(int i, const int *some, int n)
{
    for (int k = 0; k < n; k++)
        if (some[k] == i)
            return 1;
    return 0;
}

/* sherd's, the library's first answer, and the `most` best of the others within a factor of the best; how
 * many. */
static int best_of(const struct contest *c, enum by by, float within, int most, int *out)
{
    float limit = INFINITY;
    int n = 0;
    out[n++] = SHERDS;
    for (int i = 1; i < c->n && n < FORCED; i++)
        if (c->all[i].answer == 1 && isfinite(value_of(&c->all[i], by)))
            out[n++] = i;
    for (int i = 0; i < c->n; i++)
        limit = fminf(limit, within * value_of(&c->all[i], by));
    for (int taken = 0; taken < most; taken++) {
        int at = -1;
        for (int i = 0; i < c->n; i++)
            if (value_of(&c->all[i], by) <= limit && !is_among(i, out, n) &&
                (at < 0 || value_of(&c->all[i], by) < value_of(&c->all[at], by)))
                at = i;
        if (at < 0)
            break;
        out[n++] = at;
    }
    return n;
}

static int cool(struct meter *m, struct contest *c, const struct runner *r)
{
    int some[COOL_MOST + FORCED], n = best_of(c, BY_ROUGH, COOL_WITHIN, COOL_MOST, some);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n; i++) {
            struct candidate *k = &c->all[some[i]];
            int calls = (int)fminf(fmaxf(COOL_BURST_MS / k->rough, 2), 20);
            float warm, ms;
            c->current = some[i];
            usleep(COOL_IDLE_US);
            SHERD_TRY(time_calls(m, r, some[i], 1, &warm));
            SHERD_TRY(time_calls(m, r, some[i], calls, &ms));
            if (ms > 0)
                k->cool = k->cool > 0 ? fminf(k->cool, ms) : ms;
        }
    }
    c->current = -1;
    return SHERD_OK;
}

/* Does any candidate that came far give another result? */
static int check(struct contest *c, const struct runner *r)
{
    int some[HOT_MOST + FORCED], n = best_of(c, BY_COOL, COOL_WITHIN, HOT_MOST, some);
    for (int i = 1; i < n && r->differs; i++) {
        struct candidate *k = &c->all[some[i]];
        c->current = some[i];
        double differs = r->differs(r->ctx, some[i]);
        if (differs < WRONG)
            continue;
        k->bad = 1;
        fprintf(stderr, "%s: %s is %.3g from sherd's result: not counted\n", c->title, k->name, differs);
    }
    c->current = -1;
    return SHERD_OK;
}

/* Reads the counter until the turn is over: the first change after `from` and the last before `to`. */
static int watch_turn(struct meter *m, struct candidate *k)
{
    unsigned long long first = 0, last = 0, now, before = 0;
    double first_at = 0, last_at = 0;
    unsigned mhz = 0;
    int begun = 0;
    cudaError_t state;
    while ((state = cudaEventQuery(m->to)) == cudaErrorNotReady) {
        if (!begun && cudaEventQuery(m->from) == cudaSuccess) {
            begun = 1;
            if (m->nvml)
                m->energy(m->gpu, &before);
        }
        if (begun && m->nvml && m->energy(m->gpu, &now) == 0 && now != before) {
            last = before = now;
            last_at = seconds_now();
            if (first_at == 0) {
                first = last;
                first_at = last_at;
            } else if (mhz == 0 && m->clock(m->gpu, NVML_CLOCK_SM, &mhz) != 0) {
                mhz = 0;
            }
        }
        usleep(300);
    }
    CU_TRY(state);
    k->energy_j += 1e-3 * (double)(last - first);
    k->energy_s += last_at - first_at;
    k->mhz_sum += mhz;
    k->turns += mhz > 0;
    return SHERD_OK;
}

static int turn(struct meter *m, struct contest *c, const struct runner *r, int i)
{
    struct candidate *k = &c->all[i];
    float each = k->cool > 0 ? k->cool : k->rough, ms = 0;
    int lead = (int)ceilf(LEAD_MS / each), calls = (int)ceilf(TURN_MS / each);
    c->current = i;
    beat(m);
    for (int j = -lead; j < calls; j++) {
        if (j == 0)
            CU_TRY(cudaEventRecord(m->from, m->stream));
        if (r->enqueue(r->ctx, i) != SHERD_OK) {
            k->bad = 1;
            return CU_CHECK(cudaStreamSynchronize(m->stream));
        }
    }
    CU_TRY(cudaEventRecord(m->to, m->stream));
    SHERD_TRY(watch_turn(m, k));
    CU_TRY(cudaEventElapsedTime(&ms, m->from, m->to));
    k->hot_ms += ms;
    k->hot_calls += calls;
    k->hot = (float)(k->hot_ms / k->hot_calls);
    k->watts = k->energy_s > 0 ? (float)(k->energy_j / k->energy_s) : 0;
    k->mhz = k->turns ? (float)(k->mhz_sum / k->turns) : 0;
    c->current = -1;
    return SHERD_OK;
}

static int warm_up(struct meter *m, struct contest *c, const struct runner *r)
{
    int calls = (int)ceilf(WARM_MS / c->all[SHERDS].rough);
    float ms;
    c->current = SHERDS;
    int st = time_calls(m, r, SHERDS, calls, &ms);
    c->current = -1;
    return st;
}

/* All in turns: what the limit of power does to the clock goes up and down within a second, and comes to all.
 */
static int hot(struct meter *m, struct contest *c, const struct runner *r)
{
    int some[HOT_MOST + FORCED], n = best_of(c, BY_COOL, COOL_WITHIN, HOT_MOST, some);
    SHERD_TRY(warm_up(m, c, r));
    for (int round = 0; round < HOT_TURNS; round++)
        for (int i = 0; i < n; i++)
            if (!c->all[some[i]].bad)
                SHERD_TRY(turn(m, c, r, some[i]));
    return SHERD_OK;
}

int meter_best(const struct contest *c, int most, int *out)
{
    return best_of(c, BY_ROUGH, COOL_WITHIN, most, out);
}

int meter_rank(struct meter *m, struct contest *c, const struct runner *r)
{
    if (c->all[SHERDS].rough <= 0)
        return SHERD_FAIL(SHERD_EDEVICE, "%s: sherd's own choice does not run", c->title);
    SHERD_TRY(cool(m, c, r));
    SHERD_TRY(check(c, r));
    return hot(m, c, r);
}
