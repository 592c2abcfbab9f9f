/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A host as lines: its cores, those that the process may use, the cores near to each of up to four GPUs, the
 * siblings of core 0 and those after it. Refused with a text, or shares that are apart and of allowed cores.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include <sherd/base.h>

#include "tools/cores.h"

#define GPUS 4
#define SIBLINGS 64

/* Cuts the next line off; "" where there is none. */
static const char *line(char **rest)
{
    char *at = *rest, *end = at ? strchr(at, '\n') : NULL;
    *rest = end ? end + 1 : NULL;
    if (end)
        *end = '\0';
    return at ? at : "";
}

/* What is printed is read as the same again. */
static void check_print(const struct cores *cores)
{
    static char text[CORES_MOST * 5];
    struct cores again;
    FUZZ_CHECK(cores_parse(&again, cores_print(cores, text, sizeof(text)), "again") == SHERD_OK);
    FUZZ_CHECK(CPU_EQUAL_S(sizeof(again), again.set, cores->set));
}

static void check_shares(const struct cores_host *host, const struct cores *may)
{
    struct cores all, share, both;
    CPU_ZERO_S(sizeof(all), all.set);
    for (int i = 0; i < host->n_gpus; i++) {
        int st = cores_share(&share, host, may, host->gpus[i].bus);
        if (st != SHERD_OK) {
            FUZZ_CHECK((st == SHERD_EFORMAT || st == SHERD_EUNSUPPORTED) && sherd_error()[0]);
            continue;
        }
        FUZZ_CHECK(cores_count(&share) >= 2);
        CPU_AND_S(sizeof(both), both.set, share.set, may->set);
        FUZZ_CHECK(CPU_EQUAL_S(sizeof(both), both.set, share.set));
        CPU_AND_S(sizeof(both), both.set, share.set, all.set);
        FUZZ_CHECK(cores_count(&both) == 0);
        CPU_OR_S(sizeof(all), all.set, all.set, share.set);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1), *rest = text;
    const char *siblings[SIBLINGS] = { NULL };
    struct cores_gpu gpus[GPUS];
    struct cores may;
    FUZZ_CHECK(text);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    struct cores_host host = { .online = line(&rest), .gpus = gpus, .siblings = siblings };
    int st = cores_parse(&may, line(&rest), "may");
    if (st == SHERD_OK)
        check_print(&may);
    else
        FUZZ_CHECK(st == SHERD_EFORMAT && strncmp(sherd_error(), "may: '", 6) == 0);
    for (; host.n_gpus < GPUS && rest; host.n_gpus++) {
        snprintf(gpus[host.n_gpus].bus, CORES_BUS, "gpu%d", GPUS - host.n_gpus);
        gpus[host.n_gpus].local = line(&rest);
    }
    for (; host.n_siblings < SIBLINGS && rest; host.n_siblings++)
        siblings[host.n_siblings] = line(&rest);
    if (st == SHERD_OK)
        check_shares(&host, &may);
    free(text);
    return 0;
}
