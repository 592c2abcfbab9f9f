/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd plan: what a run will need, with no device and no rank started: memory of one rank by region, for the
 * stage of the configuration and the others, bytes sent, and the step program.
 */
#include <stdio.h>
#include <string.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/forecast.h"
#include "tools/out.h"
#include "tools/settings.h"

#define MAX_RANKS 65536

struct plans {
    struct sherd_config config;
    struct sherd_plan stage[SHERD_STAGES];
    int chosen, ranks, hosts;
    struct forecast *forecast; /* NULL: no machine is named */
};

static const char *const collectives[SHERD_COLLECTIVES] = { "all-gather", "reduce-scatter", "all-reduce",
    "broadcast" };

static const struct {
    const char *name, *text;
    size_t offset;
} regions[] = {
#define XX(name, text) { #name, text, offsetof(struct sherd_memory, name) },
    SHERD_REGIONS(XX)
#undef XX
};

static uint64_t region(const struct sherd_plan *plan, int i)
{
    uint64_t bytes;
    memcpy(&bytes, (const char *)&plan->memory + regions[i].offset, sizeof(bytes));
    return bytes;
}

static uint64_t sent_total(const struct sherd_plan *plan)
{
    uint64_t sum = 0;
    for (int c = 0; c < SHERD_COLLECTIVES; c++)
        sum += plan->sent[c];
    return sum;
}

static int make_plans(struct plans *p)
{
    struct sherd_model *model;
    int st = sherd_config_model(&model, &p->config);
    if (st != SHERD_OK)
        return st;
    p->chosen = (int)p->config.shard.stage;
    for (int s = 0; s < SHERD_STAGES && st == SHERD_OK; s++) {
        p->config.shard.stage = s;
        st = sherd_plan_make(&p->stage[s], &p->config, model, p->ranks, p->hosts);
    }
    p->config.shard.stage = p->chosen;
    sherd_model_destroy(model);
    return st;
}

static void print_row(const struct plans *p, const char *text, const uint64_t value[SHERD_STAGES])
{
    char buf[32];
    printf("  %-28s", text);
    for (int s = 0; s < SHERD_STAGES; s++)
        printf(
            " %10s%c", value[s] ? text_human_bytes((double)value[s], buf) : "-", s == p->chosen ? '*' : ' ');
    putchar('\n');
}

static void print_tables(const struct plans *p)
{
    const struct sherd_config *c = &p->config;
    const struct sherd_plan *plan = &p->stage[p->chosen];
    uint64_t value[SHERD_STAGES];
    char params[32], trained[32];
    printf("%s: %s parameters (%s trained) in %lld units, %s\n", c->model.family,
        text_commas(plan->params, params), text_commas(plan->trained, trained), (long long)plan->units,
        sherd_dtype_name(c->dtype.param));
    printf("%d rank%s, stage %d; a step: %lld sequences of %lld tokens = %lld micro x %lld accum x %d "
           "rank%s\n",
        p->ranks, p->ranks == 1 ? "" : "s", p->chosen, (long long)c->batch.global, (long long)c->batch.seq,
        (long long)c->batch.micro, (long long)c->batch.accum, p->ranks, p->ranks == 1 ? "" : "s");
    printf("%.3g flops a token, forward and backward\n", plan->flops);

    printf("\n%-30s", "memory of the fullest rank");
    for (int s = 0; s < SHERD_STAGES; s++)
        printf("    stage %d ", s);
    printf("  (* as configured)\n");
    for (int i = 0; i < COUNT_OF(regions); i++) {
        for (int s = 0; s < SHERD_STAGES; s++)
            value[s] = region(&p->stage[s], i);
        print_row(p, regions[i].text, value);
    }
    for (int s = 0; s < SHERD_STAGES; s++)
        value[s] = sherd_memory_total(&p->stage[s].memory);
    print_row(p, "in all", value);
    if (strcmp(p->config.run.device, "cpu") != 0)
        printf("  %-28s  measured in a run: its log tells after the first step\n", "libraries of the device");

    printf("\nsent by one rank in a step\n");
    for (int k = 0; k < SHERD_COLLECTIVES; k++) {
        for (int s = 0; s < SHERD_STAGES; s++)
            value[s] = p->stage[s].sent[k];
        print_row(p, collectives[k], value);
    }
    for (int s = 0; s < SHERD_STAGES; s++)
        value[s] = sent_total(&p->stage[s]);
    print_row(p, "in all", value);

    if (plan->checkpoint)
        printf("\n%s of a checkpoint written by one rank%s\n",
            text_human_bytes((double)plan->checkpoint, params),
            plan->checkpoint && c->save.async && !c->save.buffer
                ? ", through as much host memory if that is no more than half of what is free"
                : "");
}

static json_t *stage_json(const struct sherd_plan *plan)
{
    json_t *memory = json_object(), *sent = json_object();
    for (int i = 0; i < COUNT_OF(regions); i++)
        json_object_set_new(memory, regions[i].name, json_integer((json_int_t)region(plan, i)));
    json_object_set_new(memory, "total", json_integer((json_int_t)sherd_memory_total(&plan->memory)));
    for (int k = 0; k < SHERD_COLLECTIVES; k++)
        json_object_set_new(sent, collectives[k], json_integer((json_int_t)plan->sent[k]));
    json_object_set_new(sent, "total", json_integer((json_int_t)sent_total(plan)));
    return json_pack("{s:o, s:o}", "memory", memory, "sent", sent);
}

