/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saving and loading beside a plain copy of as many bytes to and from the same disk, and what a save beside
 * training costs the steps. Usage: ckpt FOLDER [RANKS [WIDTH]]. Medians of some turns, each of them: copy,
 * save, load, and the share of the copy's rate right before. Files are put out of the page cache before they
 * are read.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sherd/sherd.h>

#include "bench/check.h"
#include "bench/median.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

#define TURNS 5
#define STEPS 2 /* timed in a row, with and without a save */
#define PIECE ((size_t)8 << 20)
#define MAX_RANKS 16

static struct {
    const char *dir;
    int ranks;
    int64_t width;
    uint64_t bytes; /* of a checkpoint */
    double raw_write[TURNS], raw_read[TURNS], save[TURNS], load[TURNS];
    double plain[TURNS], beside[TURNS], still[TURNS];
} b;

/* Every file of a step folder leaves the page cache; the bytes of all. */
static uint64_t forget(const char *step)
{
    char **names;
    int n;
    uint64_t bytes, all = 0;
    check(file_list(&names, &n, step));
    for (int i = 0; i < n; i++) {
        char path[4608];
        snprintf(path, sizeof(path), "%s/%s", step, names[i]);
        check(file_size(&bytes, path));
        all += bytes;
        int fd = open(path, O_RDONLY);
        (void)fsync(fd);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    file_list_free(names, n);
    return all;
}

/* One after another, past the page cache, in pieces of 8 MiB: what the disk gives to a program that does
 * nothing else. */
static void raw_copy(const char *path, uint64_t bytes, double *write_seconds, double *read_seconds)
{
    char *data = mem_aligned(4096, PIECE);
    uint64_t at;
    memset(data, 1, PIECE);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    (void)fcntl(fd, F_SETFL, O_DIRECT);
    double start = clock_seconds();
    for (at = 0; at < bytes; at += PIECE)
        check(file_pwrite(fd, data, PIECE, at, path));
    check(file_sync(fd, path));
    *write_seconds = (clock_seconds() - start) * (double)bytes / (double)at;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    start = clock_seconds();
    for (at = 0; at < bytes; at += PIECE)
        check(file_pread(fd, data, PIECE, at, path));
    *read_seconds = (clock_seconds() - start) * (double)bytes / (double)at;
    close(fd);
    unlink(path);
    mem_free(data);
}

/* STEPS steps; with a save that begins before the first. Seconds. */
static double run_steps(
    struct sherd_engine *e, const struct sherd_batch *batch, const char *dir, double *still)
{
    double start = clock_seconds();
    int busy;
    if (dir) {
        check(sherd_engine_save_start(e, dir, NULL));
        *still = clock_seconds() - start;
    }
    for (int i = 0; i < STEPS; i++) {
        check(sherd_engine_step(e, batch, 1, NULL));
        check(sherd_engine_save_poll(e, &busy));
    }
    double seconds = clock_seconds() - start;
    check(sherd_engine_save_wait(e));
    return seconds;
}

struct rank {
    int rank;
    struct sherd_device *dev;
    struct sherd_comm *comm;
};

/* One save and one load of all ranks, from a cold page cache; seconds. */
static void save_and_load(struct rank *r, struct sherd_engine *e, const char *dir, double *save, double *load)
{
    char step[4096];
    snprintf(step, sizeof(step), "%s/step-%08lld", dir, (long long)sherd_engine_steps(e));
    check(sherd_comm_barrier(r->comm));
    double start = clock_seconds();
    check(sherd_engine_save(e, dir, NULL));
    *save = clock_seconds() - start;
    if (r->rank == 0)
        b.bytes = forget(step);
    check(sherd_comm_barrier(r->comm));
    start = clock_seconds();
    check(sherd_engine_load(e, step));
    *load = clock_seconds() - start;
    check(sherd_comm_barrier(r->comm));
    if (r->rank == 0)
        check(file_remove_tree(dir));
    check(sherd_comm_barrier(r->comm));
}

static void measure(struct rank *r, struct sherd_engine *e, const struct sherd_batch *batch)
{
    char dir[2048], raw[2048];
    double save, load, still = 0;
    snprintf(dir, sizeof(dir), "%s/bench-ckpt", b.dir);
    snprintf(raw, sizeof(raw), "%s/bench-raw", b.dir);
    check(sherd_engine_step(e, batch, 1, NULL));
    check(sherd_engine_save_start(e, dir, NULL)); /* takes the memory for what is on its way */
    save_and_load(r, e, dir, &save, &load);
    for (int t = 0; t < TURNS; t++) {
        if (r->rank == 0)
            raw_copy(raw, b.bytes, &b.raw_write[t], &b.raw_read[t]);
        save_and_load(r, e, dir, &save, &load);
        double plain = run_steps(e, batch, NULL, NULL), beside = run_steps(e, batch, dir, &still);
        check(sherd_comm_barrier(r->comm));
        if (r->rank)
            continue;
        b.save[t] = save;
        b.load[t] = load;
        b.plain[t] = plain;
        b.beside[t] = beside;
        b.still[t] = still;
        check(file_remove_tree(dir));
    }
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *e;
    char width[64], global[64];
    snprintf(width, sizeof(width), "model.width=%lld", (long long)b.width);
    snprintf(global, sizeof(global), "batch.global=%d", b.ranks);
    const char *set[] = { "model.family=llama", "model.vocab=8192", "model.layers=8", "model.heads=8", width,
        "model.context=32", "batch.micro=1", global, "shard.stage=3", "train.steps=100000" };
    check(sherd_config_parse(&config, "", 0, "bench", set, sizeof(set) / sizeof(set[0]), b.ranks));
    check(sherd_config_model(&model, &config));
    check(sherd_engine_create(&e,
        &(struct sherd_engine_desc){ .config = &config, .model = model, .device = r->dev, .comm = r->comm }));
    int32_t tokens[2][32];
    for (int i = 0; i < 32; i++) {
        tokens[0][i] = (i * 37 + r->rank) % 8192;
        tokens[1][i] = ((i + 1) * 37 + r->rank) % 8192;
    }
    measure(r, e, &(struct sherd_batch){ tokens[0], tokens[1], 1 });
    sherd_engine_destroy(e);
    sherd_model_destroy(model);
    sherd_config_free(&config);
    return NULL;
}

static void listen(void *ctx, enum sherd_log_level level, const char *line)
{
    (void)ctx;
    if (level <= SHERD_LOG_WARN || strstr(line, "written by"))
        fprintf(stderr, "%s\n", line);
}

/* `copy` has the seconds of the plain copies of the same turns, NULL = these are they. */
static void show(const char *what, const double *seconds, const double *copy)
{
    double sorted[TURNS], share[TURNS];
    memcpy(sorted, seconds, sizeof(sorted));
    for (int t = 0; t < TURNS && copy; t++)
        share[t] = 100 * copy[t] / seconds[t];
    double middle = median(sorted, TURNS);
    printf("%-12s %7.3f s  %8.1f MB/s", what, middle, (double)b.bytes / 1e6 / middle);
    if (copy)
        printf("  %5.1f %% of the copy's rate", median(share, TURNS));
    if (copy)
        printf(" (%.1f to %.1f)", share[0], share[TURNS - 1]);
    printf("\n");
}

int main(int argc, char **argv)
{
    struct sherd_device *devs[MAX_RANKS];
    struct sherd_comm *comms[MAX_RANKS];
    struct rank ranks[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    b.dir = argc > 1 ? argv[1] : ".";
    b.ranks = argc > 2 ? atoi(argv[2]) : 2;
    b.width = argc > 3 ? atoi(argv[3]) : 1024;
    if (b.ranks < 1 || b.ranks > MAX_RANKS) {
        fprintf(stderr, "usage: ckpt FOLDER [RANKS [WIDTH]]\n");
        return 2;
    }
    sherd_log_set(listen, NULL, SHERD_LOG_INFO);
    for (int i = 0; i < b.ranks; i++)
        check(sherd_device_open(
            &devs[i], &(struct sherd_device_desc){ .name = "cpu", .threads = 1, .async = 1 }));
    check(sherd_comm_open_threads(comms, devs, b.ranks, 600));
    for (int i = 0; i < b.ranks; i++) {
        ranks[i] = (struct rank){ i, devs[i], comms[i] };
        pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
    }
    for (int i = 0; i < b.ranks; i++)
        pthread_join(threads[i], NULL);
    double plain = median(b.plain, TURNS), step = plain / STEPS, more = median(b.beside, TURNS) - plain;
    printf(
        "a checkpoint of %.1f MB by %d ranks, medians of %d turns\n", (double)b.bytes / 1e6, b.ranks, TURNS);
    show("plain write", b.raw_write, NULL);
    show("save", b.save, b.raw_write);
    show("plain read", b.raw_read, NULL);
    show("load", b.load, b.raw_read);
    printf(
        "a step: %.1f ms; a save beside %d steps: training stood still for %.1f ms, the steps took %.1f ms more "
        "(%.0f %% of one step)\n",
        1e3 * step, STEPS, 1e3 * median(b.still, TURNS), 1e3 * more, 100 * more / step);
    for (int i = 0; i < b.ranks; i++) {
        sherd_comm_close(comms[i]);
        sherd_device_close(devs[i]);
    }
    return 0;
}
