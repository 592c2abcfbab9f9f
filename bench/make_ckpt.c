/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * make_ckpt DIR GIGABYTES RANKS: writes the weights of a Llama of about that size in f32 as a checkpoint,
 * with little memory: all slices of a rank are one buffer of random numbers. For measuring what reads
 * checkpoints.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "ckpt/ckpt.h"

#define MAX_RANKS 16

struct rank {
    struct sherd_comm *comm;
    struct sherd_device *dev;
    const struct sherd_model_spec *spec;
    const char *dir;
    pthread_t thread;
    int status;
    char text[512];
};

/* Views of every slice, all of the same memory. */
static int make_views(
    const struct shard_layout *layout, int rank, struct shard_view *views, int *n, float **data)
{
    int64_t most = 0;
    for (int u = 0; u < layout->n_units; u++)
        most = MAX(most, layout_slice(layout, u, SHARD_TRAINED));
    *data = mem_aligned(4096, (size_t)most * sizeof(float));
    if (!*data)
        return SHERD_ENOMEM;
    rng_normal(*data, most, 1, 7, (uint64_t)rank << 40, 0.02f);
    *n = 0;
    for (int u = 0; u < layout->n_units; u++) {
        int64_t slice = layout_slice(layout, u, SHARD_TRAINED);
        views[(*n)++] =
            (struct shard_view){ "weight", u, SHARD_TRAINED, SHERD_F32, *data, slice * rank, slice };
    }
    return SHERD_OK;
}

static int save(struct rank *r)
{
    struct shard_layout layout;
    struct shard_view *views = NULL;
    float *data = NULL;
    int n = 0, rank = sherd_comm_rank(r->comm);
    SHERD_TRY(layout_init(&layout, r->spec, sherd_comm_size(r->comm)));
    int st = SHERD_OK;
    views = mem_zalloc((size_t)layout.n_units, sizeof(*views));
    SHERD_TRY_OUT(views ? make_views(&layout, rank, views, &n, &data) : SHERD_ENOMEM);
    st = ckpt_save(&(struct ckpt_job){ .layout = &layout,
                       .views = views,
                       .n_views = n,
                       .comm = r->comm,
                       .dev = r->dev,
                       .meta = { .stage = 3,
                           .step = 1,
                           .param_type = SHERD_BF16,
                           .optimizer = "sgd",
                           .export_json = r->spec->export_json } },
        r->dir);
out:
    layout_finish(&layout);
    mem_free(views);
    mem_free(data);
    return st;
}

static void *thread_main(void *ctx)
{
    struct rank *r = ctx;
    r->status = save(r);
    if (r->status != SHERD_OK)
        snprintf(r->text, sizeof(r->text), "%s", sherd_error());
    return NULL;
}

static int run(const char *dir, double gigabytes, int n)
{
    struct rank ranks[MAX_RANKS] = { { 0 } };
    struct sherd_comm *comms[MAX_RANKS] = { 0 };
    struct sherd_device *devs[MAX_RANKS] = { 0 };
    struct sherd_model *model = NULL;
    int64_t layers = (int64_t)((gigabytes * 1e9 / 4 - 2 * 32000.0 * 4096) / 218112000.0 + 1);
    struct sherd_model_config config = { .family = "llama",
        .vocab = 32000,
        .width = 4096,
        .layers = MAX(layers, 1),
        .heads = 32,
        .kv_heads = 8,
        .mlp_width = 14336 };
    int st = SHERD_OK;
    SHERD_TRY_OUT(sherd_model_build(&model, &config));
    for (int i = 0; i < n; i++)
        SHERD_TRY_OUT(
            sherd_device_open(&devs[i], &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
    SHERD_TRY_OUT(sherd_comm_open_threads(comms, devs, n, 600));
    for (int i = 0; i < n; i++) {
        ranks[i] =
            (struct rank){ comms[i], devs[i], sherd_model_spec_of(model), dir, 0, SHERD_EINTERNAL, "" };
        if (pthread_create(&ranks[i].thread, NULL, thread_main, &ranks[i]) != 0)
            return SHERD_FAIL(SHERD_ENOMEM, "no thread for rank %d", i);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].status != SHERD_OK)
            st = status_adopt(ranks[i].status, ranks[i].text);
    }
out:
    for (int i = 0; i < n; i++)
        sherd_comm_close(comms[i]);
    for (int i = 0; i < n; i++)
        sherd_device_close(devs[i]);
    sherd_model_destroy(model);
    return st;
}

int main(int argc, char **argv)
{
    int n = argc == 4 ? atoi(argv[3]) : 0;
    if (n < 1 || n > MAX_RANKS || atof(argv[2]) <= 0) {
        fprintf(stderr, "usage: make_ckpt DIR GIGABYTES RANKS (1 to %d)\n", MAX_RANKS);
        return 2;
    }
    if (run(argv[1], atof(argv[2]), n) == SHERD_OK)
        return 0;
    fprintf(stderr, "make_ckpt: %s\n", sherd_error());
    return 1;
}
