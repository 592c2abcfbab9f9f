/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Token files from anywhere, read as every format: what is taken has as many tokens as the file has room for,
 * and all that is read lies in the vocabulary.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "data/data.h"

#define VOCAB 1000
#define BLOCK 61

static void quiet(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static void read_all(const struct tokens *tokens)
{
    int32_t out[BLOCK];
    int64_t count = tokens_count(tokens), windows;
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = MIN(count - at, BLOCK);
        int st = tokens_read(tokens, at, n, out);
        if (st != SHERD_OK) {
            FUZZ_CHECK(st == SHERD_EFORMAT && strstr(sherd_error(), ": byte "));
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            FUZZ_CHECK(out[i] >= 0 && out[i] < VOCAB);
    }
    int st = tokens_windows(tokens, BLOCK, &windows);
    FUZZ_CHECK(st == SHERD_OK ? windows * BLOCK + 1 <= count : count < BLOCK + 1);
}

static void read_as(const char *path, enum sherd_format format, size_t bytes)
{
    static const size_t width[] = {
        [SHERD_DATA_AUTO] = 1, [SHERD_DATA_BYTES] = 1, [SHERD_DATA_LLMC] = 2, [SHERD_DATA_U16] = 2
    };
    struct tokens *tokens;
    int st = tokens_open(
        &tokens, &(struct tokens_desc){
                     .what = "fuzz", .paths = &path, .n_paths = 1, .format = format, .vocab = VOCAB });
    if (st != SHERD_OK) {
        FUZZ_CHECK(!tokens && (st == SHERD_EFORMAT || st == SHERD_ECONFIG));
        FUZZ_CHECK(strstr(sherd_error(), path));
        return;
    }
    FUZZ_CHECK(tokens_count(tokens) > 0 && (uint64_t)tokens_count(tokens) <= bytes / width[format]);
    FUZZ_CHECK(format != SHERD_DATA_BYTES || (uint64_t)tokens_count(tokens) == bytes);
    read_all(tokens);
    tokens_close(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    int fd = memfd_create("tokens", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    sherd_log_set(quiet, NULL, SHERD_LOG_ERROR);
    for (int format = SHERD_DATA_AUTO; format <= SHERD_DATA_U16; format++)
        read_as(path, (enum sherd_format)format, bytes);
    close(fd);
    return 0;
}
