/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What ranks pin on the board, as atomic words: a reader may look at any moment, and a writer never waits. A
 * note that is overwritten while it is read is told by its number.
 */
#include "comm/board.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"

#define LINE 64
#define WORDS(type) ((sizeof(type) + 7) / 8)
#define HOST_BYTES 56
#define MOST_NAMED 4    /* absent ranks that are told one by one */
#define MOST_GROUPS 3   /* places of the others */
#define BOARD_MOST 4096 /* ranks beyond are not told by place */

struct who {
    int64_t pid;
    char host[HOST_BYTES];
};

struct seat {
    _Alignas(LINE) _Atomic uint64_t pinned; /* notes so far */
    _Atomic uint64_t beats;
    _Atomic uint64_t figures_step;
    _Atomic uint64_t figures[BOARD_FIGURES];
    _Atomic uint64_t who[WORDS(struct who)];
    _Atomic uint64_t trail[BOARD_TRAIL][WORDS(struct board_note)];
};

struct board {
    _Alignas(LINE) _Atomic uint32_t claimed;
    _Atomic uint32_t closed;
    _Atomic uint32_t lost; /* a rank that is gone, plus 1; 0 = none is known */
    int32_t size;
    struct seat seats[];
};

static void put(_Atomic uint64_t *to, const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)from + at, MIN(bytes - at, (size_t)8));
        atomic_store_explicit(&to[at / 8], word, memory_order_relaxed);
    }
}

static void get(void *to, const _Atomic uint64_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = atomic_load_explicit(&from[at / 8], memory_order_relaxed);
        memcpy((char *)to + at, &word, MIN(bytes - at, (size_t)8));
    }
}

size_t board_bytes(int size)
{
    return sizeof(struct board) + (size_t)size * sizeof(struct seat);
}

struct board *board_at(void *memory, int size)
{
    struct board *board = memory;
    board->size = size;
    return board;
}

/* A seat as plain bytes. */
struct seat_copy {
    uint64_t pinned, beats, figures_step;
    double figures[BOARD_FIGURES];
    struct who who;
    struct board_note trail[BOARD_TRAIL];
};

size_t board_seat_bytes(void)
{
    return sizeof(struct seat_copy);
}

void board_give(const struct board *board, int rank, void *out)
{
    const struct seat *seat = &board->seats[rank];
    struct seat_copy copy = { .pinned = board_pinned(board, rank) };
    copy.beats = atomic_load_explicit(&seat->beats, memory_order_relaxed);
    copy.figures_step = (uint64_t)board_look(board, rank, copy.figures);
    get(&copy.who, seat->who, sizeof(copy.who));
    for (int i = 0; i < BOARD_TRAIL; i++)
        get(&copy.trail[i], seat->trail[i], sizeof(copy.trail[i]));
    memcpy(out, &copy, sizeof(copy));
}

void board_take(struct board *board, int rank, const void *from, double shift)
{
    struct seat *seat = &board->seats[rank];
    struct seat_copy copy;
    memcpy(&copy, from, sizeof(copy));
    put(seat->who, &copy.who, sizeof(copy.who));
    for (int i = 0; i < BOARD_TRAIL; i++) {
        copy.trail[i].seconds += shift;
        put(seat->trail[i], &copy.trail[i], sizeof(copy.trail[i]));
    }
    board_show(board, rank, (int64_t)copy.figures_step, copy.figures);
    atomic_store_explicit(&seat->beats, copy.beats, memory_order_relaxed);
    atomic_store_explicit(&seat->pinned, copy.pinned, memory_order_release);
}

void board_enter_as(struct board *board, int rank, int pid, const char *host)
{
    struct who who = { .pid = pid };
    snprintf(who.host, sizeof(who.host), "%s", host);
    put(board->seats[rank].who, &who, sizeof(who));
}

void board_enter(struct board *board, int rank, int pid)
{
    char host[HOST_BYTES] = "";
    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = '\0';
    board_enter_as(board, rank, pid, host);
}

