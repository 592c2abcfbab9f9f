/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The state of an engine as a whole: drawing initial weights, spreading slices to what the stage holds,
 * reading one tensor, saving and loading. None of this happens inside a step.
 */
#include <string.h>

#include "base/half.h"
#include "base/lanes.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/ckpt.h"
#include "ckpt/format.h"
#include "device/ops.h"
#include "model/init.h"
#include "model/model.h"
#include "runtime/engine.h"
#include "runtime/replica.h"

#define STAGING_ELEMS (1 << 22)
#define DRAW_ELEMS (1 << 16) /* of one thread at a time */

/* Every rank's slice of a whole buffer to all. */
static int gather_own(struct sherd_engine *e, void *whole, int64_t own, int64_t slice, enum sherd_dtype type)
{
    char *from = (char *)whole + sherd_dtype_bytes(type) * (size_t)own;
    return sherd_all_gather(e->comm, e->compute, whole, from, slice, type);
}

/* The rank's own slice of masters to parameters, as an update rounds them. */
static int round_unit(struct sherd_engine *e, int u, int64_t own, int64_t n)
{
    const struct shard_store *s = &e->store;
    const struct shard_unit *unit = &s->units[u];
    enum sherd_dtype type = e->plan.type;
    char *param = (char *)unit->param[SHARD_TRAINED] +
                  sherd_dtype_bytes(type) * (size_t)(own - store_param_first(s, u, SHARD_TRAINED));
    const float *master = unit->master + (own - store_state_first(s, u));
    if (type == SHERD_BF16)
        return sherd_split(e->compute, &(struct sherd_split){ .param = param, .master = master, .n = n });
    if (type == SHERD_F16)
        return sherd_cast(e->compute,
            &(struct sherd_cast){ .y = param, .x = master, .n = n, .y_type = type, .x_type = SHERD_F32 });
    return SHERD_OK; /* parameters are their own masters */
}

/* Masters to rounded parameters, then every rank's slice to whoever holds the whole. */
static int spread_unit(struct sherd_engine *e, int u)
{
    const struct shard_store *s = &e->store;
    const struct shard_unit *unit = &s->units[u];
    const struct shard_stage *stage = e->plan.stage;
    enum sherd_dtype type = e->plan.type;
    size_t size = sherd_dtype_bytes(type);
    int64_t slice = layout_slice(&e->plan.layout, u, SHARD_TRAINED), own = slice * s->rank;
    if (slice && unit->master)
        SHERD_TRY(round_unit(e, u, own, slice));
    for (int seg = 0; seg < SHARD_SEGMENTS && stage->param == SHARD_WHOLE; seg++) {
        int64_t n = layout_slice(&e->plan.layout, u, (enum shard_segment)seg);
        if (n)
            SHERD_TRY(sherd_all_gather(e->comm, e->compute, unit->param[seg],
                (char *)unit->param[seg] + size * (size_t)(n * s->rank), n, type));
    }
    if (slice == 0 || stage->state != SHARD_WHOLE)
        return SHERD_OK;
    if (type != SHERD_F32)
        SHERD_TRY(gather_own(e, unit->low ? (void *)unit->low : unit->master, own, slice,
            unit->low ? SHERD_BF16 : SHERD_F32)); /* any type of 16 bits */
    for (int i = 0; i < e->plan.optim->n_states; i++)
        SHERD_TRY(gather_own(e, unit->state[i], own, slice, s->desc.state));
    return SHERD_OK;
}

static int spread_units(struct sherd_engine *e)
{
    for (int u = 0; u < e->plan.layout.n_units; u++)
        SHERD_TRY(spread_unit(e, u));
    return sherd_queue_sync(e->compute);
}

int engine_spread(struct sherd_engine *e)
{
    int st = spread_units(e);
    return st == SHERD_OK ? st : step_give_up(e, st);
}

/* All views of the rank's own slices; mem_free(*out). */
static int make_views(struct sherd_engine *e, struct shard_view **out, int *n)
{
    const char *const *names = e->plan.optim->state_name;
    *n = store_views(&e->store, names, NULL, 0);
    *out = mem_zalloc((size_t)*n, sizeof(**out));
    if (!*out)
        return SHERD_ENOMEM;
    store_views(&e->store, names, *out, *n);
    return SHERD_OK;
}

