/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Training data: token files as one long stream, the order of its samples, and the rows of a micro-batch.
 * Called by runtime/train.c. A batch is a pure function of the files, the seed and the number of samples
 * consumed before it, whatever the world: the only state of a run is that number. Knows nothing of devices.
 */
#ifndef SHERD_DATA_DATA_H
#define SHERD_DATA_DATA_H

#include <sherd/config.h>

/* An open data set: its files, mapped, one after another with nothing between them. */
struct tokens;

struct tokens_desc {
    const char *what;         /* the key the paths come from, "data.train", for messages */
    const char *const *paths; /* files in this order; folders are walked, names in byte order */
    int n_paths;
    enum sherd_format format;
    int64_t vocab; /* ids must be below it (checked as they are read); 0 = not checked */
    int quiet;     /* another rank, of the same paths, warns of what is passed over */
    int strict;    /* warn where anything was passed over, which the log line alone tells otherwise */
};

/* Formats: bytes, each byte of a file is one token; llmc, a header of 256 int32 and 16 or 32 bit tokens; u16,
 * bare 16 bit tokens; megatron, PREFIX.bin and PREFIX.idx; auto looks at each file: the llmc magic, else the
 * ending ".bin" (megatron if there is an .idx, else u16), else bytes. A folder with a tokens.json is what
 * that lists. Empty files are passed over; in a folder also names that begin with a dot, things that are no
 * files, files that are no text (format_no_text) among bytes, and files without ".bin" for the formats of
 * ids. Named itself, what is no text is ECONFIG with auto. One log line counts what was taken and what was
 * not. Bad headers and sizes are EFORMAT with file and byte. */
int tokens_open(struct tokens **out, const struct tokens_desc *desc);
void tokens_close(struct tokens *tokens); /* NULL is fine */
int64_t tokens_count(const struct tokens *tokens);
/* Whether the files are text, each byte a token, and not ids. */
int tokens_are_bytes(const struct tokens *tokens);
/* The first file of b that a has too, by whatever path; *path is b's, NULL for none. */
int tokens_shared(const struct tokens *a, const struct tokens *b, const char **path);
/* The text files below a folder that a run would train on, in their order; free with file_list_free.
 * ENOTFOUND where there are none. */
int tokens_texts(char ***out, int *n, const char *folder);
/* The part of the stream that came from path i. */
void tokens_source(const struct tokens *tokens, int i, int64_t *first, int64_t *n);
/* What shows that two sets hold the same tokens without reading them all: their number, and a sum of some
 * from all over the stream. The same for the same tokens, whatever the files they lie in. */
struct tokens_mark {
    int64_t count;
    char sum[17]; /* hex digits */
};
struct tokens_mark tokens_mark(const struct tokens *tokens);
/* Tokens [first, first + n) of the stream. EFORMAT for an id outside the vocabulary: file and byte. */
int tokens_read(const struct tokens *tokens, int64_t first, int64_t n, int32_t *out);
/* Samples of `seq` tokens, each with the token after it as the last target: sample i is tokens
 * [i * seq, i * seq + seq]. ECONFIG when there is not even one. */
int tokens_windows(const struct tokens *tokens, int64_t seq, int64_t *out);

/* The order of samples: the g-th sample of the run, g = 0, 1, 2, ..., is window sampler_at(g) of epoch
 * g / windows. Every window comes exactly once in an epoch. */
struct sampler {
    int64_t windows; /* samples of one epoch, at least 1 */
    uint64_t seed;
    int shuffle; /* another order in every epoch; otherwise the order of the stream */
};
int64_t sampler_at(const struct sampler *sampler, int64_t g);

/* One path among several that are read more or less often than others. */
struct mix_source {
    int64_t first;   /* token that its first sample begins with */
    int64_t windows; /* samples to train on; those after them are held out */
    int64_t held;
    int64_t draws; /* samples of it in an epoch: one pass over it, half of one, or three */
};

