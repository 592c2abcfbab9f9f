/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Command lines.
 */
#include "tools/args.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text_plain.h"
#include "tools/elsewhere.h"
#include "tools/out.h"

#define MAX_ARGS 24
#define WORD_BYTES 64 /* of an option as it was given */
#define HELP_COLUMN 26
#define VERSION 1 /* what getopt_long gives for --version: no letter, and below the options' 256 */

int args_mistake(const char *command, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("sherd: ", stderr);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\nTry 'sherd %s%s--help'.\n", command ? command : "", command ? " " : "");
    va_end(list);
    return EXIT_USAGE;
}

static void print_option(const char *head, const char *help)
{
    int used = printf("  %s", head);
    for (const char *line = help; line;) {
        const char *end = strchr(line, '\n');
        int pad = used <= HELP_COLUMN - 2 ? HELP_COLUMN - used : 0;
        if (used > HELP_COLUMN - 2)
            printf("\n%*s", HELP_COLUMN, "");
        printf("%*s%.*s\n", pad, "", end ? (int)(end - line) : (int)strlen(line), line);
        used = 0;
        line = end ? end + 1 : NULL;
    }
}

static void print_help(const struct command *command)
{
    if (command->rest) /* what follows the operand is not ours */
        printf("usage: sherd %s [options] %s [arguments]\n", command->name, command->operands);
    else
        printf("usage: sherd %s%s%s [options]\n", command->name, command->operands[0] ? " " : "",
            command->operands);
    printf("\n%s\n", command->summary);
    if (command->text)
        printf("\n%s\n", command->text);
    printf("\nOptions:\n");
    for (int i = 0; i < command->n_args; i++) {
        const struct arg *arg = &command->args[i];
        char head[128], letter[] = { '-', arg->letter, ',', ' ', 0 };
        const char *hint = arg->hint ? arg->hint : "", *before = arg->letter ? letter : "";
        if (arg->kind == ARG_FLAG)
            snprintf(head, sizeof(head), "%s--%s", before, arg->name);
        else if (arg->bare)
            snprintf(head, sizeof(head), "%s--%s[=%s]", before, arg->name, hint);
        else
            snprintf(head, sizeof(head), "%s--%s %s", before, arg->name, hint);
        print_option(head, arg->help);
    }
    print_option("-h, --help", "show this text");
    print_option("--version", "show the version");
}

static int parse_number(const char *s, const char **end, double *out)
{
    char *stop;
    errno = 0;
    *out = strtod(s, &stop);
    *end = stop;
    return stop != s && errno == 0 && isfinite(*out) && s[0] != ' ' && !strpbrk(s, "xX");
}

static int parse_size(const char *s, uint64_t *out)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = { { "B", 1 }, { "KB", 1e3 }, { "MB", 1e6 }, { "GB", 1e9 }, { "TB", 1e12 }, { "KiB", 0x1p10 },
        { "MiB", 0x1p20 }, { "GiB", 0x1p30 }, { "TiB", 0x1p40 } };
    const char *end;
    double value;
    if (!parse_number(s, &end, &value))
        return 0;
    for (int i = 0; i < COUNT_OF(units); i++)
        if (strcasecmp(end, units[i].unit) == 0) {
            value *= units[i].bytes;
            *out = value >= 1 && value < 0x1p63 ? (uint64_t)value : 0;
            return *out > 0;
        }
    return 0;
}