/* Writes n floats to a view at element `at`, converting to the view's type. `host` is of sherd_host_alloc. */
static int put_floats(
    struct sherd_engine *e, const struct shard_view *view, int64_t at, float *host, int64_t n)
{
    if (view->halves) {
        SHERD_TRY(sherd_split(e->compute, &(struct sherd_split){ .param = (bf16 *)view->data + at,
                                              .low = view->low ? view->low + at : NULL,
                                              .master = host,
                                              .n = n }));
        return sherd_queue_sync(e->compute);
    }
    size_t size = sherd_dtype_bytes(view->type);
    if (view->type != SHERD_F32)
        for (int64_t i = 0; i < n; i++) {
            uint16_t h = view->type == SHERD_BF16 ? bf16_from_float(host[i]) : f16_from_float(host[i]);
            memcpy(
                (char *)host + i * (int64_t)sizeof(h), &h, sizeof(h)); /* behind what is still to be read */
        }
    SHERD_TRY(sherd_copy(e->compute,
        &(struct sherd_copy){
            .dst = (char *)view->data + size * (size_t)at, .src = host, .bytes = size * (size_t)n }));
    return sherd_queue_sync(e->compute);
}

/* n elements of a parameter from `first` on, being drawn into host. */
struct draw {
    const struct sherd_param *param;
    int64_t first, n;
    uint64_t seed;
    float *host;
};

static void draw_piece(void *ctx, int64_t task, int lane)
{
    const struct draw *d = ctx;
    int64_t at = task * DRAW_ELEMS;
    (void)lane;
    model_init_slice(d->host + at, d->param, d->first + at, MIN(DRAW_ELEMS, d->n - at), d->seed);
}

/* Draws the part of one parameter that lies in a view. */
static int draw_param(struct sherd_engine *e, const struct shard_view *view, int param, float *host)
{
    const struct sherd_param *p = &e->plan.spec->units[view->unit].params[param];
    const struct shard_unit_layout *ul = &e->plan.layout.units[view->unit];
    int64_t elems = model_param_elems(p), offset = ul->param_offset[param];
    int64_t from = MAX(view->first, offset), to = MIN(view->first + view->elems, offset + elems);
    for (; from < to; from += STAGING_ELEMS) {
        int64_t n = MIN(STAGING_ELEMS, to - from);
        struct draw d = { p, from - offset, n, (uint64_t)e->config.run.seed, host };
        lanes_run(e->dev->threads, (n + DRAW_ELEMS - 1) / DRAW_ELEMS, draw_piece, &d);
        SHERD_TRY(put_floats(e, view, from - view->first, host, n));
    }
    return SHERD_OK;
}

int engine_init_weights(struct sherd_engine *e)
{
    struct shard_view *views = NULL;
    float *host = NULL;
    int n = 0, st = make_views(e, &views, &n);
    if (st == SHERD_OK)
        st = status_context(sherd_host_alloc(e->dev, (void **)&host, STAGING_ELEMS * sizeof(float)),
            "host memory to draw weights in");
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        const struct shard_unit_layout *ul = &e->plan.layout.units[views[i].unit];
        if (strcmp(views[i].what, "weight"))
            continue;
        for (int p = 0; p < ul->n_params && st == SHERD_OK; p++)
            if (ul->param_segment[p] == views[i].segment)
                st = draw_param(e, &views[i], p, host);
    }
    st = comm_agree(e->comm, st);
    if (st == SHERD_OK)
        st = engine_spread(e);
    e->blank &= st != SHERD_OK;
    sherd_host_free(e->dev, host);
    mem_free(views);
    return st;
}

/* The rank's own slice of what a caller may ask for by name. */
static int find_view(
    struct sherd_engine *e, const char *what, const struct shard_tensor *t, struct shard_view *out)
{
    const struct shard_store *s = &e->store;
    struct shard_view *views = NULL;
    int n = 0, st, found = 0;
    if (!strcmp(what, "grad") && t->segment == SHARD_TRAINED) {
        int64_t slice = layout_slice(&e->plan.layout, t->unit, SHARD_TRAINED), own = slice * s->rank;
        *out = (struct shard_view){ .what = what,
            .unit = t->unit,
            .segment = t->segment,
            .type = s->grad_type,
            .data = (char *)s->units[t->unit].grad +
                    sherd_dtype_bytes(s->grad_type) * (size_t)(own - store_state_first(s, t->unit)),
            .first = own,
            .elems = slice };
        return SHERD_OK;
    }
    SHERD_TRY(make_views(e, &views, &n));
    for (int i = 0; i < n && !found; i++)
        if (views[i].unit == t->unit && views[i].segment == t->segment && !strcmp(views[i].what, what)) {
            *out = views[i];
            found = 1;
        }
    mem_free(views);
    st = found ? SHERD_OK
               : SHERD_FAIL(SHERD_ENOTFOUND, "tensor %s has no '%s'%s", t->name, what,
                     t->segment == SHARD_FROZEN ? " (it is frozen)" : "");
    return st;
}

