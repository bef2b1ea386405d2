/* Products of float32 with vectors of WIDTH numbers. Included by _float32.h, once for each width: OF_WIDTH gives
 * names, OF the compiler's functions for these vectors; FOURS are four numbers each from every fourth pointer of a list.
 * LOAD_SOME reads the FIRST numbers of a vector, with 0 for the others, and STORE_SOME stores them.
 */
#define PART (VECTORS * WIDTH)
#define Bits OF_WIDTH(Bits)
#define LOAD(pointer) OF(loadu_ps)(pointer)
#define STORE(pointer, x) OF(storeu_ps)(pointer, x)
#define LOAD_ROW(pointer) (v < last ? LOAD((pointer) + v * WIDTH) : LOAD_SOME((pointer) + v * WIDTH, some))
#define EACH_VECTOR UNROLLED for (int v = 0; v < vectors; v++)
#define EACH_ROW_OF_TILE UNROLLED for (int t = 0; t < n; t++)

typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));

/* Keep the larger exponents, which are the highest bits without the sign. */
#define KEEP_SIZES(sizes, x) sizes = (Bits)OF(max_epu32)((OF_INTEGERS)(sizes), (OF_INTEGERS)((Bits)(x) + (Bits)(x)))

TARGETED static int OF_WIDTH(are_finite)(Bits sizes)
{
    uint32_t most = 0;
    for (int i = 0; i < WIDTH; i++) most = sizes[i] > most ? sizes[i] : most;
    return most < 0xff000000;
}

/* ------------------------------------------------------------------------------------- packing */

/* Pack columns with numbers side by side, and return whether all numbers are finite: four rows at a time, so that the
 * last ones end with the rows. In a vector that is not full the last column stands in the place of others, for which
 * no sums are kept. */
TARGETED static int OF_WIDTH(pack)(Factor f, Py_ssize_t depth, Py_ssize_t columns, float *out)
{
    Bits sizes = {0};
    if (depth < 4) return pack_numbers(f, depth, columns, PART, out);
    for (Py_ssize_t j = 0; j < columns; j += WIDTH) {
        const float *x[WIDTH];
        for (Py_ssize_t i = 0; i < WIDTH; i++) x[i] = f.data + (i + j < columns ? i + j : columns - 1) * f.right;
        for (Py_ssize_t k = 0, rows; k < depth; k += rows) {
            float *to = out + k * PART + j;
            Lane r[4], low[2], high[2];
            rows = depth - k >= 8 || depth - k == 4 ? 4 : depth - k - 4;
            UNROLLED for (int i = 0; i < 4; i++)
            {
                r[i] = FOURS(x + i);
                KEEP_SIZES(sizes, r[i]);
            }
            UNROLLED for (int i = 0; i < 2; i++)
            {
                low[i] = OF(unpacklo_ps)(r[2 * i], r[2 * i + 1]);
                high[i] = OF(unpackhi_ps)(r[2 * i], r[2 * i + 1]);
            }
            STORE(to, OF(shuffle_ps)(low[0], low[1], 0x44));
            STORE(to + PART, OF(shuffle_ps)(low[0], low[1], 0xee));
            STORE(to + 2 * PART, OF(shuffle_ps)(high[0], high[1], 0x44));
            STORE(to + 3 * PART, OF(shuffle_ps)(high[0], high[1], 0xee));
            UNROLLED for (int i = 0; i < WIDTH; i++) x[i] += rows;
        }
    }
    return OF_WIDTH(are_finite)(sizes);
}

/* --------------------------------------------------------------------------------- multiplying */

/* Multiply n rows by some vectors of a part: the `listed` places alone, or all of them. If there is a `fresh`
 * factor, which has rows with numbers side by side, pack it on the way, and return its sizes. Only the last vector
 * may not be full.
 *
 * Without a list no address needs a multiplication, which on some CPUs takes the place of a multiply-add. */
