/* Products of float32 matrices, with the same bits on every processor.
 *
 * Each sum begins with 0 and takes the terms in the order of the inner index, one after the other, each by a fused
 * multiply-add: the product is not rounded, the sum is. So its bits do not depend on the width of the vectors, on
 * how a product is cut into blocks, or on which threads take the parts. A sum of 0 has no sign, and what is not a
 * number has one pattern of bits, since processors differ there.
 *
 * A term of 0 times a finite number changes no sum, but for the sign of 0. Where all rows of a strip of the left
 * factor are 0 such terms are left out. Included by _native.c alone, behind _bfloat16.h.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    DEPTH = 1024,                        /* of the inner index at once */
    GROUP = 64,                          /* most columns of the right factor at once: 256 KiB, in the L2 cache */
    STRIP = 6,                           /* rows of the left one; their sums stay in registers */
    BLOCK = 1 << 17, BLOCK_ROWS = 1 << 10, /* of the left one at once: 512 KiB */
    MOST_STRIPS = BLOCK_ROWS / STRIP + 1,
    LINE = 16, /* floats of a line of a cache */
    LISTED = 8, /* a place in a list costs as much as so many columns of a product */
    SAMPLED = 16, /* one line of so many of the left factor is looked at for zeros, before all are */
};

#define NO_NUMBER 0x7fc00000u

/* Some rows of the left factor: row t has its number k at data[t * down + k * right]. */
typedef struct {
    const float *data;
    Py_ssize_t down, right, rows;
    const uint16_t *places, *end; /* of the numbers that are not 0 in all rows, or of all numbers */
    const float *ahead;   /* what is needed soon: a row every `step` numbers, */
    Py_ssize_t step, run; /* to be fetched every `run` places */
} Strip;

/* Where the sums of a strip lie: `columns` of them in each row. They are read if they do not begin here. */
typedef struct {
    float *data;
    Py_ssize_t stride, columns;
    int begins, ends;
} Sums;

/* What a processor does. A group of the right factor is packed in parts of `part` columns, row after row, with
 * `depth` rows in all parts. */
typedef struct {
    const char *name;
    int width; /* of the vectors */
    Py_ssize_t part;
    /* Pack columns with numbers side by side; return whether all numbers are finite. */
    int (*pack)(Factor f, Py_ssize_t depth, Py_ssize_t columns, float *part);
    /* Add to rows of sums the products of a strip with a part, of up to `part` columns. A `fresh` factor, which has
     * rows with numbers side by side, is packed on the way; return whether its numbers are finite. */
    int (*add)(const Strip *strip, float *part, const Sums *sums, const Factor *fresh);
    void (*multiply_add)(Py_ssize_t rounds); /* as many sums as a tile has; NULL where none is in registers */
} Float32Form;

/* The factors of a product as they are multiplied. */
typedef struct {
    float group[DEPTH * GROUP], block[BLOCK];
    Strip strips[MOST_STRIPS];
    uint16_t places[MOST_STRIPS * DEPTH], all[DEPTH];
} Float32Room;

/* ------------------------------------------------------------------------------- portable */

VECTORIZED static void add_multiple(float a, const float *b, float *sums, Py_ssize_t n)
{
    APART for (Py_ssize_t j = 0; j < n; j++) sums[j] = fused(a, b[j], sums[j], 0);
}

/* Give sums of 0 no sign, and one pattern of bits to what is not a number. */
VECTORIZED static void finish_sums(float *sums, Py_ssize_t n)
{
    uint32_t bits = NO_NUMBER;
    float none;
    memcpy(&none, &bits, sizeof none);
    APART for (Py_ssize_t j = 0; j < n; j++) sums[j] = sums[j] == sums[j] ? sums[j] + 0.0f : none;
}

/* Pack numbers one by one, and return whether all are finite. */
static int pack_numbers(Factor f, Py_ssize_t depth, Py_ssize_t columns, Py_ssize_t part, float *out)
{
    uint32_t most = 0;
    for (Py_ssize_t k = 0; k < depth; k++)
        for (Py_ssize_t j = 0; j < columns; j++) {
            uint32_t bits;
            memcpy(&bits, f.data + k * f.down + j * f.right, sizeof bits);
            most = bits << 1 > most ? bits << 1 : most; /* without the sign */
            memcpy(out + k * part + j, &bits, sizeof bits);
        }
    return most < 0xff000000;
}

