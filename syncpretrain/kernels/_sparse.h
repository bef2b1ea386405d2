/* Products of rows that are mostly zeros, which are left out.
 *
 * Every sum is taken one term after the other, in the order of the columns of a row or of the rows of
 * a column, and its terms are rounded before they are added: the width of the vectors and the number of
 * workers change nothing. Included by _native.c alone.
 */
enum {
    RUN = 1024, /* columns that are searched for numbers before these are used */
    LOOK = 8,   /* of them are passed over at once if all are zeros */
    DENSEST = 8 /* one number in so many columns: with more of them a dense product is faster */
};

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
#define AT(Lane, pointer) (*(Lane *)(pointer))
#define CONST_AT(Lane, pointer) (*(const Lane *)(pointer))

/* Add to `out` n rows of a table, at its rows `at`, each times a number. */
#define ADD_ROWS(name, Lane, attribute)                                                             \
    attribute static void name(const float *by, const int32_t *at, Py_ssize_t n, const float *table, \
                               Py_ssize_t stride, float *out, Py_ssize_t width)                     \
    {                                                                                               \
        const Py_ssize_t lane = sizeof(Lane) / sizeof(float);                                       \
        Py_ssize_t j = 0;                                                                           \
        for (; j + 4 * lane <= width; j += 4 * lane) {                                              \
            float *to = out + j;                                                                    \
            Lane a = AT(Lane, to), b = AT(Lane, to + lane);                                         \
            Lane c = AT(Lane, to + 2 * lane), d = AT(Lane, to + 3 * lane);                          \
            for (Py_ssize_t i = 0; i < n; i++) {                                                    \
                const float *from = table + at[i] * stride + j;                                     \
                a += by[i] * CONST_AT(Lane, from);                                                  \
                b += by[i] * CONST_AT(Lane, from + lane);                                           \
                c += by[i] * CONST_AT(Lane, from + 2 * lane);                                       \
                d += by[i] * CONST_AT(Lane, from + 3 * lane);                                       \
            }                                                                                       \
            AT(Lane, to) = a, AT(Lane, to + lane) = b;                                              \
            AT(Lane, to + 2 * lane) = c, AT(Lane, to + 3 * lane) = d;                               \
        }                                                                                           \
        for (; j + lane <= width; j += lane) {                                                      \
            Lane a = AT(Lane, out + j);                                                             \
            for (Py_ssize_t i = 0; i < n; i++) a += by[i] * CONST_AT(Lane, table + at[i] * stride + j); \
            AT(Lane, out + j) = a;                                                                  \
        }                                                                                           \
        for (; j + 4 <= width; j += 4) {                                                            \
            Four a = AT(Four, out + j);                                                             \
            for (Py_ssize_t i = 0; i < n; i++) a += by[i] * CONST_AT(Four, table + at[i] * stride + j); \
            AT(Four, out + j) = a;                                                                  \
        }                                                                                           \
        for (; j < width; j++) {                                                                    \
            float a = out[j];                                                                       \
            for (Py_ssize_t i = 0; i < n; i++) a += by[i] * table[at[i] * stride + j];              \
            out[j] = a;                                                                             \
        }                                                                                           \
    }

ADD_ROWS(add_rows_4, Four, )
#if defined(__x86_64__)
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Sixteen __attribute__((vector_size(64), aligned(4), may_alias));
ADD_ROWS(add_rows_8, Eight, __attribute__((target("avx2"))))
ADD_ROWS(add_rows_16, Sixteen, __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq"))))
#endif

static void add_rows(const float *by, const int32_t *at, Py_ssize_t n, const float *table,
                     Py_ssize_t stride, float *out, Py_ssize_t width)
{
    if (n) WITH_WIDEST(add_rows, by, at, n, table, stride, out, width)
}

static int is_zero(const float *x)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    return !(bits << 1); /* the sign does not count */
}

static int are_zeros(const float *x)
{
    uint64_t pairs[LOOK / 2], all = 0;
    memcpy(pairs, x, sizeof pairs);
    for (int k = 0; k < LOOK / 2; k++) all |= pairs[k];
    return !(all & 0x7fffffff7fffffff);
}

/* Write the numbers of a row that are not 0, and their places from `first` on; return how many. */
static Py_ssize_t find_numbers(const float *x, Py_ssize_t width, int32_t first, float *by, int32_t *at)
{
    Py_ssize_t n = 0, j = 0;
    for (; j + LOOK <= width; j += LOOK) {
        if (are_zeros(x + j)) continue;
        for (int k = 0; k < LOOK; k++) {
            by[n] = x[j + k], at[n] = first + (int32_t)(j + k);
            n += !is_zero(x + j + k);
        }
    }
    for (; j < width; j++)
        if (!is_zero(x + j)) by[n] = x[j], at[n++] = first + (int32_t)j;
    return n;
}