/* Adds what is left of n floats, elements from `at` of the view, to their rounded values. */
static int get_low(struct sherd_engine *e, const struct shard_view *view, int64_t at, float *out, int64_t n)
{
    int16_t *low = mem_zalloc((size_t)n, sizeof(*low));
    if (!low)
        return SHERD_ENOMEM;
    int st = sherd_copy(e->compute,
        &(struct sherd_copy){ .dst = low, .src = view->low + at, .bytes = (size_t)n * sizeof(*low) });
    SHERD_KEEP(st, sherd_queue_sync(e->compute));
    for (int64_t i = 0; i < n && st == SHERD_OK; i++)
        out[i] = bf16_join(bf16_from_float(out[i]), low[i]);
    mem_free(low);
    return st;
}

/* Elements [from, to) of a view as floats on the host. */
static int get_floats(
    struct sherd_engine *e, const struct shard_view *view, int64_t from, int64_t to, float *out)
{
    enum sherd_dtype type = view->halves ? SHERD_BF16 : view->type;
    size_t size = sherd_dtype_bytes(type);
    SHERD_TRY(sherd_copy(e->compute, &(struct sherd_copy){ .dst = out,
                                         .src = (char *)view->data + size * (size_t)(from - view->first),
                                         .bytes = size * (size_t)(to - from) }));
    SHERD_TRY(sherd_queue_sync(e->compute));
    if (type != SHERD_F32)
        for (int64_t i = to - from - 1; i >= 0; i--) {
            uint16_t h;
            memcpy(&h, (char *)out + i * (int64_t)sizeof(h), sizeof(h));
            out[i] = type == SHERD_BF16 ? bf16_to_float(h) : f16_to_float(h);
        }
    return view->low ? get_low(e, view, from - view->first, out, to - from) : SHERD_OK;
}

int sherd_engine_tensor(struct sherd_engine *e, const char *what, const char *name, float *out, int64_t n)
{
    SHERD_TRY(engine_check_weights(e));
    int index = layout_find(&e->plan.layout, name);
    if (index < 0)
        return SHERD_FAIL(SHERD_ENOTFOUND, "the model has no tensor '%s'", name);
    const struct shard_tensor *t = &e->plan.layout.tensors[index];
    if (n != t->elems)
        return SHERD_FAIL(SHERD_EINVAL, "tensor %s has %lld elements, asked for %lld", name,
            (long long)t->elems, (long long)n);
    struct shard_view view = { 0 };
    SHERD_TRY(engine_settle(e));
    SHERD_TRY(find_view(e, what, t, &view));
    int64_t slice = layout_slice(&e->plan.layout, t->unit, t->segment);
    for (int r = 0; r < sherd_comm_size(e->comm); r++) {
        int64_t from = MAX(slice * r, t->offset), to = MIN(slice * (r + 1), t->offset + t->elems);
        if (from >= to)
            continue;
        float *part = out + (from - t->offset);
        if (r == sherd_comm_rank(e->comm))
            SHERD_TRY(get_floats(e, &view, from, to, part));
        SHERD_TRY(comm_host_broadcast(e->comm, part, (size_t)(to - from) * sizeof(float), r));
    }
    double scale = e->host_scalars[SCALAR_SCALE];
    for (int64_t i = 0; !strcmp(what, "grad") && scale > 0 && i < n; i++)
        out[i] = (float)((double)out[i] / scale);
    return SHERD_OK;
}