static int pack_portable(Factor f, Py_ssize_t depth, Py_ssize_t columns, float *part)
{
    return pack_numbers(f, depth, columns, GROUP, part);
}

static int add_strip_portable(const Strip *s, float *part, const Sums *sums, const Factor *fresh)
{
    int is_finite = fresh == NULL || pack_portable(*fresh, s->end - s->places, sums->columns, part);
    for (Py_ssize_t t = 0; t < s->rows; t++) {
        float *to = sums->data + t * sums->stride;
        if (sums->begins) memset(to, 0, (size_t)sums->columns * sizeof *to);
        for (const uint16_t *k = s->places; k < s->end; k++)
            add_multiple(s->data[t * s->down + *k * s->right], part + *k * GROUP, to, sums->columns);
        if (sums->ends) finish_sums(to, sums->columns);
    }
    return is_finite;
}

static const Float32Form PORTABLE_FLOAT32 = {"portable", 4, GROUP, pack_portable, add_strip_portable, NULL};

/* ------------------------------------------------------------------------------ AVX2, AVX-512 */

#if defined(__x86_64__)

#define OF_WIDTH(name) name##_avx2
#define WIDTH 8
#define VECTORS 2
#define TARGETED AVX2
#define Lane __m256
#define FORM "avx2"
#define ANY_NAN(x) _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q))
#define OF(name) _mm256_##name
#define OF_INTEGERS __m256i
#define FOURS(x) _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(*(x))), _mm_loadu_ps((x)[4]), 1)
#define SOME_OF_VECTOR __m256i
#define FIRST(n) _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define LOAD_SOME(pointer, some) _mm256_maskload_ps(pointer, some)
#define STORE_SOME(pointer, some, x) _mm256_maskstore_ps(pointer, some, x)
#include "_float32_tiles.h"
#undef ANY_NAN
#undef OF_WIDTH
#undef WIDTH
#undef VECTORS
#undef TARGETED
#undef Lane
#undef FORM
#undef OF
#undef OF_INTEGERS
#undef FOURS
#undef SOME_OF_VECTOR
#undef FIRST
#undef LOAD_SOME
#undef STORE_SOME

#define OF_WIDTH(name) name##_avx512
#define WIDTH 16
#define VECTORS 4
#define TARGETED AVX512
#define Lane __m512
#define FORM "avx512"
#define ANY_NAN(x) _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)
#define OF(name) _mm512_##name
#define OF_INTEGERS __m512i
#define FOURS(x)                                                                                         \
    _mm512_mask_broadcast_f32x4(                                                                         \
        _mm512_mask_broadcast_f32x4(                                                                     \
            _mm512_mask_broadcast_f32x4(_mm512_castps128_ps512(_mm_loadu_ps(*(x))), 0x00f0,              \
                                        _mm_loadu_ps((x)[4])),                                           \
            0x0f00, _mm_loadu_ps((x)[8])),                                                               \
        0xf000, _mm_loadu_ps((x)[12]))
#define SOME_OF_VECTOR __mmask16
#define FIRST(n) ((__mmask16)((1u << (n)) - 1))
#define LOAD_SOME(pointer, some) _mm512_maskz_loadu_ps(some, pointer)
#define STORE_SOME(pointer, some, x) _mm512_mask_storeu_ps(pointer, some, x)
#include "_float32_tiles.h"
#undef ANY_NAN
#undef OF_WIDTH
#undef WIDTH
#undef VECTORS
#undef TARGETED
#undef Lane
#undef FORM
#undef OF
#undef OF_INTEGERS
#undef FOURS
#undef SOME_OF_VECTOR
#undef FIRST
#undef LOAD_SOME
#undef STORE_SOME
#endif

enum { FLOAT32_FORMS = 3 };

/* Fill a list with the forms that this processor has, the usual one first; return their number. */
static int present_float32_forms(const Float32Form *forms[FLOAT32_FORMS])
{
    int count = 0, usual = widest();
#if defined(__x86_64__)
    const Float32Form *others[] = {&FLOAT32_avx512, &FLOAT32_avx2, &PORTABLE_FLOAT32};
    for (int i = 0; i < FLOAT32_FORMS; i++)
        if (others[i]->width == usual) forms[count++] = others[i];
    for (int i = 0; i < FLOAT32_FORMS; i++)
        if (others[i]->width != usual && others[i]->width <= widest_of_cpu()) forms[count++] = others[i];
#else
    forms[count++] = &PORTABLE_FLOAT32;
#endif
    return count;
}

