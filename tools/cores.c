/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Shares in the cores of a host.
 */
#include "tools/cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/base.h>

#define BYTES sizeof(struct cores)
#define SHARE_LEAST 2 /* a rank keeps one core busy, and its copies and network want another */

int cores_count(const struct cores *cores)
{
    return CPU_COUNT_S(BYTES, cores->set);
}

/* ---- lists ---- */

/* Digits alone, which strtol does not insist on. */
static int number(const char **at, long *out)
{
    char *end;
    if (**at < '0' || **at > '9')
        return 0;
    *out = strtol(*at, &end, 10);
    *at = end;
    return *out < CORES_MOST;
}

/* "8" or "0-3". */
static int range(const char **at, long *first, long *last)
{
    if (!number(at, first))
        return 0;
    *last = *first;
    if (**at != '-')
        return 1;
    *at += 1;
    return number(at, last) && *last >= *first;
}

int cores_parse(struct cores *out, const char *text, const char *name)
{
    const char *at = text;
    long first = 0, last = -1;
    int good = 1;
    CPU_ZERO_S(BYTES, out->set);
    for (int more = *at && *at != '\n'; good && more; at += more) {
        long before = last;
        good = range(&at, &first, &last) && first > before;
        for (long core = first; good && core <= last; core++)
            CPU_SET_S((size_t)core, BYTES, out->set);
        more = *at == ',';
    }
    if (good && (*at == '\0' || (*at == '\n' && at[1] == '\0')))
        return SHERD_OK;
    return sherd_fail(SHERD_EFORMAT, "%s: '%.40s' is no list of cores such as 0-3,8 with numbers below %d",
        name, text, CORES_MOST);
}

const char *cores_print(const struct cores *cores, char *buf, size_t bytes)
{
    size_t len = 0;
    buf[0] = '\0';
    for (size_t core = 0; core < CORES_MOST; core++) {
        size_t last = core;
        char range[32];
        if (!CPU_ISSET_S(core, BYTES, cores->set))
            continue;
        while (last + 1 < CORES_MOST && CPU_ISSET_S(last + 1, BYTES, cores->set))
            last++;
        snprintf(range, sizeof(range), last > core ? "%s%zu-%zu" : "%s%zu", len ? "," : "", core, last);
        if (len + strlen(range) + sizeof("...") > bytes) {
            snprintf(buf + len, bytes - len, "...");
            break;
        }
        len += (size_t)snprintf(buf + len, bytes - len, "%s", range);
        core = last;
    }
    return buf;
}

/* ---- shares ---- */

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct cores_gpu *)a)->bus, ((const struct cores_gpu *)b)->bus);
}

/* The cores near to the GPU, how many GPUs are near to them, and which of these it is. */
static int find_gpu(const struct cores_host *host, const char *bus, struct cores *local, int *of, int *index)
{
    const struct cores_gpu *gpu = NULL;
    struct cores other, both;
    for (int i = 0; i < host->n_gpus; i++)
        gpu = strcmp(host->gpus[i].bus, bus) == 0 ? &host->gpus[i] : gpu;
    if (!gpu)
        return sherd_fail(SHERD_EUNSUPPORTED, "the system lists no GPU at %s", bus);
    int st = cores_parse(local, gpu->local, bus);
    if (st != SHERD_OK)
        return st;
    *of = *index = 0;
    for (int i = 0; i < host->n_gpus; i++) {
        st = cores_parse(&other, host->gpus[i].local, host->gpus[i].bus);
        if (st != SHERD_OK)
            return st;
        CPU_AND_S(BYTES, both.set, local->set, other.set);
        if (cores_count(&both) == 0 && &host->gpus[i] != gpu)
            continue;
        if (!CPU_EQUAL_S(BYTES, other.set, local->set))
            return sherd_fail(SHERD_EUNSUPPORTED,
                "GPU %s is near to some of the cores of GPU %s, and to others", host->gpus[i].bus, bus);
        *of += 1;
        *index += compare(&host->gpus[i], gpu) < 0;
    }
    return SHERD_OK;
}

/* Takes the core and its siblings out of `rest`, into `out`. */
static int take(struct cores *out, struct cores *rest, const struct cores_host *host, int core)
{
    const char *text = core < host->n_siblings ? host->siblings[core] : NULL;
    CPU_ZERO_S(BYTES, out->set);
    CPU_SET_S((size_t)core, BYTES, out->set);
    if (text) {
        char name[48];
        struct cores all;
        snprintf(name, sizeof(name), "the siblings of core %d", core);
        int st = cores_parse(&all, text, name);
        if (st != SHERD_OK)
            return st;
        if (!CPU_ISSET_S((size_t)core, BYTES, all.set))
            return sherd_fail(SHERD_EFORMAT, "%s: '%.40s' is without the core itself", name, text);
        CPU_AND_S(BYTES, out->set, all.set, rest->set);
    }
    CPU_XOR_S(BYTES, rest->set, rest->set, out->set);
    return SHERD_OK;
}

/* Of the cores of hardware in `local`, those from the first-th to before the end-th; returns how many there
 * are in all, or a negative status. */
static int pick(
    struct cores *out, const struct cores *local, const struct cores_host *host, int first, int end)
{
    struct cores rest = *local, one;
    int n = 0;
    CPU_ZERO_S(BYTES, out->set);
    for (int core = 0; core < CORES_MOST; core++) {
        if (!CPU_ISSET_S((size_t)core, BYTES, rest.set))
            continue;
        int st = take(&one, &rest, host, core);
        if (st != SHERD_OK)
            return st;
        if (n >= first && n < end)
            CPU_OR_S(BYTES, out->set, out->set, one.set);
        n++;
    }
    return n;
}

int cores_share(struct cores *out, const struct cores_host *host, const struct cores *may, const char *bus)
{
    struct cores online, local, mine;
    int of = 0, index = 0, st = cores_parse(&online, host->online, "the cores that are online");
    if (st != SHERD_OK)
        return st;
    CPU_AND_S(BYTES, mine.set, may->set, online.set);
    if (!CPU_EQUAL_S(BYTES, mine.set, online.set))
        return sherd_fail(SHERD_EUNSUPPORTED,
            "what started this process keeps it to %d of the %d cores of the host", cores_count(&mine),
            cores_count(&online));
    st = find_gpu(host, bus, &local, &of, &index);
    if (st != SHERD_OK)
        return st;
    CPU_AND_S(BYTES, local.set, local.set, online.set);
    int n = pick(out, &local, host, 0, 0);
    if (n < 0)
        return n;
    if (n < SHARE_LEAST * of || n == 0)
        return sherd_fail(SHERD_EUNSUPPORTED,
            "cores near to GPU %s: %d, for %d GPU%s, which is fewer than %d each", bus, n, of,
            of == 1 ? "" : "s", SHARE_LEAST);
    n = pick(out, &local, host, (int)((long)n * index / of), (int)((long)n * (index + 1) / of));
    return n < 0 ? n : SHERD_OK;
}