static struct ckpt_job make_job(struct sherd_engine *e, struct shard_view *views, int n)
{
    return (struct ckpt_job){ .layout = &e->plan.layout,
        .views = views,
        .n_views = n,
        .comm = e->comm,
        .dev = e->dev,
        .meta = { .stage = e->plan.stage->number,
            .step = e->step,
            .tokens_seen = e->tokens_seen,
            .samples_seen = e->samples_seen,
            .skipped = e->skipped,
            .skipped_in_row = e->skipped_in_row,
            .scale = e->scale.dynamic ? e->scale.value : 0,
            .scale_hysteresis = e->scale.hysteresis,
            .scale_good = e->scale.good,
            .seed = (uint64_t)e->config.run.seed,
            .param_type = e->plan.type,
            .optimizer = e->plan.optim->name,
            .states = e->plan.optim->state_name,
            .n_states = e->plan.optim->n_states,
            .export_json = e->plan.spec->export_json } };
}

static int make_saver(struct sherd_engine *e, uint64_t buffer)
{
    if (e->saver)
        return SHERD_OK;
    return comm_agree(e->comm, ckpt_saver_create(&e->saver, e->comm, e->dev, buffer));
}

/* What a save leaves out: with save.what weights, the optimizer's states. */
static void leave_states(const struct sherd_engine *e, struct ckpt_job *job, struct shard_view *views)
{
    int n = 0;
    if (e->config.save.what != SHERD_SAVE_WEIGHTS)
        return;
    for (int i = 0; i < job->n_views; i++) {
        if (!strcmp(views[i].what, CKPT_WEIGHT))
            views[n++] = views[i];
    }
    job->n_views = n;
    job->meta.n_states = 0;
}

uint64_t engine_save_auto(uint64_t state, uint64_t available, int ranks)
{
    return MIN(state, available / 2 / (uint64_t)ranks);
}

/* A save that stood still may have made a saver with little memory. */
static int drop_saver(struct sherd_engine *e)
{
    SHERD_TRY(sherd_engine_save_wait(e)); /* then all is copied */
    e->copying = 0;
    ckpt_saver_destroy(e->saver);
    e->saver = NULL;
    return SHERD_OK;
}

int engine_save_prepare(struct sherd_engine *e, uint64_t buffer, struct engine_save_room *room)
{
    struct shard_view *views = NULL;
    SHERD_TRY(drop_saver(e));
    uint64_t available = mem_available(); /* all ranks look before any takes, which the next calls see to */
    int n = 0, st = comm_agree(e->comm, make_views(e, &views, &n));
    struct ckpt_job job = make_job(e, views, n);
    if (st == SHERD_OK)
        leave_states(e, &job, views);
    if (st == SHERD_OK)
        st = ckpt_job_bytes(&job, &room->state, &room->all);
    if (buffer == ENGINE_SAVE_AUTO)
        buffer = engine_save_auto(room->state, available, e->comm->world.local_size);
    if (st == SHERD_OK)
        st = make_saver(e, MIN(buffer, room->state));
    if (st == SHERD_OK)
        room->memory = ckpt_saver_memory(e->saver);
    e->save_room = st == SHERD_OK;
    mem_free(views);
    return st;
}

int engine_settle_saved(struct sherd_engine *e)
{
    int st = e->copying && e->update_queue != e->compute ? sherd_queue_sync(e->update_queue) : SHERD_OK;
    return st == SHERD_OK ? st : step_give_up(e, st);
}

/* The copies of a save come after the updates, which nobody waits for. */
static int begin_copies(struct sherd_engine *e)
{
    SHERD_TRY(sherd_event_record(e->ended, e->update_queue));
    return sherd_event_wait(ckpt_saver_queue(e->saver), e->ended);
}

static int check_folder(const char *dir)
{
    return dir && dir[0] ? SHERD_OK
                         : SHERD_FAIL(SHERD_EINVAL, "the folder to save in, or to read, has no name");
}

int engine_save_start(struct sherd_engine *e, const struct engine_save *save)
{
    struct shard_view *views = NULL;
    int n = 0;
    SHERD_TRY(engine_check_weights(e));
    SHERD_TRY(check_folder(save->dir));
    SHERD_TRY(sherd_engine_save_wait(e));
    int st = graph_flush(e);
    if (st == SHERD_OK)
        st = make_views(e, &views, &n);
    struct ckpt_job job = make_job(e, views, n);
    if (st == SHERD_OK)
        leave_states(e, &job, views);
    SHERD_KEEP(st, watch_part(e, WATCH_SAVE, "save"));
    st = comm_agree(e->comm, st);
    job.meta.extra = save->extra;
    job.meta.run = e->run;
    job.meta.has_loss = save->has_loss;
    job.meta.loss = save->loss;
    if (st == SHERD_OK)
        st = make_saver(e, 0);
    if (st == SHERD_OK)
        st = comm_agree(e->comm, begin_copies(e));
    if (st == SHERD_OK)
        st = ckpt_saver_start(e->saver, &job, save->dir, save->keep);
    e->copying |= st == SHERD_OK;
    mem_free(views);
    return st;
}

