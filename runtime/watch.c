/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Telling where this rank is, and reading where the others are: see runtime/watch.h.
 */
#include "runtime/watch.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "runtime/engine.h"

static const char *const phase_names[] = {
#define XX(name, text) text,
    WATCH_PHASES(XX)
#undef XX
};

const char *watch_phase_name(enum watch_phase phase)
{
    return phase_names[phase];
}

/* ---- telling ---- */

static int make_texts(struct sherd_engine *e, enum program_list list)
{
    const struct plan *p = &e->plan;
    int n = p->program.list[list].n;
    e->watch.texts[list] = mem_zalloc((size_t)n, BOARD_TEXT_BYTES);
    if (!e->watch.texts[list])
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++) {
        struct text place = { 0 };
        char *text;
        program_place(&place, &p->program, &p->program_desc, list, i);
        SHERD_TRY(text_take(&place, &text));
        snprintf(e->watch.texts[list][i], BOARD_TEXT_BYTES, "%s", text);
        mem_free(text);
    }
    return SHERD_OK;
}

int watch_init(struct sherd_engine *e)
{
    struct watch *w = &e->watch;
    w->phase = WATCH_OTHER;
    w->since = clock_seconds();
    SHERD_TRY(slow_init(&w->slow, sherd_comm_size(e->comm)));
    for (int l = 0; l < PROGRAM_N_LISTS; l++)
        SHERD_TRY(make_texts(e, (enum program_list)l));
    return SHERD_OK;
}

void watch_finish(struct sherd_engine *e)
{
    for (int l = 0; l < PROGRAM_N_LISTS; l++)
        mem_free(e->watch.texts[l]);
    slow_finish(&e->watch.slow);
}

static int tell(struct sherd_engine *e, int64_t step, const char *text)
{
    struct watch *w = &e->watch;
    struct board_place place = { .step = step };
    place.done = ++w->done;
    snprintf(place.text, sizeof(place.text), "%s", text);
    int st = comm_at(e->comm, &place);
    if (e->reduce_comm)
        comm_at_as(e->reduce_comm, e->comm);
    return st;
}

enum watch_phase watch_phase(struct sherd_engine *e, enum watch_phase phase)
{
    struct watch *w = &e->watch;
    enum watch_phase before = w->phase;
    double now = clock_seconds();
    w->seconds[before] += now - w->since;
    w->since = now;
    w->phase = phase;
    return before;
}

static enum watch_phase phase_of(enum program_op op)
{
    switch (op) {
    case PROGRAM_FORWARD:
        return WATCH_FORWARD;
    case PROGRAM_BACKWARD:
    case PROGRAM_AGAIN:
    case PROGRAM_ZERO:
        return WATCH_BACKWARD;
    case PROGRAM_CLIP:
    case PROGRAM_UPDATE:
        return WATCH_UPDATE;
    default:
        return WATCH_WAIT;
    }
}

int watch_instr(struct sherd_engine *e, enum program_list list, int at)
{
    watch_phase(e, phase_of(e->plan.program.list[list].at[at].op));
    return tell(e, e->step + 1, e->watch.texts[list][at]);
}

int watch_part(struct sherd_engine *e, enum watch_phase phase, const char *text)
{
    watch_phase(e, phase);
    /* What comes between steps belongs to the one that was taken. */
    int between = phase == WATCH_SAVE || phase == WATCH_OTHER;
    int st = tell(e, e->step + !between, text);
    return MIN(0, st);
}

void watch_step(struct sherd_engine *e)
{
    struct board *board = comm_board(e->comm);
    watch_phase(e, WATCH_OTHER);
    if (board)
        board_show(board, sherd_comm_rank(e->comm), e->step, e->watch.seconds);
}

int watch_start(struct sherd_comm *comm, const char *text)
{
    struct board_place place = { 0 };
    snprintf(place.text, sizeof(place.text), "%s", text);
    int st = comm ? comm_at(comm, &place) : SHERD_OK;
    return MIN(0, st);
}

void watch_slow(struct sherd_engine *e, struct text *line)
{
    struct board *board = comm_board(e->comm);
    if (board)
        slow_look(&e->watch.slow, board, line);
}

/* ---- the record ---- */

static void put_rank(struct text *out, const struct board *board, int rank, double end)
{
    char name[160];
    struct board_note note;
    text_add(out, "\n%s: %llu places, the last of them:\n", board_name(board, rank, name, sizeof(name)),
        (unsigned long long)board_pinned(board, rank));
    for (int k = BOARD_TRAIL - 1; k >= 0; k--)
        if (board_read(board, rank, k, &note))
            text_add(out, "%12.6f s  step %-6lld %6lld  %s\n", note.seconds - end, (long long)note.place.step,
                (long long)note.place.done, note.place.text);
}

/* Times count back from the last place that any rank told. */
static int write_record(const struct board *board, int world, const char *path, const char *why)
{
    struct text out = { 0 };
    struct board_note note;
    char *text, where[1000];
    double end = 0;
    for (int r = 0; r < world; r++)
        if (board_read(board, r, 0, &note))
            end = MAX(end, note.seconds);
    text_add(&out,
        "Where the ranks were when the job failed: seconds before the last of these places, step, number of the "
        "instruction, instruction.\n\nwhy: %s\nwhere: %s\n",
        why, board_tell_all(board, where, sizeof(where)));
    for (int r = 0; r < world; r++)
        put_rank(&out, board, r, end);
    SHERD_TRY(text_take(&out, &text));
    int st = file_write_atomic(path, text, strlen(text));
    mem_free(text);
    return st;
}

int watch_records(int status)
{
    return status == SHERD_EPEER || status == SHERD_ETIMEOUT || status == SHERD_ECOMM ||
           status == SHERD_ENOMEM || status == SHERD_EDEVICE || status == SHERD_EINTERNAL;
}

int watch_record(struct sherd_comm *comm, const char *dir, int status)
{
    struct board *board = comm ? comm_board(comm) : NULL;
    char *why = NULL, *path = NULL, *full = NULL, where[1000];
    if (!board || !watch_records(status) || !file_is_dir(dir))
        return status;
    why = mem_strdup(sherd_error());
    path = mem_printf("%s/%s", dir, WATCH_RECORD);
    if (!why || !path)
        goto out;
    if (board_claim(board)) {
        if (write_record(board, sherd_comm_size(comm), path, why) == SHERD_OK)
            log_error("at the failure: %s; the last places of every rank are in %s",
                board_tell_all(board, where, sizeof(where)), path);
        else
            log_warn("the last places of the ranks could not be written: %s", sherd_error());
    }
    full = mem_printf("%s; the last places of every rank: %s", why, path);
out:
    status_adopt(status, full ? full : why ? why : sherd_error());
    mem_free(full);
    mem_free(path);
    mem_free(why);
    return status;
}
