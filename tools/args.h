/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The command line of one command: options with types, operands, and the help text, from one table.
 * Parsing stands on getopt_long; mistakes are told with the nearest valid word.
 */
#ifndef SHERD_TOOLS_ARGS_H
#define SHERD_TOOLS_ARGS_H

#include <stdint.h>

#define COUNT_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

enum arg_kind {
    ARG_FLAG,   /* int, becomes 1 */
    ARG_TEXT,   /* const char * */
    ARG_INT,    /* int64_t, within [min, max] */
    ARG_REAL,   /* double, within [min, max] */
    ARG_SIZE,   /* uint64_t bytes: 5GB, 64MiB */
    ARG_CHOICE, /* int: index into words */
    ARG_LIST,   /* struct arg_list: may be given many times */
};

#define ARG_LIST_MAX 64
struct arg_list {
    const char *items[ARG_LIST_MAX];
    int n;
};

struct arg {
    const char *name; /* without the dashes */
    enum arg_kind kind;
    void *value;              /* keeps what it holds when the option is not given */
    const char *hint;         /* "N": stands for the value in the help */
    const char *help;         /* one line, or more separated by \n */
    double min, max;          /* of INT and REAL */
    const char *const *words; /* of CHOICE, ended by NULL */
    int bare;    /* CHOICE: value of the option given alone, plus one; TEXT: 1 = alone it is ""; 0 = needs a
                    value */
    char letter; /* the option's short form; 0 = none */
};

struct command {
    const char *name;
    const char *operands; /* "DIR OUT": for the help */
    int min_operands, max_operands;
    const char *summary; /* one line */
    const char *text;    /* paragraphs after the summary in the help; NULL for none */
    const struct arg *args;
    int n_args;
    int *rest; /* where the place of the first operand in argv goes; options after it are not ours. NULL = all
                  are */
    const char *variables; /* begins the names of variables that give options, as "PET_"; NULL = none do */
};

/* Parses argv[1..]; operands[0..max_operands) are borrowed from argv, NULL where absent. Returns -1 to go on,
 * otherwise the exit code: 0 after --help, 2 after a mistake was told. */
int args_parse(const struct command *command, int argc, char **argv, const char **operands);

/* Tells a mistake in the use of a command, with where to read on; returns 2. */
int args_mistake(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
