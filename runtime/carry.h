/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a run takes into its folder so that its model can be talked to wherever the folder goes: the tokenizer
 * that its tokens were made with, and what lay beside the weights that it started from.
 */
#ifndef SHERD_RUNTIME_CARRY_H
#define SHERD_RUNTIME_CARRY_H

#include <sherd/config.h>

/* For one rank, at the start of a run whose folder is there. Warns where tokenizers differ. */
int carry_files(const struct sherd_config *config);

/* Warns where the tokens of data.val were made by another tokenizer than the one in `folder`, if it has one:
 * that of `whose`, "data.train". */
int carry_compare_val(const struct sherd_config *config, const char *whose, const char *folder);

#endif
