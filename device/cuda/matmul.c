/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Matrix products by cuBLASLt, with plans kept for the shapes seen. Float products are float throughout
 * (no TF32); sums of 16-bit products are float. Only algorithms that give the same bits at every run are
 * allowed; which of them is used is the library's first answer, or, where the device was opened with `tune`,
 * the one that was fastest here of several answers and a few others (matmul_near.c).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/choices.h"
#include "device/cuda/launch.h"
#include "device/cuda/matmul_plan.h"
#include "device/ops.h"

#define PLANS 1024 /* slots, a power of two; a model has some tens of shapes */
#define PROBES 8   /* slots looked at before one is taken over */
#define TRIED 8    /* answers of the library that are timed */
#define NEAR 4     /* and others beside them, where a call takes */
#define NEAR_LEAST_MS 0.1f
#define NEAR_SECONDS 0.3 /* for all of these together, since a first step waits for them */

_Static_assert(sizeof(struct plan_key) == CHOICE_KEY_BYTES, "the key of a choice is that of a plan");
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == CHOICE_VALUE_BYTES, "the value of a choice is an algorithm");

struct matmul_plans {
    cublasLtHandle_t handle;
    int tune;
    int multiprocessors;
    double near_seconds;    /* gone by for algorithms beside the library's answers */
    struct choices choices; /* what tuning found, here and in earlier runs */
    struct plan plans[PLANS];
};

/* Choices hold for one model of GPU and one version of the library. */
static int open_choices(struct cuda_device *cd, const struct cudaDeviceProp *about, const char *folder)
{
    char name[sizeof(about->name) + 64];
    if (!folder)
        return SHERD_OK;
    snprintf(name, sizeof(name), "matmul-%s-cublaslt%zu.txt", about->name, cublasLtGetVersion());
    for (char *c = name; *c; c++)
        *c = *c == ' ' || *c == '/' ? '-' : *c;
    cd->plans->tune = 1;
    cd->plans->multiprocessors = about->multiProcessorCount;
    return choices_open(&cd->plans->choices, *folder ? folder : NULL, name);
}

int matmul_open(struct cuda_device *cd, const struct cudaDeviceProp *about, const char *tune)
{
    cd->plans = mem_zalloc(1, sizeof(*cd->plans));
    if (!cd->plans)
        return SHERD_ENOMEM;
    int st = LT_CHECK(cublasLtCreate(&cd->plans->handle));
    if (st == SHERD_OK)
        st = open_choices(cd, about, tune);
    if (st != SHERD_OK) {
        if (cd->plans->handle)
            (void)cublasLtDestroy(cd->plans->handle);
        mem_free(cd->plans);
        cd->plans = NULL;
    }
    return st;
}

