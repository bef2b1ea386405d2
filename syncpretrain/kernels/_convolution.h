/* Convolutions with pooling, without the interpreter's lock; kernels/convolution.py has the equations.
 *
 * Products are those of NumPy's own BLAS, of some rows of windows at a time whose lowered matrix stays
 * in the L2 cache. Pooling by the mean is a longer stride of wider filters: the mean of x W over
 * a block is one product with the mean of the shifted filters. Behind the maximum only one number of
 * a block has a derivative, so the ways back add up patches, or filters, one for each such number.
 *
 * Included by _native.c alone.
 */
#include "_blas.h"

enum {
    VEC = 16,         /* floats taken together; also read and written beyond the end of a run */
    TILE = 7,         /* vectors summed at once: in the registers of every processor */
    BAND = 256 * 1024, /* floats of a lowered matrix and its product, about */
    IMAGES = 8 * 1024 /* floats of images that stay in the L1 cache, about */
};
typedef float Vec __attribute__((vector_size(4 * VEC), aligned(4), may_alias));
typedef int32_t Index __attribute__((may_alias)); /* lies in arrays of floats */

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

enum { SHAPE_NUMBERS = 9 };
typedef struct {
    Py_ssize_t channels, height, width, filters, size, pad, pool;
    Py_ssize_t is_max, channels_first;
} Shape;

/* The windows on padded images, whose channels lie side by side. */
typedef struct {
    Py_ssize_t channels, size, stride; /* of a window; how far each is from the next */
    Py_ssize_t high, wide;             /* of a padded image */
    Py_ssize_t rows, columns;          /* of windows */
    Py_ssize_t line, run, fan;         /* floats of a row of an image, of a window, and of a window */
    Py_ssize_t image;                  /* floats of an image, with room for a vector behind it */
} Windows;

static Windows windows_of(const Shape *s, Py_ssize_t channels, int pooled)
{
    Windows w = {.channels = channels, .size = s->size, .stride = 1};
    if (pooled) {
        w.size += s->pool - 1;
        w.stride = s->pool;
    }
    w.high = s->height + 2 * s->pad;
    w.wide = s->width + 2 * s->pad;
    w.rows = (w.high - w.size) / w.stride + 1;
    w.columns = (w.wide - w.size) / w.stride + 1;
    w.line = w.wide * channels;
    w.run = w.size * channels;
    w.fan = w.size * w.run;
    w.image = w.high * w.line + VEC;
    return w;
}

/* Return the part of a scratch that begins at `*used`, and go behind it. */
static float *take(float *scratch, Py_ssize_t *used, Py_ssize_t floats)
{
    float *part = scratch ? scratch + *used : NULL;
    *used += floats;
    return part;
}

/* ---------------------------------------------------------------------------------------- images */

/* Copy an image into the inside of a padded one. */
static void pad_image(const Shape *s, const Windows *w, const float *x, float *image)
{
    Py_ssize_t width = s->width, channels = s->channels;
    for (Py_ssize_t i = 0; i < s->height; i++) {
        float *to = image + (s->pad + i) * w->line + s->pad * channels;
        if (!s->channels_first || channels == 1) {
            memcpy(to, x + i * width * channels, (size_t)(width * channels) * sizeof *to);
            continue;
        }
        for (Py_ssize_t c = 0; c < channels; c++) {
            const float *from = x + (c * s->height + i) * width;
            for (Py_ssize_t j = 0; j < width; j++) to[j * channels + c] = from[j];
        }
    }
}

/* Copy the inside of a padded image of w->channels channels to those of x from `first` on. */
static void unpad_image(const Shape *s, const Windows *w, const float *image, float *x, Py_ssize_t first)
{
    Py_ssize_t width = s->width, channels = s->channels, some = w->channels;
    for (Py_ssize_t i = 0; i < s->height; i++) {
        const float *from = image + (s->pad + i) * w->line + s->pad * some;
        if (some == channels && (!s->channels_first || channels == 1)) {
            memcpy(x + i * width * channels, from, (size_t)(width * channels) * sizeof *x);
            continue;
        }
        for (Py_ssize_t c = 0; c < some; c++) {
            float *to = s->channels_first ? x + ((first + c) * s->height + i) * width
                                          : x + i * width * channels + first + c;
            Py_ssize_t step = s->channels_first ? 1 : channels;
            for (Py_ssize_t j = 0; j < width; j++) to[j * step] = from[j * some + c];
        }
    }
}

