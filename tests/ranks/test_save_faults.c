/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Every call of a save that changes a file system fails once: by SIGKILL, EIO, a short write, a disk that is
 * full from there on. Whatever happened, the newest complete checkpoint is found, loads at another world, and
 * is the new one if the save said so; and the next save leaves no trace of it. And what a power cut would not
 * leave on the disk, no later call relies on.
 */
#include "tests/t.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "tests/ranks/fake.h"

#define WORLD 2
#define MOST_CALLS 200

#define MOST_NOTES 2000

/* TIGHT: no room as long as there are more than `at` checkpoints. */
enum fault { NONE, KILL, ONCE, SHORT, FULL, TIGHT };

/* What to do at which call; `calls` counts those of this process. Shared by forked ranks, but for `calls`. */
struct plan {
    enum fault fault;
    long at;
    int rank;   /* processes: of whom; -1 = any */
    int beside; /* the save is polled, as training does */
    int all;    /* whoever is killed takes all ranks along, as a launcher would */
    _Atomic int pid[WORLD];
    _Atomic int status[WORLD];
    _Atomic long total[WORLD]; /* calls that were made */
    _Atomic int unsynced;      /* the call that failed was to see the checkpoint to the disk */
    char dir[256];
};
static struct plan *plan;
static atomic_long calls;
static _Atomic int armed;

/* The calls of a save without faults, in the order in which they began. */
struct note {
    char call[16];
    char path[300];
};
static struct note notes[MOST_NOTES];
static _Atomic int n_notes, taking_notes;

static void take_note(const char *call, const char *path)
{
    int i = taking_notes ? n_notes++ : MOST_NOTES;
    if (i < MOST_NOTES) {
        snprintf(notes[i].call, sizeof(notes[i].call), "%s", call);
        snprintf(notes[i].path, sizeof(notes[i].path), "%s", path);
    }
}

static int count_steps(void)
{
    struct ckpt_step *steps;
    int n;
    if (ckpt_list_steps(&steps, &n, plan->dir) != SHERD_OK)
        return 0;
    mem_free(steps);
    return n;
}

static int hook(const char *call, const char *path, size_t *bytes)
{
    take_note(call, path);
    if (!armed || !strcmp(call, "read"))
        return 0;
    if (plan->fault == TIGHT) {
        *bytes = strcmp(call, "space") || count_steps() <= plan->at ? *bytes : 1000;
        return 0;
    }
    long n = atomic_fetch_add(&calls, 1) + 1;
    int writes = !strcmp(call, "write") || !strcmp(call, "create") || !strcmp(call, "mkdir") ||
                 !strcmp(call, "reserve");
    if (plan->fault == FULL && n >= plan->at && writes) {
        if (n == plan->at && !strcmp(call, "write") && *bytes > 1) {
            *bytes /= 2; /* the last bytes that fit */
            return 0;
        }
        return ENOSPC;
    }
    if (n != plan->at)
        return 0;
    if (plan->fault == KILL) {
        for (int r = 0; r < WORLD && plan->all; r++) {
            if (plan->pid[r] != getpid())
                kill(plan->pid[r], SIGKILL);
        }
        raise(SIGKILL);
    }
    if (plan->fault == SHORT)
        *bytes = *bytes > 1 ? *bytes / 2 : *bytes;
    plan->unsynced = plan->fault == ONCE && !strcmp(call, "sync") && strstr(path, "/" CKPT_TEMP_PREFIX);
    return plan->fault == ONCE ? EIO : 0;
}

static int save_beside(struct ckpt_saver *saver, const struct ckpt_job *job)
{
    static const struct ckpt_keep keep = { .newest = 1 };
    int busy = 1, st = ckpt_saver_start(saver, job, plan->dir, &keep);
    if (st == SHERD_OK && !plan->beside)
        return ckpt_saver_wait(saver);
    while (busy && st == SHERD_OK)
        st = ckpt_saver_poll(saver, &busy);
    return st;
}

static void save_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct fake_options *options = ctx;
    struct ckpt_saver *saver;
    struct fake f;
    T_OK(fake_init(&f, options, comm, dev, 0));
    T_OK(ckpt_saver_create(&saver, comm, dev, 0));
    plan->pid[rank] = getpid();
    T_OK(sherd_comm_barrier(comm));
    if (plan->rank < 0 || plan->rank == rank)
        armed = 1;
    plan->status[rank] = save_beside(saver, &f.job);
    plan->total[rank] = calls;
    ckpt_saver_destroy(saver);
    fake_finish(&f);
}

