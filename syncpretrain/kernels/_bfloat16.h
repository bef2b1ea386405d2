/* Products of float32 matrices with their factors rounded to bfloat16.
 *
 * Factors are rounded to nearest even as they are packed, two numbers of a row of the product side by side:
 * a pair is what the processors' instruction multiplies at once. Every sum is float32 and is taken in the
 * order of the inner index, of each pair the second number first, as the instruction does. So its bits do not
 * depend on how a product is cut into blocks, and the portable form has the same, but for numbers below
 * 2^-126, which the instruction takes for 0. Included by _native.c alone.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_PAIRS_INSTRUCTION 1
#else
#define HAS_PAIRS_INSTRUCTION 0
#endif

typedef uint32_t Pair; /* the first number in the lower half */

enum {
    PANEL_COLUMNS = 64, PANEL_PAIRS = 512, /* of the right factor at once: 128 KiB, in the L2 cache */
    BLOCK_PAIRS = 1 << 16,                 /* of the left one: 256 KiB */
    STRIP_ROWS = 6,                        /* whose sums stay in registers */
};

/* What a product needs beside its matrices. */
typedef struct {
    Pair right[PANEL_PAIRS * PANEL_COLUMNS], left[BLOCK_PAIRS];
} PackedFactors;

/* A factor as it lies in memory: its element (i, j) is at data[i * down + j * right]; one of them is 1. */
typedef struct {
    const float *data;
    Py_ssize_t down, right, inner; /* inner: its columns, if it is the left one */
} Factor;

static Factor factor_of(const Matrix *m, int transposed)
{
    if (transposed) return (Factor){m->data, 1, m->stride, m->rows};
    return (Factor){m->data, m->stride, 1, m->columns};
}

static Factor factor_from(Factor f, Py_ssize_t i, Py_ssize_t j)
{
    f.data += i * f.down + j * f.right;
    return f;
}

/* ------------------------------------------------------------------------------- portable */

static inline Pair rounded(float x)
{
    uint32_t bits, size;
    memcpy(&bits, &x, sizeof bits);
    size = bits & 0x7fffffff;
    uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t other = size > 0x7f800000 ? bits >> 16 | 0x40 : bits >> 16 & 0x8000; /* not a number; too small */
    return size > 0x7f800000 || size < 0x00800000 ? other : nearest;
}

/* Pack pairs of the numbers of two rows, of which there may be no second one. */
VECTORIZED static void pack_across_portable(const float *x, const float *y, Py_ssize_t n, Pair *out)
{
    if (y)
        APART for (Py_ssize_t i = 0; i < n; i++) out[i] = rounded(x[i]) | rounded(y[i]) << 16;
    else
        APART for (Py_ssize_t i = 0; i < n; i++) out[i] = rounded(x[i]);
}

/* Pack the pairs of n numbers, `right` from each other; a pair goes `step` behind the one before it. */
static void pack_along_portable(const float *x, Py_ssize_t n, Py_ssize_t right, Pair *out, Py_ssize_t step)
{
    for (Py_ssize_t i = 0; i < n; i += 2, out += step)
        *out = rounded(x[i * right]) | (i + 1 < n ? rounded(x[(i + 1) * right]) << 16 : 0);
}

static inline float wide(uint32_t upper_half)
{
    float x;
    memcpy(&x, &upper_half, sizeof x);
    return x;
}

/* Add to n sums a pair times those of a panel. */
VECTORIZED static void add_pairs_portable(Pair a, const Pair *b, float *sums, Py_ssize_t n)
{
    float second = wide(a & 0xffff0000), first = wide(a << 16);
    APART for (Py_ssize_t i = 0; i < n; i++)
    {
        float sum = sums[i] + second * wide(b[i] & 0xffff0000); /* products of eight digits are exact */
        sums[i] = sum + first * wide(b[i] << 16);
    }
}

static void multiply_panel_portable(const Pair *left, const Pair *right, Py_ssize_t rows, Py_ssize_t pairs,
                                    Py_ssize_t columns, float *out, Py_ssize_t stride)
{
    for (Py_ssize_t i = 0; i < rows; i++, left += pairs, out += stride)
        for (Py_ssize_t k = 0; k < pairs; k++)
            add_pairs_portable(left[k], right + k * PANEL_COLUMNS, out, columns);
}

/* ----------------------------------------------------------------------------- AVX512-BF16 */

