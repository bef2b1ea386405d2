/* Sums of vectors that stay in registers, for vectors of WIDTH floats. Included by _vectors.h, once for
 * each width: OF_WIDTH gives names, TARGET says which processors have such vectors.
 */
#define Lane OF_WIDTH(Lane)
#define LANE_AT(pointer) (*(Lane *)(pointer))
#define CONST_LANE_AT(pointer) (*(const Lane *)(pointer))
#define PARTS (VEC / WIDTH)

typedef float Lane __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

TARGETED INLINED void OF_WIDTH(products_tile)(const float *const *from, Walk walk, const float *factors,
                                              float *const *to, const int n, const int vectors)
{
    Lane sum[TILE_ROWS][TILE_VECTORS * PARTS];
    const float *at[TILE_ROWS];
    UNROLLED for (int t = 0; t < n; t++)
    {
        UNROLLED for (int v = 0; v < vectors * PARTS; v++) sum[t][v] = (Lane){0};
    }
    for (Py_ssize_t i = 0; i < walk.rows; i++) {
        UNROLLED for (int t = 0; t < n; t++) at[t] = from[t] + i * walk.line;
        for (Py_ssize_t j = 0, k = 0; j < walk.count; j++, k += walk.step, factors += vectors * VEC) {
            Lane factor[TILE_VECTORS * PARTS];
            UNROLLED for (int v = 0; v < vectors * PARTS; v++) factor[v] = CONST_LANE_AT(factors + v * WIDTH);
            UNROLLED for (int t = 0; t < n; t++)
            {
                float number = at[t][k];
                UNROLLED for (int v = 0; v < vectors * PARTS; v++) sum[t][v] += number * factor[v];
            }
        }
    }
    UNROLLED for (int t = 0; t < n; t++) /* in this order, for they may overlap */
    {
        UNROLLED for (int v = 0; v < vectors * PARTS; v++) LANE_AT(to[t] + v * WIDTH) += sum[t][v];
    }
}

TARGETED static void OF_WIDTH(add_products)(const float *const *from, Walk walk, const float *factors,
                                            float *const *to, Py_ssize_t n, Py_ssize_t vectors)
{
#define CASE(n, vectors)                                                                            \
    case 8 * n + vectors: OF_WIDTH(products_tile)(from, walk, factors, to, n, vectors); break;
    switch (8 * n + vectors) {
        CASE(1, 1) CASE(2, 1) CASE(3, 1)
#if WIDTH >= 8
        CASE(4, 1) CASE(5, 1) CASE(6, 1)
#endif
#if WIDTH == 16
        CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2)
        CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3) CASE(5, 3) CASE(6, 3)
        CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4)
#endif
    }
#undef CASE
}

/* The lanes of a cut, with their number in the sum, their place in an image, and that in what lies
 * side by side. */
#define EACH_LANE(runs, vectors, statement)                                                         \
    UNROLLED for (int r = 0; r < (runs); r++)                                                       \
    {                                                                                               \
        UNROLLED for (int v = 0; v < (vectors) * PARTS; v++)                                        \
        {                                                                                           \
            int t = r * (vectors) * PARTS + v;                                                      \
            ptrdiff_t place = r * line + v * WIDTH, aside = t * WIDTH;                              \
            (void)place, (void)aside;                                                               \
            statement;                                                                              \
        }                                                                                           \
    }

TARGETED INLINED void OF_WIDTH(patches_cut)(const float *images, const Index *at, const float *by,
                                            Py_ssize_t n, ptrdiff_t line, float *sums, const int runs,
                                            const int vectors)
{
    Lane sum[TILE * PARTS];
    EACH_LANE(runs, vectors, sum[t] = CONST_LANE_AT(sums + aside))
    for (Py_ssize_t i = 0; i < n; i++) {
        const float *from = images + at[i];
        float factor = by[i];
        EACH_LANE(runs, vectors, sum[t] += factor * CONST_LANE_AT(from + place))
    }
    EACH_LANE(runs, vectors, LANE_AT(sums + aside) = sum[t])
}

TARGETED INLINED void OF_WIDTH(filters_cut)(const float *filters, const Index *at, const float *by,
                                            Py_ssize_t n, ptrdiff_t line, float *image, const int runs,
                                            const int vectors)
{
    Lane sum[TILE * PARTS];
    EACH_LANE(runs, vectors, sum[t] = (Lane){0})
    for (Py_ssize_t i = 0; i < n; i++) {
        const float *from = filters + at[i] * (ptrdiff_t)(runs * vectors * VEC);
        float factor = by[i];
        EACH_LANE(runs, vectors, sum[t] += factor * CONST_LANE_AT(from + aside))
    }
    EACH_LANE(runs, vectors, LANE_AT(image + place) += sum[t])
}

/* Call a function of a cut, with its size known to the compiler. */
#define OF_CUT(function, cut, ...)                                                                  \
    switch (8 * (cut).runs + (cut).vectors) {                                                       \
    case 9: function(__VA_ARGS__, 1, 1); break;                                                     \
    case 10: function(__VA_ARGS__, 1, 2); break;                                                    \
    case 11: function(__VA_ARGS__, 1, 3); break;                                                    \
    case 12: function(__VA_ARGS__, 1, 4); break;                                                    \
    case 13: function(__VA_ARGS__, 1, 5); break;                                                    \
    case 14: function(__VA_ARGS__, 1, 6); break;                                                    \
    case 15: function(__VA_ARGS__, 1, 7); break;                                                    \
    case 17: function(__VA_ARGS__, 2, 1); break;                                                    \
    case 18: function(__VA_ARGS__, 2, 2); break;                                                    \
    case 19: function(__VA_ARGS__, 2, 3); break;                                                    \
    case 25: function(__VA_ARGS__, 3, 1); break;                                                    \
    case 26: function(__VA_ARGS__, 3, 2); break;                                                    \
    case 33: function(__VA_ARGS__, 4, 1); break;                                                    \
    case 41: function(__VA_ARGS__, 5, 1); break;                                                    \
    case 49: function(__VA_ARGS__, 6, 1); break;                                                    \
    case 57: function(__VA_ARGS__, 7, 1); break;                                                    \
    }

TARGETED static void OF_WIDTH(add_patches)(const Lists *l, Py_ssize_t lists, Cut cut, const float *images,
                                           ptrdiff_t line, float *sums, Py_ssize_t padded)
{
    for (Py_ssize_t k = 0; k < lists; k++, sums += padded) {
        Py_ssize_t first = k * l->most, n = l->ends[k] - first;
        OF_CUT(OF_WIDTH(patches_cut), cut, images, l->at + first, l->by + first, n, line, sums)
    }
}

TARGETED static void OF_WIDTH(add_filters)(const Lists *l, Py_ssize_t k, Py_ssize_t step, Py_ssize_t rows,
                                           Cut cut, const float *filters, ptrdiff_t line, float *image,
                                           Py_ssize_t down)
{
    for (Py_ssize_t r = 0; r < rows; r++, k += step, image += down) {
        Py_ssize_t first = k * l->most, n = l->ends[k] - first;
        OF_CUT(OF_WIDTH(filters_cut), cut, filters, l->at + first, l->by + first, n, line, image)
    }
}

#undef Lane
#undef LANE_AT
#undef CONST_LANE_AT
#undef PARTS
#undef EACH_LANE
#undef OF_CUT
