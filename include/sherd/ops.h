/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The mathematics a model author calls. One row in SHERD_OPS is one operation; its arguments are a struct
 * of the same name, filled with designated initializers:
 *
 *     sherd_matmul(queue, &(struct sherd_matmul){ .c = y, .a = x, .b = w, .m = rows, .n = out, .k = in, ...
 * });
 *
 * All matrices are row-major, and dense but where an operation has a pitch. Pointers are device memory. Sizes
 * are counts of elements. `type` is the type of activations and weights (F32, BF16 or F16); arithmetic is in
 * float32, storage is rounded to nearest even. `grad_type` is the type of weight gradients (the same three),
 * which are ADDED to unless an `overwrite` says that they hold nothing yet (of no rows nothing is written).
 * Outputs may not overlap inputs unless it is said. Every call returns a status: EINVAL for arguments that
 * cannot be right, EUNSUPPORTED for a type this device lacks; failures of the work itself surface when the
 * queue is synchronized. Results are deterministic (the same inputs give the same bits, whatever the number
 * of threads) but where `any_order` allows sums to be taken in any order, for speed; the CPU never does.
 *
 * Letters: B batch, T sequence, C width, H heads, K kv heads, D head size, F mlp width, V vocabulary.
 */
#ifndef SHERD_OPS_H
#define SHERD_OPS_H

#include <sherd/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHERD_OPS(XX)                                                                                        \
    XX(copy)                                                                                                 \
    XX(fill)                                                                                                 \
    XX(cast)                                                                                                 \
    XX(add)                                                                                                  \
    XX(accumulate)                                                                                           \
    XX(matmul)                                                                                               \
    XX(bias_backward)                                                                                        \
    XX(norm_forward)                                                                                         \
    XX(norm_backward)                                                                                        \
    XX(gelu_forward)                                                                                         \
    XX(gelu_backward)                                                                                        \
    XX(swiglu_forward)                                                                                       \
    XX(swiglu_backward)                                                                                      \
    XX(rope)                                                                                                 \
    XX(attention_forward)                                                                                    \
    XX(attention_backward)                                                                                   \
    XX(embed_forward)                                                                                        \
    XX(embed_backward)                                                                                       \
    XX(loss)                                                                                                 \
    XX(adamw)                                                                                                \
    XX(sgd)                                                                                                  \
    XX(split)                                                                                                \
    XX(join)                                                                                                 \
    XX(square_sum)                                                                                           \
    XX(ordered_sum)                                                                                          \
    XX(clip_factor)

/* dst = src, bytes. Host and device pointers both (host pointers from sherd_host_alloc for speed). With rows,
 * so many pieces of `bytes`, each beginning `pitch` bytes after the one before, in src and in dst alike. */
struct sherd_copy {
    void *dst;
    const void *src;
    size_t bytes;
    int64_t rows; /* 0 = one */
    size_t pitch;
};

/* Every byte of dst = byte. */
struct sherd_fill {
    void *dst;
    size_t bytes;
    unsigned char byte;
};

/* y[n] = x[n] with another type. */
struct sherd_cast {
    void *y;
    const void *x;
    int64_t n;
    enum sherd_dtype y_type, x_type;
};

/* y[n] = a[n] + b[n]; y may be a or b. */
struct sherd_add {
    void *y;
    const void *a, *b;
    int64_t n;
    enum sherd_dtype type;
};

/* dst[n] = src[n] (overwrite) or dst[n] += src[n]; dst is F32. */
struct sherd_accumulate {
    float *dst;
    const void *src;
    int64_t n;
    enum sherd_dtype src_type;
    int overwrite;
};

/* c[m,n] = op(a)[m,k] op(b)[k,n] + bias[n] + add[m,n].
 * trans_a: a is stored [k,m]; trans_b: b is stored [n,k]. bias and add may be NULL. add may be c itself
 * (accumulation) and has type c_type; a, b and bias have `type`. a_pitch, c_pitch: elements from a row of a
 * (as stored), or of c and add, to the next; 0: they lie close. */
