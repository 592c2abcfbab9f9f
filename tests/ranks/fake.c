/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Fake states for tests of checkpoints: see tests/ranks/fake.h.
 */
#include "tests/ranks/fake.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"
#include "ckpt/open.h"
#include "tests/t.h"

#define RUBBISH 0xa5
#define RUN 512 /* elements that are made or looked at in one go */

static const char *const state_names[] = { "adam.m", "adam.v" };

static const struct sherd_part qkv[] = { { "h.0.q.weight", 24 }, { "h.0.k.weight", 8 },
    { "h.0.v.weight", 8 } };
static const struct sherd_part qkv_bias[] = { { "h.0.q.bias", 24 }, { "h.0.k.bias", 8 },
    { "h.0.v.bias", 8 } };

static struct sherd_param *add(
    struct fake *f, const char *name, int dims, int64_t a, int64_t b, unsigned flags)
{
    struct sherd_param *p = &f->params[f->n_params++];
    if (f->options.freeze_all)
        flags |= SHERD_FROZEN;
    if (f->options.thaw_all)
        flags &= ~(unsigned)SHERD_FROZEN;
    *p = (struct sherd_param){ .name = name, .shape = { a, b }, .dims = dims, .flags = flags };
    f->units[f->n_units - 1].n_params++;
    return p;
}

static void unit(struct fake *f, const char *name)
{
    f->units[f->n_units++] = (struct sherd_unit){ .name = name, .params = &f->params[f->n_params] };
}

static void build(struct fake *f)
{
    const struct fake_options *o = &f->options;
    struct sherd_param *p;
    int64_t vocab = o->vocab ? o->vocab : 101;
    unit(f, "root");
    add(f, "scale", 1, 1, 0, SHERD_NO_DECAY);
    p = add(f, "wte.weight", 2, vocab, 24, o->freeze_wte ? SHERD_FROZEN : 0);
    p->alias = o->untied || o->no_alias ? NULL : "lm_head.weight";
    if (o->untied)
        add(f, "lm_head.weight", 2, vocab, 24, 0);
    add(f, "wpe.weight", 2, 7, 24, SHERD_FROZEN);
    unit(f, "h.0");
    add(f, "h.0.ln.weight", 1, 24, 0, SHERD_NO_DECAY);
    p = add(f, "h.0.qkv", 2, 40, 24, 0);
    p->parts = qkv;
    p->n_parts = 3;
    p = add(f, "h.0.qkv_bias", 1, 40, 0, SHERD_NO_DECAY);
    p->parts = qkv_bias;
    p->n_parts = 3;
    add(f, "h.0.ice", 2, 5, 3, SHERD_FROZEN);
    add(f, "h.0.one", 1, 1, 0, 0);
    unit(f, "h.1");
    if (!o->missing)
        add(f, "h.1.big.weight", 2, 300, 41, 0);
    for (int i = 0; i < 3; i++)
        add(f, i == 0 ? "h.1.a" : i == 1 ? "h.1.b" : "h.1.c", 1, 1, 0, 0);
    if (o->large)
        add(f, "h.1.large", 2, 1100, 2003, 0);
    unit(f, "still");
    add(f, "still.a", 1, 13, 0, SHERD_FROZEN);
    p = add(f, "still.b", 4, 2, 3, SHERD_FROZEN);
    p->shape[2] = 4;
    p->shape[3] = 5;
    if (o->extra) {
        unit(f, "more");
        add(f, "more.weight", 2, 3, 5, 0);
    }
}

float fake_value(const struct fake_options *options, const char *what, const char *tensor, int64_t i)
{
    if (options->big && !strcmp(tensor, "scale") && !strcmp(what, "weight"))
        return 1e6f;
    if (options->infinite && !strcmp(tensor, "h.0.q.weight") && !strcmp(what, "weight") && i == 24 * 24 - 1)
        return NAN;
    uint64_t h = sum_hash64(tensor, strlen(tensor), sum_hash64(what, strlen(what), (uint64_t)i));
    float v = (float)(int64_t)(h % 20001) / 10000.0f - 1.0f;
    return v;
}

static enum sherd_dtype frozen_type(const struct fake *f)
{
    return f->options.frozen_type ? f->options.frozen_type : SHERD_BF16;
}

/* Frozen weights have bf16 values whatever their type, so that conversions are exact. */
static float expected(
    const struct fake *f, const struct shard_view *view, const struct shard_tensor *t, int64_t i)
{
    float v = fake_value(&f->options, view->what, t->name, i);
    int rounded = frozen_type(f) == SHERD_BF16 && view->segment == SHARD_FROZEN;
    return rounded ? bf16_to_float(bf16_from_float(v)) : v;
}