/* What an epoch is made of when paths have weights, or when a part of the data is held out for evaluation. A
 * source is gone through again and again, every sample once in a pass, `draws` of them in each epoch. */
struct mix {
    struct mix_source *sources;
    int n;
    int64_t draws, held; /* over all sources */
    uint64_t split_seed; /* not 0: samples are held out at random by it, not those at the end */
};
/* `weights` has one for each path, passes of an epoch, or is NULL: then everything is one source. `split` is
 * the fraction of the samples of each source that is held out: those at its end, unless the caller then sets
 * split_seed, which moves them and nothing else. ECONFIG names the path that has
 * too few tokens. */
int mix_init(struct mix *out, const struct tokens *tokens, const struct tokens_desc *desc,
    const double *weights, double split, int64_t seq);
void mix_finish(struct mix *mix);
/* The token that the g-th sample of a run begins with; sampler->windows is mix->draws. */
int64_t mix_at(const struct mix *mix, const struct sampler *sampler, int64_t seq, int64_t g);
/* The same of the i-th sample held out. */
int64_t mix_held_at(const struct mix *mix, int64_t seq, int64_t i);

/* Which rows this rank reads. Plain data; the tokens are borrowed. Step by step the run consumes `global`
 * samples; sample j = (m * world + rank) * micro + i of a step is row i of the rank's micro-batch m, so that
 * the samples of a step, and their order, are the same for every world. */
struct feed {
    const struct tokens *tokens;
    struct sampler sampler;
    const struct mix *mix; /* borrowed; NULL = all windows of the stream, each once an epoch */
    int held;              /* evaluation: of what the mix holds out */
    int has_end;           /* what follows token `end` is no target of it: another document */
    int32_t end;
    int64_t seq;
    int64_t total;  /* samples of the whole run: rows past it are empty; 0 = the run has no end */
    int64_t global; /* samples of a step: a multiple of micro * world */
    int64_t micro;  /* samples of one micro-batch of one rank */
    int rank, world;
};

/* Checks a feed once; ECONFIG names the numbers that do not fit together. */
int feed_check(const struct feed *feed);
/* Micro-batches of a step (feed_check has passed). */
int64_t feed_accum(const struct feed *feed);
/* Steps until `total` samples are consumed, the last of them perhaps partial; total > 0. */
int64_t feed_steps(const struct feed *feed);
/* Micro-batch m of the step that begins at sample `cursor`: tokens and targets, [micro, seq] each. Rows past
 * `total` have tokens 0 and targets -1, so that they carry no loss and no weight. Thread-safe: a thread may
 * fill ahead. */
int feed_fill(const struct feed *feed, int64_t cursor, int64_t m, int32_t *tokens, int32_t *targets);

/* Reads the next step while this one is computed: a thread and two buffers. The feed is copied, what it
 * borrows must outlive it. */
struct ahead;
int ahead_create(struct ahead **out, const struct feed *feed);
void ahead_destroy(struct ahead *ahead); /* NULL is fine */
/* All micro-batches of the step that begins at `cursor`: for each its tokens, then its targets. Valid until
 * the next call. Any cursor will do, the one after the last is there already. */
int ahead_take(struct ahead *ahead, int64_t cursor, const int32_t **rows);

/* Evaluation: the first `limit` windows (0 = all) in the order of the stream, each exactly once, cut into
 * micro-batches that the ranks take in turns; the last one may be short, and ranks may get unequal numbers.
 * Uses tokens, sampler.windows, seq, micro, rank and world of the feed. */
int64_t eval_windows(const struct feed *feed, int64_t limit); /* how many those are */
int64_t eval_count(const struct feed *feed, int64_t limit);   /* micro-batches of this rank */
/* The rank's k-th evaluation batch, 0 <= k < eval_count: fills *rows <= micro rows. */
int eval_fill(
    const struct feed *feed, int64_t limit, int64_t k, int32_t *tokens, int32_t *targets, int64_t *rows);

#endif
