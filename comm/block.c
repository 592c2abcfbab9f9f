/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Shared memory of the ranks of one host. The memory is a memfd, so nothing is left behind by any death.
 * A process rank holds a lock on its byte of the file: the kernel drops it when the process ends, however it
 * ends, and the others can see that without knowing its pid.
 */
#include "comm/block.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lanes.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/ops.h"

#define LINE 64
#define SLICE_SECONDS 0.2 /* a sleeper looks around this often */
#define SPINS 2000

/* One rank in one channel. */
struct seat {
    _Alignas(LINE) _Atomic uint32_t round; /* rounds this rank has come to */
    _Atomic uint32_t closed;
    _Atomic uint64_t seq;
    struct block_call calls[2]; /* by round & 1, as the staging halves */
};

struct channel {
    /* Twice the rounds that all ranks have come to; bit 0: look for a reason to stop. Sleepers wait on it. */
    _Alignas(LINE) _Atomic uint32_t word;
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Alignas(LINE) _Atomic uint64_t arrived; /* over all ranks and rounds */
    _Alignas(LINE) _Atomic uint32_t users;   /* ranks that have not closed; 0 = the channel is free */
    struct seat seats[];
};

struct member {
    _Atomic int32_t pid;
    _Atomic uint32_t locked; /* it is a process and holds the lock on its byte */
};

enum { ABORT_NONE, ABORT_WRITING, ABORT_READY };

struct head {
    _Atomic uint32_t abort_state;
    int32_t abort_rank;
    char abort_text[1500];
    struct member members[];
};

struct block {
    _Atomic int users;
    int size, fd; /* fd: -1 where the ranks are threads */
    int spins;
    size_t bytes, head_bytes, channel_bytes;
    struct head *head;
    struct board *board; /* behind the head's members */
};

static size_t whole_pages(size_t bytes)
{
    return (size_t)round_up((int64_t)bytes, 4096);
}

static size_t members_bytes(int size)
{
    return whole_pages(sizeof(struct head) + (size_t)size * sizeof(struct member));
}

static size_t head_bytes(int size)
{
    return members_bytes(size) + whole_pages(board_bytes(size));
}

static struct channel *channel_at(const struct block *block, int index)
{
    return (struct channel *)((char *)block->head + block->head_bytes + (size_t)index * block->channel_bytes);
}

static size_t seats_bytes(int size)
{
    return whole_pages(sizeof(struct channel) + (size_t)size * sizeof(struct seat));
}

int block_attach(struct block **out, int fd, int size)
{
    struct block *block = mem_zalloc(1, sizeof(*block));
    if (!block)
        return SHERD_ENOMEM;
    block->users = 1;
    block->size = size;
    block->fd = -1;
    block->spins = lanes_cores() >= size ? SPINS : 0;
    block->head_bytes = head_bytes(size);
    block->channel_bytes = seats_bytes(size) + (size_t)size * BLOCK_STAGE_BYTES;
    block->bytes = block->head_bytes + BLOCK_CHANNELS * block->channel_bytes;
    /* A wrong size would be a fault of the maker; reading past the end would be a signal here. */
    off_t end = lseek(fd, 0, SEEK_END);
    void *map = MAP_FAILED;
    if (end == (off_t)block->bytes)
        map = mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        int st = end == (off_t)block->bytes
                     ? MEM_OUT("%zu bytes that %d ranks of this host share cannot be mapped: %s",
                           block->bytes, size, strerror(errno))
                     : SHERD_FAIL(SHERD_ECOMM,
                           "shared memory has %lld bytes, %zu are due: the ranks run different "
                           "versions of sherd",
                           (long long)end, block->bytes);
        mem_free(block);
        return st;
    }
    block->head = map;
    block->board = board_at((char *)map + members_bytes(size), size);
    *out = block;
    return SHERD_OK;
}

int block_create(struct block **out, int *fd, int size)
{
    int st = SHERD_OK;
    int file = memfd_create("sherd", MFD_CLOEXEC);
    if (file < 0)
        return SHERD_FAIL(
            SHERD_ECOMM, "cannot make memory shared by ranks: memfd_create: %s", strerror(errno));
    size_t bytes = head_bytes(size) + BLOCK_CHANNELS * (seats_bytes(size) + (size_t)size * BLOCK_STAGE_BYTES);
    if (ftruncate(file, (off_t)bytes) != 0) {
        st = errno == EFBIG
                 ? SHERD_FAIL(SHERD_ECOMM,
                       "%zu bytes that %d ranks of this host share are a file to the system, and larger "
                       "than one may be: raise the limit of file sizes (ulimit -f)",
                       bytes, size)
                 : MEM_OUT("%zu bytes that %d ranks of this host share cannot be made: %s", bytes, size,
                       strerror(errno));
        goto out;
    }
    SHERD_TRY_OUT(block_attach(out, file, size));
    for (int i = 0; i < 2; i++)
        atomic_store(&channel_at(*out, i)->users, (uint32_t)size);
out:
    if (st == SHERD_OK && fd)
        *fd = file;
    else
        close(file);
    return st;
}