static Py_ssize_t most_numbers(const Matrix *v)
{
    return v->rows * v->columns / DENSEST;
}

/* Return 0, with out half done, where v has many numbers. */
static int sparse_rows_all(const Matrix *v, const Matrix *w, const Matrix *out)
{
    float by[RUN + LOOK];
    int32_t at[RUN + LOOK];
    Py_ssize_t total = 0, most = most_numbers(v);
    for (Py_ssize_t i = 0; i < v->rows; i++) {
        memset(row(out, i), 0, (size_t)out->columns * sizeof(float));
        for (Py_ssize_t j = 0; j < v->columns; j += RUN) {
            Py_ssize_t width = v->columns - j < RUN ? v->columns - j : RUN;
            Py_ssize_t n = find_numbers(row(v, i) + j, width, (int32_t)j, by, at);
            if ((total += n) > most) return 0;
            add_rows(by, at, n, w->data, w->stride, row(out, i), w->columns);
        }
    }
    return 1;
}

/* v, w, out: fill out with v w, unless v has many numbers. */
static PyObject *sparse_product(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int sparse = 0;
    if (!expect(nargs, 3, "sparse_product")) return NULL;
    if (!open_all(m, args, "rrw")) Py_RETURN_NOTIMPLEMENTED;
    if (m[0].buffer.ndim != 2 || m[1].buffer.ndim != 2 || m[2].buffer.ndim != 2
        || m[0].columns != m[1].rows || m[0].rows != m[2].rows || m[1].columns != m[2].columns
        || m[0].columns > INT32_MAX || !apart(m, m + 2) || !apart(m + 1, m + 2))
        return closed(m, 3, Py_NotImplemented);
    WORK(m[0], sparse = sparse_rows_all(m, m + 1, m + 2));
    return closed(m, 3, sparse ? Py_None : Py_NotImplemented);
}

/* Numbers as they are found, and by their columns: the numbers of column j end at ends[j]. */
typedef struct {
    float *found, *by;
    int32_t *columns, *owners, *at;
    Py_ssize_t *ends;
} Sorted;

static int take_room(Sorted *s, Py_ssize_t numbers, Py_ssize_t columns)
{
    size_t count = (size_t)numbers;
    s->found = PyMem_RawMalloc(2 * count * sizeof(float));
    s->columns = PyMem_RawMalloc(3 * count * sizeof(int32_t));
    s->ends = PyMem_RawCalloc((size_t)columns + 1, sizeof(Py_ssize_t));
    if (s->found == NULL || s->columns == NULL || s->ends == NULL) return 0;
    s->by = s->found + count, s->owners = s->columns + count, s->at = s->owners + count;
    return 1;
}

static void free_room(Sorted *s)
{
    PyMem_RawFree(s->found), PyMem_RawFree(s->columns), PyMem_RawFree(s->ends);
}

/* Order the numbers of a matrix by columns, in each by rows; return 0 where there are many. */
static int sort_columns(const Matrix *v, Sorted *s)
{
    Py_ssize_t n = 0, total = 0, most = most_numbers(v);
    for (Py_ssize_t i = 0; i < v->rows; i++) {
        Py_ssize_t first = n;
        if (n > most) return 0;
        n += find_numbers(row(v, i), v->columns, 0, s->found + n, s->columns + n);
        for (Py_ssize_t k = first; k < n; k++) s->owners[k] = (int32_t)i, s->ends[s->columns[k]]++;
    }
    for (Py_ssize_t j = 0; j < v->columns; j++) { /* where each begins; below this moves to its end */
        Py_ssize_t own = s->ends[j];
        s->ends[j] = total, total += own;
    }
    for (Py_ssize_t k = 0; k < n; k++) {
        Py_ssize_t to = s->ends[s->columns[k]]++;
        s->by[to] = s->found[k], s->at[to] = s->owners[k];
    }
    return n <= most;
}

/* Return 1 once out is v^T h, or more by it; 0 if v has many numbers, -1 without memory. */
static int sparse_columns_all(const Matrix *v, const Matrix *h, const Matrix *out, int adds)
{
    Sorted s = {0};
    int done = take_room(&s, most_numbers(v) + v->columns + LOOK, v->columns) ? 1 : -1;
    if (done == 1) done = sort_columns(v, &s);
    if (done == 1) {
        for (Py_ssize_t j = 0, first = 0; j < v->columns; first = s.ends[j++]) {
            if (!adds) memset(row(out, j), 0, (size_t)out->columns * sizeof(float));
            add_rows(s.by + first, s.at + first, s.ends[j] - first, h->data, h->stride, row(out, j),
                     h->columns);
        }
    }
    free_room(&s);
    return done;
}

