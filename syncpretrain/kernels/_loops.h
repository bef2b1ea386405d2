/* The equations over rows of float32, in one pass each.
 *
 * Every loop is plain C that the compiler vectorizes, once for each level of x86-64 (VECTORIZED).
 * Sums run in a fixed order, and no product is contracted with a sum (-ffp-contract=off): so each
 * level has the same bits. They equal the NumPy form's, except for the sigmoid, the tangent and the
 * summed squares. The exponential's products are added by fused multiply-adds, which the code names.
 */
#ifndef SYNCPRETRAIN_LOOPS_H
#define SYNCPRETRAIN_LOOPS_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(VECTORIZED) /* as who builds it chooses */
#elif defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) \
    && __GNUC__ >= 12
#define VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORIZED
#endif
#define INLINED static inline __attribute__((always_inline))

/* Arrays are the same or apart (see `apart` in _native.c): no element waits for an earlier one. */
#if defined(__clang__)
#define APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define APART _Pragma("GCC ivdep")
#endif

/* The kinds of units that have a compiled form, by their names in syncpretrain/units/kinds.py. Python
 * reads this table; every switch has all of them. */
typedef enum { BERNOULLI, GAUSSIAN, RELU, TANH, OTHER } Units;
static const char *const UNIT_NAMES[OTHER] = {
    [BERNOULLI] = "bernoulli",
    [GAUSSIAN] = "gaussian",
    [RELU] = "relu",
    [TANH] = "tanh",
};

/* Return x y + z, rounded once. `is_one` says that one instruction does it: then the compiler knows. */
INLINED float fused(float x, float y, float z, const int is_one)
{
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(x, y, z);
#elif FLT_EVAL_METHOD != 0
    return fmaf(x, y, z);
#else /* The exact sum is `sum` + `lost`. With its last digit odd where it is not exact it rounds as the exact one. */
    if (is_one) return __builtin_fmaf(x, y, z);
    double product = (double)x * (double)y, sum = product + (double)z;
    double back = sum - product, lost = (product - (sum - back)) + ((double)z - back);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    int64_t inexact = (lost > 0) | (lost < 0), away = (lost > 0) == (sum > 0);
    bits += inexact & ~bits & 1 ? 2 * away - 1 : 0;
    memcpy(&sum, &bits, sizeof sum);
    return (float)sum;
#endif
}

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma")))

/* Return the width of the widest vectors of this processor that have a form. */
static int widest_of_cpu(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq"))
        return 16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 8;
#endif
    return 4;
}

static int kept_width = 0; /* instead of the widest */

static int widest(void)
{
    return kept_width ? kept_width : widest_of_cpu();
}

/* Define a function for each width, and one that calls the usual one, given one that takes `is_one` too. */
#if defined(__x86_64__)
#define IN_WIDTHS(type, name, parameters, ...)                                                      \
    static type name##_4 parameters { return name##_any(__VA_ARGS__, 0); }                          \
    AVX2 static type name##_8 parameters { return name##_any(__VA_ARGS__, 1); }                     \
    AVX512 static type name##_16 parameters { return name##_any(__VA_ARGS__, 1); }                  \
    static type name parameters                                                                     \
    {                                                                                               \
        int width = widest();                                                                       \
        return width == 16  ? name##_16(__VA_ARGS__)                                                \
               : width == 8 ? name##_8(__VA_ARGS__)                                                 \
                            : name##_4(__VA_ARGS__);                                                \
    }
