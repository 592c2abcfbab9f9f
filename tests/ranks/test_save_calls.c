/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saving as a program of one's own does it, by the calls of the library: standing still, then beside steps,
 * and what was saved is what was in memory when the call began.
 */
#include "tests/t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/sherd.h>

#include "base/file.h"
#include "runtime/engine.h"
#include "tests/folder.h"

#define WORLD 2
#define SEQ 8
#define POLLS 100000

static char root[FOLDER_BYTES];

/* Wide enough that its state is more than a save makes do with. */
static const char config_text[] =
    "model: {family: gpt2, vocab: 256, width: 192, layers: 4, heads: 3, context: 8}\n"
    "shard: {stage: 2}\n"
    "batch: {global: 2, seq: 8}\n"
    "schedule: {kind: constant}\n"
    "train: {steps: 9}\n";

static const char tensor[] = "transformer.h.3.mlp.c_fc.weight";
#define TENSOR_ELEMS (192 * 768)

static void step(struct sherd_engine *e)
{
    int32_t rows[2 * SEQ];
    struct sherd_batch batch = { rows, rows + SEQ, 1 };
    for (int i = 0; i < 2 * SEQ; i++)
        rows[i] = (int32_t)(t_bits((uint64_t)sherd_engine_steps(e), (uint64_t)i) % 256);
    T_OK(sherd_engine_step(e, &batch, 1, NULL));
}

static void read_all(struct sherd_engine *e, float *weight, float *moment)
{
    T_OK(sherd_engine_tensor(e, "weight", tensor, weight, TENSOR_ELEMS));
    T_OK(sherd_engine_tensor(e, "adam.m", tensor, moment, TENSOR_ELEMS));
}

/* Takes a step after each look; all ranks look as often. */
static void poll_to_the_end(struct sherd_engine *e)
{
    int busy = 1;
    for (int i = 0; busy && i < POLLS; i++) {
        step(e);
        T_OK(sherd_engine_save_poll(e, &busy));
    }
    T_EQ(busy, 0);
}

static void save_both_ways(struct sherd_engine *e, float *buf)
{
    float *weight = buf, *moment = buf + TENSOR_ELEMS, *now = buf + 2 * TENSOR_ELEMS,
          *then = buf + 3 * TENSOR_ELEMS;
    char path[FOLDER_BYTES + 32];
    int busy = 1;
    T_OK(sherd_engine_save_poll(e, &busy)); /* none was begun */
    T_EQ(busy, 0);
    T_OK(sherd_engine_save_wait(e));
    step(e);
    T_OK(sherd_engine_save(e, root, NULL));
    uint64_t little = ckpt_saver_memory(e->saver);
    step(e);
    read_all(e, weight, moment);
    T_OK(sherd_engine_save_start(e, root, "{\"by\": \"hand\"}"));
    T_TRUE(ckpt_saver_memory(e->saver) > little);
    poll_to_the_end(e);
    uint64_t room = ckpt_saver_memory(e->saver);
    T_OK(sherd_engine_save_start(e, root, NULL)); /* a second one has the same memory */
    T_EQ(ckpt_saver_memory(e->saver), room);
    T_OK(sherd_engine_save_wait(e));
    snprintf(path, sizeof(path), "%s/step-00000002", root);
    T_OK(sherd_engine_load(e, path));
    T_EQ(sherd_engine_steps(e), 2);
    read_all(e, now, then);
    T_BITS(now, weight, TENSOR_ELEMS * sizeof(float));
    T_BITS(then, moment, TENSOR_ELEMS * sizeof(float));
}

static void rank_saves(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *e;
    float *buf = malloc(4 * TENSOR_ELEMS * sizeof(*buf));
    (void)rank, (void)ctx;
    T_OK(sherd_config_parse(&config, config_text, strlen(config_text), "test", NULL, 0, WORLD));
    T_OK(sherd_config_model(&model, &config));
    T_OK(sherd_engine_create(
        &e, &(struct sherd_engine_desc){ .config = &config, .model = model, .device = dev, .comm = comm }));
    save_both_ways(e, buf);
    sherd_engine_destroy(e);
    sherd_model_destroy(model);
    sherd_config_free(&config);
    free(buf);
}

static void a_start_has_its_memory_after_a_save(void **state)
{
    (void)state;
    t_ranks(WORLD, T_THREADS | T_ASYNC, rank_saves, NULL);
    char *found = NULL;
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    char path[FOLDER_BYTES + 32];
    ASSERT_OK(sherd_ckpt_find(&found, root));
    free(found);
    snprintf(path, sizeof(path), "%s/step-00000002", root);
    ASSERT_OK(sherd_ckpt_open(&ckpt, path));
    sherd_ckpt_info_of(ckpt, &info);
    ASSERT_CONTAINS(info.extra, "hand");
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    sherd_ckpt_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_has_its_memory_after_a_save),
    };
    if (folder_make(root, "save-calls") != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (file_remove_tree(root) != SHERD_OK)
        return 1;
    return failed;
}
