/* Products of rows of zeros and ones.
 *
 * Some visible units at a time have all 16 sums of their weights to 4 hidden ones in a table, where each
 * row looks up its own: one addition for 4 products (Arlazarov et al. 1970). Every sum is taken in one
 * order, whatever the width of the vectors and the number of rows. Included by _native.c alone, behind
 * _sparse.h.
 */
enum {
    DIGITS = 4, /* hidden units of a table of sums */
    CHOICES = 1 << DIGITS,
    SLAB = 32,       /* visible units of a table */
    TABLES = 12,     /* at once: they fill most of an L1 cache */
    AHEAD = 32,      /* weights that are fetched before they are needed */
    FEWEST_ROWS = 24 /* with fewer of them the tables do not pay */
};

typedef float Tables[TABLES][CHOICES][SLAB];

#if defined(__clang__)
#define MIXED(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t Places __attribute__((vector_size(16)));
#define MIXED(a, b, i, j, k, l) __builtin_shuffle(a, b, (Places){i, j, k, l})
#endif

/* Write the weights of a slab of visible units to 4 hidden ones, a hidden unit a row. */
static void turn_weights(const Matrix *weight, Py_ssize_t first, Py_ssize_t width, Py_ssize_t unit,
                         float turned[DIGITS][SLAB])
{
    Py_ssize_t units = weight->columns - unit, j = 0;
    if (units >= DIGITS)
        for (; j + 4 <= width; j += 4) {
            Four w[4], low[2], high[2];
            for (int i = 0; i < 4; i++) {
                const float *from = row(weight, first + j + i) + unit;
                w[i] = CONST_AT(Four, from);
                __builtin_prefetch(from + AHEAD);
            }
            for (int i = 0; i < 2; i++) {
                low[i] = MIXED(w[2 * i], w[2 * i + 1], 0, 4, 1, 5);
                high[i] = MIXED(w[2 * i], w[2 * i + 1], 2, 6, 3, 7);
            }
            AT(Four, turned[0] + j) = MIXED(low[0], low[1], 0, 1, 4, 5);
            AT(Four, turned[1] + j) = MIXED(low[0], low[1], 2, 3, 6, 7);
            AT(Four, turned[2] + j) = MIXED(high[0], high[1], 0, 1, 4, 5);
            AT(Four, turned[3] + j) = MIXED(high[0], high[1], 2, 3, 6, 7);
        }
    for (int u = 0; u < DIGITS; u++) {
        for (Py_ssize_t i = j; i < width && u < units; i++) turned[u][i] = row(weight, first + i)[unit + u];
        for (Py_ssize_t i = u < units ? width : j; i < SLAB; i++) turned[u][i] = 0;
    }
}

#define FOR_LANES(Lane, j) for (int j = 0; j < SLAB; j += sizeof(Lane) / sizeof(float))

/* fill_table: fill a table with the sums of 4 rows. look_up: add to a slab of each row the sums that its
 * numbers of n tables choose. */
#define TABLE_FUNCTIONS(width, Lane, attribute)                                                     \
    attribute static void fill_table_##width(float w[DIGITS][SLAB], float t[CHOICES][SLAB])         \
    {                                                                                               \
        FOR_LANES(Lane, j)                                                                          \
        {                                                                                           \
            Lane sums[CHOICES] = {{0}};                                                             \
            for (int u = 0; u < DIGITS; u++)                                                        \
                for (int s = 0; s < 1 << u; s++) sums[1 << u | s] = sums[s] + AT(Lane, w[u] + j);   \
            for (int s = 0; s < CHOICES; s++) AT(Lane, t[s] + j) = sums[s];                         \
        }                                                                                           \
    }                                                                                               \
    attribute static void look_up_##width(Tables t, Py_ssize_t n, const uint8_t *numbers,           \
                                          Py_ssize_t stride, float *out, Py_ssize_t out_stride,     \
                                          Py_ssize_t rows)                                          \
    {                                                                                               \
        enum { LANE = sizeof(Lane) / sizeof(float), LANES = SLAB / LANE < 4 ? SLAB / LANE : 4 };    \
        for (Py_ssize_t i = 0; i < rows; i++, numbers += stride, out += out_stride)                 \
            for (Py_ssize_t j = 0; j < SLAB; j += LANES * LANE) {                                   \
                Lane sums[LANES];                                                                   \
                for (int m = 0; m < LANES; m++) sums[m] = AT(Lane, out + j + m * LANE);             \
                for (Py_ssize_t k = 0; k < n; k++) {                                                \
                    const float *from = t[k][numbers[k]] + j;                                       \
                    for (int m = 0; m < LANES; m++) sums[m] += CONST_AT(Lane, from + m * LANE);     \
                }                                                                                   \
                for (int m = 0; m < LANES; m++) AT(Lane, out + j + m * LANE) = sums[m];             \
            }                                                                                       \
    }