TARGETED INLINED Bits OF_WIDTH(add_tile)(const Strip *s, float *part, const Sums *sums, const Factor *fresh,
                                         const int n, const int vectors, const int listed)
{
    Lane sum[STRIP][VECTORS], all[VECTORS], zero = OF(setzero_ps)();
    Bits sizes = {0};
    int last = vectors - 1, is_full = sums->columns == vectors * WIDTH;
    SOME_OF_VECTOR some = FIRST(sums->columns - last * WIDTH);
    const float *at[STRIP];
    Py_ssize_t right = s->right, step = s->step, count = s->end - s->places;
    EACH_ROW_OF_TILE
    {
        at[t] = s->data + t * s->down;
        UNROLLED for (int j = 0; j < vectors * WIDTH; j += LINE)
            __builtin_prefetch(sums->data + t * sums->stride + j, 1, 3); /* stored in when all terms are there */
        EACH_VECTOR sum[t][v] = sums->begins ? zero : LOAD_ROW(sums->data + t * sums->stride);
    }
    const float *ahead = s->ahead;
    for (Py_ssize_t i = 0, end = 0; i < count;) {
        /* By the last number of each line: where rows begin inside of a line, the columns before had it. */
        UNROLLED for (int j = LINE - 1; j < PART; j += LINE) __builtin_prefetch(ahead + j, 0, 2);
        ahead += step;
        end = end + s->run < count ? end + s->run : count;
        for (; i < end; i++) {
            Py_ssize_t k = listed ? s->places[i] : i, number = k * right;
            Lane b[VECTORS];
            EACH_VECTOR b[v] = fresh ? LOAD_ROW(fresh->data + k * fresh->down) : LOAD(part + k * PART + v * WIDTH);
            if (fresh) EACH_VECTOR
                {
                    KEEP_SIZES(sizes, b[v]);
                    STORE(part + k * PART + v * WIDTH, b[v]);
                }
            EACH_ROW_OF_TILE
            {
                Lane a = OF(set1_ps)(at[t][number]);
                EACH_VECTOR sum[t][v] = OF(fmadd_ps)(a, b[v], sum[t][v]);
            }
        }
    }
    EACH_VECTOR all[v] = zero;
    EACH_ROW_OF_TILE
    {
        float *to = sums->data + t * sums->stride;
        EACH_VECTOR
        {
            Lane x = OF(add_ps)(sum[t][v], zero);
            all[v] = OF(add_ps)(all[v], x);
            if (v < last || is_full)
                STORE(to + v * WIDTH, x);
            else
                STORE_SOME(to + v * WIDTH, some, x);
        }
    }
    UNROLLED for (int v = 1; v < vectors; v++) all[0] = OF(add_ps)(all[0], all[v]);
    /* Looked at together, since what is not a number is rare, and so is one infinity less another. */
    if (sums->ends && ANY_NAN(all[0])) EACH_ROW_OF_TILE finish_sums(sums->data + t * sums->stride, sums->columns);
    return sizes;
}

/* Add the products of a strip with a part; of a `fresh` one return whether all numbers are finite. */
TARGETED static int OF_WIDTH(add_strip)(const Strip *s, float *part, const Sums *sums, const Factor *fresh)
{
    Bits sizes = {0};
    Py_ssize_t vectors = (sums->columns + WIDTH - 1) / WIDTH;
    int listed = s->places < s->end && s->end[-1] != s->end - s->places - 1;
#define CASE(n, vectors)                                                                                    \
    case 8 * n + vectors: OF_WIDTH(add_tile)(s, part, sums, NULL, n, vectors, 0); break;                    \
    case 8 * n + vectors + 64: OF_WIDTH(add_tile)(s, part, sums, NULL, n, vectors, 1); break;               \
    case 8 * n + vectors + 128: sizes = OF_WIDTH(add_tile)(s, part, sums, fresh, n, vectors, 0); break;
    switch ((fresh ? 128 : 64 * listed) + 8 * s->rows + vectors) {
        CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1)
        CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2)
#if VECTORS > 2
        CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3) CASE(5, 3) CASE(6, 3)
        CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4)
#endif
    }
#undef CASE
    return OF_WIDTH(are_finite)(sizes);
}

/* Multiply and add to as many sums as a tile has, without memory. */
TARGETED static void OF_WIDTH(multiply_add)(Py_ssize_t rounds)
{
    Lane sum[STRIP * VECTORS], a = OF(set1_ps)(0.5f), all = a;
    UNROLLED for (int i = 0; i < STRIP * VECTORS; i++)
    {
        sum[i] = a;
        __asm__ volatile("" : "+v"(sum[i])); /* so that no two sums are known to be equal */
    }
    for (Py_ssize_t k = 0; k < rounds; k++)
        UNROLLED for (int i = 0; i < STRIP * VECTORS; i++) sum[i] = OF(fmadd_ps)(a, a, sum[i]);
    UNROLLED for (int i = 0; i < STRIP * VECTORS; i++) all = OF(add_ps)(all, sum[i]);
    __asm__ volatile("" ::"v"(all));
}

static const Float32Form OF_WIDTH(FLOAT32) = {
    FORM, WIDTH, PART, OF_WIDTH(pack), OF_WIDTH(add_strip), OF_WIDTH(multiply_add),
};

#undef PART
#undef Bits
#undef LOAD
#undef STORE
#undef LOAD_ROW
#undef EACH_VECTOR
#undef EACH_ROW_OF_TILE
#undef KEEP_SIZES
