/* Products of windows and filters, and the equations that are such products.
 *
 * Windows are multiplied as they lie in the images, by filters in vectors. That takes half the time of
 * lowering them for a BLAS: its products are slow with so few columns. Pooling by the mean is a longer
 * stride of wider filters: the mean of x W over a block is one product with the mean of the shifted
 * filters. Included by _native.c alone.
 */
enum {
    PANEL = 4 * 1024,                /* floats of filters that stay in the L1 cache, about */
    WINDOWS = 24,                    /* windows that pass them, at least about */
};

/* Vectors of a matrix's columns, in groups that are summed at once. */
typedef struct {
    Py_ssize_t columns, vectors, groups, rows; /* rows of a tile */
} Columns;

/* Set up as many as there are registers for; of rounded products as many everywhere, for the same sums. */
static Columns columns_of(Py_ssize_t columns, int rounds)
{
    Py_ssize_t vectors = (columns + VEC - 1) / VEC, most = rounds || widest() == 16 ? TILE_VECTORS : 1;
    Py_ssize_t rows = rounds || widest() > 4 ? TILE_ROWS : TILE_ROWS / 2;
    return (Columns){columns, vectors, (vectors + most - 1) / most, rows};
}

/* Return the first vector of a group. */
static Py_ssize_t group_at(const Columns *l, Py_ssize_t group)
{
    return l->vectors * group / l->groups;
}

/* Copy rows into vectors, group after group, with zeros behind their end. */
static void pack_rows(const Columns *l, const float *from, Py_ssize_t stride, Py_ssize_t rows, float *to)
{
    for (Py_ssize_t g = 0; g < l->groups; g++) {
        Py_ssize_t first = group_at(l, g) * VEC, n = group_at(l, g + 1) * VEC - first;
        Py_ssize_t given = l->columns - first < n ? l->columns - first : n;
        for (Py_ssize_t i = 0; i < rows; i++, to += n) {
            memcpy(to, from + i * stride + first, (size_t)given * sizeof *to);
            memset(to + given, 0, (size_t)(n - given) * sizeof *to);
        }
    }
}

/* Pack runs of rows two by two, group after group; a run of odd length ends with half a pair. */
static void pack_pairs(const Columns *l, const HalvesForm *form, const float *from, Py_ssize_t stride,
                       Py_ssize_t runs, Py_ssize_t run, Pair *to)
{
    for (Py_ssize_t g = 0; g < l->groups; g++) {
        Py_ssize_t lane = group_at(l, g) * VEC, vectors = group_at(l, g + 1) - group_at(l, g);
        for (Py_ssize_t i = 0; i < runs; i++)
            for (Py_ssize_t k = 0; k < run; k += 2, to += vectors * VEC) {
                const float *x = from + (i * run + k) * stride + lane;
                form->pack_row(x, k + 1 < run ? x + stride : NULL, l->columns - lane, vectors, to);
            }
    }
}

/* Return where a window begins in an image. */
static Py_ssize_t window_at(const Windows *w, Py_ssize_t i, Py_ssize_t j)
{
    return w->stride * (i * w->line + j * w->channels);
}

/* Where the maps of a row of blocks lie, and what is left of them. */
typedef struct {
    const float *maps;
    Py_ssize_t blocks, padded; /* floats from one window to the next */
    Py_ssize_t n;              /* filters */
    float *out, *places;
    Py_ssize_t step;           /* from one block to the next there */
} Pooled;

/* Leave the largest number of a block for some filters, and its place. As in NumPy, nan is larger than
 * any number; of several nans the last one counts here, which takes half the time. */
