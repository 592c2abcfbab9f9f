/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Device files, and what collectives take on the machine that they describe.
 */
#include <math.h>
#include <string.h>

#include <sherd/forecast.h>

#include "base/json.h"
#include "base/status.h"

#define FILE_VERSION 1
#define MAX_FILE (1 << 20)
#define MAX_GPUS 4096

static const char *const link_names[SHERD_LINKS] = { "node", "network" };
static const char *const kinds[] = { "all_gather", "reduce_scatter", "all_reduce" };

/* A number above `least` (or at it, if that is 0). */
static int get_number(const json_t *o, const char *key, double least, const char *where, double *out)
{
    SHERD_TRY(json_get_double(o, key, where, out));
    if (isfinite(*out) && *out < 1e30 && (least > 0 ? *out >= least : *out >= 0))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' is %g; it must be %s %g", where, key, *out,
        least > 0 ? "at least" : "from", least);
}

static int get_name(const json_t *o, const char *key, const char *where, char *out, size_t bytes)
{
    const char *text;
    SHERD_TRY(json_get_text(o, key, where, &text));
    if (!text[0] || strlen(text) >= bytes)
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: member '%s' must be a text of 1 to %zu characters", where, key, bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return SHERD_OK;
}

static int get_matmul(struct sherd_machine *m, const json_t *root, const char *name)
{
    json_t *rows;
    SHERD_TRY(json_get_array(root, "matmul", name, &rows));
    size_t n = json_array_size(rows);
    if (n < 1 || n > SHERD_MACHINE_CLASSES)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member 'matmul' has %zu classes, it must have 1 to %d", name, n,
            SHERD_MACHINE_CLASSES);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        struct sherd_matmul_class *c = &m->matmul[i];
        if (!json_is_object(row))
            return SHERD_FAIL(SHERD_EFORMAT, "%s: matmul[%zu] must be an object", name, i);
        SHERD_TRY(get_number(row, "flops", 1, name, &c->flops));
        SHERD_TRY(get_number(row, "rate", 1, name, &c->rate));
        if (i > 0 && c->flops <= m->matmul[i - 1].flops)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: matmul[%zu]: flops must rise from class to class", name, i);
    }
    m->n_matmul = (int)n;
    return SHERD_OK;
}

static int get_link(struct sherd_link_fit fit[3], const json_t *root, const char *key, const char *name)
{
    const json_t *link = json_object_get(root, key);
    if (!link)
        return SHERD_OK;
    if (!json_is_object(link))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' must be an object", name, key);
    for (int k = 0; k < 3; k++) {
        json_t *row;
        SHERD_TRY(json_get_object(link, kinds[k], name, &row));
        SHERD_TRY(get_number(row, "start", 0, name, &fit[k].start));
        SHERD_TRY(get_number(row, "step", 0, name, &fit[k].step));
        SHERD_TRY(get_number(row, "rate", 1, name, &fit[k].rate));
        SHERD_TRY(get_number(row, "beside", 0, name, &fit[k].beside));
    }
    return SHERD_OK;
}

static int get_all(struct sherd_machine *m, const json_t *root, const char *name)
{
    int64_t version, memory, library, gpus;
    SHERD_TRY(json_get_int(root, "sherd_device", 1, FILE_VERSION, name, &version));
    SHERD_TRY(get_name(root, "name", name, m->name, sizeof(m->name)));
    SHERD_TRY(get_name(root, "kind", name, m->kind, sizeof(m->kind)));
    SHERD_TRY(json_get_int(root, "memory", 1, INT64_MAX, name, &memory));
    SHERD_TRY(json_get_int(root, "library_bytes", 0, memory, name, &library));
    SHERD_TRY(json_get_int(root, "gpus", 1, MAX_GPUS, name, &gpus));
    m->memory = (uint64_t)memory;
    m->library_bytes = (uint64_t)library;
    m->gpus = (int)gpus;
    SHERD_TRY(get_matmul(m, root, name));
    SHERD_TRY(get_number(root, "attention_forward", 1, name, &m->attention_forward));
    SHERD_TRY(get_number(root, "attention_backward", 1, name, &m->attention_backward));
    SHERD_TRY(get_number(root, "memory_rate", 1, name, &m->memory_rate));
    SHERD_TRY(get_number(root, "launch", 0, name, &m->launch));
    SHERD_TRY(get_number(root, "beside_update", 0, name, &m->beside_update));
    for (int i = 0; i < SHERD_LINKS; i++)
        SHERD_TRY(get_link(m->link[i], root, link_names[i], name));
    return SHERD_OK;
}

int sherd_machine_parse(struct sherd_machine *out, const char *text, size_t bytes, const char *name)
{
    json_t *root;
    *out = (struct sherd_machine){ 0 };
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = get_all(out, root, name);
    json_decref(root);
    return st;
}

int sherd_machine_read(struct sherd_machine *out, const char *path)
{
    json_t *root;
    *out = (struct sherd_machine){ 0 };
    SHERD_TRY(json_parse_file(&root, path, MAX_FILE));
    int st = get_all(out, root, path);
    json_decref(root);
    return st;
}

/* ---- collectives ---- */

/* seconds = a + b bytes with weights 1 / seconds^2, so that small sizes count as much as large ones. */
int sherd_link_fit(struct sherd_link_fit *out, const double *bytes, const double *seconds, int n)
{
    double w = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int i = 0; i < n; i++) {
        if (!(seconds[i] > 0) || !(bytes[i] >= 0))
            return SHERD_FAIL(
                SHERD_EINVAL, "link fit: pair %d is %g bytes in %g seconds", i, bytes[i], seconds[i]);
        double v = 1 / (seconds[i] * seconds[i]);
        w += v;
        x += v * bytes[i];
        y += v * seconds[i];
        xx += v * bytes[i] * bytes[i];
        xy += v * bytes[i] * seconds[i];
    }
    double det = w * xx - x * x;
    if (n < 2 || !(det > 1e-12 * w * xx))
        return SHERD_FAIL(SHERD_EINVAL, "link fit: two sizes or more are needed");
    double a = (y * xx - x * xy) / det, b = (w * xy - x * y) / det;
    if (a < 0 || b <= 0) { /* noise: the rate alone, through the largest */
        a = 0;
        b = xy / xx;
    }
    *out = (struct sherd_link_fit){ .start = a, .rate = 1 / b };
    return SHERD_OK;
}

double sherd_collective_seconds(
    const struct sherd_machine *m, const struct sherd_place *place, enum sherd_collective kind, double bytes)
{
    double ranks = (double)place->gpus * place->hosts;
    const struct sherd_link_fit *in = &m->link[SHERD_LINK_HOST][kind];
    const struct sherd_link_fit *across = &m->link[SHERD_LINK_NETWORK][kind];
    if (ranks < 2 || bytes <= 0)
        return 0;
    double wire = bytes * (ranks - 1) / ranks * (kind == SHERD_ALL_REDUCE ? 2 : 1);
    double passes = kind == SHERD_ALL_REDUCE ? 2 : 1;
    if (place->hosts == 1)
        return in->start + passes * in->step * (ranks - 1) + wire / in->rate;
    /* Rings go through all ranks: hosts - 1 of their hops cross the network, and each card of a host carries
     * one of the rings. */
    double rate = across->rate * place->gpus;
    if (place->gpus > 1)
        rate = MIN(rate, in->rate);
    double hops = across->step * (place->hosts - 1) + in->step * (ranks - place->hosts);
    return across->start + passes * hops + wire / rate;
}
