/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd tokenize: text into token files, once, for training to read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

static int print_result(const char *to, int64_t vocab, const struct sherd_tokenize_result *r, int json)
{
    char tokens[32], documents[32], many[64] = "", bytes[32], rate[32];
    if (json)
        return out_json(json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:f}", "path", to, "files", r->files,
            "documents", (json_int_t)r->documents, "tokens", (json_int_t)r->tokens, "bytes",
            (json_int_t)r->bytes, "vocab", (json_int_t)vocab, "seconds", r->seconds));
    if (r->documents > 0) /* they are counted by their ends */
        snprintf(many, sizeof(many), " %s document%s,", text_commas(r->documents, documents),
            r->documents == 1 ? "" : "s");
    printf("%s: %s tokens in %d file%s,%s from %s of text, %s a second\n", to, text_commas(r->tokens, tokens),
        r->files, r->files == 1 ? "" : "s", many, text_human_bytes((double)r->bytes, bytes),
        text_human_bytes((double)r->bytes / (r->seconds > 0 ? r->seconds : 1), rate));
    printf("train on it with data.train: [%s] and model.vocab of at least %lld\n", to, (long long)vocab);
    return EXIT_OK;
}

/* The token that ends documents: that of the option, or the tokenizer's own. */
static int choose_end(struct sherd_tokenize_desc *d, const char *end)
{
    d->end = sherd_tokenizer_end(d->tokenizer);
    if (end && strcmp(end, "none") == 0) {
        d->end = -1;
    } else if (end) {
        d->end = sherd_tokenizer_find(d->tokenizer, end);
        if (d->end < 0)
            return out_refuse("--end: the tokenizer has no token '%s'", end);
    } else if (d->end < 0) {
        return out_refuse(
            "the tokenizer has neither <|endoftext|> nor <|end_of_text|> nor </s>: name the token that ends "
            "a document with --end TOKEN, or --end none");
    }
    return EXIT_OK;
}

static int run(struct sherd_tokenize_desc *d, const char *tokenizer, const char *end, int json)
{
    struct sherd_tokenizer *t = NULL;
    struct sherd_tokenize_result result;
    int st = sherd_tokenizer_open(&t, tokenizer);
    if (st != SHERD_OK)
        return out_fail(st);
    d->tokenizer = t;
    int code = choose_end(d, end);
    if (code == EXIT_OK) {
        st = sherd_tokenize(d, &result);
        code = st == SHERD_OK ? print_result(d->to, sherd_tokenizer_vocab(t), &result, json) : out_fail(st);
    }
    sherd_tokenizer_close(t);
    return code;
}

int cmd_tokenize(int argc, char **argv)
{
    struct sherd_tokenize_desc desc = { 0 };
    const char *tokenizer = NULL, *end = NULL;
    int json = 0;
    int64_t threads = 0;
    const struct arg args[] = {
        { "tokenizer", ARG_TEXT, &tokenizer, "PATH",
            "a tokenizer.json, the folder of one, or bytes (every byte a token,\n256 ends a document)" },
        { "output", ARG_TEXT, &desc.to, "DIR", "folder to make", .letter = 'o' },
        { "field", ARG_TEXT, &desc.field, "NAME",
            "the files hold an object in each line (JSONL), whose NAME is the text\nof a document" },
        { "end", ARG_TEXT, &end, "TOKEN",
            "put after each document; none for nothing\n(default: <|endoftext|> or its like)" },
        { "shard", ARG_INT, &desc.shard, "N", "tokens of one file (default 100000000)", .min = 1,
            .max = 2147483647 },
        { "threads", ARG_INT, &threads, "N", "default: all cores; what is written does not depend on it",
            .min = 1, .max = 256 },
        { "json", ARG_FLAG, &json, NULL, "print the result as JSON" },
    };
    const struct command command = { "tokenize", "PATH...", 1, argc,
        "Turns text into token files, which training reads (data.train: [DIR]).",
        "Tokenizers are byte-level BPE as GPT-2, Llama 3, Qwen 2 and Qwen 3 have it. Each file is one document, or\n"
        "with --field each line; tokens that stand in the text by their names, <|endoftext|>, are those tokens.\n"
        "Of a folder the texts below it are taken, by name, as data.train does; binary, empty and hidden files are not.\n"
        "The files are those of llm.c; tokens.json says what they are, and the tokenizer is copied beside it.",
        args, COUNT_OF(args) };
    const char **files = calloc((size_t)argc + 1, sizeof(*files));
    if (!files)
        return out_refuse("no memory for the list of files");
    int code = args_parse(&command, argc, argv, files);
    if (code < 0 && !tokenizer)
        code =
            args_mistake("tokenize", "--tokenizer is missing: a tokenizer.json, a folder with one, or bytes");
    if (code < 0 && !desc.to)
        code = args_mistake("tokenize", "-o is missing: the folder to make");
    if (code < 0) {
        desc.paths = files;
        desc.threads = (int)threads;
        while (desc.n_paths < argc && files[desc.n_paths])
            desc.n_paths++;
        code = run(&desc, tokenizer, end, json);
    }
    free(files);
    return code;
}