/* Copy what the filters see in some rows of windows: a row a window.
 *
 * What is copied beyond the end of a run is overwritten by the next. */
VECTORIZED static void lower_rows(const Windows *w, const float *image, Py_ssize_t first,
                                  Py_ssize_t count, float *out)
{
    Py_ssize_t run = w->run, line = w->line, size = w->size;
    for (Py_ssize_t i = first; i < first + count; i++)
        for (Py_ssize_t j = 0; j < w->columns; j++) {
            const float *from = image + i * w->stride * line + j * w->stride * w->channels;
            for (Py_ssize_t k = 0; k < size; k++, from += line, out += run)
                for (Py_ssize_t v = 0; v < run; v += VEC) *(Vec *)(out + v) = *(const Vec *)(from + v);
        }
}

/* Add what a row of windows says of the image: the transposed of lower_rows. */
VECTORIZED static void raise_row(const Windows *w, const float *columns, Py_ssize_t at, float *image)
{
    Py_ssize_t run = w->run, line = w->line, size = w->size;
    for (Py_ssize_t j = 0; j < w->columns; j++) {
        float *to = image + at * w->stride * line + j * w->stride * w->channels;
        for (Py_ssize_t k = 0; k < size; k++, to += line, columns += run)
            APART for (Py_ssize_t v = 0; v < run; v++) to[v] += columns[v];
    }
}

/* ------------------------------------------------------------------------------------- the product */

/* Leave the largest of each block of a row of blocks in out, and its place. `step` is from one block to
 * the next there. As in NumPy, nan is larger than any number. */
VECTORIZED static void largest_row(const float *maps, Py_ssize_t pool, Py_ssize_t blocks, Py_ssize_t n,
                                   float *out, float *places, Py_ssize_t step)
{
    for (Py_ssize_t b = 0; b < blocks; b++, out += step) {
        memcpy(out, maps + b * pool * n, (size_t)n * sizeof *out);
        if (places) memset(places, 0, (size_t)n * sizeof *places);
        for (Py_ssize_t s = 1; s < pool * pool; s++) {
            const float *given = maps + (s / pool * blocks * pool + b * pool + s % pool) * n;
            float place = (float)s;
            if (places) {
                APART for (Py_ssize_t f = 0; f < n; f++)
                {
                    int larger = given[f] > out[f] || given[f] != given[f];
                    places[f] = larger ? place : places[f];
                    out[f] = larger ? given[f] : out[f];
                }
            } else {
                APART for (Py_ssize_t f = 0; f < n; f++)
                    out[f] = given[f] > out[f] || given[f] != given[f] ? given[f] : out[f];
            }
        }
        if (places) places += step;
    }
}

/* Fill a matrix of shape (w->fan, filters) with the mean of the filters, shifted to each place of a block. */
static void mean_filters(const Shape *s, const Windows *w, const Matrix *weight, Py_ssize_t channel,
                         Py_ssize_t filter, Py_ssize_t filters, float *out)
{
    memset(out, 0, (size_t)(w->fan * filters) * sizeof *out);
    for (Py_ssize_t i = 0; i < s->size * s->size; i++)
        for (Py_ssize_t place = 0; place < s->pool * s->pool; place++) {
            Py_ssize_t down = i / s->size + place / s->pool, right = i % s->size + place % s->pool;
            float *to = out + (down * w->size + right) * w->channels * filters;
            for (Py_ssize_t c = 0; c < w->channels; c++)
                add_row(row(weight, i * s->channels + channel + c) + filter, to + c * filters, filters);
        }
    if (s->pool > 1) scale_row(out, w->fan * filters, 1.0f / (float)(s->pool * s->pool));
}

/* Fill some filters of the gradient from that of their shifted means. */
static void fold_filters(const Shape *s, const Windows *w, const float *gradient, Py_ssize_t filter,
                         Py_ssize_t filters, const Matrix *out)
{
    for (Py_ssize_t k = 0; k < s->size * s->size * s->channels; k++) {
        Py_ssize_t i = k / s->channels / s->size, j = k / s->channels % s->size, c = k % s->channels;
        float *to = row(out, k) + filter;
        memset(to, 0, (size_t)filters * sizeof *to);
        for (Py_ssize_t place = 0; place < s->pool * s->pool; place++) {
            Py_ssize_t at = (i + place / s->pool) * w->size + j + place % s->pool;
            add_row(gradient + (at * s->channels + c) * filters, to, filters);
        }
        if (s->pool > 1) scale_row(to, filters, 1.0f / (float)(s->pool * s->pool));
    }
}

