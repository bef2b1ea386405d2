/* Packing and multiplying pairs of bfloat16: portably, and with AVX512-BF16.
 *
 * Factors are rounded to nearest even as they are packed, two numbers side by side: such a pair is what the
 * instruction multiplies at once. The left factor is packed in rows of pairs, a panel of the right one with a
 * pair of each column in a row. Included by _bfloat16.h alone.
 */
#if defined(__APPLE__) /* its Clang has version numbers of its own; no Mac has the instruction */
#define HAS_AVX512_BF16 0
#elif defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
#include <immintrin.h>
#define HAS_AVX512_BF16 1
#else
#define HAS_AVX512_BF16 0
#endif

typedef uint32_t Pair; /* the first number in the lower half */

enum {
    PANEL_COLUMNS = 128, PANEL_PAIRS = 512, /* of the right factor at once: 256 KiB, in the L2 cache */
    BLOCK_PAIRS = 1 << 16,                  /* of the left one: 256 KiB */
    STRIP_ROWS = 3,                         /* their sums stay in registers; few, for more strips of zeros */
};

/* A factor as it lies in memory: its element (i, j) is at data[i * down + j * right]; one of them is 1. */
typedef struct {
    const float *data;
    Py_ssize_t down, right;
} Factor;

/* Where the rows of each strip of a packed left factor are not all 0. Images and hidden states have many zeros:
 * pairs of them in all rows, which add 0 to sums of finite numbers, are left out. */
typedef struct {
    int32_t ends[BLOCK_PAIRS / STRIP_ROWS + 1];                   /* of each strip's places */
    uint16_t places[BLOCK_PAIRS / STRIP_ROWS + PANEL_PAIRS + 16]; /* numbers of pairs; stored 16 at once */
} NonZeros;

/* What a processor does with pairs. `inner` are numbers; of their pairs the last may be half, and as many of 0
 * follow as there are fewer than `pairs`, a multiple of `multiple`. */
typedef struct {
    const char *name;
    Py_ssize_t multiple;
    void (*pack_rows)(Factor f, Py_ssize_t rows, Py_ssize_t inner, Py_ssize_t pairs, Pair *out);
    /* NULL where no pairs are left out. */
    void (*find_nonzeros)(const Pair *left, Py_ssize_t rows, Py_ssize_t pairs, NonZeros *out);
    /* Return whether all numbers are finite, where pairs may be left out. */
    int (*pack_panel)(Factor f, Py_ssize_t inner, Py_ssize_t pairs, Py_ssize_t columns, Pair *out);
    /* Add to rows of sums, or to 0 where they begin, the product of packed rows and a panel, pair after pair;
     * of all pairs without `nonzeros`. */
    void (*add_product)(const Pair *left, const NonZeros *nonzeros, const Pair *right, Py_ssize_t rows,
                        Py_ssize_t pairs, Py_ssize_t columns, float *sums, Py_ssize_t stride, int begins);
} PairsForm;

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

/* Return the numbers k and k + 1 of a row of `inner`, `step` from each other; 0 behind the end. */
static inline Pair pair_at(const float *x, Py_ssize_t k, Py_ssize_t inner, Py_ssize_t step)
{
    return (k < inner ? rounded(x[k * step]) : 0) | (k + 1 < inner ? rounded(x[(k + 1) * step]) << 16 : 0);
}

static void pack_rows_portable(Factor f, Py_ssize_t rows, Py_ssize_t inner, Py_ssize_t pairs, Pair *out)
{
    for (Py_ssize_t i = 0; i < rows; i++)
        for (Py_ssize_t k = 0; k < 2 * pairs; k += 2) *out++ = pair_at(f.data + i * f.down, k, inner, f.right);
}

