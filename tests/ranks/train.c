/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See tests/ranks/train.h.
 */
#include "tests/ranks/train.h"

#include <stdatomic.h>
#include <stdio.h>

#include <sherd/sherd.h>

#include "base/file.h"

char root[FOLDER_BYTES];
struct text said;

const char train_config[] = "model: {family: gpt2, width: 24, layers: 2, heads: 3, context: 8}\n"
                            "shard: {stage: 1}\n"
                            "batch: {global: 4}\n"
                            "schedule: {kind: constant}\n"
                            "train: {steps: 9, eval_every: 3}\n"
                            "save: {every: 3, keep: 0}\n";

/* Asked before every step. */
static int stop_now(void *ctx)
{
    int *left = ctx;
    return *left > 0 && --*left == 0;
}

void train_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct train *t = ctx;
    struct sherd_config config;
    char dir[256], data[256], val[256];
    const char *set[SETTINGS + 3] = { dir, data, val };
    int n = 3, left = rank == WORLD - 1 ? t->stop_at : 0;
    snprintf(dir, sizeof(dir), "run.dir=%s/%s", root, t->dir);
    snprintf(data, sizeof(data), "data.train=%s/text%s", root, t->alone && rank == 1 ? "1" : "");
    snprintf(val, sizeof(val), "data.val=%s/text", root);
    for (int i = 0; i < SETTINGS && t->settings[i]; i++)
        set[n++] = t->settings[i];
    T_OK(sherd_config_parse(&config, train_config, strlen(train_config), "test", set, n, WORLD));
    t->status[rank] = sherd_train(&(struct sherd_train_desc){
        .config = &config, .device = dev, .comm = comm, .stop = stop_now, .ctx = &left });
    snprintf(t->error[rank], sizeof(t->error[rank]), "%s", t->status[rank] ? sherd_error() : "");
    if (t->status[rank] != SHERD_OK) /* as a program does, or the others wait for the timeout */
        sherd_comm_abort(comm, t->error[rank]);
    sherd_config_free(&config);
}

void train(struct train *t)
{
    text_finish(&said);
    said = (struct text){ 0 };
    t_ranks(WORLD, T_THREADS | T_ASYNC, train_rank, t);
}

int has_step(const char *dir, int step)
{
    return file_exists(at("%s/step-%08d/manifest.json", dir, step));
}

void same_step(const char *a, const char *b, int step)
{
    char **names;
    int n;
    ASSERT_OK(file_list(&names, &n, at("%s/step-%08d", a, step)));
    assert_int_equal(n, 2 * WORLD + 1);
    for (int i = 0; i < n; i++) {
        struct file_map x, y;
        ASSERT_OK(file_map(&x, at("%s/step-%08d/%s", a, step, names[i])));
        ASSERT_OK(file_map(&y, at("%s/step-%08d/%s", b, step, names[i])));
        int is_manifest = !strcmp(names[i], "manifest.json"); /* names the folder among the settings */
        if (!is_manifest && (x.bytes != y.bytes || memcmp(x.data, y.data, x.bytes)))
            fail_msg("step %d: %s of %s and %s differ", step, names[i], a, b);
        file_unmap(&x);
        file_unmap(&y);
    }
    file_list_free(names, n);
}

static void listen(void *ctx, enum sherd_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&busy))
        continue;
    text_add(&said, "%s\n", line);
    atomic_flag_clear(&busy);
}

int train_enter(void **state)
{
    char text[2000];
    (void)state;
    if (folder_make(root, "train"))
        return -1;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + t_bits(1, i) % 26);
    sherd_log_set(listen, NULL, SHERD_LOG_INFO);
    return file_write_atomic(at("text"), text, sizeof(text));
}

int train_leave(void **state)
{
    (void)state;
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    text_finish(&said);
    return file_remove_tree(root);
}