INLINED void largest_of_block(const float *maps, Py_ssize_t line, Py_ssize_t padded, Py_ssize_t n,
                              float *out, float *places, const int pool)
{
    APART for (Py_ssize_t f = 0; f < n; f++)
    {
        float best = maps[f], found = 0.0f;
        UNROLLED for (int i = 0; i < pool; i++)
        {
            UNROLLED for (int j = 0; j < pool; j++)
            {
                float given = maps[i * line + j * padded + f];
                int larger = (given > best) | (given != given);
                best = larger ? given : best;
                found = larger ? (float)(i * pool + j) : found;
            }
        }
        out[f] = best;
        if (places) places[f] = found;
    }
}

INLINED void largest_of_blocks(Pooled p, const int pool)
{
    Py_ssize_t line = p.blocks * pool * p.padded, whole = p.n / VEC * VEC, last = p.n - VEC;
    for (Py_ssize_t b = 0; b < p.blocks; b++, p.out += p.step, p.maps += pool * p.padded) {
        if (p.n < VEC) {
            largest_of_block(p.maps, line, p.padded, p.n, p.out, p.places, pool);
        } else {
            largest_of_block(p.maps, line, p.padded, whole, p.out, p.places, pool);
            if (p.n > whole) /* some of them again, to take a whole vector */
                largest_of_block(p.maps + last, line, p.padded, VEC, p.out + last,
                                 p.places ? p.places + last : NULL, pool);
        }
        if (p.places) p.places += p.step;
    }
}

/* The same where a block is one window. */
VECTORIZED static void copy_row(Pooled p)
{
    Py_ssize_t whole = p.n / VEC * VEC;
    for (Py_ssize_t b = 0; b < p.blocks; b++, p.out += p.step, p.maps += p.padded) {
        for (Py_ssize_t f = 0; f < whole; f += VEC) memcpy(p.out + f, p.maps + f, VEC * sizeof *p.out);
        for (Py_ssize_t f = whole; f < p.n; f++) p.out[f] = p.maps[f];
        if (p.places) {
            memset(p.places, 0, (size_t)p.n * sizeof *p.places);
            p.places += p.step;
        }
    }
}

/* Leave the largest number of each block, and its place. */
VECTORIZED static void pool_row(Pooled p, Py_ssize_t pool)
{
    Pooled without = p;
    without.places = NULL;
    switch (p.places ? pool : -pool) { /* known to the compiler where they are usual */
    case 2: largest_of_blocks(p, 2); break;
    case 3: largest_of_blocks(p, 3); break;
    case -2: largest_of_blocks(without, 2); break;
    case -3: largest_of_blocks(without, 3); break;
    default: largest_of_blocks(p, (int)pool);
    }
}

/* Fill a matrix of shape (w->fan, filters) with the mean of the filters, shifted to each place of a block. */
static void mean_filters(const Shape *s, const Windows *w, const Matrix *weight, Part channels, Part part,
                         float *out)
{
    Py_ssize_t filters = part.count;
    memset(out, 0, (size_t)(w->fan * filters) * sizeof *out);
    for (Py_ssize_t i = 0; i < s->size * s->size; i++)
        for (Py_ssize_t place = 0; place < s->pool * s->pool; place++) {
            Py_ssize_t down = i / s->size + place / s->pool, right = i % s->size + place % s->pool;
            float *to = out + (down * w->size + right) * w->channels * filters;
            for (Py_ssize_t c = 0; c < w->channels; c++)
                add_row(row(weight, i * s->channels + channels.first + c) + part.first, to + c * filters, filters);
        }
    if (s->pool > 1) scale_row(out, w->fan * filters, 1.0f / (float)(s->pool * s->pool));
}

/* Fill some filters of the gradient from the gradient of their shifted means. */
static void fold_filters(const Shape *s, const Windows *w, const float *gradient, Py_ssize_t stride,
                         Part part, const Matrix *out)
{
    Py_ssize_t filters = part.count;
    for (Py_ssize_t k = 0; k < s->size * s->size * s->channels; k++) {
        Py_ssize_t i = k / s->channels / s->size, j = k / s->channels % s->size, c = k % s->channels;
        float *to = row(out, k) + part.first;
        memset(to, 0, (size_t)filters * sizeof *to);
        for (Py_ssize_t place = 0; place < s->pool * s->pool; place++) {
            Py_ssize_t at = (i + place / s->pool) * w->size + j + place % s->pool;
            add_row(gradient + (at * s->channels + c) * stride, to, filters);
        }
        if (s->pool > 1) scale_row(to, filters, 1.0f / (float)(s->pool * s->pool));
    }
}

