/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A rank that exits, is killed, stands still, runs out of memory or leaves an instruction out, at every part
 * of a run and on every rank: the others end in time, say which rank it was and where, and leave a record.
 */
#include "tests/t.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sherd/sherd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/ops.h"
#include "tests/folder.h"

#define WORLD 3
#define STOPPED_SECONDS 3.0 /* the timeout where a rank stands still, with many ranks beside it */

enum fault_kind { EXITS, KILLED, STOPPED, NO_MEMORY, SKIPS };

struct fault {
    enum fault_kind kind;
    int rank;
    const char *place; /* part of its text */
    int64_t step;
    int stage;
    double within; /* seconds for the others to end */
    char dir[FOLDER_BYTES];
    int pid;      /* of the rank that stands still */
    double since; /* it happened */
};

static const char yaml[] = "model: { family: gpt2, vocab: 256, width: 12, layers: 1, heads: 2, context: 8 }\n"
                           "batch: { global: 6, micro: 2 }\n"
                           "train: { steps: 4 }\n"
                           "save: { every: 2 }\n"
                           "log: { every: 100 }\n";

static int door(void *ctx, const struct board_place *place)
{
    struct fault *f = ctx;
    if (place->step != f->step || !strstr(place->text, f->place) || f->since > 0)
        return SHERD_OK;
    f->since = clock_seconds();
    switch (f->kind) {
    case EXITS:
        _exit(T_EXIT);
    case KILLED:
        raise(SIGKILL);
        break;
    case STOPPED:
        f->pid = (int)getpid();
        raise(SIGSTOP);
        break;
    case NO_MEMORY:
        return SHERD_FAIL(SHERD_ENOMEM, "no memory for a test");
    case SKIPS:
        return 1;
    }
    return SHERD_OK;
}

static int read_config(struct sherd_config *c, const struct fault *f)
{
    char dir[FOLDER_BYTES + 16], data[FOLDER_BYTES + 32], stage[32];
    snprintf(dir, sizeof(dir), "run.dir=%s/run", f->dir);
    snprintf(data, sizeof(data), "data.train=[%s/text]", f->dir);
    snprintf(stage, sizeof(stage), "shard.stage=%d", f->stage);
    const char *const set[] = { dir, data, stage };
    return sherd_config_parse(c, yaml, sizeof(yaml) - 1, "test", set, 3, WORLD);
}

/* The record tells of every rank. */
static void check_record(const struct fault *f)
{
    char path[FOLDER_BYTES + 32], name[32], *text;
    size_t bytes;
    snprintf(path, sizeof(path), "%s/run/flight.txt", f->dir);
    T_HAS(sherd_error(), path);
    /* Another rank may be writing it still. */
    for (int i = 0; i < 200 && !file_exists(path); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    T_OK(file_read_text(&text, &bytes, path, 1 << 20));
    for (int r = 0; r < WORLD; r++) {
        snprintf(name, sizeof(name), "\nrank %d (", r);
        T_HAS(text, name);
    }
    T_HAS(text, f->place);
    mem_free(text);
}

static void check_others(struct fault *f, int status)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %d", f->rank);
    if (status != SHERD_EPEER && status != SHERD_ETIMEOUT && status != SHERD_ECOMM)
        T_FAIL("%s at '%s', stage %d: %s: %s", name, f->place, f->stage, sherd_status_name(status),
            sherd_error());
    T_HAS(sherd_error(), name);
    if (f->kind == EXITS || f->kind == KILLED || f->kind == STOPPED)
        T_HAS(sherd_error(), f->place); /* where it was last seen */
    if (f->kind == NO_MEMORY)
        T_HAS(sherd_error(), "no memory for a test");
    if (f->kind == SKIPS)
        T_HAS(sherd_error(), "ranks call different collectives");
    T_TRUE(clock_seconds() - f->since < f->within);
    check_record(f);
}

static void train(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct fault *f = ctx;
    struct sherd_config config;
    T_OK(read_config(&config, f));
    if (rank == f->rank) {
        comm->door = door;
        comm->door_ctx = f;
    }
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR - 1);
    int st = sherd_train(&(struct sherd_train_desc){ .config = &config, .device = dev, .comm = comm });
    if (rank != f->rank)
        check_others(f, st);
    else if (st != (f->kind == NO_MEMORY ? SHERD_ENOMEM : SHERD_ECOMM) && st != SHERD_EPEER)
        T_FAIL("rank %d at '%s', stage %d: %s: %s", rank, f->place, f->stage, sherd_status_name(st),
            sherd_error());
    if (f->pid)
        kill(f->pid, SIGKILL);
    sherd_config_free(&config);
}

static void make_folder(struct fault *f)
{
    char path[FOLDER_BYTES + 16], text[400];
    T_EQ(folder_make(f->dir, "watch"), 0);
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i * i % 23);
    snprintf(path, sizeof(path), "%s/text", f->dir);
    T_OK(file_write_atomic(path, text, sizeof(text)));
}

