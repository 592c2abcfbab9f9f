/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The program: a table of commands.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/elsewhere.h"
#include "tools/out.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
#define XX(name, summary) { #name, summary, cmd_##name },
    COMMANDS(XX)
#undef XX
};

static void print_help(void)
{
    printf("usage: sherd COMMAND [operands] [options]\n\n"
           "Trains neural networks with state sharded over the ranks, and looks after what comes out.\n\n"
           "Commands:\n");
    for (int i = 0; i < COUNT_OF(commands); i++)
        printf("  %-10s%s\n", commands[i].name, commands[i].summary);
    printf("\n'sherd COMMAND --help' tells more. 'sherd --version' prints the version.\n\n"
           "Exit status: 0 done, 1 failed, 2 wrong command line or configuration, 3 another rank failed\n"
           "first, 75 stopped on request after saving, 128 + n ended by signal n.\n");
}

static int unknown_option(const char *word)
{
    char name[64];
    snprintf(
        name, sizeof(name), "%.*s", (int)strcspn(word + strspn(word, "-"), "="), word + strspn(word, "-"));
    const char *text = elsewhere("", name);
    return args_mistake(NULL, "unknown option '%s'%s", word, text ? text : "");
}

static int unknown_command(const char *word)
{
    const char *names[COUNT_OF(commands)];
    for (int i = 0; i < COUNT_OF(commands); i++)
        names[i] = commands[i].name;
    const char *near = text_nearest(word, names, COUNT_OF(commands));
    return args_mistake(NULL, "unknown command '%s'%s%s%s", word, near ? "; did you mean '" : "",
        near ? near : "", near ? "'?" : "");
}

static int run_command(int argc, char **argv)
{
    for (int i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    return argv[0][0] == '-' ? unknown_option(argv[0]) : unknown_command(argv[0]);
}

/* `sherd help`, and `sherd help COMMAND` for `sherd COMMAND --help`. */
static int help(const char *command)
{
    char option[] = "--help", word[64];
    char *argv[] = { word, option, NULL };
    if (!command) {
        print_help();
        return EXIT_OK;
    }
    snprintf(word, sizeof(word), "%s", command);
    return run_command(2, argv);
}

static int dispatch(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word)
        return args_mistake(NULL, "no command given");
    if (strcmp(word, "help") == 0)
        return help(argv[2]);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return help(NULL);
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        printf("sherd %s\n", sherd_version());
        return EXIT_OK;
    }
    return run_command(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is then an error of writing, with its text */
    out_log(0, 1);
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "sherd: standard output: %s\n", strerror(errno));
        return code == EXIT_OK ? EXIT_FAILED : code;
    }
    return code;
}
