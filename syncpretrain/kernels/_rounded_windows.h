/* Products of windows and filters with numbers that are rounded to bfloat16.
 *
 * An image is rounded once, and its windows are read as they lie there, two neighbours at a time: of a run, or
 * for the gradient of positions, which are laid side by side before. What has an odd length ends with half
 * a pair. Every sum is float32 and runs in the order of the pairs, of each the second number first, as in
 * _bfloat16.h: so the portable form has the bits of the instruction. Included by _convolution.h alone.
 */
typedef uint16_t Half; /* a bfloat16 */

/* What a processor does with rounded images. The pairs of a walk lie `step` halves apart. */
typedef struct {
    void (*round_numbers)(const float *x, Py_ssize_t n, Half *out);
    /* Pack the pairs of numbers of two rows, or of one, in vectors with zeros behind their end. */
    void (*pack_row)(const float *x, const float *y, Py_ssize_t n, Py_ssize_t vectors, Pair *out);
    /* Add to the vectors at each of n places the pairs of a walk, each times the next of factors. */
    void (*add_products)(const Half *const *from, Walk walk, const Pair *factors, float *const *to,
                         Py_ssize_t n, Py_ssize_t vectors);
} HalvesForm;

/* Return how many pairs some numbers are. */
static Py_ssize_t pairs_of(Py_ssize_t numbers)
{
    return (numbers + 1) / 2;
}

/* Lay next to each number of an image the number of the next position. */
VECTORIZED static void lay_positions(const Half *image, Py_ssize_t n, Py_ssize_t channels, Half *out)
{
    Py_ssize_t both = n > channels ? n - channels : 0;
    for (Py_ssize_t i = 0; i < both; i++) {
        out[2 * i] = image[i];
        out[2 * i + 1] = image[i + channels];
    }
    for (Py_ssize_t i = both; i < n; i++) out[2 * i] = image[i];
}

/* ------------------------------------------------------------------------------- portable */

static void round_numbers_portable(const float *x, Py_ssize_t n, Half *out)
{
    for (Py_ssize_t i = 0; i < n; i++) out[i] = (Half)rounded(x[i]);
}

static void pack_row_portable(const float *x, const float *y, Py_ssize_t n, Py_ssize_t vectors, Pair *out)
{
    for (Py_ssize_t i = 0; i < vectors * VEC; i++)
        out[i] = i < n ? rounded(x[i]) | (y ? rounded(y[i]) << 16 : 0) : 0;
}

static void add_halves_portable(const Half *const *from, Walk walk, const Pair *factors, float *const *to,
                                Py_ssize_t n, Py_ssize_t vectors)
{
    for (Py_ssize_t t = 0; t < n; t++) {
        float sums[TILE_VECTORS * VEC] = {0};
        const Pair *factor = factors;
        for (Py_ssize_t i = 0; i < walk.rows; i++) {
            const Half *at = from[t] + i * walk.line;
            for (Py_ssize_t k = 0; k < walk.count; k += 2, at += walk.step, factor += vectors * VEC)
                add_pairs(at[0] | (k + 1 < walk.count ? (Pair)at[1] << 16 : 0), factor, sums, vectors * VEC);
        }
        add_row(sums, to[t], vectors * VEC);
    }
}

/* ----------------------------------------------------------------------------- AVX512-BF16 */

#if HAS_AVX512_BF16
WITH_PAIRS static void round_numbers_avx512(const float *x, Py_ssize_t n, Half *out)
{
    for (Py_ssize_t i = 0; i < n; i += 32)
        _mm512_mask_storeu_epi16(out + i, n - i >= 32 ? 0xffffffffu : (1u << (n - i)) - 1,
                                 pairs_along(x + i, n - i));
}

WITH_PAIRS static void pack_row_avx512(const float *x, const float *y, Py_ssize_t n, Py_ssize_t vectors,
                                       Pair *out)
{
    for (Py_ssize_t i = 0; i < vectors * VEC; i += 16)
        _mm512_storeu_si512(out + i, pairs_across(x + i, y ? y + i : NULL, n - i));
}

/* Return the numbers at two places side by side. */
static inline int both_at(const Half *x)
{
    int both;
    memcpy(&both, x, sizeof both);
    return both;
}

WITH_PAIRS INLINED void halves_tile(const Half *const *from, Walk walk, const Pair *factors, float *const *to,
                                    const int n, const int vectors)
{
    __m512 sum[TILE_ROWS][TILE_VECTORS];
    const Half *at[TILE_ROWS];
    UNROLLED for (int t = 0; t < n; t++)
    {
        UNROLLED for (int v = 0; v < vectors; v++) sum[t][v] = _mm512_setzero_ps();
    }
#define ADD_PAIRS(pair)                                                                             \
    {                                                                                               \
        __m512bh factor[TILE_VECTORS];                                                              \
        UNROLLED for (int v = 0; v < vectors; v++)                                                  \
            factor[v] = (__m512bh)_mm512_loadu_si512(factors + v * 16);                             \
        UNROLLED for (int t = 0; t < n; t++)                                                        \
        {                                                                                           \
            __m512bh both = (__m512bh)_mm512_set1_epi32(pair);                                      \
            UNROLLED for (int v = 0; v < vectors; v++)                                              \
                sum[t][v] = _mm512_dpbf16_ps(sum[t][v], both, factor[v]);                           \
        }                                                                                           \
        factors += vectors * 16;                                                                    \
    }
    for (Py_ssize_t i = 0; i < walk.rows; i++) {
        Py_ssize_t k = 0;
        UNROLLED for (int t = 0; t < n; t++) at[t] = from[t] + i * walk.line;
        for (Py_ssize_t pair = 0; pair < walk.count / 2; pair++, k += walk.step) ADD_PAIRS(both_at(at[t] + k))
        if (walk.count % 2) ADD_PAIRS(at[t][k])
    }
#undef ADD_PAIRS
    UNROLLED for (int t = 0; t < n; t++) /* in this order, for they may overlap */
    {
        UNROLLED for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(to[t] + v * 16, _mm512_add_ps(_mm512_loadu_ps(to[t] + v * 16), sum[t][v]));
    }
}

WITH_PAIRS static void add_halves_avx512(const Half *const *from, Walk walk, const Pair *factors,
                                         float *const *to, Py_ssize_t n, Py_ssize_t vectors)
{
#define CASE(n, vectors)                                                                            \
    case 8 * n + vectors: halves_tile(from, walk, factors, to, n, vectors); break;
    switch (8 * n + vectors) {
        CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1)
        CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2)
        CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3) CASE(5, 3) CASE(6, 3)
        CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4)
    }
#undef CASE
}
#undef WITH_PAIRS
#endif

/* Return the fastest form that this processor has, or the portable one. */
static HalvesForm halves_form(int portable)
{
#if HAS_AVX512_BF16
    if (!portable && multiplies_pairs())
        return (HalvesForm){round_numbers_avx512, pack_row_avx512, add_halves_avx512};
#endif
    return (HalvesForm){round_numbers_portable, pack_row_portable, add_halves_portable};
}