static int pack_panel_portable(Factor f, Py_ssize_t inner, Py_ssize_t pairs, Py_ssize_t columns, Pair *out)
{
    for (Py_ssize_t k = 0; k < 2 * pairs; k += 2, out += PANEL_COLUMNS)
        for (Py_ssize_t j = 0; j < columns; j++) out[j] = pair_at(f.data + j * f.right, k, inner, f.down);
    return 0;
}

static inline float wide(uint32_t upper_half)
{
    float x;
    memcpy(&x, &upper_half, sizeof x);
    return x;
}

/* Add to n sums a pair times the pairs of a panel. Products of two numbers of eight digits are exact. */
VECTORIZED static void add_pairs(Pair a, const Pair *b, float *sums, Py_ssize_t n)
{
    float first = wide(a << 16), second = wide(a & 0xffff0000);
    APART for (Py_ssize_t i = 0; i < n; i++)
    {
        float sum = sums[i] + second * wide(b[i] & 0xffff0000);
        sums[i] = sum + first * wide(b[i] << 16);
    }
}

static void add_product_portable(const Pair *left, const NonZeros *nonzeros, const Pair *right, Py_ssize_t rows,
                                 Py_ssize_t pairs, Py_ssize_t columns, float *sums, Py_ssize_t stride,
                                 int begins)
{
    for (Py_ssize_t i = 0; i < rows; i++, left += pairs, sums += stride) {
        if (begins) memset(sums, 0, (size_t)columns * sizeof *sums);
        for (Py_ssize_t k = 0; k < pairs; k++) add_pairs(left[k], right + k * PANEL_COLUMNS, sums, columns);
    }
}

static const PairsForm PORTABLE_PAIRS = {"portable pairs", 1, pack_rows_portable, NULL, pack_panel_portable,
                                         add_product_portable};

/* ----------------------------------------------------------------------------- AVX512-BF16 */

#if HAS_AVX512_BF16
#define WITH_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* Return the mask of the first n of 16 lanes. */
static inline uint16_t first_lanes(Py_ssize_t n)
{
    return n >= 16 ? 0xffff : n > 0 ? (uint16_t)((1u << n) - 1) : 0;
}

/* Return the first n numbers; 0 for the others. */
WITH_PAIRS static inline __m512 numbers_of(const float *x, Py_ssize_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), x);
}

WITH_PAIRS static inline __m512i two_rounded(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* Return the pairs of up to 32 numbers that lie side by side. */
WITH_PAIRS static inline __m512i pairs_along(const float *x, Py_ssize_t n)
{
    return two_rounded(numbers_of(x, n), numbers_of(x + 16, n - 16));
}

/* Return the pairs of up to 16 numbers each of two rows; there may be no second row. */
WITH_PAIRS static inline __m512i pairs_across(const float *x, const float *y, Py_ssize_t n)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                           22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512 second = y ? numbers_of(y, n) : _mm512_setzero_ps();
    return _mm512_permutexvar_epi16(order, two_rounded(numbers_of(x, n), second));
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

/* Pack rows with numbers that lie `next` from each other, row next to row. */
WITH_PAIRS static void pack_turned_rows(const float *x, Py_ssize_t next, Py_ssize_t rows, Py_ssize_t inner,
                                        Py_ssize_t pairs, Pair *out)
{
    for (Py_ssize_t i = 0; i < rows; i += 16) {
        for (Py_ssize_t k = 0; k < pairs; k += 16) {
            __m512i r[16];
            UNROLLED for (int p = 0; p < 16; p++)
            {
                const float *first = x + 2 * (k + p) * next + i;
                const float *second = 2 * (k + p) + 1 < inner ? first + next : NULL;
                r[p] = 2 * (k + p) < inner ? pairs_across(first, second, rows - i) : _mm512_setzero_si512();
            }
            turn(r);
            __mmask16 own = first_lanes(pairs - k);
            UNROLLED for (int p = 0; p < 16; p++)
                if (i + p < rows) _mm512_mask_storeu_epi32(out + (i + p) * pairs + k, own, r[p]);
        }
    }
}

WITH_PAIRS static void pack_rows_avx512(Factor f, Py_ssize_t rows, Py_ssize_t inner, Py_ssize_t pairs, Pair *out)
{
    if (f.right != 1) {
        pack_turned_rows(f.data, f.right, rows, inner, pairs, out);
        return;
    }
    for (Py_ssize_t i = 0; i < rows; i++, out += pairs, f.data += f.down)
        for (Py_ssize_t k = 0; k < inner; k += 32) {
            __m512i found = pairs_along(f.data + k, inner - k);
            _mm512_mask_storeu_epi32(out + k / 2, first_lanes(pairs - k / 2), found);
        }
}

/* Keep the larger sizes of bfloat16. */
WITH_PAIRS static inline __m512i larger(__m512i largest, __m512i pairs)
{
    return _mm512_max_epu16(largest, _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff)));
}

