/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Progress lines and metrics: see runtime/meter.h.
 */
#include "runtime/meter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

int meter_init(struct meter *m, const struct meter_desc *desc)
{
    *m = (struct meter)METER_NONE;
    m->desc = *desc;
    m->started = m->mark_seconds = clock_seconds();
    if (desc->tensorboard)
        SHERD_TRY(tfevents_open(&m->events, desc->dir));
    if (!desc->jsonl)
        return SHERD_OK;
    m->jsonl_path = mem_printf("%s/metrics.jsonl", desc->dir);
    if (!m->jsonl_path)
        return SHERD_ENOMEM;
    return file_open_append(&m->jsonl, m->jsonl_path);
}

int meter_resume(struct meter *m, int64_t step)
{
    char *text = NULL;
    size_t bytes;
    struct text kept = { 0 };
    SHERD_TRY(tfevents_resume(&m->events, step + 1));
    if (m->jsonl < 0)
        return SHERD_OK;
    SHERD_TRY(file_read_text(&text, &bytes, m->jsonl_path, SIZE_MAX / 4));
    for (char *line = text, *end; line < text + bytes; line = end) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        end = end ? end + 1 : text + bytes; /* a last line without an end was torn by a crash: it goes */
        json_t *record = json_loadb(line, (size_t)(end - line), 0, NULL);
        const json_t *at = json_object_get(record, "step");
        if (json_is_integer(at) && json_integer_value(at) <= step && end[-1] == '\n')
            text_put(&kept, line, (size_t)(end - line));
        json_decref(record);
    }
    int st = kept.failed ? MEM_OUT("%s", m->jsonl_path) : SHERD_OK;
    if (st == SHERD_OK && kept.len != bytes) {
        st = file_write_atomic(m->jsonl_path, kept.data ? kept.data : "", kept.len);
        int old = m->jsonl;
        m->jsonl = -1;
        SHERD_KEEP(st, file_close(old, m->jsonl_path));
        if (st == SHERD_OK)
            st = file_open_append(&m->jsonl, m->jsonl_path);
    }
    text_finish(&kept);
    mem_free(text);
    return st;
}

void meter_finish(struct meter *m)
{
    (void)file_close(m->jsonl, m->jsonl_path); /* every line has gone to the system */
    mem_free(m->jsonl_path);
    tfevents_close(&m->events);
    *m = (struct meter)METER_NONE;
}

/* Whether training can go on without a record. */
static int settle(const struct meter *m, int *was_lost, int st)
{
    int lost = st == SHERD_EIO && m->desc.goes_on;
    if (lost && !*was_lost)
        log_warn("%s; training goes on without records of its steps", sherd_error());
    *was_lost = lost;
    return lost ? SHERD_OK : st;
}

static int write_scalars(struct meter *m, int64_t step, const struct tfevents_scalar *scalars, int n)
{
    return settle(m, &m->events_lost, tfevents_write(&m->events, step, scalars, n));
}

static int append(struct meter *m, json_t *record)
{
    char *text = NULL;
    struct text line = { 0 };
    if (m->jsonl < 0) {
        json_decref(record);
        return SHERD_OK;
    }
    int st = record ? json_print(&text, record, 0) : MEM_OUT("a metrics record");
    json_decref(record);
    if (st != SHERD_OK)
        return st;
    text_add(&line, "%s\n", text);
    mem_free(text);
    st =
        line.failed ? MEM_OUT("a metrics record") : file_append(m->jsonl, line.data, line.len, m->jsonl_path);
    text_finish(&line);
    return settle(m, &m->jsonl_lost, st);
}

void meter_mark(struct meter *m)
{
    m->mark_seconds = clock_seconds();
    m->mark_tokens = m->mark_steps = 0;
}

/* JSON has no word for what is not finite. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* The share of the devices' best that `rate` tokens per second over all ranks are, from 0 to 1; 0 = unknown.
 */
static double utilization(const struct meter_desc *desc, double rate)
{
    return desc->peak > 0 ? rate * desc->flops / (desc->peak * desc->world) : 0;
}

int meter_start(struct meter *m, int64_t step, int stage, int64_t params, const struct sherd_memory *memory)
{
    json_t *r =
        json_pack("{s:I, s:s, s:i, s:i, s:I, s:f}", "step", (json_int_t)step, "event", "start", "world",
            m->desc.world, "stage", stage, "params", (json_int_t)params, "flops_per_token", m->desc.flops);
    if (m->desc.peak > 0)
        json_object_set_new(r, "peak_tflops", json_real(m->desc.peak * 1e-12));
#define XX(name, text) json_object_set_new(r, "memory_" #name, json_integer((json_int_t)memory->name));
    SHERD_REGIONS(XX)
#undef XX
    json_object_set_new(r, "memory_total", json_integer((json_int_t)sherd_memory_total(memory)));
    return append(m, r);
}

static void add_sent(json_t *record, const uint64_t sent[SHERD_COLLECTIVES])
{
    static const char *const names[SHERD_COLLECTIVES] = { "sent_all_gather", "sent_reduce_scatter",
        "sent_all_reduce", "sent_broadcast" };
    uint64_t total = 0;
    for (int i = 0; i < SHERD_COLLECTIVES; i++) {
        json_object_set_new(record, names[i], json_integer((json_int_t)sent[i]));
        total += sent[i];
    }
    json_object_set_new(record, "sent_total", json_integer((json_int_t)total));
}