#if HAS_PAIRS_INSTRUCTION
#define WITH_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* Return the mask of the first n of 16 lanes. */
static inline uint16_t first_lanes(Py_ssize_t n)
{
    return n >= 16 ? 0xffff : n > 0 ? (uint16_t)((1u << n) - 1) : 0;
}

WITH_PAIRS static inline __m512i two_rounded(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* Return the first n numbers; 0 for the others. */
WITH_PAIRS static inline __m512 numbers_of(const float *x, Py_ssize_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), x);
}

/* Return the pairs of up to 16 numbers of each of two rows, of which there may be no second one. */
WITH_PAIRS static inline __m512i pairs_across(const float *x, const float *y, Py_ssize_t n)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                           6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512 second = y ? numbers_of(y, n) : _mm512_setzero_ps();
    return _mm512_permutexvar_epi16(order, two_rounded(numbers_of(x, n), second));
}

WITH_PAIRS static void pack_across_avx512(const float *x, const float *y, Py_ssize_t n, Pair *out)
{
    for (Py_ssize_t i = 0; i < n; i += 16)
        _mm512_mask_storeu_epi32(out + i, first_lanes(n - i), pairs_across(x + i, y ? y + i : NULL, n - i));
}

/* Return the pairs of up to 32 numbers of a row. */
WITH_PAIRS static inline __m512i pairs_along(const float *x, Py_ssize_t n)
{
    return two_rounded(numbers_of(x, n), numbers_of(x + 16, n - 16));
}

WITH_PAIRS static void pack_along_avx512(const float *x, Py_ssize_t n, Pair *out)
{
    for (Py_ssize_t i = 0; i < n; i += 32)
        _mm512_mask_storeu_epi32(out + i / 2, first_lanes((n - i + 1) / 2), pairs_along(x + i, n - i));
}

/* Turn 16 rows of 16 pairs round. */
WITH_PAIRS static inline void turn(__m512i *r)
{
    __m512i t[16];
    UNROLLED for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLLED for (int i = 0; i < 16; i += 4)
    {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    UNROLLED for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLLED for (int i = 0; i < 4; i++)
    {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Pack columns whose numbers lie side by side, `next` from column to column, a pair of each in a row. */
WITH_PAIRS static void pack_columns_avx512(const float *x, Py_ssize_t next, Py_ssize_t inner, Py_ssize_t columns,
                                           Pair *out)
{
    for (Py_ssize_t j = 0; j < columns; j += 16) {
        for (Py_ssize_t k = 0; k < inner; k += 32) {
            Py_ssize_t pairs = (inner - k + 1) / 2;
            __m512i r[16];
            UNROLLED for (int i = 0; i < 16; i++)
                r[i] = j + i < columns ? pairs_along(x + (j + i) * next + k, inner - k) : _mm512_setzero_si512();
            turn(r);
            UNROLLED for (int i = 0; i < 16; i++)
                if (i < pairs) _mm512_storeu_si512(out + (k / 2 + i) * PANEL_COLUMNS + j, r[i]);
        }
    }
}

/* Pack rows whose numbers lie `next` from each other, row beside row. */
WITH_PAIRS static void pack_rows_avx512(const float *x, Py_ssize_t next, Py_ssize_t rows, Py_ssize_t inner,
                                        Pair *out)
{
    Py_ssize_t pairs = (inner + 1) / 2;
    for (Py_ssize_t i = 0; i < rows; i += 16) {
        for (Py_ssize_t k = 0; k < pairs; k += 16) {
            __m512i r[16];
            UNROLLED for (int p = 0; p < 16; p++)
            {
                const float *first = x + 2 * (k + p) * next + i;
                r[p] = k + p >= pairs ? _mm512_setzero_si512()
                                      : pairs_across(first, 2 * (k + p) + 1 < inner ? first + next : NULL, rows - i);
            }
            turn(r);
            UNROLLED for (int p = 0; p < 16; p++)
                if (i + p < rows) _mm512_mask_storeu_epi32(out + (i + p) * pairs + k, first_lanes(pairs - k), r[p]);
        }
    }
}

WITH_PAIRS INLINED void pairs_tile(const Pair *left, const Pair *right, Py_ssize_t pairs, Py_ssize_t columns, float *out,
                                   Py_ssize_t stride, const int n, const int vectors)
{
    __m512 sum[STRIP_ROWS][PANEL_COLUMNS / 16];
    __mmask16 last = first_lanes(columns - (vectors - 1) * 16);
    UNROLLED for (int t = 0; t < n; t++)
    {
        UNROLLED for (int v = 0; v < vectors; v++)
            sum[t][v] = _mm512_maskz_loadu_ps(v == vectors - 1 ? last : 0xffff, out + t * stride + v * 16);
    }
    for (Py_ssize_t k = 0; k < pairs; k++, right += PANEL_COLUMNS) {
        __m512bh factor[PANEL_COLUMNS / 16];
        UNROLLED for (int v = 0; v < vectors; v++) factor[v] = (__m512bh)_mm512_loadu_si512(right + v * 16);
        UNROLLED for (int t = 0; t < n; t++)
        {
            __m512bh pair = (__m512bh)_mm512_set1_epi32((int)left[t * pairs + k]);
            UNROLLED for (int v = 0; v < vectors; v++) sum[t][v] = _mm512_dpbf16_ps(sum[t][v], pair, factor[v]);
        }
    }
    UNROLLED for (int t = 0; t < n; t++)
    {
        UNROLLED for (int v = 0; v < vectors; v++)
            _mm512_mask_storeu_ps(out + t * stride + v * 16, v == vectors - 1 ? last : 0xffff, sum[t][v]);
    }
}

WITH_PAIRS static void multiply_panel_avx512(const Pair *left, const Pair *right, Py_ssize_t rows, Py_ssize_t pairs,
                                             Py_ssize_t columns, float *out, Py_ssize_t stride)
{
    Py_ssize_t strips = (rows + STRIP_ROWS - 1) / STRIP_ROWS;
    for (Py_ssize_t s = 0; s < strips; s++) {
        Py_ssize_t first = rows * s / strips, n = rows * (s + 1) / strips - first;
        const Pair *own = left + first * pairs;
        float *to = out + first * stride;
#define CASE(n, vectors) case 8 * n + vectors: pairs_tile(own, right, pairs, columns, to, stride, n, vectors); break;
        switch (8 * n + (columns + 15) / 16) {
            CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1)
            CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2)
            CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3) CASE(5, 3) CASE(6, 3)
            CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4)
        }
#undef CASE
    }
}
#endif

