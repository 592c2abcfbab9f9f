/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How good is what sherd takes for each matrix product and for attention of one step, beside the best of all
 * that cuBLASLt and cuDNN offer? Each way is timed cool (short bursts) and hot (without pause, at the power
 * limit), with its energy. All measuring is done by a child: candidates may well fault or hang, and then the
 * next child goes on with the others. bench/README.md says how to call it.
 */
#include "bench/search.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"

#define PATIENCE 20.0 /* seconds without a sign of the child */
#define HANGS 8.0     /* the same for one candidate, its code loaded or compiled */
#define CHILDREN 40   /* that may end badly */
#define RANKING 5.3   /* seconds that go by for ranking what was found in a contest, */
#define LEAST 1.0     /* at least for finding it; */
#define MOST 10.0     /* more does not help */
#define FAILED 1      /* exit statuses of a child */
#define NO_GPU 2
#define NEAR 1.3f  /* times sherd's rough time */
#define SMALL 0.01 /* of a step's operations: what has less is left out */

struct shared {
    double beat;
    int n, at; /* at: the contest that is measured */
    struct contest all[CONTESTS];
};

struct options {
    const char *only, *like, *config, *all_file, *improve;
    FILE *all;
    char tuned[256];
    double seconds;
};

static int usage(const char *why)
{
    fprintf(stderr,
        "%s\nuse: search [--only products|attention|nothing] [--like TEXT] [--seconds N] [--tuned FOLDER] [--improve FOLDER] "
        "[--all FILE] CONFIG [KEY=VALUE ...]\n",
        why);
    return 2;
}

/* ---- the child ---- */

/* Seconds to find candidates of the next contest, of what is left for `left` of them; below 0: too few. */
static double share_of(double seconds, int left)
{
    double share = seconds / (double)left - RANKING;
    return seconds < RANKING + LEAST ? -1 : MIN(MAX(share, LEAST), MOST);
}

static int measure_all(struct shared *s, const struct options *o, double until)
{
    struct meter m = { .tuned = o->tuned, .beat = &s->beat };
    int left = 0;
    for (int i = 0; i < s->n; i++)
        left += !s->all[i].done;
    if (meter_open(&m) != SHERD_OK) {
        fprintf(stderr, "%s\n", sherd_error());
        return NO_GPU;
    }
    for (int i = 0; i < s->n; i++) {
        struct contest *c = &s->all[i];
        double share = c->done ? -1 : share_of(until - seconds_now(), left--);
        if (share < 0)
            continue;
        s->at = i;
        int st = c->op == OP_matmul ? search_product(&m, c, share) : search_attention(&m, c, share);
        if (st != SHERD_OK) {
            fprintf(stderr, "%s: %s\n", c->title, sherd_error());
            return FAILED;
        }
        c->done = 1;
    }
    meter_close(&m);
    return 0;
}

/* ---- what is told ---- */

static float teraflops(const struct contest *c, float ms)
{
    return ms > 0 ? (float)(c->flops / (double)ms * 1e-9) : 0;
}

static void print_row(const struct contest *c, const char *what, int i)
{
    const struct candidate *k = &c->all[i];
    printf("  %-11s %6.1f %6.1f", what, (double)teraflops(c, k->cool), (double)teraflops(c, k->hot));
    if (k->watts > 0)
        printf(" %4.0f %5.0f %7.1f", (double)k->watts, (double)k->mhz, (double)(k->watts * k->hot));
    else
        printf("    -     -       -");
    printf("  %s%s%.0d%s\n", k->name, k->answer ? " (answer " : "", k->answer, k->answer ? ")" : "");
}

static float cost(const struct candidate *k, int by)
{
    return k->bad || k->apart ? 0 : by == 0 ? k->cool : by == 1 ? k->hot : k->watts * k->hot;
}

/* The best by cool time, hot time or energy; of the library's answers alone where it is wanted, sherd's where
 * none of these was measured. */
static int best(const struct contest *c, int by, int answers)
{
    int at = SHERDS;
    for (int i = 0; i < c->n; i++) {
        float v = cost(&c->all[i], by), w = cost(&c->all[at], by);
        int taken = w > 0 && (!answers || c->all[at].answer);
        if (v > 0 && (!taken || v < w) && (!answers || c->all[i].answer))
            at = i;
    }
    return at;
}

