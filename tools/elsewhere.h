/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Options that people bring from other launchers and programs, and what they are here.
 */
#ifndef SHERD_TOOLS_ELSEWHERE_H
#define SHERD_TOOLS_ELSEWHERE_H

/* The way out for an option, without its dashes, that the command does not have: "; here it is --ranks"; NULL
 * where nothing is known of it. */
const char *elsewhere(const char *command, const char *option);

#endif
