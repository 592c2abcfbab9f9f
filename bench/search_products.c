/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Candidates for a matrix product: the library's answers to sherd's question and to wider ones, its first
 * answer with the tiles that promise most, a few of each of its algorithms as it says they can be set, many
 * of the algorithms that are not slow, and the neighbours of the best of these. All give the same bits at
 * every run, as sherd wants it.
 */
#include "bench/search.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/choices.h"
#include "device/cuda/matmul_plan.h"
#include "device/tiles.h"

#define SETS 3 /* of operands, in turns: nothing is left of the last call in the L2 */
#define ROOM_BYTES ((size_t)256 << 20)
#define ASKED 512       /* answers wanted of the library */
#define TUNED_ANSWERS 8 /* that sherd's tuning looks at */
#define FEW_SHARE 0.1   /* of the seconds: putting a few of each algorithm together, */
#define FEW_ROUGH 0.2   /* calling them, */
#define MANY_SHARE 0.15 /* putting many of the good ones together, */
#define MANY_ROUGH 0.35 /* calling them, */
#define NEAR_SHARE 0.05 /* finding neighbours of the best, */
#define NEAR_ROUGH 0.15 /* and calling those */
#define IDS 256
#define FEW 3 /* of an algorithm, plainly set and otherwise */
#define NEIGHBOURS_OF 6
#define TILES 32 /* with which the library's first answer is tried */
#define NEIGHBOUR_ROOM 768
#define COMPARED (1 << 21)        /* elements of two results */
#define LEAP UINT64_C(2654435761) /* a prime: leaps of it, modulo less, visit each once */

struct product {
    struct meter *m;
    struct contest *c;
    cublasLtHandle_t lt;
    struct plan plan;
    struct sherd_matmul sets[SETS];
    char *memory;
    void *out[2]; /* results to be compared */
    struct plan_room room;
    unsigned turn;
    int ids[IDS], n_ids;
    uint64_t at[IDS][2]; /* how far the ways to set each were tried: plain ones, all */
};

/* ---- operands ---- */

static int64_t a_elems(const struct sherd_matmul *a)
{
    int64_t cols = a->trans_a ? a->m : a->k;
    return (a->trans_a ? a->k : a->m) * (a->a_pitch ? a->a_pitch : cols);
}

static int64_t c_elems(const struct sherd_matmul *a)
{
    return a->m * (a->c_pitch ? a->c_pitch : a->n);
}

static size_t bytes_of(int64_t elems, enum sherd_dtype type)
{
    return (size_t)round_up(elems * (int64_t)sherd_dtype_bytes(type), 256);
}

/* Cuts one set out of memory at *at and fills it; with fill = 0 only counts. */
static int place_set(const struct product *p, struct sherd_matmul *a, char **at, int fill)
{
    const struct {
        int64_t elems;
        enum sherd_dtype type;
        int wanted;
    } parts[] = {
        { a_elems(a), a->type, 1 },
        { a->k * a->n, a->type, 1 },
        { c_elems(a), a->c_type, 1 },
        { c_elems(a), a->c_type, a->add && a->add != a->c },
        { a->n, a->type, a->bias != NULL },
    };
    char *places[ARRAY_LEN(parts)] = { NULL };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!parts[i].wanted)
            continue;
        if (fill)
            SHERD_TRY(meter_fill(p->m, *at, parts[i].elems, parts[i].type));
        places[i] = *at;
        *at += bytes_of(parts[i].elems, parts[i].type);
    }
    if (!fill)
        return SHERD_OK;
    a->add = a->add == a->c ? places[2] : places[3];
    a->a = places[0];
    a->b = places[1];
    a->c = places[2];
    a->bias = places[4];
    return SHERD_OK;
}