static const Float32Form *usual_float32_form(void)
{
    const Float32Form *forms[FLOAT32_FORMS];
    present_float32_forms(forms);
    return forms[0];
}

/* ------------------------------------------------------------------------------- the left factor */

/* Return the first row of a strip; strips are about as high as each other. */
static inline Py_ssize_t first_of_strip(Py_ssize_t rows, Py_ssize_t strip)
{
    Py_ssize_t strips = (rows + STRIP - 1) / STRIP;
    return rows * strip / strips;
}

static inline uint16_t *list_nonzeros(const uint8_t *any, Py_ssize_t depth, uint16_t *to)
{
    for (Py_ssize_t k = 0; k < depth; k++) {
        *to = (uint16_t)k;
        to += any[k] != 0;
    }
    return to;
}

/* Mark the columns of some rows in which not all numbers are 0; return how many they are. */
VECTORIZED static Py_ssize_t mark_nonzeros(Factor f, Py_ssize_t rows, Py_ssize_t depth, uint8_t *any)
{
    const float *x[STRIP];
    uint32_t count = 0;
    for (Py_ssize_t t = 0; t < STRIP; t++) x[t] = f.data + (t < rows ? t : 0) * f.down;
    APART for (Py_ssize_t k = 0; k < depth; k++)
    {
        uint32_t bits[STRIP], all = 0;
        UNROLLED for (int t = 0; t < STRIP; t++)
        {
            memcpy(bits + t, x[t] + k, sizeof *bits);
            all |= bits[t];
        }
        any[k] = all << 1 != 0; /* without the sign */
        count += all << 1 != 0;
    }
    return count;
}

VECTORIZED static Py_ssize_t count_zeros(const float *x, Py_ssize_t n)
{
    uint32_t count = 0;
    for (Py_ssize_t i = 0; i < n; i++) count += x[i] == 0;
    return count;
}

/* Copy n numbers that lie side by side, from each of `depth` rows; list the rows in which not all are 0, if asked. */
INLINED uint16_t *copy_columns(const float *from, Py_ssize_t stride, Py_ssize_t depth, float *to, uint16_t *places,
                               const int n)
{
    const uint64_t sizes = 0x7fffffff7fffffff;
    for (Py_ssize_t k = 0; k < depth; k++, from += stride, to += n) {
        uint64_t two[STRIP / 2], any = 0;
        uint32_t last = 0;
        UNROLLED for (int t = 0; t < n / 2; t++)
        {
            memcpy(two + t, from + 2 * t, sizeof *two);
            memcpy(to + 2 * t, two + t, sizeof *two);
            any |= two[t];
        }
        if (n % 2) {
            memcpy(&last, from + n - 1, sizeof last);
            memcpy(to + n - 1, &last, sizeof last);
        }
        if (places == NULL) continue;
        *places = (uint16_t)k;
        places += ((any | last) & sizes) != 0;
    }
    return places;
}

/* Copy the numbers of a strip, and list its places if asked. */
static uint16_t *copy_strip(Factor f, Py_ssize_t rows, Py_ssize_t depth, float *to, uint16_t *places)
{
    switch (rows) {
    case 1: return copy_columns(f.data, f.right, depth, to, places, 1);
    case 2: return copy_columns(f.data, f.right, depth, to, places, 2);
    case 3: return copy_columns(f.data, f.right, depth, to, places, 3);
    case 4: return copy_columns(f.data, f.right, depth, to, places, 4);
    case 5: return copy_columns(f.data, f.right, depth, to, places, 5);
    default: return copy_columns(f.data, f.right, depth, to, places, 6);
    }
}

/* Set up the strips of some rows for so many columns of a product, with lists of their places where these pay.
 * Rows with numbers side by side stay as they lie, and others where few columns would use a copy. */