static int print_json(const struct plans *p, int program)
{
    const struct sherd_config *c = &p->config;
    const struct sherd_plan *plan = &p->stage[p->chosen];
    json_t *stages = json_array();
    for (int s = 0; s < SHERD_STAGES; s++)
        json_array_append_new(stages, stage_json(&p->stage[s]));
    json_t *root = json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:{s:I, s:I, s:I, s:I}, s:o}",
        "family", c->model.family, "ranks", p->ranks, "stage", p->chosen, "params", (json_int_t)plan->params,
        "trained", (json_int_t)plan->trained, "checkpoint", (json_int_t)plan->checkpoint, "units",
        (json_int_t)plan->units, "layers", (json_int_t)plan->layers, "flops_per_token", plan->flops, "batch",
        "global", (json_int_t)c->batch.global, "micro", (json_int_t)c->batch.micro, "accum",
        (json_int_t)c->batch.accum, "seq", (json_int_t)c->batch.seq, "stages", stages);
    if (program)
        json_object_set_new(root, "program", json_string(plan->program));
    if (p->forecast)
        json_object_set_new(root, "forecast", forecast_json(p->forecast));
    return out_json(root);
}

static int show(struct plans *p, int program, int json)
{
    int st = make_plans(p), code = EXIT_OK;
    if (st == SHERD_OK && p->forecast)
        st = forecast_fill(p->forecast, &p->config);
    if (st != SHERD_OK) {
        code = out_fail(st);
    } else if (json) {
        code = print_json(p, program);
    } else {
        print_tables(p);
        if (p->forecast)
            forecast_print(p->forecast);
        if (program)
            printf("\nprogram of a step\n%s", p->stage[p->chosen].program);
    }
    if (code == EXIT_OK && p->forecast) {
        fflush(stdout); /* what is wrong stands behind the tables */
        st = forecast_check(p->forecast);
        code = st == SHERD_OK ? EXIT_OK : out_fail(st);
    }
    for (int s = 0; s < SHERD_STAGES; s++)
        sherd_plan_free(&p->stage[s]);
    return code;
}

/* Ranks from --ranks, or --gpus and --nodes; a machine from --device. Returns -1 or the exit code. */
static int place_ranks(struct plans *p, struct forecast *f, struct settings *settings, const char *device,
    int64_t ranks, int64_t gpus, int64_t nodes)
{
    if (ranks && (gpus || nodes))
        return args_mistake("plan", "give --ranks, or --gpus for each of --nodes, not both");
    f->place = (struct sherd_place){ gpus ? (int)gpus : 1, nodes ? (int)nodes : 1 };
    if (device) {
        int st = forecast_machine(&f->machine, device);
        if (st != SHERD_OK) {
            out_fail(st);
            return EXIT_USAGE;
        }
        int each = gpus ? (int)gpus : f->machine.gpus;
        if (ranks > each && ranks % each)
            return args_mistake("plan",
                "--ranks %lld is no multiple of the %d devices of a node; give --gpus and "
                "--nodes",
                (long long)ranks, each);
        if (ranks)
            f->place = (struct sherd_place){ ranks < each ? (int)ranks : each,
                ranks < each ? 1 : (int)ranks / each };
        else if (nodes && !gpus)
            f->place.gpus = each;
        settings_add(settings, "--device", "run.device=%s", f->machine.kind);
        p->forecast = f;
    }
    p->ranks = ranks ? (int)ranks : f->place.gpus * f->place.hosts;
    p->hosts = f->place.hosts;
    return p->ranks > MAX_RANKS ? args_mistake("plan", "%d ranks are more than %d", p->ranks, MAX_RANKS) : -1;
}

int cmd_plan(int argc, char **argv)
{
    int64_t ranks = 0, gpus = 0, nodes = 0;
    int program = 0, json = 0;
    const char *device = NULL, *path;
    struct settings settings = { 0 };
    struct plans plans = { 0 };
    struct forecast forecast = { 0 };
    const struct arg args[] = {
        { "ranks", ARG_INT, &ranks, "N", "number of ranks (default 1)", .min = 1, .max = MAX_RANKS },
        { "gpus", ARG_INT, &gpus, "N", "or ranks of each node (default 1; with --nodes that of --device)",
            .min = 1, .max = 4096 },
        { "nodes", ARG_INT, &nodes, "N", "nodes, with a network between them (default 1)", .min = 1,
            .max = MAX_RANKS },
        { "device", ARG_TEXT, &device, "NAME",
            "what it is to run on: h100, h200, or a file of 'sherd bench --save';\ntells how long a step takes, and ends with 1 if it does not fit" },
        SETTINGS_ARGS(&settings),
        { "program", ARG_FLAG, &program, NULL, "also print the step program" },
        { "json", ARG_FLAG, &json, NULL, "print JSON" },
    };
    const struct command command = { "plan", "CONFIG", 1, 1,
        "Shows what a run will need: memory of one rank, bytes sent in a step, the step program, and the time of a step.",
        "No device is opened and no rank is started. All stages stand side by side.", args, COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, &path);
    if (code < 0)
        code = place_ranks(&plans, &forecast, &settings, device, ranks, gpus, nodes);
    if (code >= 0)
        return code;
    int st = settings_load(&plans.config, &settings, path, plans.ranks);
    if (st != SHERD_OK) {
        out_fail(st);
        return EXIT_USAGE;
    }
    code = show(&plans, program, json);
    sherd_config_free(&plans.config);
    return code;
}
