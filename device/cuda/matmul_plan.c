/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See matmul_plan.h. cuBLASLt counts columns first: our row-major c[m,n] is its column-major n x m, so it is
 * asked for transposed(c) = transposed(b) transposed(a), and no data moves.
 */
#include "device/cuda/matmul_plan.h"

#include "base/status.h"

int plan_check_at(cublasStatus_t status, const char *what, const char *file, int line)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return SHERD_OK;
    return sherd_fail_at(SHERD_EDEVICE, file, line, "%s: %s (%s)", what, cublasLtGetStatusString(status),
        cublasLtGetStatusName(status));
}
/* The largest power of two up to 256 that divides the address. */
static uint8_t alignment(const void *p)
{
    uintptr_t x = (uintptr_t)p | 256;
    return (uint8_t)__builtin_ctzll(x);
}

static cudaDataType_t lt_type(int type)
{
    return type == SHERD_F32 ? CUDA_R_32F : type == SHERD_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* The library adds the bias where it has the type of the output; else a kernel of ours does. */
static int bias_inside(const struct sherd_matmul *a)
{
    return a->bias && a->type == a->c_type;
}

struct plan_key plan_key_of(const struct sherd_matmul *a, int workspace)
{
    int bias = bias_inside(a);
    uint8_t align_d = alignment(a->c);
    return (struct plan_key){ .m = (int32_t)a->m,
        .n = (int32_t)a->n,
        .k = (int32_t)a->k,
        .lda = (int32_t)(a->a_pitch   ? a->a_pitch
                         : a->trans_a ? a->m
                                      : a->k),
        .ldc = (int32_t)(a->c_pitch ? a->c_pitch : a->n),
        .trans_a = a->trans_a != 0,
        .trans_b = a->trans_b != 0,
        .type = (uint8_t)a->type,
        .c_type = (uint8_t)a->c_type,
        .bias = (uint8_t)bias,
        .beta = a->add != NULL,
        .in_place = a->add == a->c,
        .workspace = workspace != 0,
        .align_a = alignment(a->a),
        .align_b = alignment(a->b),
        .align_c = a->add ? alignment(a->add) : align_d,
        .align_d = bias ? MIN(align_d, alignment(a->bias)) : align_d,
        .used = 1 };
}

/* The library's first operand is our b, its second our a. */
int plan_describe(struct plan *p)
{
    const struct plan_key *key = &p->key;
    cublasOperation_t op_b = key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_a = key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
    cublasLtEpilogue_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    LT_TRY(cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_TRY(cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof(op_b)));
    LT_TRY(cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof(op_a)));
    LT_TRY(
        cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    LT_TRY(cublasLtMatrixLayoutInit(&p->b, lt_type(key->type), key->trans_b ? k : n, key->trans_b ? n : k,
        (int64_t)(key->trans_b ? k : n)));
    LT_TRY(cublasLtMatrixLayoutInit(
        &p->a, lt_type(key->type), key->trans_a ? m : k, key->trans_a ? k : m, key->lda));
    LT_TRY(cublasLtMatrixLayoutInit(&p->c, lt_type(key->c_type), n, m, key->ldc));
    return SHERD_OK;
}

int plan_prefer(cublasLtMatmulPreferenceOpaque_t *pref, const struct plan_key *key, size_t workspace)
{
    /* Parts of a sum over k are added in a fixed order and in float, never in place. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint64_t most = workspace;
    uint32_t a = 1u << key->align_b, b = 1u << key->align_a, c = 1u << key->align_c, d = 1u << key->align_d;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } set[] = {
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions) },
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof(a) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof(b) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof(c) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof(d) },
    };
    LT_TRY(cublasLtMatmulPreferenceInit(pref));
    for (size_t i = 0; i < ARRAY_LEN(set); i++)
        LT_TRY(cublasLtMatmulPreferenceSetAttribute(pref, set[i].name, set[i].value, set[i].bytes));
    return SHERD_OK;
}

int plan_run(cublasLtHandle_t handle, struct plan *p, const cublasLtMatmulAlgo_t *algo,
    const struct sherd_matmul *a, void *out, struct plan_room room, cudaStream_t stream)
{
    const float alpha = 1, beta = a->add ? 1 : 0;
    if (p->key.bias)
        LT_TRY(cublasLtMatmulDescSetAttribute(
            &p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias, sizeof(a->bias)));
    return LT_CHECK(cublasLtMatmul(handle, &p->desc, &alpha, a->b, &p->b, a->a, &p->a, &beta,
        a->add ? a->add : out, &p->c, out, &p->c, algo, room.at, room.bytes, stream));
}
