/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The learning rate before and after a run was stopped. See runtime/resumed.h.
 */
#include "runtime/resumed.h"

#include <string.h>

#include <sherd/ckpt.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "optim/optim.h"

/* Steps that the curve goes over. */
static int64_t span_of(const struct sherd_config *c)
{
    return c->schedule.steps ? c->schedule.steps : c->train.steps;
}

/* As the update takes it. */
static float rate_at(const struct sherd_config *c, int64_t update)
{
    return (float)lr_at(c, update, c->train.steps);
}

void resumed_rate(struct text *out, const struct sherd_config *before, const struct sherd_config *now,
    int64_t done, int64_t skipped)
{
    long long was = (long long)span_of(before), is = (long long)span_of(now);
    int64_t step = done + 1;
    while (step <= now->train.steps && rate_at(before, step - skipped) == rate_at(now, step - skipped))
        step++;
    if (step > now->train.steps)
        return;
    if (was != is)
        text_add(out, "learning rate: its curve goes over %lld steps now, not %lld", is, was);
    else
        text_add(out, "learning rate: optim.lr or schedule.* are not what they were");
    text_add(out, ": %.2e at step %lld, where it was to be %.2e", (double)rate_at(now, step - skipped),
        (long long)step, (double)rate_at(before, step - skipped));
    if (was != is)
        text_add(out, "; schedule.steps=%lld keeps the old curve", was);
}

/* The settings that a checkpoint was written with; *found 0 if it has none, as one of another program. */
static int settings_of(struct sherd_config *out, const char *path, int *found)
{
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    json_t *extra = NULL;
    *found = 0;
    SHERD_TRY(sherd_ckpt_open(&ckpt, path));
    sherd_ckpt_info_of(ckpt, &info);
    int st = info.extra ? json_parse(&extra, info.extra, strlen(info.extra), path) : SHERD_OK;
    const char *yaml = json_string_value(json_object_get(extra, "config"));
    if (st == SHERD_OK && yaml) {
        st = sherd_config_parse(out, yaml, strlen(yaml), path, NULL, 0, 0);
        *found = st == SHERD_OK;
    }
    json_decref(extra);
    sherd_ckpt_close(ckpt);
    return st;
}

int resumed_tell(const char *path, const struct sherd_config *now, int64_t done, int64_t skipped)
{
    struct sherd_config before = { 0 };
    struct text line = { 0 };
    int found, st = settings_of(&before, path, &found);
    if (st == SHERD_ENOMEM)
        return st;
    if (st != SHERD_OK)
        log_info("whether the learning rate goes on as before is not known: %s", sherd_error());
    if (found)
        resumed_rate(&line, &before, now, done, skipped);
    if (line.data)
        log_info("%s", line.data);
    text_finish(&line);
    sherd_config_free(&before);
    return SHERD_OK;
}
