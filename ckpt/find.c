/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The step folders of a run, and the newest complete one: by number, never by the order of names or by the
 * clock. See sherd/ckpt.h and ckpt/open.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "ckpt/theirs.h"

void ckpt_step_name(char out[CKPT_NAME_BYTES], const char *prefix, int64_t step)
{
    snprintf(out, CKPT_NAME_BYTES, "%s%0*lld", prefix, CKPT_STEP_DIGITS, (long long)step);
}

/* 1 if the name is that of a step folder, or of one that was put aside. */
static int parse_name(struct ckpt_step *out, const char *name)
{
    char again[CKPT_NAME_BYTES];
    out->aside = text_starts(name, CKPT_ASIDE_PREFIX);
    const char *prefix = out->aside ? CKPT_ASIDE_PREFIX : CKPT_STEP_PREFIX;
    if (!text_starts(name, prefix) || strlen(name) >= sizeof(out->name))
        return 0;
    const char *digits = name + strlen(prefix);
    size_t n = strspn(digits, "0123456789");
    if (n < CKPT_STEP_DIGITS || n > 12 || digits[n] != (out->aside ? '-' : '\0'))
        return 0;
    out->step = strtoll(digits, NULL, 10);
    strcpy(out->name, name);
    ckpt_step_name(again, prefix, out->step);
    return strlen(again) == strlen(prefix) + n; /* one name a step: no further zeros */
}

/* Newest first; of the same step the one in place before one put aside. */
static int by_step(const void *a, const void *b)
{
    const struct ckpt_step *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->aside != y->aside ? x->aside - y->aside : strcmp(x->name, y->name);
}

int ckpt_list_steps(struct ckpt_step **out, int *n, const char *dir)
{
    char **names;
    int n_names;
    *n = 0;
    if (!file_is_dir(dir))
        return SHERD_FAIL(SHERD_ENOTFOUND, "%s: there is no such folder", dir);
    SHERD_TRY(file_list(&names, &n_names, dir));
    *out = mem_zalloc((size_t)n_names, sizeof(**out));
    if (!*out) {
        file_list_free(names, n_names);
        return SHERD_ENOMEM;
    }
    for (int i = 0; i < n_names; i++)
        *n += parse_name(&(*out)[*n], names[i]);
    file_list_free(names, n_names);
    qsort(*out, (size_t)*n, sizeof(**out), by_step);
    return SHERD_OK;
}

int ckpt_check_step(const char *dir, const struct ckpt_step *step, struct ckpt_note *note)
{
    struct sherd_ckpt *ckpt;
    char *path = ckpt_join(dir, step->name);
    if (!path)
        return SHERD_ENOMEM;
    int st = sherd_ckpt_open(&ckpt, path);
    mem_free(path);
    SHERD_TRY(st);
    if (ckpt->manifest.meta.step != step->step)
        st = SHERD_FAIL(SHERD_EFORMAT, "%s/%s: its manifest is that of step %lld", dir, step->name,
            (long long)ckpt->manifest.meta.step);
    const struct ckpt_meta *meta = &ckpt->manifest.meta;
    if (note)
        *note = (struct ckpt_note){ meta->run, meta->nonfinite, meta->has_loss, meta->loss };
    sherd_ckpt_close(ckpt);
    return st;
}

/* Number of the first step folder behind the one called so; 0 for NULL. */
static int first_behind(const struct ckpt_step *steps, int n, const char *name)
{
    int i = 0;
    while (name && i < n && strcmp(steps[i].name, name) != 0)
        i++;
    return name ? MIN(i + 1, n) : 0;
}