/* A product of images, some rows of blocks at a time, counted through all examples. */
typedef struct {
    Windows w;
    int is_largest;                      /* of maps that are pooled behind the product */
    Py_ssize_t group, rows, columns;     /* rows of windows of a row of blocks; blocks of an image */
    Py_ssize_t windows, at_once;         /* of a row of blocks; such rows */
    Py_ssize_t held;                     /* the example whose image is padded */
    float *image, *lowered, *maps, *filters;
} Band;

/* Set up a band in a scratch, or in none; return how many floats that takes. */
static Py_ssize_t open_band(Band *band, const Shape *s, Py_ssize_t channels, Py_ssize_t filters,
                            int is_largest, float *scratch)
{
    Py_ssize_t used = 0;
    Windows w = windows_of(s, channels, !is_largest);
    *band = (Band){.w = w, .is_largest = is_largest, .group = is_largest ? s->pool : 1, .held = -1};
    band->rows = w.rows / band->group;
    band->columns = is_largest ? w.columns / s->pool : w.columns;
    band->windows = band->group * w.columns;
    /* of any part as many: so no part takes more than the whole */
    Py_ssize_t size = band->windows * (w.size * w.size * s->channels + s->filters);
    band->at_once = size < BAND ? BAND / size : 1;
    band->image = take(scratch, &used, w.image);
    band->lowered = take(scratch, &used, band->at_once * band->windows * w.fan + VEC);
    band->maps = take(scratch, &used, band->at_once * band->windows * filters);
    band->filters = take(scratch, &used, is_largest ? 0 : w.fan * filters);
    return used;
}

/* Lower some rows of blocks. */
static void lower_band(Band *band, const Shape *s, const Matrix *x, Py_ssize_t first, Py_ssize_t count)
{
    float *out = band->lowered;
    for (Py_ssize_t i = first; i < first + count; i++, out += band->windows * band->w.fan) {
        if (band->held != i / band->rows) {
            band->held = i / band->rows;
            pad_image(s, &band->w, row(x, band->held), band->image);
        }
        lower_rows(&band->w, band->image, i % band->rows * band->group, band->group, out);
    }
}

/* Copy some filters of some rows of blocks of delta, to lie side by side. */
static void copy_band(const Band *band, const Matrix *delta, Py_ssize_t all, Py_ssize_t filter,
                      Py_ssize_t filters, Py_ssize_t first, Py_ssize_t count)
{
    float *to = band->maps;
    for (Py_ssize_t i = first; i < first + count; i++) {
        const float *from = row(delta, i / band->rows) + i % band->rows * band->columns * all + filter;
        for (Py_ssize_t j = 0; j < band->columns; j++, from += all, to += filters)
            memcpy(to, from, (size_t)filters * sizeof *to);
    }
}

#define EACH_BAND(band, total)                                                                      \
    for (Py_ssize_t first = 0, count = 0;                                                           \
         first < (total)                                                                            \
         && (count = (total) - first < (band).at_once ? (total) - first : (band).at_once) > 0;      \
         first += count)

typedef struct {
    Py_ssize_t first, count; /* filters or channels */
} Part;

static void convolve_all(const Blas *blas, const Shape *s, const Matrix *m, Units units, Part part)
{
    const Matrix *x = m, *weight = m + 1, *out = m + 3, *places = m + 4;
    Py_ssize_t filters = part.count, all = s->filters;
    const float *bias = m[2].data + part.first;
    Band b;
    Tile t;
    open_band(&b, s, s->channels, filters, s->is_max && s->pool > 1, m[5].data);
    tile(&t, bias, filters, filters == all);
    Rows factor = {weight->data + part.first, weight->stride};
    if (!b.is_largest && s->pool > 1) {
        mean_filters(s, &b.w, weight, 0, part.first, filters, b.filters);
        factor = (Rows){b.filters, filters};
    }
    memset(b.image, 0, (size_t)b.w.image * sizeof *b.image);
    EACH_BAND(b, x->rows * b.rows)
    {
        lower_band(&b, s, x, first, count);
        multiply_by(blas, AS_IS, AS_IS, count * b.windows, filters, b.w.fan, (Rows){b.lowered, b.w.fan},
                factor, 0.0f, (Rows){b.maps, filters});
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_ssize_t example = (first + i) / b.rows, at = (first + i) % b.rows * b.columns * all;
            float *to = row(out, example) + at + part.first, *maps = b.maps + i * b.windows * filters;
            float *found = places->columns ? row(places, example) + at + part.first : NULL;
            /* one by one is the maximum of blocks of one */
            largest_row(maps, b.is_largest ? s->pool : 1, b.columns, filters, to, found, all);
            for (Py_ssize_t j = 0; j < b.columns; j += t.rows) {
                Py_ssize_t rows = b.columns - j < t.rows ? b.columns - j : t.rows;
                means_row(to + j * all, t.bias, rows * filters, units);
            }
        }
    }
}