WITH_PAIRS static inline int are_finite(__m512i largest)
{
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0;
}

/* Pack columns of numbers side by side, `next` from column to column; return whether all are finite. */
WITH_PAIRS static int pack_turned_panel(const float *x, Py_ssize_t next, Py_ssize_t inner, Py_ssize_t pairs,
                                        Py_ssize_t columns, Pair *out)
{
    __m512i largest = _mm512_setzero_si512();
    for (Py_ssize_t j = 0; j < columns; j += 16, x += 16 * next) {
        for (Py_ssize_t k = 0; k < inner; k += 32) {
            __m512i r[16];
            UNROLLED for (int c = 0; c < 16; c++)
                r[c] = j + c < columns ? pairs_along(x + c * next + k, inner - k) : _mm512_setzero_si512();
            UNROLLED for (int c = 0; c < 16; c++) largest = larger(largest, r[c]);
            turn(r);
            UNROLLED for (int p = 0; p < 16; p++)
                if (k / 2 + p < pairs) _mm512_storeu_si512(out + (k / 2 + p) * PANEL_COLUMNS + j, r[p]);
        }
    }
    return are_finite(largest);
}

WITH_PAIRS static int pack_panel_avx512(Factor f, Py_ssize_t inner, Py_ssize_t pairs, Py_ssize_t columns,
                                        Pair *out)
{
    if (f.right != 1) return pack_turned_panel(f.data, f.right, inner, pairs, columns, out);
    __m512i largest = _mm512_setzero_si512();
    for (Py_ssize_t k = 0; k < inner; k += 2, out += PANEL_COLUMNS) {
        const float *x = f.data + k * f.down, *y = k + 1 < inner ? x + f.down : NULL;
        for (Py_ssize_t j = 0; j < columns; j += 16) {
            __m512i found = pairs_across(x + j, y ? y + j : NULL, columns - j);
            largest = larger(largest, found);
            _mm512_storeu_si512(out + j, found);
        }
    }
    memset(out, 0, (size_t)(pairs - (inner + 1) / 2) * PANEL_COLUMNS * sizeof *out);
    return are_finite(largest);
}

/* Return the first row of a strip. */
static inline Py_ssize_t strip_at(Py_ssize_t rows, Py_ssize_t strip)
{
    Py_ssize_t strips = (rows + STRIP_ROWS - 1) / STRIP_ROWS;
    return rows * strip / strips;
}

/* Look at 16 pairs of a strip at a time. */
WITH_PAIRS static void find_nonzeros_avx512(const Pair *left, Py_ssize_t rows, Py_ssize_t pairs, NonZeros *out)
{
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    uint16_t *to = out->places;
    for (Py_ssize_t s = 0, first = 0, end; first < rows; s++, first = end) {
        end = strip_at(rows, s + 1);
        for (Py_ssize_t k = 0; k < pairs; k += 16) {
            __mmask16 own = first_lanes(pairs - k);
            __m512i any = _mm512_setzero_si512();
            for (Py_ssize_t i = first; i < end; i++)
                any = _mm512_or_si512(any, _mm512_maskz_loadu_epi32(own, left + i * pairs + k));
            __mmask16 found = _mm512_test_epi32_mask(any, any);
            __m512i places = _mm512_maskz_compress_epi32(found, lanes);
            places = _mm512_add_epi32(places, _mm512_set1_epi32((int)k));
            _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(places));
            to += __builtin_popcount(found);
        }
        out->ends[s] = (int32_t)(to - out->places);
    }
}