static void print_contest(const struct contest *c)
{
    int cool = best(c, 0, 0), hot = best(c, 1, 0), energy = best(c, 2, 0), answer = best(c, 1, 1);
    int called = 0, near = 0, ranked = 0;
    for (int i = 0; i < c->n; i++) {
        const struct candidate *k = &c->all[i];
        called += k->rough > 0;
        near += k->rough > 0 && k->rough < NEAR * c->all[SHERDS].rough;
        ranked += k->hot > 0;
    }
    printf(
        "%s, %d a step, %.0f GFLOP: %ld looked at, %d listed, %d called, %d of them near sherd's, %d hot\n",
        c->title, c->calls, c->flops * 1e-9, c->looked_at, c->n, called, near, ranked);
    print_row(c, "sherd", SHERDS);
    for (int i = 1; i < c->n; i++)
        if (c->all[i].answer == 1)
            print_row(c, "first", i);
    print_row(c, "cool", cool);
    print_row(c, "hot", hot);
    print_row(c, "hot answer", answer);
    print_row(c, "energy", energy);
    for (int i = 1, n = 0; i < c->n && n < 2; i++)
        if (c->all[i].apart && c->all[i].hot > 0 && ++n)
            print_row(c, "heads apart", i);
    printf("  sherd: %.1f %% of the best cool, %.1f %% of the best hot\n",
        (double)(100 * c->all[cool].cool / c->all[SHERDS].cool),
        (double)(100 * c->all[hot].hot / c->all[SHERDS].hot));
    fflush(stdout);
}

/* Seconds of all calls of a step: as sherd does them, by the best cool, the best hot, the best hot answer,
 * the least energy; all as they run hot. */
static void print_sum(const struct shared *s, int products, const char *what)
{
    double sum[5] = { 0 }, own_cool = 0, best_cool = 0;
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        const struct contest *c = &s->all[i];
        if ((c->op == OP_matmul) != products || c->all[SHERDS].hot <= 0)
            continue;
        const int at[5] = { SHERDS, best(c, 0, 0), best(c, 1, 0), best(c, 1, 1), best(c, 2, 0) };
        for (int k = 0; k < 5; k++)
            sum[k] += c->calls * (double)(c->all[at[k]].hot > 0 ? c->all[at[k]].hot : c->all[SHERDS].hot);
        own_cool += c->calls * (double)c->all[SHERDS].cool;
        best_cool += c->calls * (double)c->all[best(c, 0, 0)].cool;
        n++;
    }
    if (n == 0)
        return;
    printf(
        "%s of a step (%d kinds), ms hot: sherd %.2f, best cool %.2f, best hot %.2f, best hot answer %.2f, "
        "least energy %.2f\n",
        what, n, sum[0], sum[1], sum[2], sum[3], sum[4]);
    printf("%s: sherd is at %.1f %% of the best hot, %.1f %% of the best cool (%.2f ms of %.2f cool)\n", what,
        100 * sum[2] / sum[0], 100 * best_cool / own_cool, best_cool, own_cool);
}

static int write_all(const struct shared *s, FILE *f)
{
    fprintf(f, "contest\tcandidate\tanswer\tapart\tbad\trough ms\tcool ms\thot ms\twatts\tMHz\n");
    for (int i = 0; i < s->n; i++)
        for (int j = 0; j < s->all[i].n; j++) {
            const struct candidate *k = &s->all[i].all[j];
            if (k->rough > 0 || k->bad)
                fprintf(f, "%s\t%s\t%d\t%d\t%d\t%.4f\t%.4f\t%.4f\t%.0f\t%.0f\n", s->all[i].title, k->name,
                    k->answer, k->apart, k->bad, (double)k->rough, (double)k->cool, (double)k->hot,
                    (double)k->watts, (double)k->mhz);
        }
    int bad = ferror(f);
    return fclose(f) != 0 || bad;
}

/* Lists what a step consists of and leaves out what is small, and what was not asked for. */
static void choose(struct shared *s, const struct options *o)
{
    double all = 0;
    int n = 0;
    for (int i = 0; i < s->n; i++)
        all += s->all[i].flops * s->all[i].calls;
    for (int i = 0; i < s->n; i++) {
        struct contest *c = &s->all[i];
        double share = c->flops * c->calls / all;
        const char *part = c->op == OP_matmul ? "products" : "attention";
        int taken = share >= SMALL && (!o->only || strcmp(o->only, part) == 0) &&
                    (!o->like || strstr(c->title, o->like));
        printf("%5.1f %% %s, %d a step%s\n", 100 * share, c->title, c->calls, taken ? "" : ": left out");
        if (taken && n++ != i)
            s->all[n - 1] = *c;
    }
    s->n = n;
    printf("TFLOP/s cool and hot; W, MHz, mJ a call, all hot; algorithm\n");
}

static int is_part(const char *name)
{
    return strcmp(name, "products") == 0 || strcmp(name, "attention") == 0 || strcmp(name, "nothing") == 0;
}