#else
#define IN_WIDTHS(type, name, parameters, ...)                                                      \
    static type name parameters { return name##_any(__VA_ARGS__, 0); }
#endif

/* exp(r) - 1, where exp(t) = 2^n exp(r) with n the integer nearest to t / log 2.
 *
 * Adding 1.5 * 2^23 rounds to n and leaves it in the low bits. The reduction in two parts and the
 * polynomial are from Cephes.
 */
INLINED float reduced_expm1(float t, uint32_t *n_in_low_bits, const int is_one)
{
    float shifted = fused(t, 1.44269504088896341f, 12582912.0f, is_one);
    float n = shifted - 12582912.0f;
    float r = fused(n, 2.12194440e-4f, fused(n, -0.693359375f, t, is_one), is_one);
    float p = fused(1.9875691500e-4f, r, 1.3981999507e-3f, is_one);
    p = fused(p, r, 8.3334519073e-3f, is_one);
    p = fused(p, r, 4.1665795894e-2f, is_one);
    p = fused(p, r, 1.6666665459e-1f, is_one);
    p = fused(p, r, 5.0000001201e-1f, is_one);
    memcpy(n_in_low_bits, &shifted, sizeof shifted);
    return fused(p, r * r, r, is_one);
}

INLINED float power_of_2(uint32_t n_in_low_bits, uint32_t plus)
{
    uint32_t bits = (n_in_low_bits + 127u + plus) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* 1 / (1 + exp(-x)): 0 below -88.73, 1 for large x, nan for nan. */
INLINED float sigmoid(float x, const int is_one)
{
    float t = -x;
    int32_t clamped; /* as an integer, which takes two instructions, not six; it loses nan */
    memcpy(&clamped, &t, sizeof t);
    clamped = clamped < 0x42B20000 ? clamped : 0x42B20000; /* 89 */
    uint32_t bits = (uint32_t)clamped;
    bits = bits < 0xC2AE0000u ? bits : 0xC2AE0000u; /* -87 */
    memcpy(&t, &bits, sizeof t);
    float p = reduced_expm1(t, &bits, is_one) + 1.0f;
    p *= power_of_2(bits, -1); /* for 2^128 is none */
    float y = 1.0f / fused(p, 2.0f, 1.0f, is_one);
    return x == x ? y : x;
}

/* tanh(x) = (1 - exp(-2 |x|)) / (1 + exp(-2 |x|)) with the sign of x; nan for nan. */
INLINED float hyperbolic_tangent(float x, const int is_one)
{
    float t = -2.0f * fabsf(x);
    uint32_t bits;
    memcpy(&bits, &t, sizeof t);
    bits = bits < 0xC2AE0000u ? bits : 0xC2AE0000u; /* -87, as in sigmoid */
    memcpy(&t, &bits, sizeof t);
    float q = reduced_expm1(t, &bits, is_one), power = power_of_2(bits, 0);
    float m = fused(power, q, power - 1.0f, is_one); /* exp(t) - 1, exact to the last bits near 0 too */
    float y = copysignf(m / (m + 2.0f), x);
    return x == x ? y : x;
}

INLINED void means_row_any(float *x, const float *bias, ptrdiff_t n, Units units, const int is_one)
{
    switch (units) {
    case BERNOULLI:
        APART for (ptrdiff_t i = 0; i < n; i++) x[i] = sigmoid(x[i] + bias[i], is_one);
        break;
    case GAUSSIAN:
        APART for (ptrdiff_t i = 0; i < n; i++) x[i] += bias[i];
        break;
    case RELU:
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float t = x[i] + bias[i];
            x[i] = t <= 0.0f ? 0.0f : t; /* never -0 */
        }
        break;
    case TANH:
        APART for (ptrdiff_t i = 0; i < n; i++) x[i] = hyperbolic_tangent(x[i] + bias[i], is_one);
        break;
    case OTHER: break;
    }
}

IN_WIDTHS(void, means_row, (float *x, const float *bias, ptrdiff_t n, Units units), x, bias, n, units)

INLINED void states_row_any(float *x, const float *bias, const float *uniform, float *out, ptrdiff_t n,
                            const int is_one)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
    {
        float mean = sigmoid(x[i] + bias[i], is_one);
        x[i] = mean;
        out[i] = uniform[i] < mean ? 1.0f : 0.0f;
    }
}

IN_WIDTHS(void, states_row, (float *x, const float *bias, const float *uniform, float *out, ptrdiff_t n),
          x, bias, uniform, out, n)

INLINED float sign(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x + 0.0f; /* 0, never -0, or nan */
}

VECTORIZED static void scale_and_add_row(float *v, float *sum, float scale, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
    {
        float t = v[i] * scale;
        v[i] = t;
        sum[i] += t;
    }
}

VECTORIZED static void add_row(const float *h, float *sum, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++) sum[i] += h[i];
}

VECTORIZED static void scale_row(float *x, ptrdiff_t n, float by)
{
    APART for (ptrdiff_t i = 0; i < n; i++) x[i] *= by;
}

/* difference = (difference - sum) / divisor, as the NumPy form rounds it. */
VECTORIZED static void finish_row(float *difference, const float *sum, float divisor, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++) difference[i] = (difference[i] - sum[i]) / divisor;
}