static void gradient_of_means(const Blas *blas, const Shape *s, const Matrix *m, Part part)
{
    const Matrix *x = m, *delta = m + 1, *out = m + 3;
    Py_ssize_t filters = part.count;
    Band b;
    open_band(&b, s, s->channels, filters, 0, m[4].data);
    memset(b.image, 0, (size_t)b.w.image * sizeof *b.image);
    memset(b.filters, 0, (size_t)(b.w.fan * filters) * sizeof *b.filters);
    EACH_BAND(b, x->rows * b.rows)
    {
        lower_band(&b, s, x, first, count);
        copy_band(&b, delta, s->filters, part.first, filters, first, count);
        multiply_by(blas, TRANSPOSED, AS_IS, b.w.fan, filters, count * b.windows,
                (Rows){b.lowered, b.w.fan}, (Rows){b.maps, filters}, 1.0f, (Rows){b.filters, filters});
    }
    fold_filters(s, &b.w, b.filters, part.first, filters, out);
}

static void back_of_means(const Blas *blas, const Shape *s, const Matrix *m, Part part)
{
    const Matrix *delta = m, *weight = m + 2, *out = m + 3;
    Py_ssize_t filters = s->filters;
    Band b;
    open_band(&b, s, part.count, filters, 0, m[4].data);
    mean_filters(s, &b.w, weight, part.first, 0, filters, b.filters);
    EACH_BAND(b, delta->rows * b.rows)
    {
        copy_band(&b, delta, filters, 0, filters, first, count);
        multiply_by(blas, AS_IS, TRANSPOSED, count * b.windows, b.w.fan, filters, (Rows){b.maps, filters},
                (Rows){b.filters, filters}, 0.0f, (Rows){b.lowered, b.w.fan});
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_ssize_t at = (first + i) % b.rows;
            if (at == 0) memset(b.image, 0, (size_t)b.w.image * sizeof *b.image);
            raise_row(&b.w, b.lowered + i * b.windows * b.w.fan, at, b.image);
            if (at == b.rows - 1)
                unpad_image(s, &b.w, b.image, row(out, (first + i) / b.rows), part.first);
        }
    }
}

/* ------------------------------------------------------------------- the ways back from the maximum */

/* The vectors of a window: a run has some, the last one filled with what comes behind the run. */
typedef struct {
    Windows w;
    Py_ssize_t count, padded;   /* vectors of a window; their floats */
    Py_ssize_t rows, columns;   /* of blocks */
    Py_ssize_t at_once;         /* images */
    Index *offsets, *shifts;    /* of the vectors in an image; of the places of a block */
    float *images, *sums, *by;  /* padded images; filters or their gradients; numbers */
    Index *at, *lengths;        /* what is multiplied by them; lengths of lists */
} Patches;

static Py_ssize_t open_patches(Patches *p, const Shape *s, Py_ssize_t channels, Py_ssize_t filters,
                               int is_back, float *scratch)
{
    Py_ssize_t used = 0;
    Windows w = windows_of(s, channels, 0);
    Py_ssize_t block = s->pool * s->pool, vectors = (w.run + VEC - 1) / VEC;
    *p = (Patches){.w = w, .count = w.size * vectors, .padded = w.size * vectors * VEC};
    p->rows = w.rows / s->pool;
    p->columns = w.columns / s->pool;
    p->at_once = w.image < IMAGES && !is_back ? IMAGES / w.image : 1;
    Py_ssize_t listed = is_back ? p->columns * block * filters : p->at_once * p->rows * p->columns;
    p->offsets = (Index *)take(scratch, &used, p->count);
    p->shifts = (Index *)take(scratch, &used, block);
    p->images = take(scratch, &used, p->at_once * w.image);
    p->sums = take(scratch, &used, filters * p->padded);
    p->by = take(scratch, &used, listed);
    p->at = (Index *)take(scratch, &used, listed);
    p->lengths = (Index *)take(scratch, &used, is_back ? p->columns * block : 0);
    return used;
}