static int find_below(char **path, const char *dir, const char *behind)
{
    struct ckpt_step *steps = NULL;
    char theirs[CKPT_THEIRS_BYTES];
    int n, st = SHERD_OK;
    SHERD_TRY(ckpt_list_steps(&steps, &n, dir));
    for (int i = first_behind(steps, n, behind); i < n; i++) {
        struct ckpt_note note;
        st = ckpt_check_step(dir, &steps[i], &note);
        if (st == SHERD_OK && note.nonfinite) {
            log_warn(
                "skipping checkpoint %s/%s: it holds values that are infinite or not a number; name it itself "
                "to use it all the same",
                dir, steps[i].name);
            continue;
        }
        if (st == SHERD_OK) {
            *path = ckpt_join(dir, steps[i].name);
            st = *path ? SHERD_OK : SHERD_ENOMEM;
            goto out;
        }
        if (!ckpt_is_broken(st))
            goto out;
        log_warn("skipping checkpoint %s/%s: %s", dir, steps[i].name, sherd_error());
    }
    if (n)
        st = SHERD_FAIL(SHERD_ECORRUPT,
            "%s: none of its %d checkpoints is complete and finite (the warnings say why); copy one back, or "
            "name another folder",
            dir, n);
    else {
        ckpt_theirs(theirs, dir);
        st = SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: no checkpoint (looked for %s/" CKPT_STEP_PREFIX "*/" CKPT_MANIFEST ")%s", dir, dir, theirs);
    }
out:
    mem_free(steps);
    return st;
}

/* What a folder is called, without those it lies in. */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A folder with a manifest, or one called like a step that is not the folder of a run, is meant as a step
 * folder. */
static int is_step_folder(const char *dir)
{
    struct ckpt_step step, *below = NULL;
    int n = 0;
    if (file_has(dir, CKPT_MANIFEST))
        return 1;
    if (!parse_name(&step, name_of(dir)))
        return 0;
    int yes = ckpt_list_steps(&below, &n, dir) != SHERD_OK || n == 0;
    mem_free(below);
    return yes;
}

int sherd_ckpt_find(char **path, const char *dir)
{
    struct sherd_ckpt *ckpt;
    *path = NULL;
    if (!dir || !*dir)
        return SHERD_FAIL(SHERD_EINVAL, "the name of the checkpoint folder is empty");
    char *plain = mem_strdup(dir);
    if (!plain)
        return SHERD_ENOMEM;
    for (size_t len = strlen(plain); len > 1 && plain[len - 1] == '/'; len--)
        plain[len - 1] = '\0';
    int st = SHERD_OK;
    if (!is_step_folder(plain)) {
        st = find_below(path, plain, NULL);
        mem_free(plain);
        return st;
    }
    st = sherd_ckpt_open(&ckpt, plain);
    if (st != SHERD_OK) {
        mem_free(plain);
        return st;
    }
    sherd_ckpt_close(ckpt);
    *path = plain;
    return SHERD_OK;
}

int ckpt_find_older(char **path, const char *dir, const char *than)
{
    *path = NULL;
    return find_below(path, dir, name_of(than));
}

/* "damaged-step-00000009", with "-1" and so on behind it where there is one already; mem_free it. */
static char *name_aside(const char *path)
{
    const char *name = name_of(path);
    int dir = (int)(name - path);
    for (int i = 0;; i++) {
        char tail[16] = "";
        if (i > 0)
            snprintf(tail, sizeof(tail), "-%d", i);
        char *to = mem_printf("%.*s" CKPT_DAMAGED_PREFIX "%s%s", dir, path, name, tail);
        if (!to || !file_exists(to))
            return to;
        mem_free(to);
    }
}

int ckpt_put_aside(const char *path)
{
    char *to = name_aside(path);
    int st = to ? file_rename(path, to) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        log_warn("%s is called %s now, and may be removed", path, to);
    mem_free(to);
    return st;
}

int ckpt_put_passed_aside(const char *dir, const char *than)
{
    struct ckpt_step *steps = NULL;
    const char *name = name_of(than);
    int n, st = SHERD_OK;
    SHERD_TRY(ckpt_list_steps(&steps, &n, dir));
    for (int i = 0; i < n && st == SHERD_OK && strcmp(steps[i].name, name) != 0; i++) {
        struct ckpt_note note = { 0 };
        if (steps[i].aside || !(ckpt_is_broken(ckpt_check_step(dir, &steps[i], &note)) || note.nonfinite))
            continue;
        char *path = ckpt_join(dir, steps[i].name);
        st = path ? ckpt_put_aside(path) : SHERD_ENOMEM;
        mem_free(path);
    }
    mem_free(steps);
    return st;
}