/* The convolution of a row of blocks, or of several. */
typedef struct {
    Windows w;
    Columns lanes;
    int is_largest;                     /* of maps that are pooled behind the product */
    Py_ssize_t group, rows, columns;    /* rows of windows of a row of blocks; blocks of an image */
    Py_ssize_t at_once;                 /* rows of blocks */
    float *image, *maps, *means, *filters;
    int rounds;
    HalvesForm form;                    /* of rounded products */
    Half *halves;                       /* of the image */
    Pair *pairs;                        /* of filters, in the place of these */
    Index *offsets;
} Forward;

/* Set up a scratch, or none; return how many floats it has. */
static Py_ssize_t open_forward(Forward *f, const Shape *s, Py_ssize_t filters, float *given)
{
    Scratch room = open_scratch(given);
    *f = (Forward){.is_largest = s->is_max && s->pool > 1};
    f->rounds = s->rounds && (f->is_largest || s->pool == 1);
    f->lanes = columns_of(filters, f->rounds);
    f->w = windows_of(s, s->channels, !f->is_largest);
    f->group = f->is_largest ? s->pool : 1;
    f->rows = f->w.rows / f->group;
    f->columns = f->is_largest ? f->w.columns / s->pool : f->w.columns;
    Py_ssize_t windows = f->group * f->w.columns, padded = f->lanes.vectors * VEC;
    f->at_once = 1 + WINDOWS / windows < f->rows ? 1 + WINDOWS / windows : f->rows;
    f->image = take(&room, f->w.image);
    f->maps = take(&room, f->at_once * windows * padded);
    f->means = take(&room, f->is_largest || s->pool == 1 ? 0 : f->w.fan * filters);
    f->filters = take(&room, f->w.fan * padded);
    f->offsets = (Index *)take(&room, f->at_once * windows);
    f->form = halves_form(s->rounds == 2);
    f->halves = (Half *)take(&room, f->rounds ? f->w.image / 2 : 0);
    f->pairs = (Pair *)f->filters;
    return room.used;
}

/* Fill f->maps with the products of some windows of f->image, from a row on. */
static void multiply_windows(const Forward *f, Py_ssize_t row, Py_ssize_t windows)
{
    const Windows *w = &f->w;
    const Columns *l = &f->lanes;
    Py_ssize_t above = row * w->stride * w->line;
    const float *factors = f->filters;
    const Pair *pairs = f->pairs;
    Py_ssize_t tiles = (windows + l->rows - 1) / l->rows, padded = l->vectors * VEC;
    Py_ssize_t most = PANEL / (w->run * TILE_VECTORS * VEC) + 1; /* runs: of any part as many */
    memset(f->maps, 0, (size_t)(windows * padded) * sizeof *f->maps);
    for (Py_ssize_t g = 0; g < l->groups; g++) {
        Py_ssize_t lane = group_at(l, g) * VEC, vectors = group_at(l, g + 1) - group_at(l, g);
        for (Py_ssize_t i = 0, runs; i < w->size; i += runs) {
            runs = w->size - i < most ? w->size - i : most;
            for (Py_ssize_t k = 0; k < tiles; k++) {
                const float *from[TILE_ROWS];
                const Half *halves[TILE_ROWS];
                float *to[TILE_ROWS];
                Py_ssize_t first = windows * k / tiles, n = windows * (k + 1) / tiles - first;
                for (Py_ssize_t t = 0; t < n; t++) {
                    Py_ssize_t at = above + i * w->line + f->offsets[first + t];
                    from[t] = f->image + at;
                    halves[t] = f->halves + at;
                    to[t] = f->maps + (first + t) * padded + lane;
                }
                if (f->rounds)
                    f->form.add_products(halves, (Walk){runs, w->line, w->run, 2}, pairs, to, n, vectors);
                else
                    add_products(from, (Walk){runs, w->line, w->run, 1}, factors, to, n, vectors);
            }
            factors += runs * w->run * vectors * VEC;
            pairs += runs * pairs_of(w->run) * vectors * VEC;
        }
    }
}