/* What `n` elements of a view have that lie together in a tensor: element `first` of it is `at` in the view.
 */
struct run {
    const struct shard_tensor *tensor;
    int64_t at, first;
    int n;
};

/* The next run at or after `at`; 0 if only padding is left. */
static int next_run(const struct fake *f, const struct shard_view *view, int64_t at, struct run *run)
{
    struct shard_span span;
    int64_t begin = view->first + at;
    if (!layout_spans(&f->layout, view->unit, view->segment, begin, view->first + view->elems, &span, 1))
        return 0;
    run->tensor = &f->layout.tensors[span.tensor];
    run->at = span.offset - view->first;
    run->first = span.first;
    run->n = (int)MIN(span.elems, RUN);
    return 1;
}

static char *data_at(const struct shard_view *view, int64_t at)
{
    return (char *)view->data + (size_t)at * sherd_dtype_bytes(view->type);
}

static int add_view(
    struct fake *f, const char *what, int u, enum shard_segment segment, int rank, int rubbish)
{
    int64_t slice = layout_slice(&f->layout, u, segment);
    struct shard_view *v = &f->views[f->n_views];
    *v = (struct shard_view){ what, u, segment, segment == SHARD_FROZEN ? frozen_type(f) : SHERD_F32, NULL,
        f->options.whole ? 0 : slice * rank, f->options.whole ? slice * f->layout.world : slice };
    if (!slice)
        return SHERD_OK;
    size_t bytes = (size_t)v->elems * sherd_dtype_bytes(v->type);
    SHERD_TRY(sherd_device_alloc(f->job.dev, &v->data, bytes));
    f->n_views++;
    memset(v->data, rubbish ? RUBBISH : 0, bytes);
    struct run run;
    for (int64_t at = 0; !rubbish && next_run(f, v, at, &run); at = run.at + run.n) {
        float values[RUN];
        for (int i = 0; i < run.n; i++)
            values[i] = expected(f, v, run.tensor, run.first + i);
        st_convert(data_at(v, run.at), v->type, values, SHERD_F32, run.n, NULL);
    }
    return SHERD_OK;
}

int fake_init(struct fake *fake, const struct fake_options *options, struct sherd_comm *comm,
    struct sherd_device *dev, int rubbish)
{
    int rank = sherd_comm_rank(comm);
    *fake = (struct fake){ .options = *options };
    build(fake);
    struct sherd_model_spec spec = { .units = fake->units, .n_units = fake->n_units };
    SHERD_TRY(layout_init(&fake->layout, &spec, sherd_comm_size(comm)));
    fake->job = (struct ckpt_job){ .layout = &fake->layout, .views = fake->views, .comm = comm, .dev = dev };
    fake->job.meta = (struct ckpt_meta){ .stage = options->whole ? 0 : 3,
        .step = options->step ? options->step : 10,
        .tokens_seen = 1000,
        .samples_seen = 77,
        .seed = options->seed ? options->seed : 1,
        .param_type = SHERD_BF16,
        .optimizer = options->sgd ? "sgd" : "adamw",
        .states = state_names,
        .n_states = options->sgd ? 0 : 2,
        .export_json = "{\"model_type\": \"gpt2\", \"n_embd\": 24}",
        .extra = options->extra_json,
        .run = options->run,
        .has_loss = options->loss != 0,
        .loss = options->loss };
    if (options->breaks == rank + 1)
        return SHERD_OK;
    for (int u = 0; u < fake->n_units; u++) {
        SHERD_TRY(add_view(fake, "weight", u, SHARD_TRAINED, rank, rubbish));
        SHERD_TRY(add_view(fake, "weight", u, SHARD_FROZEN, rank, rubbish));
        for (int i = 0; i < fake->job.meta.n_states; i++)
            SHERD_TRY(add_view(fake, state_names[i], u, SHARD_TRAINED, rank, rubbish));
    }
    fake->job.n_views = fake->n_views;
    return SHERD_OK;
}

void fake_finish(struct fake *fake)
{
    for (int i = 0; i < fake->n_views; i++)
        sherd_device_free(fake->job.dev, fake->views[i].data);
    layout_finish(&fake->layout);
}

static int check_padding(const struct shard_view *v, int64_t at, int64_t end)
{
    for (; at < end; at++)
        if (*(const uint8_t *)data_at(v, at) != RUBBISH)
            return SHERD_BUG("padding of unit %d was written at %lld", v->unit, (long long)(v->first + at));
    return SHERD_OK;
}

