/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd plot: loss and throughput of runs, from their metrics.jsonl, as one SVG.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"
#include "tools/svg.h"

#define RUNS 8 /* at most, in one picture */
#define PATH_BYTES 4096

enum axis { AXIS_STEP, AXIS_TOKENS, AXIS_SECONDS };

struct curve {
    double *x, *y;
    int n, cap;
};

struct run {
    const char *dir;
    struct curve loss, rate, eval;
    struct curve smooth_loss, smooth_rate;
    double tokens, seconds; /* at the last step read; run_seconds starts anew with every start */
    double before;          /* seconds of the starts before */
};

static int add(struct curve *c, double x, double y)
{
    if (c->n == c->cap) {
        int cap = c->cap ? 2 * c->cap : 256;
        double *xs = realloc(c->x, (size_t)cap * sizeof(*xs));
        if (xs)
            c->x = xs;
        double *ys = realloc(c->y, (size_t)cap * sizeof(*ys));
        if (ys)
            c->y = ys;
        if (!xs || !ys)
            return sherd_fail(SHERD_ENOMEM, "no memory for the points of a curve");
        c->cap = cap;
    }
    c->x[c->n] = x;
    c->y[c->n++] = y;
    return SHERD_OK;
}

/* A member as a number, NaN if it is null or not there. */
static double number(const json_t *record, const char *name)
{
    const json_t *v = json_object_get(record, name);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static int take(struct run *r, const json_t *record, enum axis axis)
{
    double step = number(record, "step"), seconds = number(record, "run_seconds"), x = step;
    const char *event = json_string_value(json_object_get(record, "event"));
    if (event) {
        r->before = strcmp(event, "start") ? r->before : r->seconds;
        return SHERD_OK;
    }
    if (json_object_get(record, "loss")) {
        r->tokens = number(record, "tokens_seen");
        r->seconds = r->before + seconds;
    }
    if (axis != AXIS_STEP)
        x = axis == AXIS_TOKENS ? r->tokens : r->seconds;
    if (!isfinite(x))
        return SHERD_OK;
    if (json_object_get(record, "eval_loss"))
        return add(&r->eval, x, number(record, "eval_loss"));
    if (!json_object_get(record, "loss"))
        return SHERD_OK;
    double rate = number(record, "tokens_per_second");
    if (!isfinite(rate))
        rate = number(record, "tokens") / number(record, "step_seconds");
    int st = add(&r->loss, x, number(record, "loss"));
    return st == SHERD_OK ? add(&r->rate, x, rate) : st;
}

/* A running mean over about a fiftieth of the points, that begins with the first and passes over gaps. */
static int smooth(struct curve *out, const struct curve *in)
{
    double keep = 1 - 1 / fmax(1, in->n / 50.0), mean = 0, weight = 0;
    for (int i = 0; i < in->n; i++) {
        if (isfinite(in->y[i])) {
            mean = keep * mean + (1 - keep) * in->y[i];
            weight = keep * weight + (1 - keep);
        }
        int st = add(out, in->x[i], isfinite(in->y[i]) ? mean / weight : (double)NAN);
        if (st != SHERD_OK)
            return st;
    }
    return SHERD_OK;
}

static int read_run(struct run *r, enum axis axis)
{
    char path[PATH_BYTES], *line = NULL;
    size_t cap = 0;
    ssize_t bytes;
    int st = SHERD_OK, number = 0;
    snprintf(path, sizeof(path), "%s/metrics.jsonl", r->dir);
    if (out_check_file(path) != SHERD_OK)
        return SHERD_EIO;
    FILE *file = fopen(path, "re");
    if (!file)
        return sherd_fail(errno == ENOENT ? SHERD_ENOTFOUND : SHERD_EIO,
            "%s: cannot be read: %s; a run writes it there unless log.jsonl is false", path, strerror(errno));
    while (st == SHERD_OK && (bytes = getline(&line, &cap, file)) > 0) {
        number++;
        json_t *record = json_loadb(line, (size_t)bytes, 0, NULL);
        if (record)
            st = take(r, record, axis);
        else if (line[bytes - 1] == '\n') /* a last line without an end was torn by a crash */
            st = sherd_fail(SHERD_EFORMAT, "%s:%d: not a line of JSON", path, number);
        json_decref(record);
    }
    free(line);
    fclose(file);
    if (st == SHERD_OK && r->loss.n == 0)
        st = sherd_fail(SHERD_EFORMAT, "%s: no steps in it yet", path);
    if (st == SHERD_OK)
        st = smooth(&r->smooth_loss, &r->loss);
    return st == SHERD_OK ? smooth(&r->smooth_rate, &r->rate) : st;
}

static void add_line(
    struct svg_panel *p, const struct curve *c, enum svg_style style, int colour, const char *label)
{
    p->lines[p->n++] = (struct svg_line){ c->x, c->y, c->n, style, colour, label };
}

static void draw(FILE *out, const struct run *runs, int n, enum axis axis)
{
    static const char *const titles[] = { "step", "tokens", "seconds" };
    struct svg_panel panels[2] = { { "loss (dots: validation)", titles[axis], .n = 0 },
        { "tokens per second, over all ranks", titles[axis], .n = 0, .from_zero = 1 } };
    for (int i = 0; i < n; i++) {
        const char *label = n > 1 ? runs[i].dir : NULL;
        add_line(&panels[0], &runs[i].loss, SVG_FAINT, i, NULL);
        add_line(&panels[0], &runs[i].smooth_loss, SVG_BOLD, i, label);
        if (runs[i].eval.n > 0)
            add_line(&panels[0], &runs[i].eval, SVG_DOTS, n > 1 ? i : 1, NULL);
        add_line(&panels[1], &runs[i].rate, SVG_FAINT, i, NULL);
        add_line(&panels[1], &runs[i].smooth_rate, SVG_BOLD, i, label);
    }
    svg_write(out, n == 1 ? runs[0].dir : "sherd", panels, 2);
}

/* The last finite value of a curve, NULL in JSON if there is none. */
static json_t *last(const struct curve *c)
{
    for (int i = c->n; i-- > 0;)
        if (isfinite(c->y[i]))
            return json_real(c->y[i]);
    return json_null();
}

static json_t *summary(const struct run *runs, int n, const char *path)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:o, s:o, s:o}", "run", runs[i].dir, "steps", runs[i].loss.n, "loss",
                      last(&runs[i].smooth_loss), "eval_loss", last(&runs[i].eval), "tokens_per_second",
                      last(&runs[i].smooth_rate)));
    return json_pack("{s:s, s:s, s:o}", "version", sherd_version(), "file", path, "runs", list);
}

