/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Launchers' variables with anything in them, as lines NAME=VALUE: a world that can be, or a text.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include <sherd/comm.h>

static const char *const names[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "SHERD_MEET", "SHERD_JOB", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
    "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID" };

static void set(char *line)
{
    char *equals = strchr(line, '=');
    if (!equals)
        return;
    *equals = '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(line, names[i]) == 0)
            setenv(line, equals + 1, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sherd_world w;
    char *text = malloc(bytes + 1), *save = NULL;
    FUZZ_CHECK(text);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        set(line);
    free(text);
    int st = sherd_world_from_env(&w);
    if (st != SHERD_OK) {
        FUZZ_CHECK(st == SHERD_ECONFIG && sherd_error()[0]);
        return 0;
    }
    FUZZ_CHECK(w.size >= 1 && w.rank >= 0 && w.rank < w.size);
    FUZZ_CHECK(
        w.local_size >= 1 && w.local_size <= w.size && w.local_rank >= 0 && w.local_rank < w.local_size);
    FUZZ_CHECK(memchr(w.job, '\0', sizeof(w.job)) && w.job[0]);
    FUZZ_CHECK(memchr(w.master, '\0', sizeof(w.master)) && memchr(w.source, '\0', sizeof(w.source)));
    FUZZ_CHECK(!w.master[0] || (w.port > 0 && w.port <= 65535));
    return 0;
}
