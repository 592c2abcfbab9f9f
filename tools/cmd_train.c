/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd train: one rank of a job that something else started, a job of one rank, or the launcher of many.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/launch.h"
#include "tools/out.h"
#include "tools/rank.h"
#include "tools/settings.h"

#define NAME "train"

struct train {
    const char *path;
    struct settings settings;
    int64_t ranks; /* 0 = not given */
    int64_t restarts;
    double grace;
    int resume; /* enum sherd_resume; -1 = as the file says */
    int print;
    const char *profile; /* NULL = not given, "" = given without a file */
};

static volatile sig_atomic_t stop_asked;
static double stop_told; /* when an end was first asked for; of on_signal alone */

/* The first signal asks for a stop after saving, at the end of the step; a second one does not wait, if it is
 * not the same request on another way. USR1, which batch systems send ahead of the real end, only asks. */
static void on_signal(int sig)
{
    double now = clock_seconds();
    stop_asked = 1;
    if (sig == SIGUSR1)
        return;
    if (stop_told > 0 && now - stop_told >= LAUNCH_AGAIN_SECONDS)
        _exit(128 + sig);
    stop_told = stop_told > 0 ? stop_told : now;
}

static int stop_now(void *ctx)
{
    (void)ctx;
    return stop_asked;
}

/* What the parent chose to ignore (nohup, background jobs) stays ignored. */
static int catch_signals(const int *list, int n)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct sigaction ignore = { .sa_handler = SIG_IGN }, old;
    sigfillset(&action.sa_mask);
    for (int i = 0; i < n; i++)
        if (sigaction(list[i], NULL, &old) != 0 ||
            (old.sa_handler != SIG_IGN && sigaction(list[i], &action, NULL) != 0))
            return sherd_fail(SHERD_EINTERNAL, "signals cannot be caught here: %s", strerror(errno));
    sigaction(SIGPIPE, &ignore, NULL);
    return SHERD_OK;
}

static void show_progress(void *ctx, const char *line)
{
    (void)ctx;
    out_moving(line);
}

static int run_rank(const struct sherd_config *config, const struct sherd_world *world)
{
    struct sherd_device *device = NULL;
    struct sherd_comm *comm = NULL;
    /* Until the ranks have met there is nothing to save, and a rank that will never come may be waited for:
     * what asks for an end ends the process at once. */
    static const int asking[] = { SIGUSR1 }, ending[] = { SIGINT, SIGTERM, SIGHUP };
    int st = catch_signals(asking, COUNT_OF(asking));
    if (st == SHERD_OK)
        st = rank_open(&device, config, world);
    if (st == SHERD_OK)
        st = sherd_comm_open(&comm, device,
            &(struct sherd_comm_desc){
                .world = *world, .timeout = config->run.timeout, .kind = config->run.comm });
    if (st == SHERD_OK)
        st = catch_signals(ending, COUNT_OF(ending));
    if (st == SHERD_OK)
        st = sherd_train(&(struct sherd_train_desc){ .config = config,
            .device = device,
            .comm = comm,
            .stop = stop_now,
            .progress = out_terminal() ? show_progress : NULL });
    out_moving(NULL);
    int code = st == SHERD_OK ? EXIT_OK : rank_failed(st, world);
    if (st == SHERD_EEXISTS) /* a matter of the command line: run.dir, or --resume */
        code = EXIT_USAGE;
    if (st != SHERD_OK && st != SHERD_EPEER && st != SHERD_ESTOPPED && comm)
        sherd_comm_abort(comm, sherd_error());
    sherd_comm_close(comm);
    sherd_device_close(device);
    return code;
}