static int make_operands(struct product *p)
{
    struct sherd_matmul a = p->c->args.matmul;
    size_t out = bytes_of(c_elems(&a), a.c_type);
    char *at = NULL;
    SHERD_TRY(place_set(p, &a, &at, 0));
    size_t set = (size_t)(uintptr_t)at;
    CU_TRY(cudaMalloc((void **)&p->memory, SETS * set + 2 * out + ROOM_BYTES));
    at = p->memory;
    for (int i = 0; i < SETS; i++) {
        p->sets[i] = p->c->args.matmul;
        SHERD_TRY(place_set(p, &p->sets[i], &at, 1));
    }
    p->out[0] = at;
    p->out[1] = at + out;
    p->room = (struct plan_room){ at + 2 * out, ROOM_BYTES };
    p->plan.key = plan_key_of(&p->sets[0], 1);
    return plan_describe(&p->plan);
}

/* ---- running ---- */

static int enqueue(void *ctx, int i)
{
    struct product *p = ctx;
    const struct sherd_matmul *a = &p->sets[p->turn++ % SETS];
    cublasLtMatmulAlgo_t algo;
    if (i == SHERDS)
        return sherd_matmul(p->m->queue, a);
    memcpy(&algo, p->c->all[i].how, sizeof(algo));
    return plan_run(p->lt, &p->plan, &algo, a, a->c, p->room, p->m->stream);
}

static double value_at(const void *from, int64_t i, enum sherd_dtype type)
{
    const float *floats = from;
    const uint16_t *halves = from;
    if (type == SHERD_F32)
        return (double)floats[i];
    return (double)(type == SHERD_BF16 ? bf16_to_float(halves[i]) : f16_to_float(halves[i]));
}

/* Of the last elements of both results: what a kernel leaves out is most likely there. */
static double compare(const struct product *p, int64_t elems, enum sherd_dtype type)
{
    int64_t n = MIN(elems, COMPARED), size = (int64_t)sherd_dtype_bytes(type);
    char *own = mem_zalloc((size_t)(2 * n), (size_t)size), *other = own + n * size;
    double error = 0, whole = 0;
    int st = own ? SHERD_OK : SHERD_ENOMEM;
    for (int k = 0; k < 2 && st == SHERD_OK; k++)
        st = CU_CHECK(cudaMemcpy(own + k * n * size, (char *)p->out[k] + (elems - n) * size,
            (size_t)(n * size), cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n && st == SHERD_OK; i++) {
        double x = value_at(own, i, type), y = value_at(other, i, type);
        error += (x - y) * (x - y);
        whole += x * x;
    }
    mem_free(own);
    return st == SHERD_OK ? sqrt(error / whole) : INFINITY;
}

static double differs(void *ctx, int i)
{
    struct product *p = ctx;
    struct sherd_matmul own = p->sets[0];
    cublasLtMatmulAlgo_t algo;
    size_t bytes = bytes_of(c_elems(&own), own.c_type);
    memcpy(&algo, p->c->all[i].how, sizeof(algo));
    own.add = own.add == own.c ? own.b : own.add; /* any numbers, the same for both */
    if (own.add == own.b && bytes > bytes_of(own.k * own.n, own.type))
        own.add = p->sets[1].c;
    own.c = p->out[0];
    if (cudaMemsetAsync(p->out[0], 0xff, 2 * bytes, p->m->stream) != cudaSuccess ||
        sherd_matmul(p->m->queue, &own) != SHERD_OK ||
        plan_run(p->lt, &p->plan, &algo, &own, p->out[1], p->room, p->m->stream) != SHERD_OK ||
        cudaStreamSynchronize(p->m->stream) != cudaSuccess)
        return INFINITY;
    return compare(p, c_elems(&own) - (own.c_pitch ? own.c_pitch - own.n : 0), own.c_type);
}

/* ---- listing ---- */

/* An algorithm in words, which two share only if they are the same. */
static void name_of(const cublasLtMatmulAlgo_t *algo, size_t workspace, char *out, size_t bytes)
{
    int32_t id = -1, splits = 0;
    uint32_t tile = 0, stages = 0, scheme = 0, swizzle = 0, custom = 0;
    uint16_t inner = 0, cluster = 0;
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t name;
        void *at;
        size_t bytes;
    } get[] = {
        { CUBLASLT_ALGO_CONFIG_ID, &id, sizeof(id) },
        { CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile) },
        { CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof(stages) },
        { CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits) },
        { CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme) },
        { CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle, sizeof(swizzle) },
        { CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom, sizeof(custom) },
        { CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner, sizeof(inner) },
        { CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof(cluster) },
    };
    for (size_t i = 0; i < ARRAY_LEN(get); i++) {
        size_t written;
        (void)cublasLtMatmulAlgoConfigGetAttribute(algo, get[i].name, get[i].at, get[i].bytes, &written);
    }
    snprintf(out, bytes, "a%d tile%u st%u cl%u in%u opt%u sw%u split%d/%u ws%.1fM", id, tile, stages, cluster,
        inner, custom, swizzle, splits, scheme, (double)workspace / 1048576);
}

