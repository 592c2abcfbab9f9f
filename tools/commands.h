/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The commands of the program. Each gets its own part of the command line (argv[0] is its name) and returns
 * the exit code.
 */
#ifndef SHERD_TOOLS_COMMANDS_H
#define SHERD_TOOLS_COMMANDS_H

#define COMMANDS(XX)                                                                                         \
    XX(train, "train a model, on one rank or many")                                                          \
    XX(eval, "tell the loss and perplexity of a checkpoint or model")                                        \
    XX(launch, "start a program as ranks, on this host or on several")                                       \
    XX(plan, "show memory, traffic and steps of a run before it starts")                                     \
    XX(config, "check a configuration, or list every key")                                                   \
    XX(inspect, "show what a checkpoint holds")                                                              \
    XX(verify, "check every byte of a checkpoint or model")                                                  \
    XX(diff, "show what differs between two checkpoints or models")                                          \
    XX(merge, "turn a checkpoint into a safetensors model")                                                  \
    XX(tokenize, "turn text into token files")                                                               \
    XX(generate, "let a model go on with a text")                                                            \
    XX(plot, "draw loss and throughput of runs")                                                             \
    XX(bench, "measure and check the collectives")                                                           \
    XX(selftest, "check devices and collectives before training")

#define XX(name, summary) int cmd_##name(int argc, char **argv);
COMMANDS(XX)
#undef XX

#endif