static int parse_choice(const struct command *command, const struct arg *arg, const char *text)
{
    int n = 0;
    if (!text) {
        *(int *)arg->value = arg->bare - 1;
        return -1;
    }
    for (; arg->words[n]; n++)
        if (strcmp(arg->words[n], text) == 0) {
            *(int *)arg->value = n;
            return -1;
        }
    const char *near = text_nearest(text, arg->words, n);
    return args_mistake(command->name, "--%s: '%s' is none of %s%s%s%s", arg->name, text, arg->hint,
        near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* -1 to go on, else the exit code. */
static int take(const struct command *command, const struct arg *arg, const char *text)
{
    const char *end;
    double real;
    struct arg_list *list;
    switch (arg->kind) {
    case ARG_FLAG:
        *(int *)arg->value = 1;
        return -1;
    case ARG_TEXT:
        *(const char **)arg->value = text ? text : "";
        return -1;
    case ARG_INT:
    case ARG_REAL:
        if (!parse_number(text, &end, &real) || *end || real < arg->min || real > arg->max ||
            (arg->kind == ARG_INT && floor(real) < real))
            return args_mistake(command->name, "--%s: '%s' is not a%s number from %.12g to %.12g", arg->name,
                text, arg->kind == ARG_INT ? " whole" : "", arg->min, arg->max);
        if (arg->kind == ARG_INT)
            *(int64_t *)arg->value = (int64_t)real;
        else
            *(double *)arg->value = real;
        return -1;
    case ARG_SIZE:
        if (!parse_size(text, arg->value))
            return args_mistake(
                command->name, "--%s: '%s' is not a size such as 5GB or 64MiB", arg->name, text);
        return -1;
    case ARG_CHOICE:
        return parse_choice(command, arg, text);
    case ARG_LIST:
        list = arg->value;
        if (list->n == ARG_LIST_MAX)
            return args_mistake(command->name, "--%s: given more than %d times", arg->name, ARG_LIST_MAX);
        list->items[list->n++] = text;
        return -1;
    }
    return EXIT_FAILED;
}

static int has_option(const struct command *command, const char *name)
{
    for (int i = 0; i < command->n_args; i++)
        if (strcmp(command->args[i].name, name) == 0)
            return 1;
    return 0;
}

static int unknown_option(const struct command *command, const char *word)
{
    const char *names[MAX_ARGS + 2];
    char given[WORD_BYTES + 1];
    int n = 0;
    snprintf(given, sizeof(given), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (; n < command->n_args; n++)
        names[n] = command->args[n].name;
    names[n++] = "help";
    names[n++] = "version";
    const char *text = elsewhere(command->name, given), *near = text ? NULL : text_nearest(given, names, n);
    if (near)
        return args_mistake(command->name, "unknown option '--%s' of 'sherd %s'; did you mean '--%s'?", given,
            command->name, near);
    if (!text && has_option(command, "set"))
        text = "; settings are given as --set KEY=VALUE, and 'sherd config --reference' lists the keys";
    return args_mistake(
        command->name, "unknown option '--%s' of 'sherd %s'%s", given, command->name, text ? text : "");
}

/* Why getopt_long was not content: ':' a value is missing, '?' anything else. `which` is the option's index,
 * below 0 for one that is not in the table. */
static int bad_option(const struct command *command, int why, int which, const char *word)
{
    if (why == ':')
        return args_mistake(command->name, "--%s needs a value%s%s", command->args[which].name,
            command->args[which].hint ? ": " : "",
            command->args[which].hint ? command->args[which].hint : "");
    if (which >= 0 && which < command->n_args)
        return args_mistake(command->name, "--%s takes no value", command->args[which].name);
    if (optopt == VERSION || (optopt == 'h' && word[1] == '-'))
        return args_mistake(command->name, "--%s takes no value", optopt == VERSION ? "version" : "help");
    if (optopt > 0 && optopt != 'h') {
        const char letter[] = { (char)optopt, 0 }, *text = elsewhere(command->name, letter);
        return args_mistake(
            command->name, "unknown option '-%s' of 'sherd %s'%s", letter, command->name, text ? text : "");
    }
    return unknown_option(command, word);
}

/* The option that getopt_long means: its letter, or 256 and its place. Below 0 for one that is not there. */
static int index_of(const struct command *command, int value)
{
    for (int i = 0; i < command->n_args; i++)
        if (value > 0 && value == command->args[i].letter)
            return i;
    return value - 256;
}

static int take_operands(const struct command *command, int n, char **words, const char **operands)
{
    if (n > command->max_operands) {
        const char *word = words[command->max_operands];
        int setting = has_option(command, "set") && strchr(word, '=');
        return args_mistake(command->name, "'sherd %s' does not know what to do with '%s'%s%s", command->name,
            word, setting ? "; did you mean --set " : "", setting ? word : "");
    }
    if (n < command->min_operands)
        return args_mistake(command->name, "'sherd %s' needs %s", command->name, command->operands);
    for (int i = 0; i < command->max_operands; i++)
        operands[i] = i < n ? words[i] : NULL;
    return -1;
}

/* Options as variables: --node-rank is PET_NODE_RANK where the prefix is PET_. -1 to go on. */
static int take_variables(const struct command *command)
{
    char name[80], shown[160];
    int code = -1;
    for (int i = 0; i < command->n_args && command->variables && code < 0; i++) {
        struct arg arg = command->args[i];
        int at = snprintf(name, sizeof(name), "%s%s", command->variables, arg.name);
        for (int k = 0; k < at; k++)
            name[k] = name[k] == '-' ? '_' : (char)toupper((unsigned char)name[k]);
        const char *value = getenv(name);
        if (!value || !value[0] || (arg.kind == ARG_FLAG && strcmp(value, "0") == 0))
            continue;
        snprintf(shown, sizeof(shown), "%s, by %s", arg.name, name);
        arg.name = shown;
        code = take(command, &arg, value);
    }
    return code;
}

int args_parse(const struct command *command, int argc, char **argv, const char **operands)
{
    struct option options[MAX_ARGS + 3] = { 0 };
    char letters[4 + 2 * MAX_ARGS] = "+:h";
    int n = command->n_args, n_letters = 3, which, code = take_variables(command);
    for (int i = 0; i < n; i++) {
        const struct arg *arg = &command->args[i];
        int has = arg->kind == ARG_FLAG ? no_argument : arg->bare ? optional_argument : required_argument;
        options[i] = (struct option){ arg->name, has, NULL, 256 + i };
        if (arg->letter)
            letters[n_letters++] = arg->letter;
        if (arg->letter && arg->kind != ARG_FLAG)
            letters[n_letters++] = ':';
    }
    options[n] = (struct option){ "help", no_argument, NULL, 'h' };
    options[n + 1] = (struct option){ "version", no_argument, NULL, VERSION };
    opterr = 0;
    optind = 1;
    while (code < 0) {
        const char *word = optind < argc ? argv[optind] : "";
        optopt = 0;
        which = getopt_long(argc, argv, command->rest ? letters : letters + 1, options, NULL);
        if (which == -1)
            break;
        if (which == 'h') {
            print_help(command);
            return EXIT_OK;
        }
        if (which == VERSION) {
            printf("sherd %s\n", sherd_version());
            return EXIT_OK;
        }
        if (which == ':' || which == '?')
            return bad_option(command, which, index_of(command, optopt),
                argv[optind - 1][0] == '-' ? argv[optind - 1] : word);
        code = take(command, &command->args[index_of(command, which)], optarg);
    }
    if (code >= 0)
        return code;
    if (command->rest)
        *command->rest = optind;
    int n_words = command->rest && optind < argc ? 1 : argc - optind;
    return take_operands(command, n_words, argv + optind, operands);
}