/* Room for one more where it is new. */
static struct candidate *add(struct contest *c, const cublasLtMatmulAlgo_t *algo, size_t workspace)
{
    char name[sizeof(c->all[0].name)];
    name_of(algo, workspace, name, sizeof(name));
    for (int i = 1; i < c->n; i++)
        if (strcmp(c->all[i].name, name) == 0)
            return &c->all[i];
    if (c->n == CANDIDATES)
        return NULL;
    struct candidate *k = &c->all[c->n++];
    *k = (struct candidate){ 0 };
    memcpy(k->name, name, sizeof(name));
    memcpy(k->how, algo, sizeof(*algo));
    k->workspace = workspace;
    k->kin[0] = plan_setting(algo, CUBLASLT_ALGO_CONFIG_ID) + 1;
    k->kin[1] = k->kin[0] << 16 | (plan_setting(algo, CUBLASLT_ALGO_CONFIG_TILE_ID) & 0xffff);
    return k;
}

/* A candidate, if the library takes it for this product within the room there is. */
static void try_algo(struct product *p, const cublasLtMatmulAlgo_t *algo)
{
    size_t workspace;
    p->c->looked_at++;
    if (plan_takes(p->lt, &p->plan, algo, ROOM_BYTES, &workspace))
        (void)add(p->c, algo, workspace);
}