static int check_view(const struct fake *f, const struct shard_view *v, const char *zero_states)
{
    struct run run;
    int64_t at = 0;
    for (; next_run(f, v, at, &run); at = run.at + run.n) {
        int zero = zero_states && strcmp(v->what, "weight") && !strcmp(run.tensor->name, zero_states);
        float values[RUN];
        SHERD_TRY(check_padding(v, at, run.at));
        st_convert(values, SHERD_F32, data_at(v, run.at), v->type, run.n, NULL);
        for (int i = 0; i < run.n; i++) {
            float want = zero ? 0.0f : expected(f, v, run.tensor, run.first + i);
            if (values[i] != want)
                return SHERD_BUG("%s of %s: element %lld is %g, expected %g", v->what, run.tensor->name,
                    (long long)run.first + i, (double)values[i], (double)want);
        }
    }
    return check_padding(v, at, v->elems);
}

int fake_check(const struct fake *fake, const char *zero_states)
{
    for (int i = 0; i < fake->n_views; i++)
        SHERD_TRY(check_view(fake, &fake->views[i], zero_states));
    return SHERD_OK;
}

/* Marks the blocks that hold elements of a span of a view. */
static int mark(struct sherd_ckpt *c, unsigned char **marks, const struct shard_view *v,
    const struct shard_span *span, const char *tensor)
{
    int t = manifest_find(&c->manifest, tensor);
    int state = strcmp(v->what, "weight") ? manifest_state(&c->manifest, v->what) : -1;
    size_t size = sherd_dtype_bytes(state < 0 ? c->manifest.tensors[t].type : SHERD_F32);
    for (int64_t at = 0; at < span->elems;) {
        int file;
        uint64_t offset;
        int64_t n;
        SHERD_TRY(ckpt_locate(c, state, t, span->first + at, &file, &offset, &n));
        n = MIN(n, span->elems - at);
        for (uint64_t b = offset / c->manifest.block; b * c->manifest.block < offset + (uint64_t)n * size;
             b++)
            marks[file][b] = 1;
        at += n;
    }
    return SHERD_OK;
}

static int count_marks(struct sherd_ckpt *c, const struct fake *f, unsigned char **marks, uint64_t *bytes)
{
    for (int i = 0; i < f->n_views; i++) {
        const struct shard_view *v = &f->views[i];
        struct shard_span spans[16];
        int n = layout_spans(&f->layout, v->unit, v->segment, v->first, v->first + v->elems, spans, 16);
        for (int k = 0; k < n; k++)
            SHERD_TRY(mark(c, marks, v, &spans[k], f->layout.tensors[spans[k].tensor].name));
    }
    *bytes = c->bytes_read; /* the manifest, and headers that were needed to find the pieces */
    for (int i = 0; i < c->manifest.n_files; i++) {
        uint64_t size = c->manifest.files[i].bytes, block = c->manifest.block;
        for (uint64_t b = 0; b < ckpt_blocks(size, block); b++)
            *bytes += marks[i][b] ? MIN(block, size - b * block) : 0;
    }
    return SHERD_OK;
}

/* What one rank has to read of a checkpoint that was written by any world. */
static int bytes_to_read(const struct fake *f, const char *path, uint64_t *bytes)
{
    struct sherd_ckpt *c;
    SHERD_TRY(sherd_ckpt_open(&c, path));
    unsigned char **marks = mem_zalloc((size_t)c->manifest.n_files, sizeof(*marks));
    for (int i = 0; i < c->manifest.n_files; i++)
        marks[i] = mem_zalloc((size_t)ckpt_blocks(c->manifest.files[i].bytes, c->manifest.block), 1);
    int st = count_marks(c, f, marks, bytes);
    for (int i = 0; i < c->manifest.n_files; i++)
        mem_free(marks[i]);
    mem_free(marks);
    sherd_ckpt_close(c);
    return st;
}

struct call {
    struct fake_results *results;
    const struct fake_options *options;
    const char *path, *zero_states, *to;
    int (*fn)(struct fake *fake, const struct call *call);
    int rubbish;
};

