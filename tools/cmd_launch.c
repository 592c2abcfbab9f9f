/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd launch: a program as ranks, with torchrun's options.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/launch.h"
#include "tools/out.h"
#include "tools/rank.h"

#define NAME "launch"
#define DEFAULT_PORT 29400
#define MOST_WORDS 4096

struct launch_options {
    int standalone, no_python, module;
    const char *nnodes, *per_node, *endpoint, *id, *backend, *conf, *logs, *redirects, *tee, *master, *role,
        *method;
    int64_t node_rank, restarts, master_port;
    double grace, silent, interval;
    char host[256], module_name[256];
    char *words[MOST_WORDS]; /* of the program, ended by NULL */
};

/* torchrun knows its options with _ for -, too. */
static void straighten(int argc, char **argv)
{
    for (int i = 1; i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i++)
        for (char *p = argv[i]; *p && *p != '='; p++)
            if (p > argv[i] + 1 && *p == '_')
                *p = '-';
}

static int whole(const char *option, const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || n < min || n > max)
        return args_mistake(NAME, "--%s: '%s' is not a whole number from %lld to %lld", option, text,
            (long long)min, (long long)max);
    *out = n;
    return -1;
}

/* "2", or "2:2" as torchrun writes it. */
static int read_nnodes(const struct launch_options *o, struct launch_desc *desc)
{
    int64_t n = 1, most;
    char text[64];
    snprintf(text, sizeof(text), "%s", o->nnodes);
    char *colon = strchr(text, ':');
    if (colon)
        *colon = '\0';
    int code = whole("nnodes", text, 1, 4096, &n);
    most = n;
    if (code < 0 && colon)
        code = whole("nnodes", colon + 1, 1, 4096, &most);
    if (code < 0 && most != n)
        return args_mistake(NAME,
            "--nnodes %s: the number of hosts cannot change while a job runs; give one number", o->nnodes);
    desc->nodes.count = (int)n;
    return code;
}

static int count_gpus(void)
{
    struct sherd_device *device;
    char name[32];
    int n = 0;
    for (; n < 64; n++) {
        snprintf(name, sizeof(name), "cuda:%d", n);
        if (sherd_device_open(&device, &(struct sherd_device_desc){ .name = name }) != SHERD_OK)
            break;
        sherd_device_close(device);
    }
    return n;
}

static int read_per_node(const struct launch_options *o, struct launch_desc *desc)
{
    int64_t n = 0;
    int code = -1, gpu = strcmp(o->per_node, "gpu") == 0;
    if (gpu || strcmp(o->per_node, "auto") == 0)
        n = count_gpus();
    if (gpu && n == 0)
        return out_refuse("--nproc-per-node gpu: there is no GPU that can be used here: %s", sherd_error());
    if (n == 0 && (strcmp(o->per_node, "cpu") == 0 || strcmp(o->per_node, "auto") == 0))
        n = rank_cores(1);
    if (n == 0)
        code = whole("nproc-per-node", o->per_node, 1, 4096, &n);
    desc->ranks = (int)n;
    return code;
}

/* "host", "host:port", "[address]:port" */
static int read_endpoint(struct launch_options *o, struct launch_desc *desc)
{
    struct launch_nodes *d = &desc->nodes;
    const char *text = o->endpoint ? o->endpoint : o->master ? o->master : "";
    int64_t port = o->endpoint ? DEFAULT_PORT : o->master_port ? o->master_port : DEFAULT_PORT;
    snprintf(o->host, sizeof(o->host), "%s", text[0] == '[' ? text + 1 : text);
    char *colon = strrchr(o->host, ':'), *bracket = strchr(o->host, ']');
    int six = text[0] != '[' && colon && strchr(o->host, ':') != colon;
    if (colon && !six && (!bracket || colon > bracket)) {
        /* One host meets nobody, and torchrun's localhost:0 is as good as any. */
        int code = whole("rdzv-endpoint, port", colon + 1, d->count > 1, 65535, &port);
        if (code >= 0)
            return code;
        *colon = '\0';
    }
    if (bracket)
        *bracket = '\0';
    d->host = o->host;
    d->port = (int)port;
    if (d->count > 1 && !o->host[0])
        return args_mistake(NAME,
            "%d hosts must know where to meet: --rdzv-endpoint HOST:PORT, the same on all, HOST being that of host 0",
            d->count);
    if (d->count > 1 && o->standalone)
        return args_mistake(NAME, "--standalone is one host, --nnodes says %d", d->count);
    if (o->node_rank >= d->count)
        return args_mistake(
            NAME, "--node-rank %lld of %d hosts: they count from 0", (long long)o->node_rank, d->count);
    d->rank = (int)o->node_rank;
    return -1;
}