static void lay_strips(const Float32Form *form, Factor f, Py_ssize_t rows, Py_ssize_t depth, Py_ssize_t columns,
                       Float32Room *room)
{
    Py_ssize_t strips = (rows + STRIP - 1) / STRIP, zeros = 0, counted = 0, lying = f.right == 1 ? rows : depth;
    for (Py_ssize_t i = 0, length = rows + depth - lying; i < lying; i += SAMPLED, counted += length)
        zeros += count_zeros(f.data + i * (f.down + f.right - 1), length);
    int has_lists = zeros * columns > LISTED * counted;
    int is_copied = f.right != 1 && columns > (has_lists ? 2 * LINE : 4 * form->part);
    for (Py_ssize_t s = 0; s < strips; s++) {
        Py_ssize_t first = first_of_strip(rows, s), n = first_of_strip(rows, s + 1) - first;
        Factor own = factor_from(f, first, 0);
        float *block = room->block + first * depth;
        uint16_t *places = room->places + s * DEPTH, *end = NULL;
        uint8_t any[DEPTH];
        if (is_copied) {
            end = copy_strip(own, n, depth, block, has_lists ? places : NULL);
            own = (Factor){block, 1, n};
        } else if (f.right == 1 && has_lists) {
            /* A strip for which a list does not pay stands for all that follow. */
            has_lists = (depth - mark_nonzeros(own, n, depth, any)) * columns > LISTED * depth;
            end = has_lists ? list_nonzeros(any, depth, places) : NULL;
        }
        room->strips[s] = (Strip){own.data, own.down, own.right, n, places, end, NULL, 0, 1};
        if (end != NULL) continue;
        room->strips[s].places = room->all;
        room->strips[s].end = room->all + depth;
    }
}

/* --------------------------------------------------------------------------------- the product */

/* Some columns of a product that are taken at once, and the right factor from there on. */
typedef struct {
    Factor right;
    Sums sums;
    Py_ssize_t next; /* columns that are taken behind them */
} Group;

/* Add to rows of sums the products of all strips with a group of the right factor. */
static void add_group(const Float32Form *form, Py_ssize_t rows, Py_ssize_t depth, const Group *g, Float32Room *room)
{
    Py_ssize_t strips = (rows + STRIP - 1) / STRIP;
    int lies = g->right.right == 1, is_finite = !lies && form->pack(g->right, depth, g->sums.columns, room->group);
    for (Py_ssize_t s = 0; s < strips; s++) {
        const Factor *fresh = lies && s == 0 ? &g->right : NULL;
        Strip strip = room->strips[s];
        Sums sums = g->sums;
        sums.data += first_of_strip(rows, s) * sums.stride;
        if (!is_finite) { /* or not yet known to be */
            strip.places = room->all;
            strip.end = room->all + depth;
        }
        /* The strips share the rows behind this group: fetched faster, they would wait for each other. */
        Py_ssize_t from = depth * s / strips, fetched = depth * (s + 1) / strips - from;
        strip.ahead = room->group;
        strip.run = depth;
        if (lies && g->next > 0 && fetched > 0) {
            strip.ahead = g->right.data + sums.columns + from * g->right.down;
            strip.step = g->right.down;
            strip.run = (strip.end - strip.places + fetched - 1) / fetched;
        }
        int found = form->add(&strip, room->group, &sums, fresh);
        if (fresh) is_finite = found;
    }
}

/* Return how much is taken at once of n, at most `most`: about as much each time. */
static Py_ssize_t even_share(Py_ssize_t n, Py_ssize_t most, Py_ssize_t multiple)
{
    Py_ssize_t cuts = (n + most - 1) / most, share = (n + cuts - 1) / cuts;
    return (share + multiple - 1) / multiple * multiple;
}

/* Fill some rows of a product, or add to them, the terms of a part of the inner index. */
static void multiply_rows(const Float32Form *form, Factor left, Factor right, Py_ssize_t rows, Py_ssize_t depth,
                          Sums sums, Float32Room *room)
{
    Py_ssize_t lines = (sums.columns + LINE - 1) / LINE, groups = (LINE * lines + form->part - 1) / form->part;
    lay_strips(form, left, rows, depth, sums.columns, room);
    for (Py_ssize_t g = 0; g < groups; g++) {
        Py_ssize_t ends[3];
        for (Py_ssize_t i = 0; i < 3; i++) {
            Py_ssize_t end = g + i < groups ? lines * (g + i) / groups * LINE : sums.columns;
            ends[i] = end < sums.columns ? end : sums.columns;
        }
        Group group = {factor_from(right, 0, ends[0]), sums, ends[2] - ends[1]};
        group.sums.data += ends[0];
        group.sums.columns = ends[1] - ends[0];
        add_group(form, rows, depth, &group, room);
    }
}