/* The lock on byte `rank` of the file, as this process sees it. */
static struct flock lock_of(int rank)
{
    return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1 };
}

void block_enter(struct block *block, int fd, int rank)
{
    struct member *me = &block->head->members[rank];
    struct flock lock = lock_of(rank);
    block->fd = fd;
    atomic_store(&me->pid, (int32_t)getpid());
    board_enter(block->board, rank, (int)getpid());
    if (fcntl(fd, F_SETLK, &lock) == 0)
        atomic_store(&me->locked, 1);
}

struct board *block_board(struct block *block)
{
    return block->board;
}

struct block *block_hold(struct block *block)
{
    atomic_fetch_add(&block->users, 1);
    return block;
}

void block_drop(struct block *block)
{
    if (!block || atomic_fetch_sub(&block->users, 1) != 1)
        return;
    munmap(block->head, block->bytes);
    if (block->fd >= 0)
        close(block->fd);
    mem_free(block);
}

static void wake(struct channel *channel)
{
    if (atomic_load(&channel->sleepers) > 0)
        syscall(SYS_futex, &channel->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void look_around(struct channel *channel)
{
    atomic_fetch_or(&channel->word, 1);
    wake(channel);
}

void block_open(struct block_channel *out, struct block *block, int index, int rank, double timeout)
{
    *out = (struct block_channel){ .block = block,
        .shared = channel_at(block, index),
        .rank = rank,
        .size = block->size,
        .index = index,
        .timeout = timeout };
    out->round = atomic_load(&out->shared->seats[rank].round);
}

void block_close(struct block_channel *channel)
{
    struct channel *shared = channel->shared;
    atomic_store(&shared->seats[channel->rank].closed, 1);
    look_around(shared);
    atomic_fetch_sub(&shared->users, 1);
}

/* A channel may have been left in the middle of a round. */
static void start_anew(struct block *block, struct channel *channel)
{
    atomic_store(&channel->word, 0);
    atomic_store(&channel->arrived, 0);
    for (int r = 0; r < block->size; r++) {
        atomic_store(&channel->seats[r].round, 0);
        atomic_store(&channel->seats[r].closed, 0);
        atomic_store(&channel->seats[r].seq, 0);
    }
    if (atomic_load(&block->head->abort_state) != ABORT_NONE)
        atomic_fetch_or(&channel->word, 1);
    atomic_store(&channel->users, (uint32_t)block->size);
}

int block_reserve(struct block *block)
{
    for (int i = 0; i < BLOCK_CHANNELS; i += 2) {
        if (atomic_load(&channel_at(block, i)->users) || atomic_load(&channel_at(block, i + 1)->users))
            continue;
        for (int k = i; k < i + 2; k++)
            start_anew(block, channel_at(block, k));
        return i;
    }
    return -1;
}

void *block_half(const struct block_channel *channel, int rank, uint32_t round)
{
    char *stage = (char *)channel->shared + seats_bytes(channel->size) + (size_t)rank * BLOCK_STAGE_BYTES;
    return stage + (round & 1) * BLOCK_HALF_BYTES;
}

const char *block_call_text(const struct block_call *call, char *buf, size_t bytes)
{
    static const char *const kinds[] = { "all-gather", "reduce-scatter", "all-reduce", "broadcast" };
    assert(call->kind < ARRAY_LEN(kinds));
    const char *detail = call->kind == SHERD_ALL_REDUCE && call->detail == SHERD_REDUCE_MAX ? ", max" : "";
    char root[32] = "";
    if (call->kind == SHERD_BROADCAST)
        snprintf(root, sizeof(root), " from rank %u", call->detail);
    int n = snprintf(buf, bytes, "%s #%llu (%lld %s%s%s)", kinds[call->kind], (unsigned long long)call->seq,
        (long long)call->elems, sherd_dtype_name((enum sherd_dtype)call->type), detail, root);
    if (call->place.text[0] && n > 0 && (size_t)n < bytes)
        snprintf(
            buf + n, bytes - (size_t)n, " at step %lld, %s", (long long)call->place.step, call->place.text);
    return buf;
}

void block_abort(struct block *block, int rank, const char *reason)
{
    struct head *head = block->head;
    uint32_t none = ABORT_NONE;
    board_close(block->board);
    if (atomic_compare_exchange_strong(&head->abort_state, &none, ABORT_WRITING)) {
        head->abort_rank = rank;
        snprintf(head->abort_text, sizeof(head->abort_text), "%s", reason);
        atomic_store(&head->abort_state, ABORT_READY);
    }
    for (int i = 0; i < BLOCK_CHANNELS; i++)
        look_around(channel_at(block, i));
}

static int aborted(const struct block *block)
{
    struct head *head = block->head;
    uint32_t state = atomic_load(&head->abort_state);
    if (state == ABORT_NONE)
        return SHERD_OK;
    for (int i = 0; state == ABORT_WRITING && i < 1000; i++) {
        sched_yield();
        state = atomic_load(&head->abort_state);
    }
    if (state != ABORT_READY)
        return SHERD_FAIL(SHERD_EPEER, "a rank has aborted, and died before it could say why");
    return SHERD_FAIL(SHERD_EPEER, "rank %d: %s", head->abort_rank, head->abort_text);
}

int block_check(const struct block_channel *channel)
{
    return aborted(channel->block);
}

/* The process of a rank has ended. Never true of a thread, or where that cannot be known. */
static int is_dead(const struct block *block, int rank)
{
    const struct member *member = &block->head->members[rank];
    if (block->fd < 0 || !atomic_load(&member->locked) || atomic_load(&member->pid) == (int32_t)getpid())
        return 0;
    struct flock lock = lock_of(rank);
    return fcntl(block->fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* A rank has died: where it was, and where the others are. `waited` says for what, or is empty. */
static int fail_dead(const struct block_channel *channel, int rank, const char *waited)
{
    char text[1000];
    uint8_t absent[BLOCK_RANKS] = { 0 };
    struct board *board = channel->block->board;
    int pid = (int)atomic_load(&channel->block->head->members[rank].pid);
    board_lose(board, rank);
    if (board_pinned(board, rank) == 0)
        return SHERD_FAIL(SHERD_EPEER, "rank %d (pid %d) has died%s", rank, pid, waited);
    absent[rank] = 1;
    return SHERD_FAIL(SHERD_EPEER, "rank %d (pid %d) has died%s: %s", rank, pid, waited,
        board_tell(board, absent, NULL, text, sizeof(text)));
}

int block_check_alive(const struct block_channel *channel)
{
    SHERD_TRY(aborted(channel->block));
    for (int r = 0; r < channel->size; r++) {
        int dead = r != channel->rank && is_dead(channel->block, r);
        if (dead && !atomic_load(&channel->shared->seats[r].closed)) /* in this order, see reason_to_stop */
            return fail_dead(channel, r, "");
    }
    return SHERD_OK;
}

static int is_missing(const struct block_channel *channel, int rank)
{
    /* Rounds wrap around; two ranks are never more than two rounds apart. */
    return (int32_t)(atomic_load(&channel->shared->seats[rank].round) - channel->round) <= 0;
}

/* Why the round can never be completed: OK if it still can. */
static int reason_to_stop(const struct block_channel *channel, const struct block_call *call)
{
    char text[256], waited[300];
    SHERD_TRY(aborted(channel->block));
    /* In this order: a rank that has come, closed and ended did so one after the other. */
    int gone = -1;
    for (int r = 0; r < channel->size; r++) {
        int dead = is_missing(channel, r) && is_dead(channel->block, r);
        int closed = (int)atomic_load(&channel->shared->seats[r].closed);
        if (!is_missing(channel, r))
            continue;
        if (closed)
            gone = r;
        else if (dead) {
            snprintf(waited, sizeof(waited), ", %s waited for it", block_call_text(call, text, sizeof(text)));
            return fail_dead(channel, r, waited);
        }
    }
    /* Last: others may have closed because of a death. */
    if (gone >= 0)
        return SHERD_FAIL(SHERD_EPEER, "rank %d has closed its communicator, %s waited for it", gone,
            block_call_text(call, text, sizeof(text)));
    return SHERD_OK;
}

/* Names those who have not come, and tells all others. */
static int timed_out(const struct block_channel *channel, const struct block_call *call)
{
    char text[256], where[1000];
    uint8_t absent[BLOCK_RANKS] = { 0 };
    uint64_t seq[BLOCK_RANKS] = { 0 };
    int missing = 0;
    for (int r = 0; r < channel->size; r++) {
        absent[r] = (uint8_t)is_missing(channel, r);
        missing += absent[r];
        seq[r] = atomic_load(&channel->shared->seats[r].seq);
    }
    int st = SHERD_FAIL(SHERD_ETIMEOUT, "%s: no progress for %g s, %d of %d ranks have not come: %s",
        block_call_text(call, text, sizeof(text)), channel->timeout, missing, channel->size,
        board_tell(channel->block->board, absent, seq, where, sizeof(where)));
    block_abort(channel->block, channel->rank, sherd_error());
    return st;
}

/* Which ranks brought the same as rank r. */
static void find_same(const struct block_call *calls, int size, int r, uint8_t *same, uint8_t *told)
{
    for (int k = 0; k < size; k++) {
        same[k] = memcmp(&calls[k], &calls[r], sizeof(*calls)) == 0;
        told[k] |= same[k];
    }
}

const char *block_calls_text(const struct block_call *calls, int size, char *buf, size_t bytes)
{
    uint8_t told[BLOCK_RANKS] = { 0 }, same[BLOCK_RANKS];
    char names[128], what[256];
    size_t len = 0;
    buf[0] = '\0';
    size = MIN(size, BLOCK_RANKS);
    for (int r = 0; r < size && len + 1 < bytes; r++) {
        if (told[r])
            continue;
        find_same(calls, size, r, same, told);
        len += (size_t)snprintf(buf + len, bytes - len, "%s%s: %s", len ? "; " : "",
            board_ranks(same, size, names, sizeof(names)), block_call_text(&calls[r], what, sizeof(what)));
        if (calls[r].place.text[0] && len + 1 < bytes)
            len += (size_t)snprintf(
                buf + len, bytes - len, " (its place number %lld)", (long long)calls[r].place.done);
    }
    return buf;
}

/* Who brought what. */
static int fail_different(const struct block_channel *channel)
{
    char text[1400] = "";
    struct block_call *calls = mem_zalloc((size_t)channel->size, sizeof(*calls));
    for (int r = 0; calls && r < channel->size; r++)
        calls[r] = channel->shared->seats[r].calls[channel->round & 1];
    if (calls)
        block_calls_text(calls, channel->size, text, sizeof(text));
    mem_free(calls);
    int st = SHERD_FAIL(SHERD_ECOMM, "ranks call different collectives: %s", text);
    block_abort(channel->block, channel->rank, sherd_error());
    return st;
}

static int compare_calls(const struct block_channel *channel, const struct block_call *call)
{
    for (int r = 0; r < channel->size; r++)
        if (memcmp(&channel->shared->seats[r].calls[channel->round & 1], call, sizeof(*call)) != 0)
            return fail_different(channel);
    return SHERD_OK;
}

static int is_complete(uint32_t word, uint32_t round)
{
    return (int32_t)((word & ~1u) - 2 * (round + 1)) >= 0;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps until the word changes, at most a slice. */
static void sleep_on(struct channel *channel, uint32_t word)
{
    struct timespec slice = { .tv_nsec = (long)(SLICE_SECONDS * 1e9) };
    atomic_fetch_add(&channel->sleepers, 1);
    syscall(SYS_futex, &channel->word, FUTEX_WAIT, word, &slice, NULL, 0);
    atomic_fetch_sub(&channel->sleepers, 1);
}

static int wait_for_all(const struct block_channel *channel, const struct block_call *call)
{
    struct channel *shared = channel->shared;
    uint32_t word = atomic_load(&shared->word);
    for (int i = 0; i < channel->block->spins && !is_complete(word, channel->round); i++) {
        relax();
        word = atomic_load(&shared->word);
    }
    uint64_t arrived = 0;
    double since = 0;
    while (!is_complete(word, channel->round)) {
        double now = clock_seconds();
        uint64_t seen = atomic_load(&shared->arrived) + board_pulse(channel->block->board, channel->rank);
        if (seen != arrived || since == 0) {
            arrived = seen;
            since = now;
        }
        if ((word & 1) || now - since >= SLICE_SECONDS / 2)
            SHERD_TRY(reason_to_stop(channel, call));
        if (now - since >= channel->timeout)
            return timed_out(channel, call);
        sleep_on(shared, word);
        word = atomic_load(&shared->word);
    }
    return SHERD_OK;
}

int block_round(struct block_channel *channel, const struct block_call *call)
{
    struct channel *shared = channel->shared;
    struct seat *seat = &shared->seats[channel->rank];
    seat->calls[channel->round & 1] = *call;
    atomic_store(&seat->seq, call->seq);
    atomic_store(&seat->round, channel->round + 1);
    uint64_t all = ((uint64_t)channel->round + 1) * (uint64_t)channel->size;
    if ((uint32_t)(atomic_fetch_add(&shared->arrived, 1) + 1) == (uint32_t)all) {
        atomic_fetch_add(&shared->word, 2);
        wake(shared);
    } else {
        SHERD_TRY(wait_for_all(channel, call));
    }
    SHERD_TRY(compare_calls(channel, call));
    channel->round++;
    return SHERD_OK;
}