/* Only after all ranks are set up: their own memory is a file, too. */
static int save_limited(const struct fake *f, const struct call *c)
{
    struct rlimit old, small;
    SHERD_TRY(sherd_comm_barrier(f->job.comm));
    if (sherd_comm_rank(f->job.comm) || getrlimit(RLIMIT_FSIZE, &old))
        return ckpt_save(&f->job, c->path);
    small = (struct rlimit){ c->options->file_limit, old.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int st = ckpt_save(&f->job, c->path);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    return st;
}

static int save_beside(const struct fake *f, const struct call *c)
{
    struct ckpt_saver *saver = NULL;
    struct sherd_queue *queue = NULL;
    int st = SHERD_OK;
    SHERD_TRY_OUT(sherd_queue_create(&queue, f->job.dev, SHERD_QUEUE_COMPUTE));
    SHERD_TRY_OUT(ckpt_saver_create(&saver, f->job.comm, f->job.dev, 0));
    SHERD_TRY_OUT(ckpt_saver_start(saver, &f->job, c->path, NULL));
    for (int u = 0; u < f->n_units; u++)
        SHERD_KEEP(st, ckpt_saver_await(saver, u, queue));
    SHERD_KEEP(st, sherd_queue_sync(queue));
    SHERD_KEEP(st, ckpt_saver_wait(saver));
out:
    ckpt_saver_destroy(saver);
    sherd_queue_destroy(queue);
    return st;
}

static int save(struct fake *f, const struct call *c)
{
    if (c->options->beside)
        return save_beside(f, c);
    return c->options->file_limit ? save_limited(f, c) : ckpt_save(&f->job, c->path);
}

static int load(struct fake *f, const struct call *c)
{
    struct ckpt_meta before = f->job.meta;
    SHERD_TRY(ckpt_load(&f->job, c->path));
    SHERD_TRY(fake_check(f, c->zero_states));
    if (f->job.meta.step != before.step || f->job.meta.tokens_seen != 1000 ||
        f->job.meta.samples_seen != 77 || f->job.meta.seed != before.seed ||
        f->job.meta.param_type != SHERD_BF16 || f->job.meta.optimizer)
        return SHERD_BUG("what the manifest holds beside tensors was not loaded");
    if (!c->to)
        return SHERD_OK;
    uint64_t want = 0;
    SHERD_TRY(bytes_to_read(f, c->path, &want));
    if (f->job.bytes_read != want)
        return SHERD_BUG("%llu bytes were read, %llu hold the views and what it takes to find them",
            (unsigned long long)f->job.bytes_read, (unsigned long long)want);
    f->job.meta = before;
    return ckpt_save(&f->job, c->to);
}

/* Failures are results here, not failures of the test. */
static void run(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct call *c = ctx;
    struct fake f;
    int st = fake_init(&f, c->options, comm, dev, c->rubbish);
    if (st == SHERD_OK && c->options->fail_at) {
        uint64_t before = mem_count();
        mem_fail_at(c->options->fail_at);
        st = c->fn(&f, c);
        mem_fail_at(0);
        c->results->allocations = mem_count() - before;
    } else if (st == SHERD_OK) {
        st = c->fn(&f, c);
    }
    c->results->status[rank] = st;
    snprintf(
        c->results->text[rank], sizeof(c->results->text[rank]), "%s", st == SHERD_OK ? "" : sherd_error());
    fake_finish(&f);
}

static int run_ranks(int world, struct call *call)
{
    int first = -1;
    memset(call->results, 0, sizeof(*call->results));
    t_ranks(world, T_THREADS, run, call);
    for (int r = world - 1; r >= 0; r--) {
        int st = call->results->status[r];
        if (st != SHERD_OK && (first < 0 || st != SHERD_EPEER || call->results->status[first] == SHERD_EPEER))
            first = r;
    }
    return first < 0 ? SHERD_OK : status_adopt(call->results->status[first], call->results->text[first]);
}

int fake_save(struct fake_results *out, int world, const struct fake_options *options, const char *dir)
{
    struct call c = { .results = out, .options = options, .path = dir, .fn = save };
    return run_ranks(world, &c);
}

int fake_load(struct fake_results *out, int world, const struct fake_options *options, const char *path,
    const char *zero_states)
{
    struct call c = {
        .results = out, .options = options, .path = path, .zero_states = zero_states, .fn = load, .rubbish = 1
    };
    return run_ranks(world, &c);
}

int fake_reload(
    struct fake_results *out, int world, const struct fake_options *options, const char *path, const char *to)
{
    struct call c = { .results = out, .options = options, .path = path, .to = to, .fn = load, .rubbish = 1 };
    return run_ranks(world, &c);
}

char fake_root[FOLDER_BYTES];

int fake_enter(void **state)
{
    (void)state;
    return folder_make(fake_root, "ckpt");
}

int fake_leave(void **state)
{
    (void)state;
    return file_remove_tree(fake_root);
}

int fake_fresh(void **state)
{
    (void)state;
    char **names;
    int n;
    if (file_list(&names, &n, fake_root) != SHERD_OK)
        return -1;
    for (int i = 0; i < n; i++)
        (void)file_remove_tree(fake_at("%s", names[i]));
    file_list_free(names, n);
    return 0;
}
