/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd eval: the loss of weights that are there, by one rank of a job that something else started, a job of
 * one rank, or the launcher of many.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/launch.h"
#include "tools/out.h"
#include "tools/rank.h"
#include "tools/settings.h"

#define NAME "eval"
#define PATH_MOST 4096

struct eval {
    const char *path;
    struct settings settings;
    struct arg_list data;
    const char *checkpoint; /* a folder; NULL = the newest checkpoint in run.dir */
    char step[PATH_MOST];   /* the folder that step-N names */
    int64_t ranks;          /* 0 = not given */
    int json;
};

static void show_progress(void *ctx, const char *line)
{
    (void)ctx;
    out_moving(line);
}

static int print_json(const struct sherd_evaluate_result *r, int ranks)
{
    double perplexity = exp(r->loss); /* beyond all numbers where the loss is above 709 */
    return out_json(json_pack("{s:s, s:o, s:f, s:o, s:I, s:I, s:I, s:i, s:f}", "from", r->from, "step",
        r->step < 0 ? json_null() : json_integer(r->step), "loss", r->loss, "perplexity",
        isfinite(perplexity) ? json_real(perplexity) : json_null(), "tokens", (json_int_t)r->tokens,
        "samples", (json_int_t)r->samples, "samples_there", (json_int_t)r->there, "ranks", ranks, "seconds",
        r->seconds));
}

static int print_line(const struct sherd_evaluate_result *r)
{
    char tokens[32], samples[32], there[32];
    printf("%s: loss %.4f, perplexity %.6g, over %s tokens", r->from, r->loss, exp(r->loss),
        text_commas(r->tokens, tokens));
    if (r->samples < r->there)
        printf(" (the first %s of %s samples; --set train.eval_batches=0 takes all)",
            text_commas(r->samples, samples), text_commas(r->there, there));
    printf("\n");
    return EXIT_OK;
}

static int run_rank(const struct eval *e, const struct sherd_config *config, const struct sherd_world *world)
{
    struct sherd_device *device = NULL;
    struct sherd_comm *comm = NULL;
    struct sherd_evaluate_result result;
    int st = rank_open(&device, config, world);
    if (st == SHERD_OK)
        st = sherd_comm_open(&comm, device,
            &(struct sherd_comm_desc){
                .world = *world, .timeout = config->run.timeout, .kind = config->run.comm });
    if (st == SHERD_OK)
        st = sherd_evaluate(&(struct sherd_evaluate_desc){ .config = config,
                                .device = device,
                                .comm = comm,
                                .from = e->checkpoint,
                                .progress = out_terminal() ? show_progress : NULL },
            &result);
    out_moving(NULL);
    int code = st == SHERD_OK ? EXIT_OK : rank_failed(st, world);
    if (st != SHERD_OK && st != SHERD_EPEER && comm)
        sherd_comm_abort(comm, sherd_error());
    sherd_comm_close(comm);
    sherd_device_close(device);
    if (code != EXIT_OK || world->rank != 0)
        return code;
    return e->json ? print_json(&result, world->size) : print_line(&result);
}

/* --checkpoint step-N: a folder in run.dir. Anything else is a folder itself. */
static int find_step(struct eval *e, const char *run_dir)
{
    char *end;
    if (!e->checkpoint || strncmp(e->checkpoint, "step-", 5) != 0 ||
        !isdigit((unsigned char)e->checkpoint[5]))
        return SHERD_OK;
    errno = 0;
    long long n = strtoll(e->checkpoint + 5, &end, 10);
    if (*end != '\0' || errno == ERANGE)
        return SHERD_OK;
    if (snprintf(e->step, sizeof(e->step), "%s/step-%08lld", run_dir, n) >= (int)sizeof(e->step))
        return sherd_fail(SHERD_ECONFIG, "run.dir: %s: the path is too long", run_dir);
    e->checkpoint = e->step;
    return SHERD_OK;
}

/* The folder of a model says what it is the model of, unless --model does. */
static void take_model(struct eval *e)
{
    char file[PATH_MOST];
    if (e->checkpoint && !e->settings.model && sherd_weights_found(e->checkpoint) &&
        snprintf(file, sizeof(file), "%s/config.json", e->checkpoint) < (int)sizeof(file) &&
        access(file, F_OK) == 0)
        e->settings.model = e->checkpoint;
}