void board_pin(struct board *board, int rank, const struct board_place *place)
{
    struct seat *seat = &board->seats[rank];
    struct board_note note = { .place = *place, .seconds = clock_seconds() };
    if (atomic_load_explicit(&board->closed, memory_order_relaxed))
        return;
    uint64_t n = atomic_load_explicit(&seat->pinned, memory_order_relaxed);
    put(seat->trail[n % BOARD_TRAIL], &note, sizeof(note));
    atomic_store_explicit(&seat->pinned, n + 1, memory_order_release);
}

void board_close(struct board *board)
{
    atomic_store(&board->closed, 1);
}

void board_lose(struct board *board, int rank)
{
    atomic_store(&board->lost, (uint32_t)rank + 1);
    board_close(board);
}

void board_beat(struct board *board, int rank)
{
    atomic_fetch_add_explicit(&board->seats[rank].beats, 1, memory_order_relaxed);
}

void board_show(struct board *board, int rank, int64_t step, const double figures[BOARD_FIGURES])
{
    struct seat *seat = &board->seats[rank];
    put(seat->figures, figures, BOARD_FIGURES * sizeof(*figures));
    atomic_store_explicit(&seat->figures_step, (uint64_t)step, memory_order_release);
}

int64_t board_look(const struct board *board, int rank, double figures[BOARD_FIGURES])
{
    const struct seat *seat = &board->seats[rank];
    int64_t step = (int64_t)atomic_load_explicit(&seat->figures_step, memory_order_acquire);
    get(figures, seat->figures, BOARD_FIGURES * sizeof(*figures));
    return step;
}

uint64_t board_pulse(const struct board *board, int rank)
{
    uint64_t sum = 0;
    for (int r = 0; r < board->size; r++)
        if (r != rank)
            sum += atomic_load_explicit(&board->seats[r].pinned, memory_order_relaxed) +
                   atomic_load_explicit(&board->seats[r].beats, memory_order_relaxed);
    return sum;
}

uint64_t board_pinned(const struct board *board, int rank)
{
    return atomic_load_explicit(&board->seats[rank].pinned, memory_order_acquire);
}

int board_read(const struct board *board, int rank, int k, struct board_note *out)
{
    const struct seat *seat = &board->seats[rank];
    uint64_t n = board_pinned(board, rank);
    if (k < 0 || k >= BOARD_TRAIL || (uint64_t)k >= n)
        return 0;
    get(out, seat->trail[(n - 1 - (uint64_t)k) % BOARD_TRAIL], sizeof(*out));
    out->place.text[BOARD_TEXT_BYTES - 1] = '\0';
    atomic_thread_fence(memory_order_acquire);
    /* The slot of note n - 1 - k is written again as note n - 1 - k + BOARD_TRAIL. */
    return board_pinned(board, rank) + (uint64_t)k < n + BOARD_TRAIL;
}

int board_claim(struct board *board)
{
    return atomic_exchange(&board->claimed, 1) == 0;
}

/* ---- texts ---- */

struct line {
    char *at;
    size_t left;
};

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->at, line->left, format, args);
    va_end(args);
    size_t put = n < 0 ? 0 : MIN((size_t)n, line->left - 1);
    line->at += put;
    line->left -= put;
}

#define LISTED_BYTES 40 /* of ", 1000000000-1000000007 and more" */

const char *board_ranks(const uint8_t *flags, int size, char *buf, size_t bytes)
{
    struct line line = { buf, bytes };
    int n = 0, first = 1;
    for (int r = 0; r < size; r++)
        n += flags[r] != 0;
    add(&line, n == 1 ? "rank " : "ranks ");
    for (int r = 0; r < size; r++) {
        int end = r;
        if (!flags[r])
            continue;
        if (line.left < LISTED_BYTES) {
            add(&line, " and more");
            break;
        }
        while (end + 1 < size && flags[end + 1])
            end++;
        add(&line, end > r + 1 ? "%s%d-%d" : end > r ? "%s%d, %d" : "%s%d", first ? "" : ", ", r, end);
        first = 0;
        r = end;
    }
    return buf;
}