/* Pool the maps of a row of blocks, and leave the means of the units in out. */
static void finish_row_of_blocks(const Forward *f, const Shape *s, const float *maps, float *out,
                                 float *places, const Tile *t, Units units)
{
    Py_ssize_t n = f->lanes.columns, step = s->filters;
    Pooled pooled = {maps, f->columns, f->lanes.vectors * VEC, n, out, places, step};
    if (f->is_largest)
        pool_row(pooled, s->pool);
    else
        copy_row(pooled);
    for (Py_ssize_t j = 0; j < f->columns; j += t->rows) {
        Py_ssize_t rows = f->columns - j < t->rows ? f->columns - j : t->rows;
        means_row(out + j * step, t->bias, rows * n, units);
    }
}

static void convolve_all(const Shape *s, const Matrix *m, Units units, Part part)
{
    const Matrix *x = m, *weight = m + 1, *out = m + 3, *places = m + 4;
    Forward f;
    Tile t;
    open_forward(&f, s, part.count, m[5].data);
    tile(&t, m[2].data + part.first, part.count, part.count == s->filters);
    memset(f.image, 0, (size_t)f.w.image * sizeof *f.image);
    for (Py_ssize_t i = 0; i < f.at_once * f.group * f.w.columns; i++)
        f.offsets[i] = (Index)window_at(&f.w, i / f.w.columns, i % f.w.columns);
    Py_ssize_t windows = f.group * f.w.columns, padded = f.lanes.vectors * VEC;
    if (f.rounds) {
        pack_pairs(&f.lanes, &f.form, weight->data + part.first, weight->stride, f.w.size, f.w.run, f.pairs);
    } else if (f.is_largest || s->pool == 1) {
        pack_rows(&f.lanes, weight->data + part.first, weight->stride, f.w.fan, f.filters);
    } else {
        mean_filters(s, &f.w, weight, (Part){0, s->channels}, part, f.means);
        pack_rows(&f.lanes, f.means, part.count, f.w.fan, f.filters);
    }
    for (Py_ssize_t e = 0; e < x->rows; e++) {
        pad_image(s, &f.w, row(x, e), f.image);
        if (f.rounds) f.form.round_numbers(f.image, f.w.image, f.halves);
        for (Py_ssize_t i = 0; i < f.rows; i += f.at_once) {
            Py_ssize_t rows = f.rows - i < f.at_once ? f.rows - i : f.at_once;
            multiply_windows(&f, i * f.group, rows * windows);
            for (Py_ssize_t k = 0; k < rows; k++) {
                Py_ssize_t at = (i + k) * f.columns * s->filters + part.first;
                finish_row_of_blocks(&f, s, f.maps + k * windows * padded, row(out, e) + at,
                                     is_empty(places) ? NULL : row(places, e) + at, &t, units);
            }
        }
    }
}

/* ------------------------------------------------------------------------ the ways back from means */

/* The gradient, or the way back, of filters with the blocks as their windows. */
typedef struct {
    Windows w;
    Columns lanes;
    float *image, *means, *sums, *factors;
    Index *offsets, *origins; /* of windows in an image; of their filters' numbers */
    int rounds;
    HalvesForm form;          /* of rounded products */
    Half *halves, *laid;      /* of the image, or of filters' numbers; with the next positions next to them */
    Pair *pairs;              /* in the place of the factors */
} Means;