/* Fill a matrix with the product of two factors, which have `inner` columns and rows. */
static void multiply_singles(const Float32Form *form, Factor left, Factor right, Py_ssize_t inner,
                             const Matrix *out, Float32Room *room)
{
    if (is_empty(out)) return;
    for (int k = 0; k < DEPTH; k++) room->all[k] = (uint16_t)k;
    for (Py_ssize_t i = 0; inner == 0 && i < out->rows; i++)
        memset(row(out, i), 0, (size_t)out->columns * sizeof *out->data);
    for (Py_ssize_t k = 0, depth; k < inner; k += depth) {
        depth = even_share(inner, DEPTH, 4);
        depth = inner - k < depth ? inner - k : depth;
        Py_ssize_t most = BLOCK / depth < BLOCK_ROWS ? BLOCK / depth / STRIP * STRIP : BLOCK_ROWS / STRIP * STRIP;
        for (Py_ssize_t i = 0, rows; i < out->rows; i += rows) {
            rows = even_share(out->rows, most, STRIP);
            rows = out->rows - i < rows ? out->rows - i : rows;
            Sums sums = {row(out, i), out->stride, out->columns, k == 0, k + depth == inner};
            multiply_rows(form, factor_from(left, i, k), factor_from(right, k, 0), rows, depth, sums, room);
        }
    }
}

/* ----------------------------------------------------------------------------------- from Python */

/* Return the names of the forms that this processor has, first the one that is usual. */
static PyObject *float32_forms(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    const Float32Form *forms[FLOAT32_FORMS];
    const char *names[FLOAT32_FORMS];
    int count = present_float32_forms(forms);
    for (int i = 0; i < count; i++) names[i] = forms[i]->name;
    return expect(nargs, 0, "float32_forms") ? tuple_of_names(names, count) : NULL;
}

/* Return the form of a name, the usual one for None, or NULL with an error set. */
static const Float32Form *float32_form(PyObject *name)
{
    const Float32Form *forms[FLOAT32_FORMS];
    int count = present_float32_forms(forms);
    if (name == Py_None) return usual_float32_form();
    for (int i = 0; PyUnicode_Check(name) && i < count; i++)
        if (PyUnicode_CompareWithASCIIString(name, forms[i]->name) == 0) return forms[i];
    PyErr_Format(PyExc_ValueError, "float32: got the form %R, which this CPU does not have", name);
    return NULL;
}

/* args: the name of the form that is usual from now on, of what else is written for each width too. */
static PyObject *keep_float32_form(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    const Float32Form *form = expect(nargs, 1, "keep_float32_form") ? float32_form(args[0]) : NULL;
    if (form == NULL) return NULL;
    kept_width = form->width;
    Py_RETURN_NONE;
}

/* args: how often; the name of a form, None for the usual one. Return how many operations were done in registers
 * alone, 0 if that form has no such sums. */
static PyObject *multiply_in_registers(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!expect(nargs, 2, "multiply_in_registers")) return NULL;
    Py_ssize_t rounds = PyLong_AsSsize_t(args[0]);
    const Float32Form *form = PyErr_Occurred() ? NULL : float32_form(args[1]);
    if (form == NULL) return NULL;
    if (form->multiply_add == NULL) return PyLong_FromLong(0);
    Py_BEGIN_ALLOW_THREADS
    form->multiply_add(rounds);
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(2 * STRIP * form->part * rounds);
}

/* args: the factors; out; the name of a form, None for the usual one. */
static PyObject *multiply_float32(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int transposed[2];
    if (!expect(nargs, 4, "multiply_float32")) return NULL;
    const Float32Form *form = float32_form(args[3]);
    if (form == NULL) return NULL;
    if (!open_product(m, transposed, args)) Py_RETURN_NOTIMPLEMENTED;
    Float32Room *room = rooms_of(1, sizeof *room);
    if (room == NULL) return closed(m, 3, NULL);
    WORK(m[2], multiply_singles(form, factor_of(m, transposed[0]), factor_of(m + 1, transposed[1]),
                                m[0].buffer.shape[1], m + 2, room));
    free(room);
    return closed(m, 3, args[2]);
}
