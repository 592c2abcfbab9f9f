/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A process as a rank.
 */
#include "tools/rank.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/args.h"
#include "tools/bind.h"
#include "tools/launch.h"
#include "tools/out.h"

int rank_place(const char *command, int64_t ranks, struct sherd_world *world, int *launcher)
{
    int st = sherd_world_from_env(world);
    if (st != SHERD_OK) {
        out_fail(st);
        return EXIT_USAGE;
    }
    int alone = strcmp(world->source, "single process") == 0;
    *launcher = alone && ranks > 1;
    if (!alone && ranks > 0 && ranks != world->size)
        return args_mistake(command,
            "--ranks %lld, but this process was started by %s as rank %d of %d: leave --ranks out, or start "
            "'sherd %s' by itself",
            (long long)ranks, world->source, world->rank, world->size, command);
    return -1;
}

/* The file that torchrun reads a failed rank's reason from. It takes the failure with the least time, in
 * seconds, for the first one: who only noticed another's comes a second later. */
static void tell_torchrun(const char *text, int noticed)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    json_t *all = path && path[0] ? json_pack("{s:s, s:I}", "message", text, "timestamp",
                                        (json_int_t)time(NULL) + noticed)
                                  : NULL;
    if (all)
        (void)json_dump_file(all, path, 0); /* the same is said on stderr */
    json_decref(all);
}

int rank_failed(int status, const struct sherd_world *world)
{
    const char *text = sherd_error()[0] ? sherd_error() : sherd_status_text(status);
    if (!getenv("SHERD_ERROR_FD"))
        tell_torchrun(text, status == SHERD_EPEER);
    if (status == SHERD_ESTOPPED) {
        if (world->rank == 0)
            fprintf(stderr, "sherd: %s\n", text);
    } else if (launch_tell(text)) {
        return out_code(status);
    } else if (world->size > 1) {
        fprintf(stderr, "sherd: rank %d of %d failed: %s\n", world->rank, world->size, text);
    } else {
        fprintf(stderr, "sherd: %s\n", text);
    }
    return out_code(status);
}

int rank_cores(int local_size)
{
    cpu_set_t set;
    int cores =
        sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int share = cores / (local_size > 0 ? local_size : 1);
    return share > 0 ? share : 1;
}

int rank_bind(const char *device, const struct sherd_world *world, int each)
{
    char bus[CORES_BUS], list[256];
    struct cores cores;
    int says = each || world->rank == 0;
    if (sherd_device_bus(device, bus, sizeof(bus)) != SHERD_OK || !bus[0])
        return 0; /* opening the device tells what is wrong with it */
    int st = bind_near(&cores, "/sys", bus);
    if (says && st == SHERD_OK)
        out_say("bound to cores %s near GPU %s", cores_print(&cores, list, sizeof(list)), bus);
    else if (says)
        out_say("not bound to cores: %s", sherd_error());
    return st == SHERD_OK ? cores_count(&cores) : 0;
}

const char *rank_device(const char *name, int local_rank, char buf[32])
{
    if (strcmp(name, "cuda") != 0)
        return name;
    snprintf(buf, 32, "cuda:%d", local_rank);
    return buf;
}

const char *rank_cache(char buf[RANK_PATH_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;
    buf[0] = 0;
    if (cache && cache[0] == '/')
        n = snprintf(buf, RANK_PATH_BYTES, "%s/sherd", cache);
    else if (home && home[0] == '/')
        n = snprintf(buf, RANK_PATH_BYTES, "%s/.cache/sherd", home);
    if (n >= RANK_PATH_BYTES)
        buf[0] = 0;
    return buf;
}

int rank_open(struct sherd_device **out, const struct sherd_config *config, const struct sherd_world *world)
{
    char name[32], cache[RANK_PATH_BYTES];
    const char *device_name = rank_device(config->run.device, world->local_rank, name);
    int bound = config->run.bind == SHERD_BIND_AUTO ? rank_bind(device_name, world, 0) : 0;
    int threads = bound ? bound : rank_cores(world->local_size);
    if (world->rank == 0 && world->size > 1 && strcmp(world->source, "sherd") != 0)
        out_say(
            "%d ranks, %d of them on this host, as %s told", world->size, world->local_size, world->source);
    return sherd_device_open(
        out, &(struct sherd_device_desc){ .name = device_name,
                 .threads = config->run.threads > 0 ? (int)config->run.threads : threads,
                 .tune = config->run.tune && !config->run.deterministic ? rank_cache(cache) : NULL,
                 .async = config->shard.overlap });
}
