/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See runtime/evaluation.h.
 */
#include "runtime/evaluation.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/status.h"

int evaluation_init(struct evaluation *v, const struct sherd_config *c, const struct feed *feed)
{
    *v = (struct evaluation){ .feed = feed, .limit = c->train.eval_batches * feed->micro * feed->world };
    int64_t n = MAX(1, MIN(EVALUATION_PIECE, eval_count(feed, v->limit)));
    v->batches = mem_zalloc((size_t)n, sizeof(*v->batches));
    v->rows = mem_zalloc((size_t)(2 * n), (size_t)(feed->micro * feed->seq) * sizeof(*v->rows));
    if (v->batches && v->rows)
        return SHERD_OK;
    evaluation_finish(v);
    return status_context(SHERD_ENOMEM,
        "batch.micro: a rank keeps %lld micro-batches of an evaluation, of %lld sequences; make them smaller",
        (long long)n, (long long)feed->micro);
}

void evaluation_finish(struct evaluation *v)
{
    mem_free(v->batches);
    mem_free(v->rows);
    v->batches = NULL;
    v->rows = NULL;
}

/* n micro-batches of this rank from its k-th on. */
static int fill(struct evaluation *v, int64_t k, int64_t n)
{
    int64_t row = v->feed->micro * v->feed->seq;
    for (int64_t i = 0; i < n; i++) {
        int32_t *tokens = v->rows + 2 * i * row, *targets = tokens + row;
        v->batches[i] = (struct sherd_batch){ .tokens = tokens, .targets = targets };
        SHERD_TRY(eval_fill(v->feed, v->limit, k + i, tokens, targets, &v->batches[i].batch));
    }
    return SHERD_OK;
}

/* Whether any rank was asked to. Collective. */
static int asked_to_stop(const struct evaluation *v, struct sherd_engine *e, int *stop)
{
    int mine = v->stop && v->stop(v->ctx), world = sherd_comm_size(e->comm);
    int *all = mem_zalloc((size_t)world, sizeof(*all));
    if (!all)
        return step_give_up(e, SHERD_ENOMEM);
    int st = comm_host_gather(e->comm, all, &mine, sizeof(mine));
    for (int r = 0; r < world; r++)
        *stop |= all[r];
    mem_free(all);
    return st;
}

static void tell(const struct evaluation *v, int64_t done, int64_t most)
{
    char line[80];
    if (!v->progress || v->feed->rank != 0)
        return;
    snprintf(line, sizeof(line), "evaluation: %lld of %lld micro-batches of a rank", (long long)done,
        (long long)most);
    v->progress(v->ctx, line);
}

int evaluation_run(struct evaluation *v, struct sherd_engine *e, struct evaluation_result *out)
{
    double sum = 0, count = 0;
    struct feed first = *v->feed;
    first.rank = 0; /* which no other has more batches than */
    int64_t most = eval_count(&first, v->limit), mine = eval_count(v->feed, v->limit);
    *out = (struct evaluation_result){ .loss = (double)NAN };
    for (int64_t k = 0; k < most; k += EVALUATION_PIECE) {
        int n = (int)MAX(0, MIN(EVALUATION_PIECE, mine - k));
        if (k > 0)
            SHERD_TRY(asked_to_stop(v, e, &out->stopped));
        if (out->stopped)
            return SHERD_OK;
        SHERD_TRY(comm_agree(e->comm, fill(v, k, n)));
        SHERD_TRY(sherd_engine_eval(e, v->batches, n, NULL, NULL));
        sum += e->host_scalars[SCALAR_LOSS];
        count += e->host_scalars[SCALAR_COUNT];
        tell(v, MIN(k + EVALUATION_PIECE, most), most);
    }
    out->tokens = (int64_t)count;
    if (count > 0)
        out->loss = sum / count;
    return SHERD_OK;
}