/* --set comes after the other options, so it would win over --data without a word. */
static int check_data(const struct eval *e)
{
    static const char *const keys[] = { "data.val=", "data.split=", "data.split_seed=" };
    const struct arg_list *set = &e->settings.set;
    for (int i = 0; i < set->n && e->data.n > 0; i++)
        for (int k = 0; k < COUNT_OF(keys); k++)
            if (strncmp(set->items[i], keys[k], strlen(keys[k])) == 0)
                return sherd_fail(SHERD_ECONFIG,
                    "--data says what is evaluated on, and so does --set %s: leave out one of them",
                    set->items[i]);
    return SHERD_OK;
}

/* What is named is evaluated on, all of it, whatever training would take. */
static void take_data(struct eval *e)
{
    if (e->data.n == 0)
        return;
    settings_add_paths(&e->settings, "--data", "data.val", &e->data);
    settings_add(&e->settings, "--data", "data.split=0");
    settings_add(&e->settings, "--data", "data.split_seed=0");
    settings_add(&e->settings, "--data", "train.eval_batches=0");
}

static int load(struct sherd_config *config, struct eval *e)
{
    if (e->checkpoint && strcmp(e->checkpoint, "latest") == 0)
        e->checkpoint = NULL;
    take_model(e);
    int st = check_data(e);
    if (st != SHERD_OK)
        return st;
    take_data(e);
    st = settings_load(config, &e->settings, e->path, 0);
    if (st != SHERD_OK)
        return st;
    st = find_step(e, config->run.dir);
    if (st != SHERD_OK)
        sherd_config_free(config);
    return st;
}

static int eval_or_launch(struct eval *e, char *const *argv)
{
    struct sherd_world world = { 0 };
    struct sherd_config config;
    int launcher = 0, code = rank_place(NAME, e->ranks, &world, &launcher);
    if (code >= 0)
        return code;
    out_log(world.rank, world.size);
    out_quiet();
    if (load(&config, e) != SHERD_OK) {
        rank_failed(SHERD_ECONFIG, &world);
        return EXIT_USAGE;
    }
    if (launcher)
        code =
            launch_job(&(struct launch_desc){ .ranks = (int)e->ranks, .argv = argv, .own = 1, .grace = 10 });
    else
        code = run_rank(e, &config, &world);
    sherd_config_free(&config);
    return code;
}

static const char text[] =
    "CONFIG is that of the run, as for 'sherd train'; config.yaml in the run's folder is one. Evaluated on is what\n"
    "training evaluates on, the first train.eval_batches micro-batches of each rank; of --data it is all. With as\n"
    "many ranks as in training the loss is the one that training told at this step, bit for bit; the number of\n"
    "ranks and the stage may be others. Perplexity is e to the power of the loss.\n\n"
    "A rank takes the memory of the weights (in stage 3 its share, and the layers that are gathered), of what two\n"
    "layers make of a micro-batch, and of work space: no gradients, no masters, no optimizer state. Nothing is\n"
    "written into run.dir.\n\n"
    "Under torchrun, mpirun or srun each process is one rank of their world. Otherwise --ranks N starts\n"
    "N ranks on this host.\n\n"
    "Exit status: 0 done, 1 failed, 2 wrong command line or configuration, 3 another rank failed first,\n"
    "128 + n ended by signal n.";

int cmd_eval(int argc, char **argv)
{
    struct eval e = { 0 };
    const struct arg args[] = {
        { "checkpoint", ARG_TEXT, &e.checkpoint, "WHICH",
            "latest (default) or step-N: a checkpoint in run.dir; or a folder:\nof a run, of a step, of a Hugging Face "
            "model" },
        { "data", ARG_LIST, &e.data, "PATH",
            "evaluate on this file or folder (default: on data.val, or what\ndata.split holds out); may be repeated" },
        { "ranks", ARG_INT, &e.ranks, "N", "start N ranks on this host (default 1)", .min = 1, .max = 4096 },
        { "set", ARG_LIST, &e.settings.set, "KEY=VALUE",
            "use this instead of what the file says; may be repeated" },
        { "model", ARG_TEXT, &e.settings.model, "PATH",
            "the model: the section model of this .yaml file, or a Hugging\nFace model folder (model.from); default: "
            "that of --checkpoint, if\nit is such a folder" },
        { "json", ARG_FLAG, &e.json, NULL, "print one JSON value instead" },
    };
    const struct command command = { NAME, "CONFIG", 1, 1,
        "Tells the loss and perplexity of a checkpoint or model, without training.", text, args,
        COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, &e.path);
    return code >= 0 ? code : eval_or_launch(&e, argv);
}