int sherd_engine_save_start(struct sherd_engine *e, const char *dir, const char *extra)
{
    struct engine_save_room room = { 0 };
    SHERD_TRY(engine_check(e));
    if (!e->save_room)
        SHERD_TRY(engine_save_prepare(e, ENGINE_SAVE_AUTO, &room));
    return engine_save_start(e, &(struct engine_save){ .dir = dir, .extra = extra });
}

int sherd_engine_save_poll(struct sherd_engine *e, int *busy)
{
    if (!e || !busy)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_engine_save_poll: engine or busy is NULL");
    *busy = 0;
    SHERD_TRY(engine_settle_saved(e));
    return e->saver ? ckpt_saver_poll(e->saver, busy) : SHERD_OK;
}

int sherd_engine_save_wait(struct sherd_engine *e)
{
    if (!e)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_engine_save_wait: engine is NULL");
    SHERD_TRY(engine_settle_saved(e));
    return e->saver ? ckpt_saver_wait(e->saver) : SHERD_OK;
}

int sherd_engine_save(struct sherd_engine *e, const char *dir, const char *extra)
{
    SHERD_TRY(engine_save_start(e, &(struct engine_save){ .dir = dir, .extra = extra }));
    return sherd_engine_save_wait(e);
}

/* Before all of the state is read anew: everything is at rest. mem_free(*views) in any case. */
static int begin_reading(
    struct sherd_engine *e, const char *what, struct shard_view **views, struct ckpt_job *job)
{
    int n = 0;
    *views = NULL;
    SHERD_TRY(sherd_engine_save_wait(e));
    int st = engine_settle(e);
    if (st == SHERD_OK)
        st = make_views(e, views, &n);
    *job = make_job(e, *views, n);
    SHERD_KEEP(st, watch_part(e, WATCH_OTHER, what));
    return comm_agree(e->comm, st);
}

static int load(struct sherd_engine *e, const char *path)
{
    struct shard_view *views;
    struct ckpt_job job;
    SHERD_TRY(engine_check(e));
    SHERD_TRY(check_folder(path));
    int st = begin_reading(e, "load", &views, &job);
    if (st == SHERD_OK)
        st = ckpt_load(&job, path);
    if (st == SHERD_OK)
        st = engine_spread(e);
    if (st == SHERD_OK) {
        e->step = job.meta.step;
        e->tokens_seen = job.meta.tokens_seen;
        e->samples_seen = job.meta.samples_seen;
        e->skipped = job.meta.skipped;
        e->skipped_in_row = job.meta.skipped_in_row;
        if (e->scale.dynamic && job.meta.scale > 0)
            e->scale = (struct scale){ job.meta.scale, 1,
                MIN(job.meta.scale_hysteresis, e->config.dtype.hysteresis), job.meta.scale_good };
        e->run = job.meta.run ? job.meta.run : e->run;
    }
    mem_free(views);
    return st;
}

int engine_load(struct sherd_engine *e, const char *path)
{
    int st = load(e, path);
    e->blank &= st != SHERD_OK;
    return st;
}

int sherd_engine_load(struct sherd_engine *e, const char *path)
{
    int st = load(e, path);
    if (st == SHERD_OK)
        st = replica_check(e);
    e->blank &= st != SHERD_OK;
    return st;
}

int sherd_engine_import(struct sherd_engine *e, const char *dir, uint64_t *bytes)
{
    struct shard_view *views;
    struct ckpt_job job;
    SHERD_TRY(engine_check(e));
    SHERD_TRY(check_folder(dir));
    int st = begin_reading(e, "import", &views, &job);
    if (st == SHERD_OK)
        st = ckpt_import(&job, dir);
    if (st == SHERD_OK)
        st = engine_spread(e);
    if (st == SHERD_OK)
        st = replica_check(e);
    e->blank &= st != SHERD_OK;
    if (st == SHERD_OK && bytes)
        *bytes = job.bytes_read;
    mem_free(views);
    return st;
}