struct sherd_matmul {
    void *c;
    const void *a, *b, *bias, *add;
    int64_t m, n, k;
    int64_t a_pitch, c_pitch;
    int trans_a, trans_b;
    enum sherd_dtype type, c_type;
};

/* db[cols] = (overwrite) or += the sum over rows of dy[rows,cols]. */
struct sherd_bias_backward {
    void *db;
    const void *dy;
    int64_t rows, cols;
    enum sherd_dtype type, grad_type;
    int overwrite;
    void *scratch; /* sherd_bias_backward_scratch() bytes */
};

enum sherd_norm_kind { SHERD_LAYER_NORM, SHERD_RMS_NORM };

/* LayerNorm (arXiv 1607.06450): y = (x - mean) * rstd * w + b, rstd = 1/sqrt(var + eps), biased variance.
 * RMSNorm (arXiv 1910.07467): y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps); mean and b unused (NULL).
 * x, y [rows,cols]; w, b [cols]; mean, rstd [rows] float. b may be NULL. With `run`, the rows are parts of a
 * wider matrix: after every `run` rows, which lie one after the other, the next begin `pitch` elements after
 * the first of these. */
struct sherd_norm_forward {
    void *y;
    float *mean, *rstd;
    const void *x, *w, *b;
    int64_t rows, cols;
    int64_t run, pitch; /* 0 = all rows lie one after the other */
    float eps;
    enum sherd_norm_kind kind;
    enum sherd_dtype type;
};

/* dx = gradient through the norm + add (add [rows,cols] may be NULL: the gradient that came past the norm
 * on the residual path; dx may be add, or dy). dw, db [cols] are added to; NULL where frozen or absent. y, if
 * not NULL, gets what forward made of x, w and b, with the same bits; y may be dy. run and pitch hold for dx,
 * y, dy, x and add. */
struct sherd_norm_backward {
    void *dx, *dw, *db, *y;
    const void *dy, *x, *w, *b, *add; /* b: for y alone, may be NULL */
    const float *mean, *rstd;
    int64_t rows, cols;
    int64_t run, pitch;
    enum sherd_norm_kind kind;
    enum sherd_dtype type, grad_type;
    int overwrite_dw, overwrite_db;
    void *scratch; /* sherd_norm_backward_scratch() bytes */
};

/* y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GPT-2's "gelu_new" (arXiv 1606.08415). */
struct sherd_gelu_forward {
    void *y;
    const void *x;
    int64_t n;
    enum sherd_dtype type;
};

/* dx = dy * gelu'(x); dx may be dy, or x. y, if not NULL, gets what forward made of x, with the same bits; y
 * may be dy. */
struct sherd_gelu_backward {
    void *dx, *y;
    const void *dy, *x;
    int64_t n;
    enum sherd_dtype type;
};

/* y[rows,F] = silu(gate) * up, x[rows,2F] = gate | up, silu(g) = g / (1 + exp(-g)) (arXiv 2002.05202). */
struct sherd_swiglu_forward {
    void *y;
    const void *x;
    int64_t rows, cols; /* cols = F */
    enum sherd_dtype type;
};

/* dx[rows,2F] from dy[rows,F] and x; dx may be x. y[rows,F], if not NULL, gets what forward made of x, with
 * the same bits; y may be dy. */
struct sherd_swiglu_backward {
    void *dx, *y;
    const void *dy, *x;
    int64_t rows, cols;
    enum sherd_dtype type;
};

#define SHERD_MAX_HEAD_DIM 256

/* Rotary positions (arXiv 2104.09864), half-split layout: for pair (i, i + D/2) of each of the first
 * `rotated` heads of every row, angle = position * inv_freq[i]; position = row index within its sequence.
 * In place on x[B,T,heads,D]. inverse != 0 rotates back (the gradient). */