static void run_fault(enum fault_kind kind, int rank, const char *place, int64_t step, int stage)
{
    struct fault *f = t_shared(sizeof(*f));
    *f = (struct fault){
        .kind = kind, .rank = rank, .place = place, .step = step, .stage = stage, .within = 40
    };
    make_folder(f);
    t_limits(60, kind == STOPPED ? STOPPED_SECONDS : 30);
    t_ranks(WORLD, T_PROCESSES | T_MAY_DIE | (rank % 2 ? T_ASYNC : 0), train, f);
    T_TRUE(f->since > 0);
    file_remove_tree(f->dir);
    t_shared_free(f, sizeof(*f));
}

static const struct {
    const char *place;
    int64_t step;
} parts[] = { { "init: memory", 0 }, { " forward ", 2 }, { " backward ", 2 }, { " update ", 2 },
    { "save", 2 } };

static void run_case(int i, void *ctx)
{
    enum fault_kind kind = *(enum fault_kind *)ctx;
    int part = i / WORLD, rank = i % WORLD;
    if (kind != SKIPS || parts[part].place[0] == ' ')
        run_fault(kind, rank, parts[part].place, parts[part].step, (part + rank) % 4);
}

/* Every part, every rank, and the stages in turn. */
static void everywhere(enum fault_kind kind)
{
    t_beside((int)ARRAY_LEN(parts) * WORLD, run_case, &kind);
}

static void test_a_rank_exits(void **state)
{
    (void)state;
    everywhere(EXITS);
}

static void test_a_rank_is_killed(void **state)
{
    (void)state;
    everywhere(KILLED);
}

static void test_a_rank_stands_still(void **state)
{
    (void)state;
    everywhere(STOPPED);
}

static void test_a_rank_has_no_memory(void **state)
{
    (void)state;
    everywhere(NO_MEMORY);
}

static void test_a_rank_leaves_something_out(void **state)
{
    (void)state;
    everywhere(SKIPS);
}

/* ---- the slow rank ---- */

struct dawdler {
    struct fault fault; /* its place is where the rank dawdles */
    int64_t last;       /* step in which it does */
    int ms;             /* a time */
    char line[512];     /* that was logged */
};

static int dawdle(void *ctx, const struct board_place *place)
{
    const struct dawdler *d = ctx;
    if (strstr(place->text, d->fault.place) && place->step <= d->last)
        nanosleep(&(struct timespec){ .tv_nsec = d->ms * 1000000L }, NULL);
    return SHERD_OK;
}

static void keep_slow(void *ctx, enum sherd_log_level level, const char *text)
{
    struct dawdler *d = ctx;
    (void)level;
    if (strstr(text, " is slow: ") && !d->line[0])
        snprintf(d->line, sizeof(d->line), "%s", text);
}

static void train_slowly(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct dawdler *d = ctx;
    struct sherd_config config;
    T_OK(read_config(&config, &d->fault));
    config.log.every = 4;
    config.train.steps = 16;
    config.save.every = 0;
    if (rank == d->fault.rank) {
        comm->door = dawdle;
        comm->door_ctx = d;
    }
    if (rank == 0)
        sherd_log_set(keep_slow, d, SHERD_LOG_INFO);
    else
        sherd_log_set(NULL, NULL, SHERD_LOG_ERROR - 1);
    T_OK(sherd_train(&(struct sherd_train_desc){ .config = &config, .device = dev, .comm = comm }));
    sherd_config_free(&config);
}

/* The line that is logged where a rank dawdles up to a step. */
static void run_slowly(int rank, const char *place, int ms, int64_t last, char line[512])
{
    struct dawdler *d = t_shared(sizeof(*d));
    d->fault = (struct fault){ .rank = rank, .place = place, .stage = 1 };
    d->last = last;
    d->ms = ms;
    make_folder(&d->fault);
    t_ranks(WORLD, T_PROCESSES, train_slowly, d);
    snprintf(line, 512, "%s", d->line);
    file_remove_tree(d->fault.dir);
    t_shared_free(d, sizeof(*d));
}

static void dawdle_to_the_end(int rank, void *ctx)
{
    static const char *const places[WORLD] = { "data", " forward ", " backward " };
    static const char *const told[WORLD] = { "rank 0 is slow: data", "rank 1 is slow: forward",
        "rank 2 is slow: backward" };
    char line[512];
    (void)ctx;
    run_slowly(rank, places[rank], rank == 0 ? 100 : 40, 16, line);
    T_HAS(line, told[rank]);
}

static void test_a_slow_rank_is_named(void **state)
{
    (void)state;
    t_beside(WORLD, dawdle_to_the_end, NULL);
}

static void dawdle_for_some_steps(int rank, void *ctx)
{
    char line[512], slow[32];
    (void)ctx;
    run_slowly(rank, "data", 100, 9, line); /* over one look whole, and in another */
    snprintf(slow, sizeof(slow), "rank %d is slow: data", rank);
    T_TRUE(!strstr(line, slow));
}

static void test_a_rank_slow_for_some_steps_is_not(void **state)
{
    (void)state;
    t_beside(WORLD, dawdle_for_some_steps, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_exits),
        cmocka_unit_test(test_a_rank_is_killed),
        cmocka_unit_test(test_a_rank_stands_still),
        cmocka_unit_test(test_a_rank_has_no_memory),
        cmocka_unit_test(test_a_rank_leaves_something_out),
        cmocka_unit_test(test_a_slow_rank_is_named),
        cmocka_unit_test(test_a_rank_slow_for_some_steps_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