/* ------------------------------------------------------------------------------------ products */

/* Return whether this processor has an instruction for pairs. */
static int multiplies_pairs(void)
{
#if HAS_PAIRS_INSTRUCTION
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

/* Pack some rows of the left factor, row beside row. */
static void pack_left(int fast, Factor f, Py_ssize_t rows, Py_ssize_t inner, Pair *out)
{
    Py_ssize_t pairs = (inner + 1) / 2;
#if HAS_PAIRS_INSTRUCTION
    if (fast && f.right != 1) {
        pack_rows_avx512(f.data, f.right, rows, inner, out);
        return;
    }
    if (fast) {
        for (Py_ssize_t i = 0; i < rows; i++) pack_along_avx512(f.data + i * f.down, inner, out + i * pairs);
        return;
    }
#endif
    for (Py_ssize_t i = 0; i < rows; i++) pack_along_portable(f.data + i * f.down, inner, f.right, out + i * pairs, 1);
}

/* Pack a panel of the right factor, a pair of each column in a row. */
static void pack_right(int fast, Factor f, Py_ssize_t inner, Py_ssize_t columns, Pair *out)
{
#if HAS_PAIRS_INSTRUCTION
    if (fast && f.right != 1) {
        pack_columns_avx512(f.data, f.right, inner, columns, out);
        return;
    }
#endif
    if (f.right != 1) {
        for (Py_ssize_t j = 0; j < columns; j++)
            pack_along_portable(f.data + j * f.right, inner, 1, out + j, PANEL_COLUMNS);
        return;
    }
    for (Py_ssize_t k = 0; k < inner; k += 2, out += PANEL_COLUMNS) {
        const float *first = f.data + k * f.down, *second = k + 1 < inner ? first + f.down : NULL;
#if HAS_PAIRS_INSTRUCTION
        if (fast) {
            pack_across_avx512(first, second, columns, out);
            continue;
        }
#endif
        pack_across_portable(first, second, columns, out);
    }
}

/* Return room for the factors of a number of products at once, or NULL with an error set. */
static PackedFactors *packed_factors(Py_ssize_t count)
{
    void *room = NULL;
    if (posix_memalign(&room, 64, (size_t)count * sizeof(PackedFactors)) == 0) return room;
    PyErr_NoMemory();
    return NULL;
}

/* Fill a matrix with the product of two factors. */
static void multiply_rounded(int fast, Factor left, Factor right, const Matrix *m, PackedFactors *room)
{
    Py_ssize_t rows = m->rows, inner = left.inner, columns = m->columns, stride = m->stride;
    float *out = m->data;
    for (Py_ssize_t i = 0; i < rows; i++) memset(out + i * stride, 0, (size_t)columns * sizeof *out);
    for (Py_ssize_t k = 0; k < inner; k += 2 * PANEL_PAIRS) {
        Py_ssize_t depth = inner - k < 2 * PANEL_PAIRS ? inner - k : 2 * PANEL_PAIRS, pairs = (depth + 1) / 2;
        Py_ssize_t most = BLOCK_PAIRS / pairs;
        for (Py_ssize_t i = 0; i < rows; i += most) {
            Py_ssize_t own = rows - i < most ? rows - i : most;
            pack_left(fast, factor_from(left, i, k), own, depth, room->left);
            for (Py_ssize_t j = 0; j < columns; j += PANEL_COLUMNS) {
                Py_ssize_t some = columns - j < PANEL_COLUMNS ? columns - j : PANEL_COLUMNS;
                pack_right(fast, factor_from(right, k, j), depth, some, room->right);
#if HAS_PAIRS_INSTRUCTION
                if (fast) {
                    multiply_panel_avx512(room->left, room->right, own, pairs, some, out + i * stride + j, stride);
                    continue;
                }
#endif
                multiply_panel_portable(room->left, room->right, own, pairs, some, out + i * stride + j, stride);
            }
        }
    }
}

/* ----------------------------------------------------------------------------------- from Python */

/* Open a factor of a product, whose columns or rows lie side by side. */
static int open_factor(Matrix *m, PyObject *object, int *transposed)
{
    if (PyObject_GetBuffer(object, &m->buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) return 0;
    const Py_buffer *b = &m->buffer;
    const Py_ssize_t size = sizeof(float);
    int valid = b->ndim == 2 && b->itemsize == size && b->format && !strcmp(b->format, "f");
    if (valid && b->strides[1] == size && b->strides[0] >= b->shape[1] * size) {
        *transposed = 0;
        m->stride = b->strides[0] / size;
    } else if (valid && b->strides[0] == size && b->strides[1] >= b->shape[0] * size) {
        *transposed = 1;
        m->stride = b->strides[1] / size;
    } else {
        PyBuffer_Release(&m->buffer);
        PyErr_SetString(PyExc_ValueError, "got a factor that is not rows or columns of float32");
        return 0;
    }
    m->data = b->buf; /* as it lies in memory */
    m->rows = b->shape[*transposed ? 1 : 0];
    m->columns = b->shape[*transposed ? 0 : 1];
    return 1;
}

/* args: the factors; out; whether to do without the instruction for pairs. */
static PyObject *multiply_bfloat16(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int transposed[2], opened = 0, portable;
    PackedFactors *room = NULL;
    if (!expect(nargs, 4, "multiply_bfloat16") || (portable = PyObject_IsTrue(args[3])) < 0) return NULL;
    while (opened < 2 && open_factor(m + opened, args[opened], transposed + opened)) opened++;
    if (opened < 2 || !open_all(m + 2, args + 2, "w")) {
        PyErr_Clear(); /* the NumPy form reports what is wrong with it */
        return closed(m, opened, Py_NotImplemented);
    }
    Factor left = factor_of(m, transposed[0]), right = factor_of(m + 1, transposed[1]);
    Py_ssize_t rows = transposed[0] ? m[0].columns : m[0].rows;
    Py_ssize_t inner = transposed[1] ? m[1].columns : m[1].rows, columns = transposed[1] ? m[1].rows : m[1].columns;
    int fits_together = m[2].buffer.ndim == 2 && rows == m[2].rows && columns == m[2].columns && inner == left.inner;
    if (!fits_together || !apart(m, m + 2) || !apart(m + 1, m + 2)) return closed(m, 3, Py_NotImplemented);
    if ((room = packed_factors(1)) == NULL) return closed(m, 3, NULL);
    WORK(m[2], multiply_rounded(multiplies_pairs() && !portable, left, right, m + 2, room));
    free(room);
    return closed(m, 3, args[2]);
}