struct sherd_rope {
    void *x;
    int64_t batch, seq, heads, rotated, head_dim;
    float inv_freq[SHERD_MAX_HEAD_DIM / 2];
    int inverse;
    enum sherd_dtype type;
};

/* Causal attention with grouped queries: out[B,T,H,D] = softmax(q k' * scale, causal) v.
 * qkv[B,T,H+2K,D]: the q heads, then the k heads, then the v heads. lse[B,H,T] float is the log of the
 * softmax denominators, kept for the backward pass. H is a multiple of K. */
struct sherd_attention_forward {
    void *out;
    float *lse;
    const void *qkv;
    int64_t batch, seq, heads, kv_heads, head_dim;
    float scale;
    enum sherd_dtype type;
    void *scratch; /* sherd_attention_forward_scratch() bytes */
};

/* dqkv (overwritten) from dout, out, lse and qkv. */
struct sherd_attention_backward {
    void *dqkv;
    const void *dout, *out, *qkv;
    const float *lse;
    int64_t batch, seq, heads, kv_heads, head_dim;
    float scale;
    enum sherd_dtype type;
    int any_order; /* also asks for another scratch */
    void *scratch; /* sherd_attention_backward_scratch() bytes for this kind of device */
};

/* y[B,T,C] = wte[token] + wpe[position]; wpe [>=T,C] may be NULL. A token outside [0,V) fails at sync. */
struct sherd_embed_forward {
    void *y;
    const int32_t *tokens;
    const void *wte, *wpe;
    int64_t batch, seq, width, vocab;
    enum sherd_dtype type;
};

/* dwte[V,C], dwpe[>=T,C] are added to, in a fixed order; either may be NULL. */
struct sherd_embed_backward {
    void *dwte, *dwpe;
    const void *dy;
    const int32_t *tokens;
    int64_t batch, seq, width, vocab;
    enum sherd_dtype type, grad_type;
    void *scratch; /* sherd_embed_backward_scratch() bytes */
};

/* Softmax cross entropy over logits[rows,V], targets[rows]; a negative target is ignored (counts nothing,
 * gradient 0). *sum += the losses of the valid rows, in row order, in double. If backward, logits are
 * overwritten by (softmax - onehot) / *count: the weight of the whole step, and the loss scale with it, is
 * applied here and nowhere else, so that all later reductions are plain sums. pitch: elements from a row of
 * logits to the next; 0: V. */
struct sherd_loss {
    void *logits;
    double *sum;
    const double *count; /* valid targets of the whole step over all ranks and micro-batches; with a loss
                            scale divided by it, which makes the gradient so many times larger */
    const int32_t *targets;
    int64_t rows, vocab, pitch;
    int backward;
    enum sherd_dtype type;
    void *scratch; /* sherd_loss_scratch() bytes */
};

/* What an update needs that changes from step to step: in device memory, for work that is kept and launched
 * again. */
struct sherd_rates {
    float lr;
    float rate;   /* adamw: lr / (1 - beta1^step) */
    float root;   /* adamw: 1 / sqrt(1 - beta2^step) */
    int32_t step; /* for rounding at random */
};

/* AdamW (arXiv 1711.05101) on n elements: g = grad * *factor; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * w -= lr * (m/c1 / (sqrt(v/c2) + eps) + weight_decay * w), c1 = 1 - b1^step, c2 = 1 - b2^step.
 * The float weight w is master, and param gets its rounded copy (param may be NULL: master is the parameter);
 * or, with `low` and without master, w is param and low together, see sherd_split. A BF16 param is rounded as
 * by sherd_split, an F16 one to nearest even. Arithmetic is in float; m and v of type BF16 are rounded up or
 * down at random, in proportion, by bits that depend on seed, stream, step and the place of the element in
 * the stream (below 2^34) alone. A factor that is NaN leaves everything unchanged: the step is not taken.
 * step counts from 1. rates, if not NULL, are taken when the work is done, in place of lr and step. */
