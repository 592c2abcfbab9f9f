/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The first and the last layer of a transformer. The last one never holds the logits of a whole micro-batch:
 * it takes the rows in pieces, in order, and in TRAIN mode does everything in backward, so that the logits
 * are computed once and turned into their own gradient in place.
 */
#include "model/layers.h"

/* ---- embedding ---- */

static struct sherd_embed_backward embed_gradient(
    const struct transformer *t, const struct sherd_shape *in, enum sherd_dtype type)
{
    return (struct sherd_embed_backward){ .batch = in->batch,
        .seq = in->seq,
        .width = t->width,
        .vocab = t->vocab,
        .type = type,
        .grad_type = SHERD_F32 };
}

static int embed_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    const struct transformer *t = arg;
    const struct sherd_shape *in = &plan->in;
    if (in->seq > t->context)
        return SHERD_FAIL(SHERD_ECONFIG,
            "sequences of %lld tokens are longer than the model's context of %lld: lower batch.seq or raise "
            "model.context",
            (long long)in->seq, (long long)t->context);
    struct sherd_embed_backward gradient = embed_gradient(t, in, plan->type);
    *out = (struct sherd_layer_sizes){ .out_width = t->width,
        .scratch_bytes = sherd_embed_backward_scratch(&gradient) };
    return SHERD_OK;
}

static int embed_forward(struct sherd_run *run)
{
    const struct transformer *t = run->arg;
    if (run_is_empty(run))
        return SHERD_OK;
    return sherd_embed_forward(run->queue, &(struct sherd_embed_forward){
                                               .y = run->y,
                                               .tokens = run->tokens,
                                               .wte = run->w[t->wte],
                                               .wpe = t->wpe < 0 ? NULL : run->w[t->wpe],
                                               .batch = run->in.batch,
                                               .seq = run->in.seq,
                                               .width = t->width,
                                               .vocab = t->vocab,
                                               .type = run->type,
                                           });
}

static int embed_backward(struct sherd_run *run)
{
    const struct transformer *t = run->arg;
    struct sherd_embed_backward gradient = embed_gradient(t, &run->in, run->type);
    gradient.dwte = run->dw[t->wte];
    gradient.dwpe = t->wpe < 0 ? NULL : run->dw[t->wpe];
    gradient.dy = run->dy;
    gradient.tokens = run->tokens;
    gradient.grad_type = run->grad_type;
    gradient.scratch = run->scratch;
    if (run_is_empty(run) || (!gradient.dwte && !gradient.dwpe))
        return SHERD_OK;
    SHERD_TRY(settle_fresh(run, t->wte, t->vocab * t->width));
    SHERD_TRY(settle_fresh(run, t->wpe, t->context * t->width));
    return sherd_embed_backward(run->queue, &gradient);
}

const struct sherd_layer_ops model_embed = {
    .kind = "embed",
    .sizes = embed_sizes,
    .forward = embed_forward,
    .backward = embed_backward,
    .overwrites = 1,
    .weightless_backward = 1,
};

/* ---- head ---- */

/* Of the logits of one piece. Each piece reads and writes the whole gradient of the head's weight, so they
 * are as large as the work space of a block leaves room for, which is there anyhow; and never smaller or
 * larger than this, unless MIN_ROWS rows need more. */
#define LEAST_BYTES (INT64_C(64) << 20)
#define MOST_BYTES (INT64_C(512) << 20)
#define MIN_ROWS 16
#define ROW_ELEMS 64 /* rows of logits begin at multiples of it: matrix products want their rows aligned */

struct head_work {
    void *normed, *dnormed; /* [N,C] */
    float *mean, *rstd;     /* [N] */
    void *op;               /* of one operation at a time */
    void *logits;           /* [piece,V], rows head_pitch() apart */
    int64_t piece;          /* rows of a piece; the last may have fewer */
};

static struct norm final_norm(const struct transformer *t)
{
    return (struct norm){ t->final_w, t->final_b, t->width, t->norm_eps, t->norm };
}

static int64_t head_pitch(const struct transformer *t)
{
    return round_up(t->vocab, ROW_ELEMS);
}

/* Rows of a piece, nearly equal pieces, with `room` bytes for logits. Where the batch, the model and the
 * device are the same so is this, and with it the order of sums: it heeds neither the stage nor what is
 * recomputed. */
static int64_t piece_rows(int64_t rows, int64_t row_bytes, int64_t room)
{
    int64_t bytes = MIN(MAX(room, LEAST_BYTES), MOST_BYTES);
    int64_t fit = MAX(bytes / row_bytes / MIN_ROWS, 1) * MIN_ROWS;
    int64_t pieces = MAX((rows + fit - 1) / fit, 1);
    return MIN(round_up((rows + pieces - 1) / pieces, MIN_ROWS), rows);
}