WITH_PAIRS INLINED void add_strip(const Pair *left, const uint16_t *places, const uint16_t *end,
                                  const Pair *right, Py_ssize_t pairs, Py_ssize_t columns, float *sums,
                                  Py_ssize_t stride, int begins, const int n, const int vectors)
{
    __m512 sum[STRIP_ROWS][PANEL_COLUMNS / 16];
    __mmask16 last = first_lanes(columns - (vectors - 1) * 16), full = begins ? 0 : 0xffff;
    UNROLLED for (int t = 0; t < n; t++)
    {
        UNROLLED for (int v = 0; v < vectors; v++)
            sum[t][v] = _mm512_maskz_loadu_ps(v == vectors - 1 ? last & full : full, sums + t * stride + v * 16);
    }
    for (; places < end; places++) {
        Py_ssize_t k = *places;
        const Pair *from = right + k * PANEL_COLUMNS;
        __m512bh panel[PANEL_COLUMNS / 16];
        UNROLLED for (int v = 0; v < vectors; v++) panel[v] = (__m512bh)_mm512_loadu_si512(from + v * 16);
        UNROLLED for (int t = 0; t < n; t++)
        {
            __m512bh pair = (__m512bh)_mm512_set1_epi32((int)left[t * pairs + k]);
            UNROLLED for (int v = 0; v < vectors; v++)
                sum[t][v] = _mm512_dpbf16_ps(sum[t][v], pair, panel[v]);
        }
    }
    UNROLLED for (int t = 0; t < n; t++)
    {
        UNROLLED for (int v = 0; v < vectors; v++)
            _mm512_mask_storeu_ps(sums + t * stride + v * 16, v == vectors - 1 ? last : 0xffff, sum[t][v]);
    }
}

WITH_PAIRS static void add_product_avx512(const Pair *left, const NonZeros *nonzeros, const Pair *right,
                                          Py_ssize_t rows, Py_ssize_t pairs, Py_ssize_t columns, float *sums,
                                          Py_ssize_t stride, int begins)
{
    uint16_t all[PANEL_PAIRS];
    const uint16_t *places = nonzeros ? nonzeros->places : all, *end = all + pairs;
    for (Py_ssize_t k = 0; k < pairs && !nonzeros; k++) all[k] = (uint16_t)k;
    for (Py_ssize_t s = 0, first = 0, n; first < rows; s++, first += n) {
        n = strip_at(rows, s + 1) - first;
        const Pair *own = left + first * pairs;
        float *to = sums + first * stride;
        if (nonzeros) end = nonzeros->places + nonzeros->ends[s];
#define CASE(n, vectors)                                                                                 \
    case 16 * n + vectors:                                                                               \
        add_strip(own, places, end, right, pairs, columns, to, stride, begins, n, vectors);              \
        break;
        switch (16 * n + (columns + 15) / 16) {
            CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6) CASE(1, 7) CASE(1, 8)
            CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4) CASE(2, 5) CASE(2, 6) CASE(2, 7) CASE(2, 8)
            CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4) CASE(3, 5) CASE(3, 6) CASE(3, 7) CASE(3, 8)
        }
#undef CASE
        if (nonzeros) places = end;
    }
}

static const PairsForm AVX512_PAIRS = {"pairs", 1, pack_rows_avx512, find_nonzeros_avx512, pack_panel_avx512,
                                       add_product_avx512};

/* Return whether this processor has the instruction. */
static int multiplies_pairs(void)
{
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512vl");
}
#endif