struct sherd_adamw {
    void *param;
    float *master;
    int16_t *low;
    void *m, *v;
    const void *grad;
    const float *factor;
    const struct sherd_rates *rates;
    int64_t n, step;
    float lr, beta1, beta2, eps, weight_decay;
    enum sherd_dtype param_type, grad_type, state_type;
    uint64_t seed, stream; /* state_type BF16 only, as is */
    int64_t first;         /* place of element 0 in the stream */
};

/* SGD with momentum as PyTorch has it: g = grad * *factor + weight_decay * w; m = momentum * m + g (m = g
 * at step 1); w -= lr * m. momentum 0: m may be NULL. NaN factor: nothing changes. Weights, rounding, rates
 * and the last three fields as in sherd_adamw. */
struct sherd_sgd {
    void *param;
    float *master;
    int16_t *low;
    void *m;
    const void *grad;
    const float *factor;
    const struct sherd_rates *rates;
    int64_t n, step;
    float lr, momentum, weight_decay;
    enum sherd_dtype param_type, grad_type, state_type;
    uint64_t seed, stream;
    int64_t first;
};

/* Cuts floats in two without loss: param (BF16) is the nearest, of two that are as near the one farther from
 * zero; low is what is left, the bits of the float less those of param and 16 zeros. low may be NULL: then it
 * is rounding alone. master may be host memory of sherd_host_alloc, as in sherd_join. */
struct sherd_split {
    void *param;
    int16_t *low;
    const float *master;
    int64_t n;
};

/* The floats that were cut; with low NULL the values of param. */
struct sherd_join {
    float *master;
    const void *param;
    const int16_t *low;
    int64_t n;
};

/* *sum += sum of x[i]^2, in double, in a fixed order. */
struct sherd_square_sum {
    double *sum;
    const void *x;
    int64_t n;
    enum sherd_dtype type;
    void *scratch; /* sherd_square_sum_scratch() bytes */
};

/* out[j] = sum over i of in[i * stride + j], i = 0..n-1 in that order, j = 0..cols-1. */
struct sherd_ordered_sum {
    double *out;
    const double *in;
    int64_t n, stride, cols;
};

/* *norm = sqrt(*square_sum) / *scale; *factor = (max_norm > 0 ? min(1, max_norm / (*norm + 1e-6)) : 1) /
 * *scale, which for a scale of 1 is as torch.nn.utils.clip_grad_norm_ has it; NaN when the norm is not
 * finite, or *loss (NULL = there is none). */
struct sherd_clip_factor {
    float *factor;
    double *norm;
    const double *square_sum, *loss;
    const double *scale; /* of the loss, and so of the gradients that were squared; NULL = 1 */
    float max_norm;
};

#define XX(name)                                                                                             \
    struct sherd_##name;                                                                                     \
    SHERD_API int sherd_##name(struct sherd_queue *queue, const struct sherd_##name *a);
SHERD_OPS(XX)
#undef XX

/* Work space in bytes: a function of sizes, so that memory can be planned where no such device is. Only the
 * size fields of the argument are read. */
SHERD_API size_t sherd_bias_backward_scratch(const struct sherd_bias_backward *a);
SHERD_API size_t sherd_norm_backward_scratch(const struct sherd_norm_backward *a);
SHERD_API size_t sherd_attention_forward_scratch(const struct sherd_attention_forward *a);
/* On devices of the kind ("cpu", "cuda"); NULL: enough for every kind. */
SHERD_API size_t sherd_attention_backward_scratch(
    const struct sherd_attention_backward *a, const char *device);
SHERD_API size_t sherd_embed_backward_scratch(const struct sherd_embed_backward *a);
SHERD_API size_t sherd_loss_scratch(const struct sherd_loss *a);
SHERD_API size_t sherd_square_sum_scratch(const struct sherd_square_sum *a);

#ifdef __cplusplus
}
#endif
#endif