static void start_patches(Patches *p, const Shape *s)
{
    Py_ssize_t vectors = p->count / p->w.size;
    for (Py_ssize_t v = 0; v < p->count; v++)
        p->offsets[v] = (Index)(v / vectors * p->w.line + v % vectors * VEC);
    for (Py_ssize_t i = 0; i < s->pool * s->pool; i++)
        p->shifts[i] = (Index)(i / s->pool * p->w.line + i % s->pool * p->w.channels);
    memset(p->images, 0, (size_t)(p->at_once * p->w.image) * sizeof *p->images);
}

/* Return a place as an integer below `block`; in *valid whether it is one, and the number not 0. */
INLINED Py_ssize_t place_of(float given, float number, float block, Py_ssize_t *valid)
{
    float inside = given >= 0.0f && given < block ? given : 0.0f; /* nan is not */
    int32_t place = (int32_t)inside;
    *valid = ((float)place == given) & (number != 0.0f);
    return place;
}

/* List where in the images the patches lie that belong to a filter, and their numbers; return how many. */
static Py_ssize_t list_patches(const Patches *p, const Shape *s, const Matrix *delta,
                               const Matrix *places, Py_ssize_t first, Py_ssize_t examples,
                               Py_ssize_t filter)
{
    float block = (float)(s->pool * s->pool);
    Py_ssize_t listed = 0, valid;
    for (Py_ssize_t e = 0; e < examples; e++) {
        const float *by = row(delta, first + e) + filter, *found = row(places, first + e) + filter;
        for (Py_ssize_t i = 0; i < p->rows; i++) {
            Py_ssize_t base = e * p->w.image + i * s->pool * p->w.line;
            for (Py_ssize_t j = 0; j < p->columns; j++, by += s->filters, found += s->filters) {
                Py_ssize_t place = place_of(*found, *by, block, &valid);
                p->at[listed] = (Index)(base + j * s->pool * p->w.channels + p->shifts[place]);
                p->by[listed] = *by;
                listed += valid;
            }
        }
    }
    return listed;
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

INLINED void add_patches_tile(const float *images, const Index *at, const float *by, Py_ssize_t n,
                              const Index *offsets, float *sums, int count)
{
    Vec sum[TILE];
    ptrdiff_t offset[TILE];
    UNROLLED for (int t = 0; t < count; t++) sum[t] = *(const Vec *)(sums + t * VEC);
    UNROLLED for (int t = 0; t < count; t++) offset[t] = offsets[t];
    for (Py_ssize_t i = 0; i < n; i++) {
        const float *from = images + at[i];
        float factor = by[i];
        UNROLLED for (int t = 0; t < count; t++) sum[t] += factor * *(const Vec *)(from + offset[t]);
    }
    UNROLLED for (int t = 0; t < count; t++) *(Vec *)(sums + t * VEC) = sum[t];
}

INLINED void add_filters_tile(const float *filters, const Index *at, const float *by, Py_ssize_t n,
                              const Index *offsets, float *image, int count)
{
    Vec sum[TILE];
    UNROLLED for (int t = 0; t < count; t++) sum[t] = (Vec){0};
    for (Py_ssize_t i = 0; i < n; i++) {
        const float *from = filters + at[i] * (Py_ssize_t)count * VEC;
        float factor = by[i];
        UNROLLED for (int t = 0; t < count; t++) sum[t] += factor * *(const Vec *)(from + t * VEC);
    }
    UNROLLED for (int t = 0; t < count; t++) *(Vec *)(image + offsets[t]) += sum[t];
}

/* Call a function of a tile with a number of vectors that the compiler knows. */
#define OF_TILE(function, count, ...)                                                               \
    switch (count) {                                                                                \
    case 1: function(__VA_ARGS__, 1); break;                                                        \
    case 2: function(__VA_ARGS__, 2); break;                                                        \
    case 3: function(__VA_ARGS__, 3); break;                                                        \
    case 4: function(__VA_ARGS__, 4); break;                                                        \
    case 5: function(__VA_ARGS__, 5); break;                                                        \
    case 6: function(__VA_ARGS__, 6); break;                                                        \
    default: function(__VA_ARGS__, TILE);                                                           \
    }

/* Add up patches, each times its number. */
VECTORIZED static void add_patches(const float *images, const Index *at, const float *by, Py_ssize_t n,
                                   const Index *offsets, Py_ssize_t vectors, float *sums)
{
    Py_ssize_t tiles = (vectors + TILE - 1) / TILE;
    for (Py_ssize_t i = 0; i < tiles; i++) {
        Py_ssize_t first = vectors * i / tiles, count = vectors * (i + 1) / tiles - first;
        OF_TILE(add_patches_tile, count, images, at, by, n, offsets + first, sums + first * VEC)
    }
}

/* Add to a row of blocks' windows the sums of filters, each times its number, from a list a window. */
VECTORIZED static void add_filters(const float *filters, const Index *at, const float *by,
                                   const Index *lengths, Py_ssize_t all, const Index *shifts,
                                   Py_ssize_t blocks, Py_ssize_t block, Py_ssize_t step,
                                   const Index *offsets, Py_ssize_t count, float *image)
{
    for (Py_ssize_t i = 0; i < blocks * block; i++) {
        if (!lengths[i]) continue;
        float *to = image + i / block * step + shifts[i % block];
        OF_TILE(add_filters_tile, count, filters, at + i * all, by + i * all, lengths[i], offsets, to)
    }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static void gradient_of_largest(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *x = m, *delta = m + 1, *places = m + 2, *out = m + 3;
    Patches p;
    open_patches(&p, s, s->channels, part.count, 0, m[4].data);
    start_patches(&p, s);
    memset(p.sums, 0, (size_t)(part.count * p.padded) * sizeof *p.sums);
    for (Py_ssize_t first = 0; first < x->rows; first += p.at_once) {
        Py_ssize_t examples = x->rows - first < p.at_once ? x->rows - first : p.at_once;
        for (Py_ssize_t e = 0; e < examples; e++)
            pad_image(s, &p.w, row(x, first + e), p.images + e * p.w.image);
        for (Py_ssize_t f = 0; f < part.count; f++) {
            Py_ssize_t n = list_patches(&p, s, delta, places, first, examples, part.first + f);
            add_patches(p.images, p.at, p.by, n, p.offsets, p.count, p.sums + f * p.padded);
        }
    }
    Py_ssize_t padded_run = p.padded / p.w.size;
    for (Py_ssize_t k = 0; k < p.w.fan; k++) {
        const float *from = p.sums + k / p.w.run * padded_run + k % p.w.run;
        float *to = row(out, k) + part.first;
        for (Py_ssize_t f = 0; f < part.count; f++) to[f] = from[f * p.padded];
    }
}

/* Fill p->sums with the filters of some channels, tile after tile, filter after filter. */
static void turn_filters(const Patches *p, const Shape *s, const Matrix *weight, Py_ssize_t channel)
{
    Py_ssize_t tiles = (p->count + TILE - 1) / TILE, vectors = p->count / p->w.size;
    float *to = p->sums;
    for (Py_ssize_t i = 0; i < tiles; i++)
        for (Py_ssize_t f = 0; f < s->filters; f++)
            for (Py_ssize_t v = p->count * i / tiles; v < p->count * (i + 1) / tiles; v++)
                for (Py_ssize_t lane = 0; lane < VEC; lane++, to++) {
                    Py_ssize_t at = v % vectors * VEC + lane; /* in the run */
                    Py_ssize_t place = v / vectors * s->size + at / p->w.channels;
                    Py_ssize_t k = place * s->channels + channel + at % p->w.channels;
                    *to = at < p->w.run ? row(weight, k)[f] : 0.0f;
                }
}

/* List, for each window of a row of blocks, the filters that were largest there, and their numbers. */
static void list_filters(const Patches *p, const Shape *s, const float *delta, const float *places)
{
    Py_ssize_t filters = s->filters, valid;
    float block = (float)(s->pool * s->pool);
    memset(p->lengths, 0, (size_t)(p->columns * s->pool * s->pool) * sizeof *p->lengths);
    for (Py_ssize_t j = 0; j < p->columns; j++, delta += filters, places += filters)
        for (Py_ssize_t f = 0; f < filters; f++) {
            Py_ssize_t window = place_of(places[f], delta[f], block, &valid) + j * s->pool * s->pool;
            Py_ssize_t to = window * filters + p->lengths[window];
            p->at[to] = (Index)f;
            p->by[to] = delta[f];
            p->lengths[window] += (Index)valid;
        }
}

static void back_of_largest(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *delta = m, *places = m + 1, *weight = m + 2, *out = m + 3;
    Patches p;
    open_patches(&p, s, part.count, s->filters, 1, m[4].data);
    start_patches(&p, s);
    turn_filters(&p, s, weight, part.first);
    Py_ssize_t tiles = (p.count + TILE - 1) / TILE, stride = p.columns * s->filters;
    for (Py_ssize_t e = 0; e < delta->rows; e++) {
        memset(p.images, 0, (size_t)p.w.image * sizeof *p.images);
        for (Py_ssize_t i = 0; i < p.rows; i++) {
            list_filters(&p, s, row(delta, e) + i * stride, row(places, e) + i * stride);
            for (Py_ssize_t t = 0; t < tiles; t++) {
                Py_ssize_t first = p.count * t / tiles, count = p.count * (t + 1) / tiles - first;
                add_filters(p.sums + first * VEC * s->filters, p.at, p.by, p.lengths, s->filters,
                            p.shifts, p.columns, s->pool * s->pool, s->pool * p.w.channels,
                            p.offsets + first, count, p.images + i * s->pool * p.w.line);
            }
        }
        unpad_image(s, &p.w, p.images, row(out, e), part.first);
    }
}

/* ----------------------------------------------------------------------------------- the equations */

static int has_places(const Shape *s, const Matrix *places)
{
    return s->is_max && s->pool > 1 && places->columns;
}

static void convolve_gradient_all(const Blas *blas, const Shape *s, const Matrix *m, Part part)
{
    if (has_places(s, m + 2))
        gradient_of_largest(s, m, part);
    else
        gradient_of_means(blas, s, m, part);
}

static void convolve_back_all(const Blas *blas, const Shape *s, const Matrix *m, Part part)
{
    if (has_places(s, m + 1))
        back_of_largest(s, m, part);
    else
        back_of_means(blas, s, m, part);
}

static void visible_means_all(const Shape *s, const Matrix *m, Units units)
{
    const Matrix *x = m, *bias = m + 1;
    Py_ssize_t positions = s->height * s->width, channels = s->channels;
    int apart = s->channels_first || channels == 1; /* each channel for itself */
    Tile t;
    tile(&t, bias->data, channels, !apart);
    for (Py_ssize_t e = 0; e < x->rows; e++) {
        for (Py_ssize_t i = 0; i < positions && !apart; i += t.rows) {
            Py_ssize_t rows = positions - i < t.rows ? positions - i : t.rows;
            means_row(row(x, e) + i * channels, t.bias, rows * channels, units);
        }
        for (Py_ssize_t c = 0; c < channels && apart; c++) {
            for (Py_ssize_t i = 0; i < TILED && i < positions; i++) t.copies[i] = bias->data[c];
            for (Py_ssize_t i = 0; i < positions; i += TILED)
                means_row(row(x, e) + c * positions + i, t.copies,
                          positions - i < TILED ? positions - i : TILED, units);
        }
    }
}

static void sum_channels_all(const Shape *s, const Matrix *x, float *out)
{
    Py_ssize_t positions = s->height * s->width, channels = s->channels;
    int apart = s->channels_first || channels == 1;
    memset(out, 0, (size_t)channels * sizeof *out);
    for (Py_ssize_t e = 0; e < x->rows; e++) {
        for (Py_ssize_t i = 0; i < positions && !apart; i++)
            add_row(row(x, e) + i * channels, out, channels);
        for (Py_ssize_t c = 0; c < channels && apart; c++)
            out[c] += sum_of_row(row(x, e) + c * positions, positions);
    }
}

/* -------------------------------------------------------------------------- what they are given */

/* The equations in the order of their kinds in _program.h. */
typedef enum { FORWARD, GRADIENT, BACK, VISIBLE, SUMS } Equation;

static int take_shape(Shape *s, const double *numbers)
{
    Py_ssize_t *fields[SHAPE_NUMBERS] = {&s->channels, &s->height, &s->width,  &s->filters,      &s->size,
                                         &s->pad,      &s->pool,   &s->is_max, &s->channels_first};
    for (int i = 0; i < SHAPE_NUMBERS; i++) {
        double least = i < 5 || i == 6; /* pad, and what is yes or no, may be 0 */
        if (!(numbers[i] >= least && numbers[i] < 1 << 24)) return 0;
        *fields[i] = (Py_ssize_t)numbers[i];
    }
    Py_ssize_t rows = s->height + 2 * s->pad - s->size + 1, columns = s->width + 2 * s->pad - s->size + 1;
    if (rows < 1 || columns < 1 || rows % s->pool || columns % s->pool) return 0;
    double size = (double)(s->size + s->pool - 1), fan = size * size * (double)s->channels;
    double image = (double)(s->height + 2 * s->pad) * (double)(s->width + 2 * s->pad);
    /* so no product of sizes overflows */
    return image * (double)s->channels < 1 << 30 && fan * (double)s->filters < 1LL << 40
           && image * (fan + (double)s->filters) < 1LL << 40;
}

static Py_ssize_t largest_of(Py_ssize_t a, Py_ssize_t b)
{
    return a > b ? a : b;
}

/* Return how many floats the scratch needs, whatever part is computed. */
static Py_ssize_t scratch_of(const Shape *s)
{
    Band b;
    Patches p;
    Py_ssize_t needed = open_band(&b, s, s->channels, s->filters, 0, NULL);
    if (!s->is_max || s->pool == 1) return needed;
    needed = largest_of(needed, open_band(&b, s, s->channels, s->filters, 1, NULL));
    needed = largest_of(needed, open_patches(&p, s, s->channels, s->filters, 0, NULL));
    return largest_of(needed, open_patches(&p, s, s->channels, s->filters, 1, NULL));
}

static int is_of(const Matrix *m, Py_ssize_t rows, double columns)
{
    return m->buffer.ndim == 2 && m->rows == rows && (double)m->columns == columns;
}

static int is_line_of(const Matrix *m, Py_ssize_t length)
{
    return m->buffer.ndim == 1 && m->columns == length;
}

/* Return whether the matrices of an equation fit its shape. */
static int fits(Equation equation, const Shape *s, const Matrix *m)
{
    Py_ssize_t n = m[0].rows;
    double visible = (double)(s->height * s->width) * (double)s->channels;
    double rows = (double)(s->height + 2 * s->pad - s->size + 1) / (double)s->pool;
    double columns = (double)(s->width + 2 * s->pad - s->size + 1) / (double)s->pool;
    double hidden = rows * columns * (double)s->filters;
    Py_ssize_t fan = s->size * s->size * s->channels;
    const Matrix *weight = m + (equation == FORWARD ? 1 : equation == GRADIENT ? 3 : 2);
    const Matrix *places = m + (equation == FORWARD ? 4 : equation == GRADIENT ? 2 : 1);
    const Matrix *scratch = m + (equation == FORWARD ? 5 : 4);
    if (!is_of(&m[0], n, equation == BACK ? hidden : visible)) return 0;
    if (equation == VISIBLE || equation == SUMS) return is_line_of(&m[1], s->channels);
    if (equation == FORWARD && !(is_line_of(&m[2], s->filters) && is_of(&m[3], n, hidden))) return 0;
    if (equation == GRADIENT && !is_of(&m[1], n, hidden)) return 0;
    if (equation == BACK && !is_of(&m[3], n, visible)) return 0;
    return is_of(weight, fan, (double)s->filters) && weight->stride <= INT_MAX
           && (!places->rows || !places->columns || is_of(places, n, hidden))
           && scratch->buffer.ndim == 1 && scratch->columns >= scratch_of(s);
}

static int take_part(Part *part, const double *numbers, Py_ssize_t all)
{
    if (!(numbers[0] >= 0 && numbers[0] <= numbers[1] && numbers[1] <= (double)all)) return 0;
    part->first = (Py_ssize_t)numbers[0];
    part->count = (Py_ssize_t)numbers[1] - part->first;
    return 1;
}

/* Work an equation. `numbers` are behind those of the shape. */
static void work_equation(Equation equation, const Blas *blas, const Shape *s, const Matrix *m,
                          const double *numbers)
{
    Part part;
    switch (equation) {
    case FORWARD:
        if (take_part(&part, numbers + 1, s->filters) && part.count)
            convolve_all(blas, s, m, (Units)numbers[0], part);
        break;
    case GRADIENT:
        if (take_part(&part, numbers, s->filters) && part.count) convolve_gradient_all(blas, s, m, part);
        break;
    case BACK:
        if (take_part(&part, numbers, s->channels) && part.count) convolve_back_all(blas, s, m, part);
        break;
    case VISIBLE: visible_means_all(s, m, (Units)numbers[0]); break;
    case SUMS: sum_channels_all(s, m, m[1].data); break;
    }
}
