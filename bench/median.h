/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The median of what was measured.
 */
#ifndef SHERD_BENCH_MEDIAN_H
#define SHERD_BENCH_MEDIAN_H

#include <stdlib.h>

static inline int median_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of v[n], which is sorted by it; the upper one of two in the middle. */
static inline double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), median_order);
    return v[n / 2];
}

#endif
