/* The products of NumPy's own BLAS, by the address of its sgemm. */
#ifndef SYNCPRETRAIN_BLAS_H
#define SYNCPRETRAIN_BLAS_H

#include <limits.h>

typedef struct {
    void *sgemm;
    int wide; /* its integers have 64 bits */
} Blas;

typedef void (*Narrow)(int, int, int, int, int, int, float, const float *, int, const float *, int,
                       float, float *, int);
typedef void (*Wide)(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                     const float *, int64_t, float, float *, int64_t);
enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };

/* A factor or a result: where it begins, and how far its rows are from each other in memory. */
typedef struct {
    float *data;
    Py_ssize_t stride;
} Rows;

/* c (m x n) = beta c + a (m x k) b (k x n), where the factors are AS_IS or TRANSPOSED. */
static void multiply_by(const Blas *blas, int ta, int tb, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, Rows a,
                    Rows b, float beta, Rows c)
{
    if (blas->wide)
        ((Wide)blas->sgemm)(ROW_MAJOR, ta, tb, m, n, k, 1.0f, a.data, a.stride, b.data, b.stride, beta,
                            c.data, c.stride);
    else
        ((Narrow)blas->sgemm)(ROW_MAJOR, ta, tb, (int)m, (int)n, (int)k, 1.0f, a.data, (int)a.stride,
                              b.data, (int)b.stride, beta, c.data, (int)c.stride);
}

#endif