/* v, h, out, adds: fill out with v^T h, or add that to it, unless v has many numbers. */
static PyObject *transposed_product(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int done = 0;
    if (!expect(nargs, 4, "transposed_product")) return NULL;
    int adds = PyObject_IsTrue(args[3]);
    if (adds < 0) return NULL;
    if (!open_all(m, args, "rrw")) Py_RETURN_NOTIMPLEMENTED;
    if (m[0].buffer.ndim != 2 || m[1].buffer.ndim != 2 || m[2].buffer.ndim != 2
        || m[0].rows != m[1].rows || m[0].columns != m[2].rows || m[1].columns != m[2].columns
        || m[0].rows > INT32_MAX || m[0].columns > INT32_MAX || !apart(m, m + 2) || !apart(m + 1, m + 2))
        return closed(m, 3, Py_NotImplemented);
    WORK(m[0], done = sparse_columns_all(m, m + 1, m + 2, adds));
    if (done < 0) {
        close_all(m, 3);
        return PyErr_NoMemory();
    }
    return closed(m, 3, done ? Py_None : Py_NotImplemented);
}

static int is_vector(const Py_buffer *b, Py_ssize_t itemsize, const char *formats)
{
    return b->ndim == 1 && b->itemsize == itemsize && (uintptr_t)b->buf % (size_t)itemsize == 0
           && b->format != NULL && b->format[0] != 0
           && b->format[1] == 0 && strchr(formats, b->format[0]) != NULL
           && (b->shape[0] < 2 || b->strides[0] == itemsize);
}

/* Return whether rows of numbers are within their arrays, and their columns rows of a table. */
static int are_rows(const int64_t *ends, Py_ssize_t rows, const int32_t *at, Py_ssize_t n,
                    Py_ssize_t columns)
{
    int valid = ends[0] == 0 && ends[rows] == n;
    for (Py_ssize_t i = 0; i < rows; i++) valid &= ends[i] <= ends[i + 1];
    for (Py_ssize_t k = 0; k < n; k++) valid &= at[k] >= 0 && at[k] < columns;
    return valid;
}

/* Return whether a vector lies apart from the memory from the first number of a matrix to the last. */
static int lies_apart(const Py_buffer *b, const Matrix *m)
{
    const char *first = (const char *)m->data, *vector = b->buf;
    Py_ssize_t last = is_empty(m) ? 0 : (m->rows - 1) * m->stride + m->columns;
    return vector + b->len <= first || first + last * (Py_ssize_t)sizeof(float) <= vector;
}

/* Open a vector for each letter, i of int32, l of int64, L of uint64 and d of float64; return 0 if one is
 * none. */
static int open_vectors(Py_buffer *b, PyObject *const *objects, const char *kinds)
{
    for (int i = 0; kinds[i]; i++) {
        const char *formats = kinds[i] == 'l' ? "lq" : kinds[i] == 'L' ? "LQ" : kinds[i] == 'i' ? "i" : "d";
        int opened = !PyObject_GetBuffer(objects[i], b + i, PyBUF_STRIDES | PyBUF_FORMAT);
        if (opened && is_vector(b + i, kinds[i] == 'i' ? 4 : 8, formats)) continue;
        if (!opened) PyErr_Clear();
        for (int k = 0; k < i + opened; k++) PyBuffer_Release(b + k);
        return 0;
    }
    return 1;
}

/* data, w, out, indices, indptr: fill out with the product of a matrix in CSR format and w. */
static PyObject *csr_product(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    Py_buffer b[2];
    if (!expect(nargs, 5, "csr_product")) return NULL;
    if (!open_all(m, args, "rrw")) Py_RETURN_NOTIMPLEMENTED;
    if (!open_vectors(b, args + 3, "il")) return closed(m, 3, Py_NotImplemented);
    int valid = m[0].buffer.ndim == 1 && m[1].buffer.ndim == 2 && m[2].buffer.ndim == 2
                && m[1].columns == m[2].columns && b[0].shape[0] == m[0].columns
                && b[1].shape[0] == m[2].rows + 1 && apart(m, m + 2) && apart(m + 1, m + 2)
                && lies_apart(b, m + 2) && lies_apart(b + 1, m + 2);
    const int32_t *at = b[0].buf;
    const int64_t *ends = b[1].buf;
    valid = valid && are_rows(ends, m[2].rows, at, m[0].columns, m[1].rows);
    if (valid)
        EACH_ROW(m[2], {
            memset(row(m + 2, i), 0, (size_t)m[2].columns * sizeof(float));
            add_rows(m[0].data + ends[i], at + ends[i], ends[i + 1] - ends[i], m[1].data, m[1].stride,
                     row(m + 2, i), m[1].columns);
        });
    PyBuffer_Release(b), PyBuffer_Release(b + 1);
    return closed(m, 3, valid ? Py_None : Py_NotImplemented);
}