/* The library's answers; those to sherd's own question are numbered. */
static int ask(struct product *p, size_t workspace, int32_t sms, int numbered)
{
    cublasLtMatmulHeuristicResult_t *results = mem_zalloc(ASKED, sizeof(*results));
    cublasLtMatmulPreferenceOpaque_t pref;
    struct plan plan = p->plan;
    int found = 0;
    if (!results)
        return SHERD_ENOMEM;
    int st = plan_prefer(&pref, &plan.key, workspace);
    if (st == SHERD_OK && sms)
        st = LT_CHECK(cublasLtMatmulDescSetAttribute(
            &plan.desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms)));
    if (st != SHERD_OK || cublasLtMatmulAlgoGetHeuristic(p->lt, &plan.desc, &plan.b, &plan.a, &plan.c,
                              &plan.c, &pref, ASKED, results, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    for (int i = 0; i < found; i++) {
        struct candidate *k = add(p->c, &results[i].algo, results[i].workspaceSize);
        p->c->looked_at++;
        if (k && numbered && i < TUNED_ANSWERS && !k->answer)
            k->answer = i + 1;
    }
    mem_free(results);
    return st;
}

/* What one algorithm can be set to. */
struct ways {
    uint32_t tiles[CUBLASLT_MATMUL_TILE_END], stages[CUBLASLT_MATMUL_STAGES_END];
    int n_tiles, n_stages, clusters, inners, swizzles;
    int32_t customs, splits;
};

static int list_of(
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoCapAttributes_t name, uint32_t *out, size_t most)
{
    size_t bytes = 0;
    if (cublasLtMatmulAlgoCapGetAttribute(algo, name, NULL, 0, &bytes) != CUBLAS_STATUS_SUCCESS ||
        bytes == 0 || bytes > most * sizeof(*out) ||
        cublasLtMatmulAlgoCapGetAttribute(algo, name, out, bytes, &bytes) != CUBLAS_STATUS_SUCCESS) {
        out[0] = 0;
        return 1;
    }
    return (int)(bytes / sizeof(*out));
}

static struct ways ways_of(const cublasLtMatmulAlgo_t *algo)
{
    struct ways w = { 0 };
    int32_t split = 0;
    uint32_t swizzle = 0;
    size_t n;
    w.n_tiles = list_of(algo, CUBLASLT_ALGO_CAP_TILE_IDS, w.tiles, ARRAY_LEN(w.tiles));
    w.n_stages = list_of(algo, CUBLASLT_ALGO_CAP_STAGES_IDS, w.stages, ARRAY_LEN(w.stages));
    w.customs = plan_customs(algo);
    (void)cublasLtMatmulAlgoCapGetAttribute(
        algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT, &swizzle, sizeof(swizzle), &n);
    (void)cublasLtMatmulAlgoCapGetAttribute(
        algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, &split, sizeof(split), &n);
    /* One that has no tiles takes clusters and inner shapes too, and heeds neither. */
    int tiled = w.n_tiles > 1 || w.tiles[0] != CUBLASLT_MATMUL_TILE_UNDEFINED;
    w.clusters = tiled ? CUBLASLT_CLUSTER_SHAPE_END : 1;
    w.inners = tiled ? CUBLASLT_MATMUL_INNER_SHAPE_END : 1;
    w.swizzles = swizzle ? 2 : 1;
    w.splits = split ? 4 : 1;
    return w;
}

static struct ways plain_ways(struct ways w)
{
    w.inners = w.swizzles = w.splits = 1;
    return w;
}

static uint64_t count_ways(const struct ways *w)
{
    return (uint64_t)w->n_tiles * (uint64_t)w->n_stages * (uint64_t)w->clusters * (uint64_t)w->inners *
           (uint64_t)w->swizzles * (uint64_t)(w->customs + 1) * (uint64_t)w->splits;
}

static int set_config(
    cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t name, const void *value, size_t bytes)
{
    return cublasLtMatmulAlgoConfigSetAttribute(algo, name, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

/* Number `at` of the ways to set an algorithm: digits of a number with several bases. */
static int configure(cublasLtMatmulAlgo_t *algo, const struct ways *w, uint64_t at)
{
    static const int32_t splits[4] = { 1, 2, 4, 8 };
    uint32_t tile = w->tiles[at % (uint64_t)w->n_tiles], swizzle, custom, scheme;
    at /= (uint64_t)w->n_tiles;
    uint32_t stages = w->stages[at % (uint64_t)w->n_stages];
    at /= (uint64_t)w->n_stages;
    uint16_t cluster = (uint16_t)(at % (uint64_t)w->clusters);
    at /= (uint64_t)w->clusters;
    uint16_t inner = (uint16_t)(at % (uint64_t)w->inners);
    at /= (uint64_t)w->inners;
    swizzle = (uint32_t)(at % (uint64_t)w->swizzles);
    at /= (uint64_t)w->swizzles;
    custom = (uint32_t)(at % (uint64_t)(w->customs + 1));
    at /= (uint64_t)(w->customs + 1);
    int32_t split = splits[at % (uint64_t)w->splits];
    scheme = split > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    return set_config(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof(stages)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof(cluster)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner, sizeof(inner)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle, sizeof(swizzle)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom, sizeof(custom)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split)) &&
           set_config(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme));
}

static cudaDataType_t lt_type(int type)
{
    return type == SHERD_F32 ? CUDA_R_32F : type == SHERD_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Goes on through ways to set an algorithm until a time or a number of candidates; leaps visit each at most
 * once. */
static void go_on(
    struct product *p, cublasLtMatmulAlgo_t algo, const struct ways *w, uint64_t *at, int most, double until)
{
    uint64_t all = count_ways(w);
    for (; *at < all && p->c->n < most && ((*at & 15) != 15 || seconds_now() < until); (*at)++)
        if (configure(&algo, w, *at * LEAP % all))
            try_algo(p, &algo);
}

/* Up to `more` candidates of algorithm i: three quarters plainly set, then any. */
static void put_id_together(struct product *p, int i, int more, double seconds)
{
    cudaDataType_t in = lt_type(p->plan.key.type), out = lt_type(p->plan.key.c_type);
    const double from = seconds_now();
    const int n = p->c->n, most = MIN(n + more, CANDIDATES - NEIGHBOUR_ROOM);
    cublasLtMatmulAlgo_t algo;
    if (cublasLtMatmulAlgoInit(p->lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out, p->ids[i], &algo) !=
        CUBLAS_STATUS_SUCCESS)
        return;
    struct ways w = ways_of(&algo), plain = plain_ways(w);
    go_on(p, algo, &plain, &p->at[i][0], n + (most - n) * 3 / 4, from + seconds / 2);
    go_on(p, algo, &w, &p->at[i][1], most, from + seconds);
}

static void list_ids(struct product *p)
{
    cudaDataType_t in = lt_type(p->plan.key.type), out = lt_type(p->plan.key.c_type);
    if (cublasLtMatmulAlgoGetIds(p->lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out, IDS, p->ids,
            &p->n_ids) != CUBLAS_STATUS_SUCCESS)
        p->n_ids = 0;
}

static void put_few_together(struct product *p, double seconds)
{
    for (int i = 0; i < p->n_ids; i++)
        put_id_together(p, i, FEW, seconds / (double)p->n_ids);
}

/* Of those algorithms that are not known to be slow. */
static void put_many_together(struct product *p, double seconds)
{
    int good[IDS], n = 0, room = CANDIDATES - NEIGHBOUR_ROOM - p->c->n;
    for (int i = 0; i < p->n_ids; i++)
        if (!meter_slow_kin(p->c, (uint32_t)p->ids[i] + 1, 0))
            good[n++] = i;
    for (int i = 0; i < n; i++)
        put_id_together(p, good[i], room / n, seconds / (double)n);
}

/* Those that differ from one in a single setting: few clusters and inner shapes, then tiles, by leaps. */
static void neighbours(struct product *p, const cublasLtMatmulAlgo_t *algo, double until)
{
    struct ways w = ways_of(algo);
    const uint32_t *lists[] = { w.tiles, w.stages };
    const cublasLtMatmulAlgoConfigAttributes_t wide[] = { CUBLASLT_ALGO_CONFIG_TILE_ID,
        CUBLASLT_ALGO_CONFIG_STAGES_ID, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
        CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING };
    const int n_wide[] = { w.n_tiles, w.n_stages, w.customs + 1, w.swizzles };
    const cublasLtMatmulAlgoConfigAttributes_t narrow[] = { CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
        CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID };
    const int n_narrow[] = { w.clusters, w.inners };
    for (size_t a = 0; a < ARRAY_LEN(narrow); a++) {
        for (int i = 0; i < n_narrow[a] && seconds_now() < until; i++) {
            cublasLtMatmulAlgo_t other = *algo;
            uint16_t value = (uint16_t)i;
            if (set_config(&other, narrow[a], &value, sizeof(value)))
                try_algo(p, &other);
        }
    }
    for (size_t a = 0; a < ARRAY_LEN(wide); a++) {
        for (int i = 0; i < n_wide[a] && seconds_now() < until; i++) {
            cublasLtMatmulAlgo_t other = *algo;
            uint32_t at = (uint32_t)((uint64_t)i * LEAP % (uint64_t)n_wide[a]);
            uint32_t value = a < ARRAY_LEN(lists) ? lists[a][at] : at;
            if (set_config(&other, wide[a], &value, sizeof(value)))
                try_algo(p, &other);
        }
    }
}

/* What sherd takes: its first call tunes, and what it found stands in its file. */
static int name_sherds(struct product *p)
{
    struct candidate *own = &p->c->all[SHERDS];
    struct choices choices;
    const unsigned char *kept = NULL;
    DIR *folder;
    p->c->current = SHERDS;
    SHERD_TRY(sherd_matmul(p->m->queue, &p->sets[0]));
    SHERD_TRY(sherd_queue_sync(p->m->queue));
    p->c->current = -1;
    snprintf(own->name, sizeof(own->name), "the library's only answer");
    folder = opendir(p->m->tuned);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        if (strncmp(e->d_name, "matmul-", 7) != 0)
            continue;
        SHERD_TRY(choices_open(&choices, p->m->tuned, e->d_name));
        kept = choices_find(&choices, &p->plan.key);
        cublasLtMatmulAlgo_t algo;
        size_t workspace;
        if (kept) {
            memcpy(&algo, kept, sizeof(algo));
            (void)plan_takes(p->lt, &p->plan, &algo, ROOM_BYTES, &workspace);
            name_of(&algo, workspace, own->name, sizeof(own->name));
        }
        choices_close(&choices);
    }
    if (folder)
        closedir(folder);
    return SHERD_OK;
}

/* The library's first answer with the tiles that promise most, of which tuning tries a few (matmul_near.c):
 * here in all clusters of up to 16 blocks and with all custom options. */
static int put_tiles(struct product *p)
{
    const struct tile *tiles[TILES];
    cublasLtMatmulAlgo_t algo;
    int device, multiprocessors;
    if (p->c->n < 2)
        return SHERD_OK; /* no answer */
    CU_TRY(cudaGetDevice(&device));
    CU_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    memcpy(&algo, p->c->all[1].how, sizeof(algo));
    int n = tiles_within(INT64_MAX, p->plan.key.n, p->plan.key.m, multiprocessors, tiles, TILES);
    const int32_t customs = plan_customs(&algo);
    for (int i = 0; i < n; i++)
        for (uint16_t cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1; cluster <= CUBLASLT_CLUSTER_SHAPE_4x4x1;
             cluster++)
            for (int32_t custom = 0; custom <= customs; custom++)
                if (plan_with_tile(&algo, tiles[i]->id, cluster, (uint32_t)custom))
                    try_algo(p, &algo);
    return SHERD_OK;
}

static int list(struct product *p)
{
    p->c->n = 1;
    SHERD_TRY(name_sherds(p));
    SHERD_TRY(ask(p, CUDA_WORKSPACE_BYTES, 0, 1));
    SHERD_TRY(put_tiles(p));
    SHERD_TRY(ask(p, 0, 0, 0));
    SHERD_TRY(ask(p, ROOM_BYTES, 0, 0));
    for (int32_t sms = 128; sms >= 112; sms -= 8)
        SHERD_TRY(ask(p, CUDA_WORKSPACE_BYTES, sms, 0));
    p->c->listed = 1;
    return SHERD_OK;
}

static int find(struct product *p, const struct runner *r, double seconds)
{
    int best[NEIGHBOURS_OF + 2];
    list_ids(p);
    put_few_together(p, FEW_SHARE * seconds);
    SHERD_TRY(meter_rough(p->m, p->c, r, SHERDS, FEW_ROUGH * seconds));
    put_many_together(p, MANY_SHARE * seconds);
    SHERD_TRY(meter_rough(p->m, p->c, r, SHERDS, MANY_ROUGH * seconds));
    int n = meter_best(p->c, NEIGHBOURS_OF, best), first = p->c->n;
    double until = seconds_now() + NEAR_SHARE * seconds;
    for (int i = 1; i < n; i++) {
        cublasLtMatmulAlgo_t algo;
        memcpy(&algo, p->c->all[best[i]].how, sizeof(algo));
        neighbours(p, &algo, until);
    }
    /* these before what is left of the others, which are many */
    return meter_rough(p->m, p->c, r, first, NEAR_ROUGH * seconds);
}

static int measure(struct product *p, double seconds)
{
    struct runner r = { p, enqueue, differs };
    if (p->c->ended < ENDED)
        SHERD_TRY(find(p, &r, seconds));
    else
        SHERD_TRY(meter_rough(p->m, p->c, &r, SHERDS, 0)); /* sherd's, where it was not called */
    return meter_rank(p->m, p->c, &r);
}

int search_product(struct meter *m, struct contest *c, double seconds)
{
    struct product p = { .m = m, .c = c };
    if (cublasLtCreate(&p.lt) != CUBLAS_STATUS_SUCCESS)
        return SHERD_FAIL(SHERD_EDEVICE, "cublasLtCreate failed");
    int st = make_operands(&p);
    if (st == SHERD_OK && !c->listed)
        st = list(&p);
    if (st == SHERD_OK)
        st = measure(&p, seconds);
    (void)cudaFree(p.memory);
    (void)cublasLtDestroy(p.lt);
    return st;
}