static void save_with_fault(int mode, enum fault fault, int rank, long at, int64_t step)
{
    struct fake_options options = { .missing = 1, .step = step };
    plan->fault = fault;
    plan->rank = rank;
    plan->at = at;
    for (int r = 0; r < WORLD; r++)
        plan->status[r] = plan->total[r] = -1;
    plan->unsynced = 0;
    calls = 0;
    t_ranks(WORLD, mode, save_rank, &options);
    armed = 0;
}

/* A save without faults, and nothing is left of whatever was there before. */
static void save_clean(int mode, int64_t step)
{
    char **names, want[32];
    int n;
    save_with_fault(mode, NONE, -1, 0, step);
    for (int r = 0; r < WORLD; r++)
        T_EQ(plan->status[r], SHERD_OK);
    T_OK(file_list(&names, &n, plan->dir));
    T_EQ(n, 2);
    snprintf(want, sizeof(want), "step-%08lld", (long long)step);
    T_STR(names[0], "latest");
    T_STR(names[1], want);
    file_list_free(names, n);
}

/* The newest complete checkpoint is sound and loads; its step. */
static int64_t look(void)
{
    static struct fake_results results;
    struct sherd_ckpt *ckpt;
    char *path;
    T_OK(sherd_ckpt_find(&path, plan->dir));
    T_OK(sherd_ckpt_open(&ckpt, path));
    T_OK(sherd_ckpt_verify(ckpt));
    struct fake_options options = { .missing = 1, .step = ckpt->manifest.meta.step };
    sherd_ckpt_close(ckpt);
    T_OK(fake_load(&results, 3, &options, path, NULL));
    free(path);
    return options.step;
}

/* A fault at the first call of a save, at the second, and so on, until there are no more. */
static const struct sweep {
    const char *name;
    int mode;
    enum fault fault;
    int rank, beside, all;
    int least; /* calls that there are */
} sweeps[] = {
    { "killed anywhere", T_PROCESSES | T_MAY_DIE, KILL, 0, 0, 1, 30 },
    { "killed anywhere, beside", T_PROCESSES | T_MAY_DIE, KILL, 0, 1, 1, 30 },
    { "killed anywhere, rank 1", T_PROCESSES | T_MAY_DIE, KILL, 1, 1, 1, 8 },
    { "one is killed", T_PROCESSES | T_MAY_DIE, KILL, 1, 0, 0, 8 }, /* the other's save ends as a failure */
    { "one call fails", T_THREADS, ONCE, -1, 0, 0, 40 },
    { "one call fails, beside", T_THREADS, ONCE, -1, 1, 0, 40 },
    { "one call fails, rank 1", T_PROCESSES, ONCE, 1, 1, 0, 8 },
    { "a short write", T_THREADS, SHORT, -1, 0, 0, 40 },
    { "the disk fills up", T_THREADS, FULL, -1, 0, 0, 40 },
    { "the disk fills up, beside", T_THREADS, FULL, -1, 1, 0, 40 },
    { "the disk fills up, rank 1", T_PROCESSES, FULL, 1, 1, 0, 8 },
};

/* One fault in the save of the step after `last`, of which there is a checkpoint; then a save without one, of
 * the step after. 1 if the save had so many calls. */
static int try(const struct sweep *sweep, long at, int64_t last)
{
    save_with_fault(sweep->mode, sweep->fault, sweep->rank, at, last + 1);
    int64_t found = look();
    int all_well = 1, any_well = 0, dead = sweep->rank >= 0 && plan->total[sweep->rank] < 0;
    long made = 0;
    for (int r = 0; r < WORLD; r++) {
        all_well &= plan->status[r] == SHERD_OK;
        any_well |= plan->status[r] == SHERD_OK;
        made = MAX(made, plan->total[r]);
    }
    if (!(found == last + 1 || (found == last && !all_well)))
        T_FAIL("%s, call %ld: step %lld is found, the ranks ended with %d and %d", sweep->name, at,
            (long long)found, plan->status[0], plan->status[1]);
    if (sweep->fault == SHORT && !all_well)
        T_FAIL("%s, call %ld: a short write was not continued", sweep->name, at);
    if (plan->unsynced && all_well)
        T_FAIL("%s, call %ld: what is not on the disk passes for saved", sweep->name, at);
    if (any_well && !all_well && sweep->fault != KILL)
        T_FAIL("%s, call %ld: the ranks do not agree how the save ended", sweep->name, at);
    save_clean(T_THREADS, last + 2);
    return dead || made >= at;
}