static size_t place_work(
    struct head_work *work, const struct transformer *t, const struct sherd_layer_plan *plan, void *base)
{
    struct cutter c = { base, 0 };
    struct norm norm = final_norm(t);
    int64_t rows = plan->in.batch * plan->in.seq;
    size_t loss =
        sherd_loss_scratch(&(struct sherd_loss){ .rows = rows, .vocab = t->vocab, .type = plan->type });
    work->normed = cut_elems(&c, rows * t->width, plan->type);
    work->dnormed = cut_elems(&c, rows * t->width, plan->type);
    work->mean = cut_elems(&c, rows, SHERD_F32);
    work->rstd = cut_elems(&c, rows, SHERD_F32);
    work->op = cut(&c, MAX(loss, norm_scratch(&norm, rows, plan->type)));
    work->piece = piece_rows(rows, head_pitch(t) * (int64_t)sherd_dtype_bytes(plan->type),
        (int64_t)block_scratch(t, plan) - (int64_t)c.used);
    work->logits = cut_elems(&c, work->piece * head_pitch(t), plan->type);
    return c.used;
}

static struct head_work work_of(const struct sherd_run *run)
{
    struct head_work work;
    struct sherd_layer_plan plan = run_plan(run);
    place_work(&work, run->arg, &plan, run->scratch);
    return work;
}

static int head_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    struct head_work work;
    *out = (struct sherd_layer_sizes){ .scratch_bytes = place_work(&work, arg, plan, NULL) };
    return SHERD_OK;
}

/* Logits and loss of the rows of `piece`, which start at row `first`; normed and dnormed are their rows. In
 * TRAIN mode also the gradients of the head's weight and of normed. */
static int head_piece(
    const struct sherd_run *piece, const struct head_work *work, int64_t first, char *normed, char *dnormed)
{
    const struct transformer *t = piece->arg;
    int64_t rows = run_rows(piece);
    int train = piece->mode == SHERD_TRAIN, wanted = !train && piece->logits; /* which are handed out close */
    int64_t pitch = wanted ? t->vocab : head_pitch(t);
    struct linear linear = { t->head_w, -1, t->width, t->vocab, 1, pitch };
    SHERD_TRY(linear_forward(piece, &linear, work->logits, normed, NULL));
    if (wanted)
        SHERD_TRY(sherd_cast(piece->queue, &(struct sherd_cast){ .y = piece->logits + first * t->vocab,
                                               .x = work->logits,
                                               .n = rows * t->vocab,
                                               .y_type = SHERD_F32,
                                               .x_type = piece->type }));
    if (piece->targets && piece->loss_sum)
        SHERD_TRY(sherd_loss(piece->queue, &(struct sherd_loss){ .logits = work->logits,
                                               .sum = piece->loss_sum,
                                               .count = piece->count,
                                               .targets = piece->targets + first,
                                               .rows = rows,
                                               .vocab = t->vocab,
                                               .pitch = pitch,
                                               .backward = train,
                                               .type = piece->type,
                                               .scratch = work->op }));
    if (!train)
        return SHERD_OK;
    SHERD_TRY(linear_backward_weight(piece, &linear, work->logits, normed, NULL));
    return linear_backward_input(piece, &linear, dnormed, work->logits);
}

/* Final norm over all rows, then the pieces. */
static int head_pass(const struct sherd_run *run, const struct head_work *work)
{
    const struct transformer *t = run->arg;
    struct norm norm = final_norm(t);
    SHERD_TRY(norm_forward(run, &norm, work->normed, work->mean, work->rstd, run->x));
    int64_t rows = run_rows(run), step = work->piece;
    int64_t row_bytes = t->width * (int64_t)sherd_dtype_bytes(run->type);
    struct sherd_run piece = *run;
    for (int64_t first = 0; first < rows; first += step) {
        piece.in = (struct sherd_shape){ 1, MIN(step, rows - first), t->width };
        int64_t at = first * row_bytes;
        SHERD_TRY(head_piece(&piece, work, first, (char *)work->normed + at, (char *)work->dnormed + at));
    }
    return SHERD_OK;
}

static int head_forward(struct sherd_run *run)
{
    if (run_is_empty(run) || run->mode == SHERD_TRAIN)
        return SHERD_OK;
    struct head_work work = work_of(run);
    return head_pass(run, &work);
}

static int head_backward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    struct norm norm = final_norm(run->arg);
    struct head_work work = work_of(run);
    SHERD_TRY(head_pass(run, &work));
    /* Where nothing before needs dx it still has to be written somewhere; normed is free by now. */
    return norm_backward(run, &norm, run->dx ? run->dx : work.normed, NULL, work.dnormed, run->x, work.mean,
        work.rstd, NULL, work.op);
}

const struct sherd_layer_ops model_head = {
    .kind = "head",
    .sizes = head_sizes,
    .forward = head_forward,
    .backward = head_backward,
    .overwrites = 1,
};