const char *board_name(const struct board *board, int rank, char *buf, size_t bytes)
{
    struct who who;
    get(&who, board->seats[rank].who, sizeof(who));
    who.host[HOST_BYTES - 1] = '\0';
    if (who.pid)
        snprintf(buf, bytes, "rank %d (%s%spid %d)", rank, who.host, who.host[0] ? ", " : "", (int)who.pid);
    else
        snprintf(buf, bytes, "rank %d", rank);
    return buf;
}

static void add_place(struct line *line, const struct board_place *place)
{
    if (place->step > 0)
        add(line, "step %lld, ", (long long)place->step);
    add(line, "%s", place->text);
}

static void add_absent(struct line *line, const struct board *board, int rank, const uint64_t *seq)
{
    char name[128];
    struct board_note note;
    add(line, "%s", board_name(board, rank, name, sizeof(name)));
    if (board_read(board, rank, 0, &note)) {
        add(line, " last seen at ");
        add_place(line, &note.place);
        add(line, ", %.3g s ago", MAX(0.0, clock_seconds() - note.seconds));
    } else if (seq) {
        add(line, " last seen at #%llu", (unsigned long long)seq[rank]);
    }
}

/* Those who are not absent, by place, the lowest rank's first. */
static void add_waiting(struct line *line, const struct board *board, const uint8_t *absent, int after)
{
    uint8_t told[BOARD_MOST] = { 0 }, same[BOARD_MOST];
    struct board_note note, other;
    char names[256];
    int size = MIN(board->size, BOARD_MOST), groups = 0;
    for (int r = 0; r < size && groups < MOST_GROUPS; r++) {
        if (absent[r] || told[r] || !board_read(board, r, 0, &note))
            continue;
        memset(same, 0, sizeof(same));
        int n = 0;
        for (int k = r; k < size; k++)
            if (!absent[k] && !told[k] && board_read(board, k, 0, &other) &&
                other.place.step == note.place.step && strcmp(other.place.text, note.place.text) == 0) {
                same[k] = told[k] = 1;
                n++;
            }
        add(line, "%s%s %s at ", after++ ? "; " : "", board_ranks(same, size, names, sizeof(names)),
            n > 1 ? "wait" : "waits");
        add_place(line, &note.place);
        groups++;
    }
}

static void tell(
    struct line *line, const struct board *board, int size, const uint8_t *absent, const uint64_t *seq)
{
    int named = 0, more = 0;
    for (int r = 0; r < size; r++) {
        if (!absent[r])
            continue;
        if (named == MOST_NAMED) {
            more++;
            continue;
        }
        add(line, "%s", named++ ? ", " : "");
        add_absent(line, board, r, seq);
    }
    if (more)
        add(line, " and %d more", more);
    add_waiting(line, board, absent, named > 0);
}

const char *board_tell(
    const struct board *board, const uint8_t *absent, const uint64_t *absent_seq, char *buf, size_t bytes)
{
    struct line line = { buf, bytes };
    buf[0] = '\0';
    tell(&line, board, board->size, absent, absent_seq);
    return buf;
}

static int is_behind(const struct board_place *a, const struct board_place *b)
{
    return a->step != b->step ? a->step < b->step : a->done < b->done;
}

const char *board_tell_all(const struct board *board, char *buf, size_t bytes)
{
    struct board_note note;
    struct board_place furthest = { 0 };
    uint8_t absent[BOARD_MOST] = { 0 };
    int size = MIN(board->size, BOARD_MOST);
    for (int r = 0; r < size; r++)
        if (board_read(board, r, 0, &note) && is_behind(&furthest, &note.place))
            furthest = note.place;
    for (int r = 0; r < size; r++)
        absent[r] = (board_read(board, r, 0, &note) && is_behind(&note.place, &furthest)) ||
                    atomic_load(&board->lost) == (uint32_t)r + 1;
    struct line line = { buf, bytes };
    buf[0] = '\0';
    tell(&line, board, size, absent, NULL);
    return buf;
}
