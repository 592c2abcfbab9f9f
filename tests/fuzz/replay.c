/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Drives a fuzz target without libFuzzer: every file of the folders given, then RUNS seeded mutations of
 * each file of the first folder. The same every time. Usage: fuzz_NAME [-r RUNS] FOLDER... or FILE...
 * The input in work is kept beside the program as fuzz_NAME.last, and stays there after a crash.
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/sum.h"

#define MAX_INPUT_BYTES (1 << 20)

struct input {
    uint8_t *data;
    size_t bytes;
};

struct corpus {
    struct input *inputs;
    int n, cap;
};

/* Numbers by counter; every input and run has its own stream. */
struct dice {
    uint64_t stream, counter;
};

static uint64_t roll(struct dice *dice, uint64_t sides)
{
    uint32_t word[4];
    rng_block(word, 2024, dice->stream, dice->counter++);
    return sides ? ((uint64_t)word[0] << 32 | word[1]) % sides : 0;
}

static char last_path[4096];
static int last_fd = -1;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, sherd_error());
    exit(2);
}

/* Runs the target on a block of exactly this size, so that sanitizers see a read past its end. */
static void try_input(const uint8_t *data, size_t bytes)
{
    if (ftruncate(last_fd, 0) != 0 || file_pwrite(last_fd, data, bytes, 0, last_path) != SHERD_OK)
        die("cannot keep the input");
    uint8_t *exact = malloc(bytes ? bytes : 1);
    FUZZ_CHECK(exact);
    if (bytes)
        memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

/* Replaces `cut` bytes at `at` by `n` others, within the limit of size. */
static void replace(struct input *in, size_t at, size_t cut, const void *with, size_t n)
{
    if (in->bytes - cut + n > MAX_INPUT_BYTES)
        return;
    memmove(in->data + at + n, in->data + at + cut, in->bytes - at - cut);
    if (n)
        memcpy(in->data + at, with, n);
    in->bytes = in->bytes - cut + n;
}

/* Integers of 1 to 8 bytes near the turning points, at any place and often at the front. */
static void edit_integer(struct input *in, struct dice *dice)
{
    size_t width = (size_t)1 << roll(dice, 4);
    if (in->bytes < width)
        return;
    size_t at = roll(dice, 4) ? roll(dice, in->bytes - width + 1) : 0;
    uint64_t v = 0;
    memcpy(&v, in->data + at, width); /* little-endian, as the files that are read */
    switch (roll(dice, 4)) {
    case 0:
        v += roll(dice, 33) - 16;
        break;
    case 1:
        v = ((uint64_t)1 << roll(dice, 64)) - roll(dice, 3);
        break;
    case 2:
        v = ~(uint64_t)0 - roll(dice, 17);
        break;
    default:
        v = in->bytes + roll(dice, 17) - 8;
        break;
    }
    memcpy(in->data + at, &v, width);
}

static void put_word(struct input *in, struct dice *dice)
{
    static const char *const words[] = { "-1", "0", "1e999", "18446744073709551615", "9223372036854775808",
        "9223372036854775807", "-9223372036854775809", "4294967296", "0.5", "nan", "null", "true", "\"", "\\",
        "{", "}", "[", "]", ":", ",", "\n", "\t", "#", "&a", "*a", "../", "/", "\xff", "\xed\xa0\x80" };
    const char *word = words[roll(dice, ARRAY_LEN(words))];
    size_t at = roll(dice, in->bytes + 1);
    size_t cut = roll(dice, 2) ? roll(dice, MIN(in->bytes - at, 7) + 1) : 0;
    replace(in, at, cut, word, strlen(word));
}

/* A piece of another input, or of this one. */
static void paste(struct input *in, struct dice *dice, const struct corpus *corpus)
{
    const struct input *from = &corpus->inputs[roll(dice, (uint64_t)corpus->n)];
    if (from->bytes == 0)
        return;
    size_t start = roll(dice, from->bytes), n = 1 + roll(dice, from->bytes - start);
    size_t at = roll(dice, in->bytes + 1), cut = roll(dice, in->bytes - at + 1);
    replace(in, at, roll(dice, 2) ? cut : 0, from->data + start, n);
}

static void mutate(struct input *in, struct dice *dice, const struct corpus *corpus)
{
    size_t at = roll(dice, in->bytes);
    switch (roll(dice, 7)) {
    case 0:
        if (in->bytes)
            in->data[at] ^= (uint8_t)(1u << roll(dice, 8));
        break;
    case 1:
        if (in->bytes)
            in->data[at] = (uint8_t)roll(dice, 256);
        break;
    case 2:
        in->bytes = roll(dice, in->bytes + 1);
        break;
    case 3:
        replace(in, at, roll(dice, MIN(in->bytes - at, 64) + 1), NULL, 0);
        break;
    case 4:
        edit_integer(in, dice);
        break;
    case 5:
        put_word(in, dice);
        break;
    default:
        paste(in, dice, corpus);
        break;
    }
}

static void load(struct corpus *corpus, const char *path)
{
    if (mem_grow(&corpus->inputs, &corpus->cap, corpus->n + 1, sizeof(*corpus->inputs)) != SHERD_OK)
        die("cannot load");
    struct input *in = &corpus->inputs[corpus->n++];
    char *text;
    if (file_read_text(&text, &in->bytes, path, MAX_INPUT_BYTES) != SHERD_OK)
        die("cannot load");
    in->data = (uint8_t *)text;
}

static void load_folder(struct corpus *corpus, const char *folder)
{
    char **names;
    int n;
    if (file_list(&names, &n, folder) != SHERD_OK)
        die("cannot load");
    for (int i = 0; i < n; i++) {
        char *path = mem_printf("%s/%s", folder, names[i]);
        load(corpus, path);
        mem_free(path);
    }
    file_list_free(names, n);
}

static void run_mutations(const struct corpus *corpus, int from, int runs)
{
    uint8_t *room = mem_zalloc(MAX_INPUT_BYTES, 1);
    if (!room)
        die("cannot start");
    for (int run = 0; run < runs; run++) {
        const struct input *seed = &corpus->inputs[from];
        struct input in = { room, seed->bytes };
        /* The stream hangs on the contents: other files may come and go. */
        struct dice dice = { sum_hash64(seed->data, seed->bytes, (uint64_t)run), 0 };
        if (seed->bytes)
            memcpy(in.data, seed->data, seed->bytes);
        for (uint64_t i = 0, n = 1 + roll(&dice, 4); i < n; i++)
            mutate(&in, &dice, corpus);
        try_input(in.data, in.bytes);
    }
    mem_free(room);
}

int main(int argc, char **argv)
{
    struct corpus corpus = { 0 };
    int first = 1, runs = 2000, seeds = 0;
    const char *asked = getenv("FUZZ_RUNS");
    if (argc > 2 && strcmp(argv[1], "-r") == 0) {
        asked = argv[2];
        first = 3;
    }
    if (asked)
        runs = atoi(asked);
    for (int i = first; i < argc; i++) {
        if (file_is_dir(argv[i])) {
            load_folder(&corpus, argv[i]);
            seeds = i == first ? corpus.n : seeds;
        } else if (i == first || file_exists(argv[i])) {
            load(&corpus, argv[i]);
        }
    }
    if (corpus.n == 0) {
        fprintf(stderr, "no input: give a folder of inputs, or files\n");
        return 2;
    }
    snprintf(last_path, sizeof(last_path), "%s.last", argv[0]);
    last_fd = open(last_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (last_fd < 0) {
        fprintf(stderr, "cannot write %s\n", last_path);
        return 2;
    }
    for (int i = 0; i < corpus.n; i++)
        try_input(corpus.inputs[i].data, corpus.inputs[i].bytes);
    for (int i = 0; i < seeds; i++)
        run_mutations(&corpus, i, runs);
    printf("%d files, %d mutations\n", corpus.n, seeds * runs);
    for (int i = 0; i < corpus.n; i++)
        mem_free(corpus.inputs[i].data);
    mem_free(corpus.inputs);
    close(last_fd);
    unlink(last_path);
    return 0;
}