static double exposed_share(const struct sherd_step_stats *s)
{
    return s->seconds > 0 ? s->exposed / s->seconds : 0;
}

static int record_step(
    struct meter *m, const struct sherd_step_stats *s, const uint64_t sent[SHERD_COLLECTIVES])
{
    double rate = s->seconds > 0 ? (double)s->tokens / s->seconds : 0, mfu = utilization(&m->desc, rate);
    double tflops = rate * m->desc.flops / m->desc.world * 1e-12;
    struct tfevents_scalar scalars[9] = { { "train/loss", s->loss }, { "train/grad_norm", s->grad_norm },
        { "train/lr", s->lr }, { "throughput/tokens_per_second", rate },
        { "throughput/step_seconds", s->seconds }, { "throughput/tflops_per_device", tflops } };
    int n = 6;
    if (mfu > 0)
        scalars[n++] = (struct tfevents_scalar){ "throughput/mfu", mfu };
    if (m->desc.scaled)
        scalars[n++] = (struct tfevents_scalar){ "train/loss_scale", s->loss_scale };
    if (s->exposed >= 0)
        scalars[n++] = (struct tfevents_scalar){ "throughput/exposed_share", exposed_share(s) };
    SHERD_TRY(write_scalars(m, s->step, scalars, n));
    json_t *r = json_pack("{s:I, s:o, s:o, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "step",
        (json_int_t)s->step, "loss", real(s->loss), "grad_norm", real(s->grad_norm), "lr", s->lr, "tokens",
        (json_int_t)s->tokens, "tokens_seen", (json_int_t)s->tokens_seen, "skipped_steps",
        (json_int_t)s->skipped_steps, "step_seconds", s->seconds, "run_seconds", clock_seconds() - m->started,
        "tokens_per_second", rate, "tflops_per_device", tflops);
    if (mfu > 0)
        json_object_set_new(r, "mfu", json_real(mfu));
    if (m->desc.scaled)
        json_object_set_new(r, "loss_scale", json_real(s->loss_scale));
    if (s->exposed >= 0) {
        json_object_set_new(r, "exposed_seconds", json_real(s->exposed));
        json_object_set_new(r, "exposed_share", json_real(exposed_share(s)));
    }
    add_sent(r, sent);
    return append(m, r);
}

int meter_step(struct meter *m, const struct sherd_step_stats *s, const uint64_t sent[SHERD_COLLECTIVES],
    struct text *line)
{
    char tokens[32], left[32], share[32] = "", scale[40] = "", exposed[32] = "";
    m->mark_tokens += s->tokens;
    m->mark_steps++;
    double seconds = clock_seconds() - m->mark_seconds;
    double rate = seconds > 0 ? (double)m->mark_tokens / seconds : 0;
    double per_step = seconds / (double)m->mark_steps;
    int digits = m->desc.steps >= 1000 ? 6 : 4;
    if (m->desc.peak > 0)
        snprintf(share, sizeof(share), " | %.1f%% MFU", 100 * utilization(&m->desc, rate));
    if (m->desc.scaled)
        snprintf(scale, sizeof(scale), " | scale %.6g", s->loss_scale);
    if (m->desc.world > 1 && s->exposed >= 0)
        snprintf(exposed, sizeof(exposed), " | exposed %.1f%%", 100 * exposed_share(s));
    if (s->skipped)
        text_add(line, "step %*lld/%lld | skipped, its gradient is not finite (%lld in all)%s", digits,
            (long long)s->step, (long long)m->desc.steps, (long long)s->skipped_steps, scale);
    else
        text_add(line, "step %*lld/%lld | loss %.4f | grad norm %.3f | lr %.2e%s | %s tok/s%s%s | %s left",
            digits, (long long)s->step, (long long)m->desc.steps, s->loss, s->grad_norm, s->lr, scale,
            text_commas((int64_t)rate, tokens), share, exposed,
            text_human_seconds(per_step * (double)(m->desc.steps - s->step), left));
    return record_step(m, s, sent);
}

int meter_exposed(struct meter *m, int64_t step, double busy, double exposed, double idle)
{
    double all = busy + exposed + idle;
    const struct tfevents_scalar scalars[] = { { "throughput/exposed_share", all > 0 ? exposed / all : 0 } };
    SHERD_TRY(write_scalars(m, step, scalars, 1));
    return append(m, json_pack("{s:I, s:f, s:f, s:f}", "step", (json_int_t)step, "busy_seconds", busy,
                         "exposed_seconds", exposed, "idle_seconds", idle));
}

int meter_save(struct meter *m, const struct ckpt_times *t, double still)
{
    return append(m, json_pack("{s:I, s:s, s:f, s:f, s:f, s:I, s:f, s:I}", "step", (json_int_t)t->step,
                         "event", "save", "still_seconds", still, "update_wait_seconds", t->wait_seconds,
                         "copy_seconds", t->copy_seconds, "copied_bytes", (json_int_t)t->copied_bytes,
                         "save_seconds", t->seconds, "saved_bytes", (json_int_t)t->bytes));
}

int meter_eval(struct meter *m, int64_t step, double loss, int64_t tokens)
{
    SHERD_TRY(write_scalars(m, step, &(struct tfevents_scalar){ "eval/loss", loss }, 1));
    return append(m, json_pack("{s:I, s:o, s:I}", "step", (json_int_t)step, "eval_loss", real(loss),
                         "eval_tokens", (json_int_t)tokens));
}