/* k=v,k=v: the time for joining is all that has a meaning here. */
static int read_conf(const struct launch_options *o, struct launch_desc *desc)
{
    char text[512];
    snprintf(text, sizeof(text), "%s", o->conf);
    for (char *save = NULL, *pair = strtok_r(text, ",", &save); pair; pair = strtok_r(NULL, ",", &save)) {
        char *value = strchr(pair, '=');
        int64_t n = 0;
        if (!value)
            return args_mistake(NAME, "--rdzv-conf: '%s' is not KEY=VALUE", pair);
        *value++ = '\0';
        if (strcmp(pair, "timeout") != 0 && strcmp(pair, "join_timeout") != 0)
            return args_mistake(NAME, "--rdzv-conf: '%s' has no meaning here; join_timeout has", pair);
        int code = whole("rdzv-conf, join_timeout", value, 1, 1000000, &n);
        if (code >= 0)
            return code;
        desc->nodes.join = (double)n;
    }
    if (strcmp(o->backend, "static") != 0 && strcmp(o->backend, "c10d") != 0)
        return args_mistake(NAME,
            "--rdzv-backend %s: hosts meet at the launcher of host 0; static and c10d mean the same here",
            o->backend);
    return -1;
}

static int read_streams(const struct launch_options *o, struct launch_desc *desc)
{
    int64_t only = 0, both = 0;
    if (strchr(o->redirects, ':') || strchr(o->tee, ':'))
        return args_mistake(
            NAME, "-r and -t take one number here, for all ranks; 3 keeps both streams of each");
    int code = whole("redirects", o->redirects, 0, 3, &only);
    if (code < 0)
        code = whole("tee", o->tee, 0, 3, &both);
    if (code < 0 && (only || both) && !o->logs)
        return args_mistake(
            NAME, "%s keeps output in files: say where with --log-dir DIR", only ? "-r" : "-t");
    desc->logs = o->logs;
    desc->only_logged = (int)(only & ~both);
    return code;
}

static int is_self(const char *program)
{
    char self[PATH_MAX], other[PATH_MAX];
    return strcmp(program, "sherd") == 0 || (strchr(program, '/') && realpath("/proc/self/exe", self) &&
                                                realpath(program, other) && strcmp(self, other) == 0);
}

static int is_script(const char *program)
{
    const char *dot = strrchr(program, '.');
    return dot && strcmp(dot, ".py") == 0;
}

/* The program as it is to be run: this one itself, a script of Python, or anything else. */
static int read_program(struct launch_options *o, int n, char **words, struct launch_desc *desc)
{
    static char python[] = "python3", unbuffered[] = "-u", m[] = "-m";
    int at = 0;
    if (o->module && o->no_python)
        return args_mistake(NAME, "a module is run by python3: -m and --no-python exclude each other");
    if (n + 4 > MOST_WORDS)
        return args_mistake(NAME, "the program has more than %d arguments", MOST_WORDS - 4);
    desc->own = !o->module && is_self(words[0]);
    if (desc->own && n == 1)
        return args_mistake(
            NAME, "which command of sherd is to be run? 'sherd launch ... sherd train CONFIG'");
    if (o->module || (is_script(words[0]) && !o->no_python)) {
        o->words[at++] = python;
        o->words[at++] = unbuffered;
    }
    if (o->module)
        o->words[at++] = m;
    for (int i = desc->own; i < n; i++)
        o->words[at++] = words[i];
    desc->argv = o->words;
    return -1;
}

static int start(struct launch_options *o, int n, char **words)
{
    struct launch_desc desc = { .grace = o->grace,
        .restarts = (int)o->restarts,
        .address = o->master,
        .port = (int)o->master_port,
        .role = o->role,
        .nodes = { .id = strcmp(o->id, "none") == 0 ? "" : o->id, .join = 900, .silent = o->silent } };
    struct sherd_world world;
    int code = sherd_world_from_env(&world) == SHERD_OK ? -1 : out_refuse("%s", sherd_error());
    /* srun and mpirun may start a launcher on each host; what its ranks get counts before their variables. */
    if (code < 0 && getenv("RANK") && getenv("RANK")[0])
        code = out_refuse(
            "this process was started by %s as rank %d of %d already: start the program itself, without 'sherd launch'",
            world.source, world.rank, world.size);
    if (code < 0)
        code = read_nnodes(o, &desc);
    if (code < 0)
        code = read_per_node(o, &desc);
    if (code < 0)
        code = read_endpoint(o, &desc);
    if (code < 0)
        code = read_conf(o, &desc);
    if (code < 0)
        code = read_streams(o, &desc);
    if (code < 0)
        code = read_program(o, n, words, &desc);
    return code < 0 ? launch_job(&desc) : code;
}