static int print_config(const struct sherd_config *config)
{
    char *text;
    int st = sherd_config_print(config, &text);
    if (st != SHERD_OK)
        return out_fail(st);
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

/* Options that are keys too. */
static int load(struct sherd_config *config, struct train *train, int ranks)
{
    static const char *const words[] = { "never", "auto", "required" };
    struct settings *s = &train->settings;
    if (train->resume >= 0)
        settings_add(s, "--resume", "run.resume=%s", words[train->resume]);
    if (train->profile)
        settings_add(s, "--profile", "profile.on=true");
    if (train->profile && train->profile[0])
        settings_add(s, "--profile", "profile.file=%s", train->profile);
    int st = settings_load(config, s, train->path, ranks);
    /* Started again after a failure: what is there is this run's own. */
    if (st == SHERD_OK && launch_restarts() > 0 && config->run.resume == SHERD_RESUME_NEVER)
        config->run.resume = SHERD_RESUME_AUTO;
    return st;
}

static int train_or_launch(struct train *train, char *const *argv)
{
    struct sherd_world world = { 0 };
    struct sherd_config config;
    int launcher = 0, code = rank_place(NAME, train->ranks, &world, &launcher);
    if (code >= 0)
        return code;
    out_log(world.rank, world.size);
    if (load(&config, train, launcher ? (int)train->ranks : world.size) != SHERD_OK) {
        rank_failed(SHERD_ECONFIG, &world);
        return EXIT_USAGE;
    }
    if (train->print)
        code = world.rank == 0 ? print_config(&config) : EXIT_OK;
    else if (launcher)
        code = launch_job(&(struct launch_desc){ .ranks = (int)train->ranks,
            .argv = argv,
            .own = 1,
            .grace = train->grace,
            .restarts = (int)train->restarts });
    else
        code = run_rank(&config, &world);
    sherd_config_free(&config);
    return code;
}

int cmd_train(int argc, char **argv)
{
    static const char *const words[] = { "never", "auto", "required", NULL };
    struct train train = { .resume = -1, .grace = 10 };
    const struct arg args[] = {
        { "ranks", ARG_INT, &train.ranks, "N", "start N ranks on this host (default 1)", .min = 1,
            .max = 4096 },
        { "max-restarts", ARG_INT, &train.restarts, "K",
            "with --ranks: after a failure start all ranks again,\nfrom the newest checkpoint, at most K times "
            "(default 0)",
            .min = 0, .max = 1e6 },
        SETTINGS_ARGS(&train.settings),
        { "resume", ARG_CHOICE, &train.resume, "never|auto|required",
            "go on from the newest complete checkpoint of run.dir; alone:\nrequired, an error if there is "
            "none",
            .words = words, .bare = SHERD_RESUME_REQUIRED + 1 },
        { "profile", ARG_TEXT, &train.profile, "FILE",
            "time some steps: a timeline of all ranks in FILE (Chrome trace\nJSON; alone: profile.json in run.dir), "
            "tables in the log; see the\nprofile keys",
            .bare = 1 },
        { "print-config", ARG_FLAG, &train.print, NULL, "print the settings in effect and stop" },
        { "grace", ARG_REAL, &train.grace, "SECONDS",
            "how long the other ranks may take to end after one has\nfailed (default 10)", .min = 0,
            .max = 86400 },
    };
    const struct command command = { NAME, "CONFIG", 1, 1, "Trains the model that CONFIG describes.",
        "CONFIG is sherd's own YAML, a DeepSpeed JSON or an Accelerate YAML; those two describe no model and "
        "no data,\nwhich --model and --data do.\n\n"
        "Under torchrun, mpirun or srun each process is one rank of their world. Otherwise --ranks N starts\n"
        "N ranks on this host. The configuration is checked before anything is started.\n\n"
        "SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask for a stop: the step is finished, a checkpoint saved, and "
        "the exit\n"
        "status is 75. A second SIGINT, SIGTERM or SIGHUP, a second or more later, ends the run at once.\n\n"
        "Exit status: 0 done, 1 failed, 2 wrong command line or configuration, 3 another rank failed first,\n"
        "75 stopped on request after saving, 128 + n ended by signal n.",
        args, COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, &train.path);
    return code >= 0 ? code : train_or_launch(&train, argv);
}