/* Set up what rounded products of some numbers need. */
static void open_halves(Means *b, const Shape *s, Py_ssize_t numbers, Py_ssize_t laid, Scratch *room)
{
    b->form = halves_form(s->rounds == 2);
    b->halves = (Half *)take(room, b->rounds ? (numbers + 1) / 2 : 0);
    b->laid = (Half *)take(room, b->rounds ? laid : 0);
    b->pairs = (Pair *)b->factors;
}

static Py_ssize_t open_gradient(Means *b, const Shape *s, Py_ssize_t filters, float *given)
{
    Scratch room = open_scratch(given);
    *b = (Means){.w = windows_of(s, s->channels, 1), .rounds = s->rounds && s->pool == 1};
    b->lanes = columns_of(filters, b->rounds);
    b->image = take(&room, b->w.image);
    b->sums = take(&room, b->w.fan * b->lanes.vectors * VEC);
    b->factors = take(&room, b->w.rows * b->w.columns * b->lanes.vectors * VEC);
    open_halves(b, s, b->w.image, b->w.image, &room);
    return room.used;
}

static void gradient_of_means(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *x = m, *delta = m + 1, *out = m + 3;
    Means b;
    open_gradient(&b, s, part.count, m[4].data);
    const Windows *w = &b.w;
    const Columns *l = &b.lanes;
    Py_ssize_t padded = l->vectors * VEC, tiles = (w->run + l->rows - 1) / l->rows;
    Walk walk = {w->rows, w->stride * w->line, w->columns, w->stride * w->channels};
    Walk halves_walk = {w->rows, 2 * w->line, w->columns, 4 * w->channels}; /* of numbers laid in twos */
    memset(b.image, 0, (size_t)w->image * sizeof *b.image);
    memset(b.sums, 0, (size_t)(w->fan * padded) * sizeof *b.sums);
    for (Py_ssize_t e = 0; e < x->rows; e++) {
        const float *factors = b.factors;
        const Pair *pairs = b.pairs;
        pad_image(s, w, row(x, e), b.image);
        if (b.rounds) {
            b.form.round_numbers(b.image, w->image, b.halves);
            lay_positions(b.halves, w->image, w->channels, b.laid);
            pack_pairs(l, &b.form, row(delta, e) + part.first, s->filters, w->rows, w->columns, b.pairs);
        } else {
            pack_rows(l, row(delta, e) + part.first, s->filters, w->rows * w->columns, b.factors);
        }
        for (Py_ssize_t g = 0; g < l->groups; g++) {
            Py_ssize_t lane = group_at(l, g) * VEC, vectors = group_at(l, g + 1) - group_at(l, g);
            for (Py_ssize_t k = 0; k < w->size * tiles; k++) {
                const float *from[TILE_ROWS];
                const Half *halves[TILE_ROWS];
                float *to[TILE_ROWS];
                Py_ssize_t run = k / tiles, first = w->run * (k % tiles) / tiles;
                Py_ssize_t n = w->run * (k % tiles + 1) / tiles - first;
                for (Py_ssize_t t = 0; t < n; t++) {
                    from[t] = b.image + run * w->line + first + t;
                    halves[t] = b.laid + 2 * (run * w->line + first + t);
                    to[t] = b.sums + (run * w->run + first + t) * padded + lane;
                }
                if (b.rounds)
                    b.form.add_products(halves, halves_walk, pairs, to, n, vectors);
                else
                    add_products(from, walk, factors, to, n, vectors);
            }
            factors += w->rows * w->columns * vectors * VEC;
            pairs += w->rows * pairs_of(w->columns) * vectors * VEC;
        }
    }
    fold_filters(s, w, b.sums, padded, part, out);
}