int cmd_launch(int argc, char **argv)
{
    static struct launch_options o; /* many words */
    int rest = 0;
    const char *program = NULL;
    o = (struct launch_options){ .nnodes = "1",
        .per_node = "1",
        .id = "none",
        .backend = "static",
        .conf = "",
        .redirects = "0",
        .tee = "0",
        .role = "default",
        .node_rank = -1,
        .grace = 30,
        .silent = 15 };
    const struct arg args[] = {
        { "standalone", ARG_FLAG, &o.standalone, NULL, "one host: nothing to meet at (the default)" },
        { "nnodes", ARG_TEXT, &o.nnodes, "N", "number of hosts (default 1)" },
        { "nproc-per-node", ARG_TEXT, &o.per_node, "N|gpu|cpu|auto", "ranks on this host (default 1)" },
        { "node-rank", ARG_INT, &o.node_rank, "R",
            "number of this host, from 0; left out: the one of the endpoint\nis 0, the others count as they come",
            .min = 0, .max = 4095 },
        { "rdzv-endpoint", ARG_TEXT, &o.endpoint, "HOST[:PORT]",
            "where hosts meet: host 0, the same on all (default port 29400)" },
        { "rdzv-id", ARG_TEXT, &o.id, "NAME", "the job: hosts of another job are refused" },
        { "rdzv-backend", ARG_TEXT, &o.backend, "static|c10d",
            "for scripts of torchrun; both mean the same here" },
        { "rdzv-conf", ARG_TEXT, &o.conf, "join_timeout=S", "seconds for all hosts to come (default 900)" },
        { "max-restarts", ARG_INT, &o.restarts, "K",
            "after a failure start all ranks again, at most K times\n(default 0); sherd train goes on from its newest "
            "checkpoint",
            .min = 0, .max = 1e6 },
        { "log-dir", ARG_TEXT, &o.logs, "DIR",
            "keep the output of every rank: DIR/attempt-N/rank-R.out, .err" },
        { "redirects", ARG_TEXT, &o.redirects, "0-3",
            "1 standard output, 2 error, 3 both go to their files alone", .letter = 'r' },
        { "tee", ARG_TEXT, &o.tee, "0-3", "these are shown as well (default with --log-dir: both)",
            .letter = 't' },
        { "master-addr", ARG_TEXT, &o.master, "HOST",
            "MASTER_ADDR for the ranks (default: the endpoint's host)" },
        { "master-port", ARG_INT, &o.master_port, "PORT",
            "MASTER_PORT for the ranks (default: one that is free)", .min = 1, .max = 65535 },
        { "module", ARG_FLAG, &o.module, NULL, "PROGRAM is a module of Python", .letter = 'm' },
        { "no-python", ARG_FLAG, &o.no_python, NULL, "run PROGRAM itself even if it ends in .py" },
        { "role", ARG_TEXT, &o.role, "NAME", "ROLE_NAME of the ranks (default: default)" },
        { "start-method", ARG_TEXT, &o.method, "NAME",
            "for scripts of torchrun; ranks are programs of their own" },
        { "monitor-interval", ARG_REAL, &o.interval, "S",
            "for scripts of torchrun; ranks are watched without one", .min = 0, .max = 1e6 },
        { "grace", ARG_REAL, &o.grace, "SECONDS",
            "how long the other ranks may take to end after one has\nfailed (default 30)", .min = 0,
            .max = 86400 },
        { "shutdown-timeout", ARG_REAL, &o.grace, "SECONDS", "torchrun's name for --grace", .min = 0,
            .max = 86400 },
        { "silence", ARG_REAL, &o.silent, "SECONDS",
            "a host that is not heard for so long is given up (default 15)", .min = 2, .max = 86400 },
    };
    const struct command command = { NAME, "PROGRAM", 1, 1,
        "Starts PROGRAM, with the arguments that follow it, as ranks of one job.",
        "The options stand before PROGRAM, and are those of torchrun. 'sherd launch ... sherd train CONFIG' runs\n"
        "this very program; a PROGRAM that ends in .py is run by python3. Every rank gets RANK, WORLD_SIZE,\n"
        "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the like; ${local_rank} in its arguments is\n"
        "the rank's number on its host. PET_NNODES and the like give options, as to torchrun; the command line wins.\n\n"
        "SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the ranks; a second SIGINT, SIGTERM or SIGHUP, a second\n"
        "or more later, ends them at once. When one rank fails all are ended, on all hosts, and its reason is shown last.\n\n"
        "Exit status: 0 done, 75 stopped on request after saving, 128 + n ended by signal n, 2 wrong command line,\n"
        "otherwise that of the rank that failed first. 2 is never tried again.",
        args, COUNT_OF(args), &rest, "PET_" };
    straighten(argc, argv);
    int code = args_parse(&command, argc, argv, &program);
    return code >= 0 ? code : start(&o, argc - rest, argv + rest);
}