TABLE_FUNCTIONS(4, Four, )
#if defined(__x86_64__)
TABLE_FUNCTIONS(8, Eight, __attribute__((target("avx2"))))
TABLE_FUNCTIONS(16, Sixteen, __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq"))))
#endif

/* Fill the tables of n fours of the hidden units from `unit` on, for some visible ones. */
static void fill_tables(Tables t, Py_ssize_t n, const Matrix *weight, Py_ssize_t first, Py_ssize_t width,
                        Py_ssize_t unit)
{
    float turned[DIGITS][SLAB];
    for (Py_ssize_t k = 0; k < n; k++) {
        turn_weights(weight, first, width, unit + k * DIGITS, turned);
        WITH_WIDEST(fill_table, turned, t[k])
    }
}

/* Write the number that each four of the units of a row is; return whether all are 0 or 1. */
static int number_units(const float *states, Py_ssize_t units, uint8_t *numbers)
{
    int binary = 1;
    for (Py_ssize_t first = 0; first < units; first += DIGITS) {
        int number = 0;
        for (int u = 0; u < DIGITS && first + u < units; u++) {
            float state = states[first + u];
            binary &= state == 0 || state == 1;
            number |= (state == 1) << u;
        }
        *numbers++ = (uint8_t)number;
    }
    return binary;
}

/* Fill out with a slab of the product; the rows of out are contiguous slabs. */
static void binary_slab(Tables t, const uint8_t *numbers, Py_ssize_t fours, const Matrix *weight,
                        Py_ssize_t first, Py_ssize_t width, float *out, Py_ssize_t stride, Py_ssize_t rows)
{
    for (Py_ssize_t i = 0; i < rows; i++) memset(out + i * stride, 0, SLAB * sizeof(float));
    for (Py_ssize_t four = 0; four < fours; four += TABLES) {
        Py_ssize_t n = fours - four < TABLES ? fours - four : TABLES;
        fill_tables(t, n, weight, first, width, four * DIGITS);
        WITH_WIDEST(look_up, t, n, numbers + four, fours, out, stride, rows)
    }
}

/* Return 1 once out is h W^T; 0 where not all states are 0 or 1, -1 without memory. */
static int binary_product_all(const Matrix *h, const Matrix *weight, const Matrix *out)
{
    Py_ssize_t fours = (h->columns + DIGITS - 1) / DIGITS, rows = h->rows;
    size_t room = sizeof(Tables) + (size_t)rows * SLAB * sizeof(float);
    float *tables = PyMem_RawMalloc(room + (size_t)(rows * fours));
    if (tables == NULL) return -1;
    float *last = tables + sizeof(Tables) / sizeof(float);
    uint8_t *numbers = (uint8_t *)(last + rows * SLAB);
    int binary = 1;
    for (Py_ssize_t i = 0; binary && i < rows; i++)
        binary = number_units(row(h, i), h->columns, numbers + i * fours);
    for (Py_ssize_t first = 0; binary && first < weight->rows; first += SLAB) {
        Py_ssize_t width = weight->rows - first < SLAB ? weight->rows - first : SLAB;
        float *to = width < SLAB ? last : out->data + first;
        binary_slab(*(Tables *)tables, numbers, fours, weight, first, width, to,
                    width < SLAB ? SLAB : out->stride, rows);
        for (Py_ssize_t i = 0; width < SLAB && i < rows; i++)
            memcpy(row(out, i) + first, last + i * SLAB, (size_t)width * sizeof(float));
    }
    PyMem_RawFree(tables);
    return binary;
}

/* h, w, out: fill out with h w^T, of states that are 0 or 1. */
static PyObject *binary_product(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int done = 0;
    if (!expect(nargs, 3, "binary_product")) return NULL;
    if (!open_all(m, args, "rrw")) Py_RETURN_NOTIMPLEMENTED;
    if (m[0].buffer.ndim != 2 || m[1].buffer.ndim != 2 || m[2].buffer.ndim != 2
        || m[0].columns != m[1].columns || m[0].rows != m[2].rows || m[1].rows != m[2].columns
        || m[0].rows < FEWEST_ROWS || !apart(m, m + 2) || !apart(m + 1, m + 2))
        return closed(m, 3, Py_NotImplemented);
    WORK(m[1], done = binary_product_all(m, m + 1, m + 2));
    if (done < 0) {
        close_all(m, 3);
        return PyErr_NoMemory();
    }
    return closed(m, 3, done ? Py_None : Py_NotImplemented);
}