/* In a process, a plan and a folder of its own. */
static void run_sweep(int i, void *ctx)
{
    const struct sweep *sweep = &sweeps[i];
    long at = 1;
    (void)ctx;
    plan = t_shared(sizeof(*plan));
    plan->beside = sweep->beside;
    plan->all = sweep->all;
    snprintf(plan->dir, sizeof(plan->dir), "%s", fake_at("sweep-%d", i));
    save_clean(T_THREADS, 1);
    while (at < MOST_CALLS && try(sweep, at, 2 * at - 1))
        at++;
    T_OK(file_remove_tree(plan->dir));
    if (at < sweep->least || at == MOST_CALLS)
        T_FAIL("%s: %ld calls, expected %d to %d", sweep->name, at, sweep->least, MOST_CALLS - 1);
    t_shared_free(plan, sizeof(*plan));
}

static void a_fault_at_every_call(void **state)
{
    (void)state;
    t_beside(ARRAY_LEN(sweeps), run_sweep, NULL);
}

/* No room for another checkpoint: those that would go after the save go before it, the last one stays. */
static void room_is_made(void **state)
{
    (void)state;
    struct fake_options options = { .missing = 1 };
    struct fake_results results;
    for (options.step = 1; options.step <= 4; options.step++)
        ASSERT_OK(fake_save(&results, WORLD, &options, plan->dir));
    plan->beside = 0;
    save_with_fault(T_THREADS, TIGHT, -1, 1, 5);
    assert_true(plan->status[0] == SHERD_OK && plan->status[1] == SHERD_OK);
    assert_int_equal(count_steps(), 1);
    assert_int_equal(look(), 5);
    save_with_fault(T_THREADS, TIGHT, -1, 0, 6);
    assert_true(plan->status[0] == SHERD_EIO && plan->status[1] == SHERD_EPEER);
    assert_int_equal(look(), 5);
    ASSERT_OK(file_remove_tree(plan->dir));
}

/* Number of the first note from `at` on with this call and a path that begins and ends so; n_notes: none. */
static int next_note(int at, const char *call, const char *begin, const char *end)
{
    while (at < n_notes && (strcmp(notes[at].call, call) != 0 || !text_starts(notes[at].path, begin) ||
                               !text_ends(notes[at].path, end)))
        at++;
    return at;
}

/* What changed files and folders below the temporary one is on the disk before the rename that makes a
 * checkpoint of it, and that rename is before an older checkpoint goes. */
static void a_power_cut_finds_it_in_order(void **state)
{
    (void)state;
    static const char *const changes[] = { "create", "reserve", "write", "answer", "rename" };
    char temp[300], final[300], folder[300];
    int looked = 0;
    save_clean(T_THREADS, 1);
    n_notes = 0;
    taking_notes = 1;
    save_clean(T_THREADS, 2);
    taking_notes = 0;
    assert_in_range(n_notes, 20, MOST_NOTES);
    snprintf(temp, sizeof(temp), "%s/.tmp-step-00000002-", plan->dir);
    snprintf(final, sizeof(final), "%s/step-00000002", plan->dir);
    int made = next_note(0, "rename", final, "");
    assert_true(made < n_notes);
    for (int i = 0; i < made; i++) {
        int changed = 0;
        for (size_t k = 0; k < ARRAY_LEN(changes); k++)
            changed |= !strcmp(notes[i].call, changes[k]) && text_starts(notes[i].path, temp);
        if (!changed)
            continue;
        snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(notes[i].path, '/') - notes[i].path),
            notes[i].path);
        int named = !strcmp(notes[i].call, "create") || !strcmp(notes[i].call, "rename");
        if (strcmp(notes[i].call, "rename") != 0 && next_note(i, "sync", notes[i].path, "") > made)
            fail_msg("%s of %s is not synced", notes[i].call, notes[i].path);
        if (named && next_note(i, "sync", folder, strrchr(folder, '/')) > made)
            fail_msg("%s of %s: its folder is not synced", notes[i].call, notes[i].path);
        looked++;
    }
    assert_true(looked >= 2 * WORLD * 2 + 2);
    int kept = next_note(made, "sync", plan->dir, strrchr(plan->dir, '/'));
    int gone = next_note(made, "rename", plan->dir, "-removed");
    assert_true(kept < gone && gone < n_notes && next_note(made, "remove", plan->dir, "") > gone);
    ASSERT_OK(file_remove_tree(plan->dir));
}

static void quiet(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static int enter(void **state)
{
    plan = t_shared(sizeof(*plan));
    if (!plan || fake_enter(state))
        return -1;
    snprintf(plan->dir, sizeof(plan->dir), "%s", fake_at("run"));
    sherd_log_set(quiet, NULL, SHERD_LOG_INFO);
    file_hook(hook);
    return 0;
}

static int leave(void **state)
{
    file_hook(NULL);
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    t_shared_free(plan, sizeof(*plan));
    return fake_leave(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_at_every_call),
        cmocka_unit_test(room_is_made),
        cmocka_unit_test(a_power_cut_finds_it_in_order),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