void matmul_close(struct cuda_device *cd)
{
    if (!cd->plans)
        return;
    cublasStatus_t status = cublasLtDestroy(cd->plans->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        log_warn("cublasLtDestroy: %s", cublasLtGetStatusString(status));
    choices_close(&cd->plans->choices);
    mem_free(cd->plans);
    cd->plans = NULL;
}

/* ---- plans ---- */

static uint32_t hash(const struct plan_key *key)
{
    const unsigned char *p = (const unsigned char *)key;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof(*key); i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static struct plan_room room_of(const struct cuda_queue *cq)
{
    return (struct plan_room){ cq->workspace, cq->workspace ? CUDA_WORKSPACE_BYTES : 0 };
}

/* ---- choosing ---- */

/* One product being timed; the result goes to a place of its own. First of `algos` is the library's choice.
 */
struct trial {
    struct matmul_plans *plans;
    struct plan *plan;
    const struct cuda_queue *cq;
    const struct sherd_matmul *a;
    void *out;
    cudaEvent_t from, to;
    cublasLtMatmulAlgo_t algos[TRIED + NEAR];
    float ms[TRIED + NEAR]; /* roughly */
    int n, answers;
    double began; /* in seconds */
};

/* Milliseconds of one run; infinity for an algorithm that does not run after all. */
static int time_algo(const struct trial *t, const cublasLtMatmulAlgo_t *algo, int runs, float *ms)
{
    *ms = INFINITY;
    for (int i = -1; i < runs; i++) {
        if (i == 0)
            CUDA_TRY(cudaEventRecord(t->from, t->cq->stream));
        if (plan_run(t->plans->handle, t->plan, algo, t->a, t->out, room_of(t->cq), t->cq->stream) !=
            SHERD_OK)
            return SHERD_OK;
    }
    CUDA_TRY(cudaEventRecord(t->to, t->cq->stream));
    CUDA_TRY(cudaEventSynchronize(t->to));
    CUDA_TRY(cudaEventElapsedTime(ms, t->from, t->to));
    *ms /= (float)runs;
    return SHERD_OK;
}

/* Runs that take about this many milliseconds, in turns: bursts of one favour kernels that are not the
 * fastest where they follow each other. Few, since a first step waits for all of a model's products. */
#define CAREFUL_MS 4.0f
#define CAREFUL_ROUNDS 2
#define FINALISTS 3
#define WORTH 0.98f /* of the time of the library's own choice: less is noise */

static int time_roughly(struct trial *t, int first)
{
    for (int i = first; i < t->n; i++)
        SHERD_TRY(time_algo(t, &t->algos[i], 2, &t->ms[i]));
    return SHERD_OK;
}

/* Others than the library's answers, where a call takes long enough and time is left. */
static int time_neighbours(struct trial *t, const cublasLtMatmulHeuristicResult_t *answers)
{
    double from = clock_seconds();
    if (t->ms[0] < NEAR_LEAST_MS || t->plans->near_seconds > NEAR_SECONDS)
        return SHERD_OK;
    t->n += plan_neighbours(t->plans->handle, t->plan, answers, t->answers, room_of(t->cq).bytes,
        t->plans->multiprocessors, t->algos + t->answers, NEAR);
    int st = time_roughly(t, t->answers);
    t->plans->near_seconds += clock_seconds() - from;
    return st;
}

/* All were timed roughly; the library's own and the two best others take turns. */
static int fastest(struct trial *t, int *best)
{
    float careful[FINALISTS] = { INFINITY, INFINITY, INFINITY };
    int final[FINALISTS] = { 0 }, n_final = 1;
    const float first = t->ms[0];
    for (t->ms[0] = INFINITY; n_final < MIN(t->n, FINALISTS); n_final++) {
        int at = 1;
        for (int i = 1; i < t->n; i++)
            at = t->ms[i] < t->ms[at] ? i : at;
        final[n_final] = at;
        t->ms[at] = INFINITY;
    }
    int runs = isfinite(first) ? (int)fminf(fmaxf(CAREFUL_MS / first, 2), 50) : 2;
    for (int round = 0; round < CAREFUL_ROUNDS; round++) {
        for (int k = 0; k < n_final; k++) {
            float again;
            SHERD_TRY(time_algo(t, &t->algos[final[k]], runs, &again));
            careful[k] = fminf(careful[k], again);
        }
    }
    int k = 0;
    for (int i = 1; i < n_final; i++)
        if (careful[i] < careful[k] && careful[i] < WORTH * careful[0])
            k = i;
    *best = final[k];
    log_debug("matmul %d x %d x %d: %s %d of %d + %d, %.3f ms against %.3f, chosen in %.0f ms",
        (int)t->plan->key.m, (int)t->plan->key.n, (int)t->plan->key.k,
        *best < t->answers ? "answer" : "neighbour", *best, t->answers, t->n - t->answers, (double)careful[k],
        (double)careful[0], 1e3 * (clock_seconds() - t->began));
    return SHERD_OK;
}

static int time_all(struct trial *t, const cublasLtMatmulHeuristicResult_t *answers, int *best)
{
    CUDA_TRY(cudaEventCreate(&t->from));
    CUDA_TRY(cudaEventCreate(&t->to));
    SHERD_TRY(time_roughly(t, 0));
    SHERD_TRY(time_neighbours(t, answers));
    return t->n > 1 ? fastest(t, best) : SHERD_OK;
}

/* Times the library's answers, and what lies beside them, on the operands at hand. Waits for the queue. */
static int tune(struct sherd_queue *queue, struct plan *p, const struct sherd_matmul *a,
    const cublasLtMatmulHeuristicResult_t *answers, int n)
{
    struct matmul_plans *plans = cuda_device(queue->dev)->plans;
    struct trial t = { .plans = plans,
        .plan = p,
        .cq = cuda_queue(queue),
        .a = a,
        .n = n,
        .answers = n,
        .began = clock_seconds() };
    size_t bytes = (size_t)(a->m * p->key.ldc) * sherd_dtype_bytes(a->c_type);
    int best = 0;
    for (int i = 0; i < n; i++)
        t.algos[i] = answers[i].algo;
    SHERD_TRY(cuda_wait_stream(cuda_device(queue->dev), t.cq->stream));
    if (cudaMalloc(&t.out, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        log_warn("matmul %d x %d x %d is not tuned: no %zu bytes of GPU memory are free for a trial",
            (int)p->key.m, (int)p->key.n, (int)p->key.k, bytes);
        return SHERD_OK;
    }
    int st = time_all(&t, answers, &best);
    if (st == SHERD_OK) {
        p->algo = t.algos[best];
        st = choices_add(&plans->choices, &p->key, &p->algo);
    }
    if (t.from)
        SHERD_KEEP(st, CUDA_CHECK(cudaEventDestroy(t.from)));
    if (t.to)
        SHERD_KEEP(st, CUDA_CHECK(cudaEventDestroy(t.to)));
    SHERD_KEEP(st, CUDA_CHECK(cudaFree(t.out)));
    return st;
}

/* Takes over a choice of an earlier run if the library still accepts it. */
static int recall(const struct matmul_plans *plans, struct plan *p)
{
    const unsigned char *kept = choices_find(&plans->choices, &p->key);
    if (!kept)
        return 0;
    memcpy(&p->algo, kept, sizeof(p->algo));
    return plan_takes(plans->handle, p, &p->algo, p->key.workspace ? CUDA_WORKSPACE_BYTES : 0, NULL);
}

static int choose(struct sherd_queue *queue, struct plan *p, const struct sherd_matmul *a)
{
    const struct matmul_plans *plans = cuda_device(queue->dev)->plans;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t results[TRIED];
    int found = 0;
    if (plans->tune && recall(plans, p))
        return SHERD_OK;
    SHERD_TRY(plan_prefer(&pref, &p->key, room_of(cuda_queue(queue)).bytes));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        plans->handle, &p->desc, &p->b, &p->a, &p->c, &p->c, &pref, plans->tune ? TRIED : 1, results, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found > 0) {
        p->algo = results[0].algo;
        return plans->tune ? tune(queue, p, a, results, found) : SHERD_OK;
    }
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED &&
        status != CUBLAS_STATUS_INVALID_VALUE)
        return LT_CHECK(status);
    p->plain = 1;
    log_debug("matmul %d x %d x %d, %s to %s: cuBLASLt has no algorithm, using the plain kernel",
        (int)p->key.m, (int)p->key.n, (int)p->key.k, sherd_dtype_name((enum sherd_dtype)p->key.type),
        sherd_dtype_name((enum sherd_dtype)p->key.c_type));
    return SHERD_OK;
}

/* The slot that holds the plan, or else one to make it in. A full neighbourhood gives up its first slot. */
static struct plan *slot_of(struct matmul_plans *plans, const struct plan_key *key)
{
    uint32_t home = hash(key);
    for (uint32_t i = 0; i < PROBES; i++) {
        struct plan *p = &plans->plans[(home + i) % PLANS];
        if (!p->key.used || memcmp(&p->key, key, sizeof(*key)) == 0)
            return p;
    }
    return &plans->plans[home % PLANS];
}

static int make_plan(
    struct sherd_queue *queue, struct plan *p, const struct plan_key *key, const struct sherd_matmul *a)
{
    *p = (struct plan){ .key = *key };
    int st = plan_describe(p);
    if (st == SHERD_OK)
        st = choose(queue, p, a);
    p->key.used = st == SHERD_OK;
    return st;
}

static int run_plan(struct sherd_queue *queue, struct plan *p, const struct sherd_matmul *a)
{
    cudaStream_t stream = cuda_enter(queue);
    if (p->plain)
        return cuda_matmul_plain(stream, a);
    SHERD_TRY(plan_run(
        cuda_device(queue->dev)->plans->handle, p, &p->algo, a, a->c, room_of(cuda_queue(queue)), stream));
    return a->bias && !p->key.bias ? cuda_add_bias(stream, a) : SHERD_OK;
}

static int matmul_one(struct sherd_queue *queue, const struct sherd_matmul *a)
{
    struct plan_key key = plan_key_of(a, cuda_queue(queue)->workspace != NULL);
    struct plan *p = slot_of(cuda_device(queue->dev)->plans, &key);
    if (memcmp(&p->key, &key, sizeof(key)) == 0)
        return run_plan(queue, p, a);
    cuda_enter(queue);
    size_t before = cuda_room(queue->dev);
    int st = make_plan(queue, p, &key, a);
    if (st == SHERD_OK)
        st = run_plan(queue, p, a);
    cuda_took(queue->dev, before);
    return st;
}

/* ---- rows apart ----
 *
 * The fast kernels want more than aligned rows of 16-bit elements: they want their lengths to be multiples of
 * EVEN too, or take several times as long. Where the caller has set rows apart, so that they are aligned,
 * what is over of such a length is a product of its own. */

#define EVEN 8

static const void *after(const void *p, int64_t elems, enum sherd_dtype type)
{
    return (const char *)p + elems * (int64_t)sherd_dtype_bytes(type);
}

/* Columns of c beyond the first n. */
static struct sherd_matmul last_columns(const struct sherd_matmul *a, int64_t n)
{
    struct sherd_matmul rest = *a;
    rest.n = a->n - n;
    rest.c = (char *)a->c + n * (int64_t)sherd_dtype_bytes(a->c_type);
    rest.b = after(a->b, n * a->k, a->type); /* [n,k] */
    rest.add = a->add ? after(a->add, n, a->c_type) : NULL;
    rest.bias = a->bias ? after(a->bias, n, a->type) : NULL;
    return rest;
}

/* Rows of c beyond the first m. */
static struct sherd_matmul last_rows(const struct sherd_matmul *a, int64_t m)
{
    struct sherd_matmul rest = *a;
    int64_t pitch = a->c_pitch ? a->c_pitch : a->n;
    rest.m = a->m - m;
    rest.a = after(a->a, m, a->type); /* [k,m] */
    rest.c = (char *)a->c + m * pitch * (int64_t)sherd_dtype_bytes(a->c_type);
    rest.add = a->add ? after(a->add, m * pitch, a->c_type) : NULL;
    return rest;
}

/* What the inner dimension beyond the first k gives. */
static struct sherd_matmul last_inner(const struct sherd_matmul *a, int64_t k)
{
    struct sherd_matmul rest = *a;
    rest.k = a->k - k;
    rest.a = after(a->a, k, a->type);        /* [m,k] */
    rest.b = after(a->b, k * a->n, a->type); /* [k,n] */
    return rest;
}

int cuda_matmul(struct sherd_queue *queue, const void *args)
{
    const struct sherd_matmul *a = args;
    struct sherd_matmul most = *a, rest;
    if (a->m == 0 || a->n == 0)
        return SHERD_OK;
    if (a->type == SHERD_F32)
        return matmul_one(queue, a);
    if (a->c_pitch && a->trans_b && a->n % EVEN && a->n > EVEN) {
        most.n -= a->n % EVEN;
        rest = last_columns(a, most.n);
    } else if (a->a_pitch && a->trans_a && a->m % EVEN && a->m > EVEN) {
        most.m -= a->m % EVEN;
        rest = last_rows(a, most.m);
    } else if (a->a_pitch && !a->trans_a && !a->trans_b && a->k % EVEN && a->k > EVEN) {
        /* the small part first: of it alone a rounding is added, where c has 16 bits */
        most.k -= a->k % EVEN;
        rest = last_inner(a, most.k);
        SHERD_TRY(matmul_one(queue, &rest));
        most.add = most.c;
        most.bias = NULL;
        return matmul_one(queue, &most);
    } else {
        return matmul_one(queue, a);
    }
    SHERD_TRY(matmul_one(queue, &most));
    return matmul_one(queue, &rest);
}