static int write_picture(const struct run *runs, int n, enum axis axis, const char *path)
{
    FILE *out = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    if (!out)
        return sherd_fail(SHERD_EIO, "%s: cannot be written: %s", path, strerror(errno));
    draw(out, runs, n, axis);
    int failed = ferror(out) != 0;
    if (out == stdout ? fflush(out) != 0 : fclose(out) != 0)
        failed = 1;
    return failed ? sherd_fail(SHERD_EIO, "%s: cannot be written: %s", path, strerror(errno)) : SHERD_OK;
}

static int is_other_picture(const char *path)
{
    static const char *const endings[] = { ".png", ".pdf", ".jpg", ".jpeg" };
    const char *dot = strrchr(path, '.');
    for (int i = 0; dot && i < COUNT_OF(endings); i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return 1;
    return 0;
}

int cmd_plot(int argc, char **argv)
{
    static const char *const axes[] = { "step", "tokens", "seconds", NULL };
    const char *output = NULL, *dirs[RUNS];
    char path[PATH_BYTES];
    int axis = AXIS_STEP, json = 0, n = 0, st = SHERD_OK;
    struct run runs[RUNS] = { 0 };
    const struct arg args[] = {
        { "output", ARG_TEXT, &output, "FILE",
            "write there; - is standard output (default: plot.svg in the\nfirst RUN)", .letter = 'o' },
        { "x", ARG_CHOICE, &axis, "step|tokens|seconds", "what the runs are drawn over (default step)",
            .words = axes },
        { "json", ARG_FLAG, &json, NULL, "print what was drawn as JSON" },
    };
    const struct command command = { "plot", "RUN...", 1, RUNS,
        "Draws loss and throughput of runs as one SVG.",
        "RUN is a run's folder; up to 8 are drawn over one another. Pale lines are the steps, bold ones their\n"
        "running mean, dots the validation loss.",
        args, COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, dirs);
    if (code < 0 && output && is_other_picture(output))
        code = args_mistake("plot", "--output: what is drawn is an SVG: name it so, not '%s'", output);
    if (code >= 0)
        return code;
    for (; n < RUNS && dirs[n] && st == SHERD_OK; n++) {
        runs[n].dir = dirs[n];
        st = read_run(&runs[n], (enum axis)axis);
    }
    snprintf(path, sizeof(path), "%s%s", output ? output : dirs[0], output ? "" : "/plot.svg");
    if (json && strcmp(path, "-") == 0)
        st =
            st == SHERD_OK ? sherd_fail(SHERD_EINVAL, "--json and --output - both want standard output") : st;
    if (st == SHERD_OK)
        st = write_picture(runs, n, (enum axis)axis, path);
    if (st != SHERD_OK)
        code = out_fail(st);
    else if (json)
        code = out_json(summary(runs, n, path));
    else if (strcmp(path, "-") != 0)
        code = printf("%s\n", path) < 0 ? EXIT_FAILED : EXIT_OK;
    else
        code = EXIT_OK;
    for (int i = 0; i < n; i++) {
        struct curve *all[] = { &runs[i].loss, &runs[i].rate, &runs[i].eval, &runs[i].smooth_loss,
            &runs[i].smooth_rate };
        for (int k = 0; k < COUNT_OF(all); k++) {
            free(all[k]->x);
            free(all[k]->y);
        }
    }
    return code;
}