static Py_ssize_t open_back(Means *b, const Shape *s, Py_ssize_t channels, float *given)
{
    Scratch room = open_scratch(given);
    *b = (Means){.w = windows_of(s, channels, 1), .rounds = s->rounds && s->pool == 1};
    b->lanes = columns_of(b->w.run, b->rounds);
    b->image = take(&room, b->w.image);
    b->means = take(&room, b->w.fan * s->own.count);
    b->sums = take(&room, s->own.count * b->w.run);
    b->factors = take(&room, b->w.size * s->own.count * b->lanes.vectors * VEC);
    b->offsets = (Index *)take(&room, b->w.rows * b->w.columns);
    b->origins = (Index *)take(&room, b->w.rows * b->w.columns);
    open_halves(b, s, b->w.rows * b->w.columns * s->filters, 0, &room);
    return room.used;
}

/* Fill b->factors with the mean filters turned round: run after run, a row a filter. */
static void pack_turned(const Means *b, const Shape *s, const Matrix *weight, Part channels)
{
    Py_ssize_t filters = s->own.count, run = b->w.run, size = filters * b->lanes.vectors * VEC;
    Py_ssize_t half = pairs_of(filters) * b->lanes.vectors * VEC;
    mean_filters(s, &b->w, weight, channels, s->own, b->means);
    for (Py_ssize_t i = 0; i < b->w.size; i++) {
        const float *from = b->means + i * run * filters;
        for (Py_ssize_t k = 0; k < run; k++, from += filters)
            for (Py_ssize_t f = 0; f < filters; f++) b->sums[f * run + k] = from[f];
        if (b->rounds)
            pack_pairs(&b->lanes, &b->form, b->sums, run, 1, filters, b->pairs + i * half);
        else
            pack_rows(&b->lanes, b->sums, run, filters, b->factors + i * size);
    }
}

static void back_of_means(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *delta = m, *weight = m + 2, *out = m + 3;
    Means b;
    open_back(&b, s, part.count, m[4].data);
    const Windows *w = &b.w;
    const Columns *l = &b.lanes;
    Py_ssize_t windows = w->rows * w->columns, tiles = (windows + l->rows - 1) / l->rows;
    Walk walk = {1, 0, s->own.count, 1}, halves_walk = {1, 0, s->own.count, 2};
    pack_turned(&b, s, weight, part);
    /* Column after column: a sum that overlaps the one before it would wait for it. */
    for (Py_ssize_t i = 0; i < windows; i++) {
        b.offsets[i] = (Index)window_at(w, i % w->rows, i / w->rows);
        b.origins[i] = (Index)((i % w->rows * w->columns + i / w->rows) * s->filters + s->own.first);
    }
    for (Py_ssize_t e = 0; e < delta->rows; e++) {
        const float *factors = b.factors;
        const Pair *pairs = b.pairs;
        if (b.rounds) b.form.round_numbers(row(delta, e), delta->columns, b.halves);
        memset(b.image, 0, (size_t)w->image * sizeof *b.image);
        for (Py_ssize_t i = 0; i < w->size * l->groups; i++) {
            Py_ssize_t run = i / l->groups, first = group_at(l, i % l->groups);
            Py_ssize_t vectors = group_at(l, i % l->groups + 1) - first;
            for (Py_ssize_t k = 0; k < tiles; k++) {
                const float *from[TILE_ROWS];
                const Half *halves[TILE_ROWS];
                float *to[TILE_ROWS];
                Py_ssize_t window = windows * k / tiles, n = windows * (k + 1) / tiles - window;
                for (Py_ssize_t t = 0; t < n; t++, window++) {
                    from[t] = row(delta, e) + b.origins[window];
                    halves[t] = b.halves + b.origins[window];
                    to[t] = b.image + run * w->line + first * VEC + b.offsets[window];
                }
                if (b.rounds)
                    b.form.add_products(halves, halves_walk, pairs, to, n, vectors);
                else
                    add_products(from, walk, factors, to, n, vectors);
            }
            factors += s->own.count * vectors * VEC;
            pairs += pairs_of(s->own.count) * vectors * VEC;
        }
        unpad_image(s, w, b.image, row(out, e), s->channel + part.first);
    }
}
