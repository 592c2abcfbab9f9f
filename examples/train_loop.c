/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A training loop of one's own around a built-in model: settings from a YAML file, data from this program.
 *   train_loop CONFIG [key=value ...]
 * Runs as one rank of whatever started it (torchrun, mpirun, Slurm), or alone. Saves at the
 * end.
 */
#include <stdio.h>
#include <stdlib.h>

#include <sherd/sherd.h>

/* The next tokens of this rank: here, counting up from a place of its own. */
static void next_batch(
    const struct sherd_config *c, int rank, int64_t step, int32_t *tokens, int32_t *targets)
{
    for (int64_t i = 0; i < c->batch.micro * c->batch.seq; i++) {
        int64_t at = step * 31 + rank * 17 + i;
        tokens[i] = (int32_t)(at % c->model.vocab);
        targets[i] = (int32_t)((at + 1) % c->model.vocab);
    }
}

static int loop(const struct sherd_config *c, struct sherd_engine *engine, int rank)
{
    size_t n = (size_t)(c->batch.micro * c->batch.seq);
    int32_t *tokens = malloc(n * sizeof(*tokens)), *targets = malloc(n * sizeof(*targets));
    struct sherd_batch batch = { tokens, targets, c->batch.micro };
    int st = tokens && targets ? SHERD_OK : sherd_fail(SHERD_ENOMEM, "no memory for a batch");
    while (st == SHERD_OK && sherd_engine_steps(engine) < c->train.steps) {
        struct sherd_step_stats stats;
        next_batch(c, rank, sherd_engine_steps(engine), tokens, targets);
        st = sherd_engine_step(engine, &batch, 1, &stats);
        if (st == SHERD_OK && rank == 0)
            printf("step %lld  loss %.4f  lr %.2e\n", (long long)stats.step, stats.loss, stats.lr);
    }
    if (st == SHERD_OK)
        st = sherd_engine_save(engine, c->run.dir, NULL);
    free(tokens);
    free(targets);
    return st;
}

int main(int argc, char **argv)
{
    struct sherd_config config;
    struct sherd_comm_desc desc = { 0 };
    struct sherd_device *dev = NULL;
    struct sherd_comm *comm = NULL;
    struct sherd_model *model = NULL;
    struct sherd_engine *engine = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: train_loop CONFIG [key=value ...]\n");
        return 2;
    }
    int st = sherd_world_from_env(&desc.world);
    if (st == SHERD_OK)
        st = sherd_config_load(&config, argv[1], (const char *const *)argv + 2, argc - 2, desc.world.size);
    if (st != SHERD_OK) {
        fprintf(stderr, "%s\n", sherd_error());
        return 2;
    }
    st = sherd_device_open(&dev, &(struct sherd_device_desc){ .name = config.run.device, .async = 1 });
    if (st == SHERD_OK)
        st = sherd_comm_open(&comm, dev, &desc);
    if (st == SHERD_OK)
        st = sherd_config_model(&model, &config);
    if (st == SHERD_OK)
        st = sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm });
    if (st == SHERD_OK)
        st = loop(&config, engine, desc.world.rank);
    if (st != SHERD_OK)
        fprintf(stderr, "rank %d: %s\n", desc.world.rank, sherd_error());
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_comm_close(comm);
    sherd_device_close(dev);
    sherd_config_free(&config);
    return st == SHERD_OK ? 0 : 1;
}