static int parse(struct options *o, int argc, char **argv, int *at)
{
    *o = (struct options){ .seconds = 120 };
    for (*at = 1; *at < argc && strncmp(argv[*at], "--", 2) == 0; *at += 2) {
        const char *name = argv[*at], *value = *at + 1 < argc ? argv[*at + 1] : "";
        if (strcmp(name, "--only") == 0 && is_part(value))
            o->only = value;
        else if (strcmp(name, "--seconds") == 0 && atof(value) > 0)
            o->seconds = atof(value);
        else if (strcmp(name, "--like") == 0 && *value)
            o->like = value;
        else if (strcmp(name, "--tuned") == 0 && *value)
            snprintf(o->tuned, sizeof(o->tuned), "%s", value);
        else if (strcmp(name, "--improve") == 0 && *value)
            o->improve = value;
        else if (strcmp(name, "--all") == 0 && *value)
            o->all_file = value;
        else
            return usage(name);
    }
    if (*at == argc)
        return usage("no CONFIG");
    o->config = argv[(*at)++];
    return 0;
}

static int list_contests(struct shared *s, const struct options *o, const char *const *settings, int n)
{
    struct sherd_config config;
    SHERD_TRY(sherd_config_load(&config, o->config, settings, n, 0));
    int st = search_list(s->all, &s->n, &config);
    sherd_config_free(&config);
    if (st == SHERD_OK)
        choose(s, o);
    return st;
}

/* Contests that are done and were not told yet. */
static void report(struct shared *s)
{
    for (int i = 0; i < s->n; i++) {
        struct contest *c = &s->all[i];
        if (!c->done || c->told)
            continue;
        c->told = 1;
        if (c->all[SHERDS].hot > 0)
            print_contest(c);
        else
            printf("%s: not measured\n", c->title);
    }
}

/* ---- the parent ---- */

/* The candidate that the child was at is out; where it was at none, the contest is. */
static void blame(struct shared *s, const char *why)
{
    struct contest *c = &s->all[s->at];
    fprintf(
        stderr, "%s: %s: %s\n", c->title, c->current < 0 ? "(no candidate)" : c->all[c->current].name, why);
    if (c->current > SHERDS)
        c->all[c->current].bad = 1;
    else
        c->done = 1;
    c->current = -1;
    c->ended++;
    for (int i = 1; i < c->n && c->ended >= ENDED; i++)
        c->all[i].bad |= c->all[i].rough <= 0;
}

/* Waits for the child, and ends it when it hangs. Its exit status; FAILED where it had none. */
static int attend(struct shared *s, pid_t child, double until)
{
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        report(s);
        double patience = s->all[s->at].current < 0 ? PATIENCE : HANGS;
        if (seconds_now() > s->beat + patience || seconds_now() > until + PATIENCE) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            blame(s, "no answer");
            return FAILED;
        }
        usleep(20000);
    }
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
    if (code == FAILED)
        blame(s, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "failed");
    report(s);
    return code;
}

static int run_children(struct shared *s, const struct options *o)
{
    double until = seconds_now() + o->seconds;
    int code = FAILED;
    for (int i = 0; i < CHILDREN && code == FAILED && seconds_now() < until - RANKING; i++) {
        s->beat = seconds_now();
        fflush(NULL);
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0)
            _exit(measure_all(s, o, until));
        code = attend(s, child, until);
    }
    return code;
}

/* What is written or read in the end is tried before minutes go by. */
static int open_files(struct options *o)
{
    if (o->improve && access(o->improve, R_OK | W_OK | X_OK) != 0) {
        perror(o->improve);
        return 1;
    }
    if (o->all_file && !(o->all = fopen(o->all_file, "w"))) {
        perror(o->all_file);
        return 1;
    }
    return 0;
}

static int run(struct shared *s, struct options *o)
{
    int made = 0;
    if (s->n == 0)
        return 0;
    if (!*o->tuned) {
        snprintf(o->tuned, sizeof(o->tuned), "/tmp/sherd-search-XXXXXX");
        made = mkdtemp(o->tuned) != NULL;
    }
    int code = run_children(s, o);
    print_sum(s, 1, "products");
    print_sum(s, 0, "attention");
    if (made)
        printf("what sherd chose is kept in %s\n", o->tuned);
    return code;
}

int main(int argc, char **argv)
{
    struct options o;
    int at, code = parse(&o, argc, argv, &at);
    if (code)
        return code;
    struct shared *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s == MAP_FAILED) {
        perror("memory");
        return 1;
    }
    if (list_contests(s, &o, (const char *const *)argv + at, argc - at) != SHERD_OK) {
        fprintf(stderr, "%s\n", sherd_error());
        return 1;
    }
    if (open_files(&o))
        return 1;
    code = run(s, &o);
    if (o.improve && search_improve(s->all, s->n, o.improve) != SHERD_OK) {
        fprintf(stderr, "%s\n", sherd_error());
        code = 1;
    }
    if (o.all && write_all(s, o.all)) {
        perror(o.all_file);
        code = 1;
    }
    return code;
}