VECTORIZED static void momentum_row(float *p, const float *g, float *v, ptrdiff_t n,
                                    float momentum, float rate, float decay, float l1)
{
    if (decay == 0.0f && l1 == 0.0f) {
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float t = v[i] * momentum + g[i] * rate;
            v[i] = t;
            p[i] += t;
        }
    } else if (l1 == 0.0f) {
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float t = v[i] * momentum + g[i] * rate - p[i] * decay;
            v[i] = t;
            p[i] += t;
        }
    } else if (decay == 0.0f) { /* for 0 times infinity is nan */
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float t = v[i] * momentum + g[i] * rate - sign(p[i]) * l1;
            v[i] = t;
            p[i] += t;
        }
    } else {
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float t = v[i] * momentum + g[i] * rate - p[i] * decay - sign(p[i]) * l1;
            v[i] = t;
            p[i] += t;
        }
    }
}

VECTORIZED static void descent_row(float *p, const float *g, ptrdiff_t n, float rate)
{
    APART for (ptrdiff_t i = 0; i < n; i++) p[i] -= g[i] * rate;
}

VECTORIZED static void sgd_row(
    float *p, const float *g, float *v, ptrdiff_t n, float rate, float momentum, int nesterov)
{
    if (nesterov) {
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float s = g[i] * rate, t = v[i] * momentum - s;
            v[i] = t;
            p[i] = (p[i] - s) + t * momentum;
        }
    } else {
        APART for (ptrdiff_t i = 0; i < n; i++)
        {
            float t = v[i] * momentum - g[i] * rate;
            v[i] = t;
            p[i] += t;
        }
    }
}

VECTORIZED static void adam_row(float *p, const float *g, float *first, float *second, ptrdiff_t n,
                                float beta1, float beta2, float size, float floor)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
    {
        float m = first[i] * beta1 + g[i], v = second[i] * beta2 + g[i] * g[i];
        first[i] = m;
        second[i] = v;
        p[i] -= m / (sqrtf(v) + floor) * size;
    }
}

/* Normalization of columns takes some of them at a time, so that their sums lie on the stack. */
enum { NORMALIZED_COLUMNS = 256 };
#define SMALLEST_VARIANCE 1e-5f /* as in activations.py */

VECTORIZED static void centre_row(float *x, float *squares, const float *mean, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
    {
        float d = x[i] - mean[i];
        x[i] = d;
        squares[i] += d * d;
    }
}

VECTORIZED static void divide_row(float *x, const float *by, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++) x[i] /= by[i];
}

VECTORIZED static void spread_row(float *squares, ptrdiff_t n, float share)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
        squares[i] = sqrtf(squares[i] * share + SMALLEST_VARIANCE);
}

/* Add delta, and delta times normal, to sums over the rows. */
VECTORIZED static void sum_along_row(
    const float *delta, const float *normal, float *sum, float *along, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
    {
        sum[i] += delta[i];
        along[i] += delta[i] * normal[i];
    }
}

VECTORIZED static void denormalize_row(float *delta, const float *normal, const float *mean,
                                       const float *along, const float *spread, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++)
        delta[i] = ((delta[i] - mean[i]) - normal[i] * along[i]) / spread[i];
}

enum { LANES = 32 };

/* Leave y - x in out and add its squares to the lanes. */
VECTORIZED static void difference_row(
    const float *x, const float *y, float *out, float *lanes, ptrdiff_t n)
{
    float sums[LANES]; /* of its own, to stay in registers */
    memcpy(sums, lanes, sizeof sums);
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        APART for (int j = 0; j < LANES; j++)
        {
            float d = y[i + j] - x[i + j];
            out[i + j] = d;
            sums[j] += d * d;
        }
    }
    for (int j = 0; i < n; i++, j++) {
        float d = y[i] - x[i];
        out[i] = d;
        sums[j] += d * d;
    }
    memcpy(lanes, sums, sizeof sums);
}

/* Return the sum of a row, added up in lanes. */
VECTORIZED static float sum_of_row(const float *x, ptrdiff_t n)
{
    float sums[LANES] = {0}, sum = 0;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES)
        APART for (int j = 0; j < LANES; j++) sums[j] += x[i + j];
    for (int j = 0; j < LANES; j++) sum += sums[j];
    for (; i < n; i++) sum += x[i];
    return sum;
}

VECTORIZED static void derivative_row(float *delta, const float *a, ptrdiff_t n, Units units)
{
    switch (units) {
    case BERNOULLI:
        APART for (ptrdiff_t i = 0; i < n; i++) delta[i] = delta[i] * a[i] * (1.0f - a[i]);
        break;
    case GAUSSIAN: break;
    case RELU:
        APART for (ptrdiff_t i = 0; i < n; i++) delta[i] *= sign(a[i]);
        break;
    case TANH:
        APART for (ptrdiff_t i = 0; i < n; i++) delta[i] *= 1.0f - a[i] * a[i];
        break;
    case OTHER: break;
    }
}

#endif
