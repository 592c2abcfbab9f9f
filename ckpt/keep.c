/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which checkpoints stay: see ckpt/ckpt.h. A folder is renamed to a temporary name before it is removed, so
 * that a death in between leaves a leftover and never a checkpoint with files missing.
 */
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/open.h"

static int remove_below(const char *dir, const char *name)
{
    char *path = ckpt_join(dir, name);
    if (!path)
        return SHERD_ENOMEM;
    int st = file_remove_tree(path);
    mem_free(path);
    return st;
}

static int rename_below(const char *dir, const char *from, const char *to)
{
    char *a = ckpt_join(dir, from), *b = ckpt_join(dir, to);
    int st = a && b ? file_rename(a, b) : SHERD_ENOMEM;
    mem_free(a);
    mem_free(b);
    return st;
}

static int remove_step(const char *dir, const struct ckpt_step *step)
{
    char gone[CKPT_NAME_BYTES], name[CKPT_NAME_BYTES];
    ckpt_step_name(gone, CKPT_TEMP_PREFIX, step->step);
    snprintf(name, sizeof(name), "%.40s-removed", gone);
    SHERD_TRY(remove_below(dir, name));
    SHERD_TRY(rename_below(dir, step->name, name));
    return remove_below(dir, name);
}

/* Saves that were not finished, and removals. */
static int remove_leftovers(const char *dir)
{
    char **names;
    int n, st = SHERD_OK;
    SHERD_TRY(file_list(&names, &n, dir));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        if (!text_starts(names[i], CKPT_TEMP_PREFIX) && !text_starts(names[i], CKPT_LATEST ".tmp."))
            continue;
        st = remove_below(dir, names[i]);
        if (st == SHERD_OK)
            log_info("removed %s/%s, left by a run that died", dir, names[i]);
    }
    file_list_free(names, n);
    return st;
}

/* A step folder that was put aside goes if its successor is in place or if it was never complete; otherwise
 * it goes back to its place. */
static int settle_aside(const char *dir, const struct ckpt_step *aside, const struct ckpt_step *in_place)
{
    char name[CKPT_NAME_BYTES];
    int successor = in_place ? ckpt_check_step(dir, in_place, NULL) : SHERD_ENOTFOUND;
    if (successor == SHERD_OK)
        return remove_step(dir, aside);
    int st = ckpt_check_step(dir, aside, NULL);
    if (ckpt_is_broken(st))
        return remove_step(dir, aside);
    SHERD_TRY(st);
    if (!ckpt_is_broken(successor))
        return successor;
    if (in_place)
        SHERD_TRY(remove_step(dir, in_place));
    ckpt_step_name(name, CKPT_STEP_PREFIX, aside->step);
    SHERD_TRY(rename_below(dir, aside->name, name));
    log_info("put %s/%s back in place as %s", dir, aside->name, name);
    return SHERD_OK;
}

/* Settles one folder that was put aside; *more is 0 when there is none. */
static int settle_one(const char *dir, int *more)
{
    struct ckpt_step *steps;
    int n, i = 0, st = SHERD_OK;
    SHERD_TRY(ckpt_list_steps(&steps, &n, dir));
    while (i < n && !steps[i].aside)
        i++;
    *more = i < n;
    if (*more) {
        int has_successor = i > 0 && steps[i - 1].step == steps[i].step;
        st = settle_aside(dir, &steps[i], has_successor ? &steps[i - 1] : NULL);
    }
    mem_free(steps);
    return st;
}

int ckpt_tidy(const char *dir)
{
    SHERD_TRY(remove_leftovers(dir));
    for (int more = 1; more;)
        SHERD_TRY(settle_one(dir, &more));
    return SHERD_OK;
}

/* A step folder and what is known of it. */
struct candidate {
    struct ckpt_step step;
    struct ckpt_note note;
};

/* The complete checkpoints of this run, newest first. */
static int list_candidates(
    struct candidate *out, const char *dir, const struct ckpt_step *steps, int n_steps, uint64_t run)
{
    int n = 0;
    for (int i = 0; i < n_steps; i++) {
        struct candidate *c = &out[n];
        c->step = steps[i];
        if (ckpt_check_step(dir, &steps[i], &c->note) != SHERD_OK)
            log_warn("%s/%s is no complete checkpoint and stays: %s", dir, steps[i].name, sherd_error());
        else if (run && c->note.run && c->note.run != run)
            log_debug("%s/%s is of another run and stays", dir, steps[i].name);
        else
            n++;
    }
    return n;
}

/* Of equal losses the newer one is better. */
static int better(const struct candidate *a, const struct candidate *b)
{
    if (!a->note.has_loss || a->note.nonfinite)
        return 0;
    return a->note.loss < b->note.loss || (a->note.loss <= b->note.loss && a->step.step > b->step.step);
}

/* Number i, counted from the newest. */
static int stays(const struct candidate *all, int n, int i, const struct ckpt_keep *keep)
{
    const struct candidate *c = &all[i];
    int newer_finite = 0, ahead = 0;
    for (int k = 0; k < i; k++)
        newer_finite += !all[k].note.nonfinite;
    for (int k = 0; k < n; k++)
        ahead += k != i && better(&all[k], c);
    int last_finite = !c->note.nonfinite && newer_finite == 0;
    int nth = keep->every > 0 && c->step.step % keep->every == 0;
    int best = c->note.has_loss && !c->note.nonfinite && ahead < keep->best;
    return i < keep->newest || last_finite || nth || best;
}

int ckpt_rotate(const char *dir, const struct ckpt_keep *keep, uint64_t run)
{
    struct ckpt_step *steps = NULL;
    struct candidate *all = NULL;
    int n_steps, n = 0, st = SHERD_OK;
    if (keep->newest < 0 || keep->every < 0 || keep->best < 0)
        return SHERD_FAIL(SHERD_EINVAL, "checkpoints to keep must be 0 or more, not %lld",
            (long long)MIN(keep->newest, MIN(keep->every, keep->best)));
    SHERD_TRY(ckpt_tidy(dir));
    if (keep->newest == 0)
        return SHERD_OK;
    SHERD_TRY(ckpt_list_steps(&steps, &n_steps, dir));
    all = mem_zalloc((size_t)n_steps, sizeof(*all));
    if (all)
        n = list_candidates(all, dir, steps, n_steps, run);
    else
        st = SHERD_ENOMEM;
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        if (!stays(all, n, i, keep))
            st = remove_step(dir, &all[i].step);
    }
    mem_free(all);
    mem_free(steps);
    return st;
}
