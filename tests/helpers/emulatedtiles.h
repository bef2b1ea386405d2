/* Stands in for the tile instructions of Intel's AMX, by the operations in its manual, so that their products
 * run on CPUs that lack them. What a processor would refuse is not done and kept as a fault, and so are reads
 * and writes outside of the matrices that are watched, where there are any.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef TILE_INSTRUCTIONS /* else trappedtiles.c carries out those of the compiler */
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig load_config
#define _tile_release release_tiles
#define _tile_loadd load_tile
#define _tile_stored store_tile
#define _tile_zero zero_tile
#define _tile_dpbf16ps multiply_tiles
#endif

enum { TILE_COUNT = 8, MOST_ROWS = 16, MOST_BYTES = 64, CONFIG_BYTES = 64, MOST_WATCHED = 4 };

typedef struct {
    int rows, bytes; /* of a row; 0 and 0 if it is not used */
    uint8_t data[MOST_ROWS][MOST_BYTES];
} EmulatedTile;

typedef struct {
    const uint8_t *data;
    ptrdiff_t rows, bytes, stride;
    int writable;
} WatchedMatrix;

static _Thread_local EmulatedTile tiles[TILE_COUNT];
static _Thread_local int has_config = 0;
static const char *fault = NULL;
static int is_permitted = 1, are_split = 0, watched_count = 0;
static WatchedMatrix watched[MOST_WATCHED];

static int fails(int wrong, const char *what)
{
    if (wrong) __sync_bool_compare_and_swap(&fault, NULL, what);
    return wrong;
}

/* ------------------------------------------------------------------------------- for tests */

/* Return the first fault since the last call, or NULL. */
const char *take_fault(void)
{
    return __sync_lock_test_and_set(&fault, NULL);
}

int tiles_in_use(void) { return has_config; }

/* Let the kernel refuse tiles, or not; it is asked once. */
void permit_tiles(int permitted) { is_permitted = permitted; }

#ifdef TILE_INSTRUCTIONS
static int granted_tiles(void) { return is_permitted; }
#endif

/* Let products add the parts of a term to the sum one by one, or not. */
void split_terms(int split) { are_split = split; }

void watch_nothing(void) { watched_count = 0; }

void watch_matrix(const void *data, ptrdiff_t rows, ptrdiff_t bytes, ptrdiff_t stride, int writable)
{
    watched[watched_count++] = (WatchedMatrix){data, rows, bytes, stride, writable};
}

static int is_outside(const void *place, ptrdiff_t bytes, int writes)
{
    for (int i = 0; i < watched_count; i++) {
        const WatchedMatrix *m = watched + i;
        ptrdiff_t offset = (const uint8_t *)place - m->data;
        int inside = offset >= 0 && offset / m->stride < m->rows && offset % m->stride + bytes <= m->bytes;
        if (inside && (m->writable || !writes)) return 0;
    }
    return watched_count > 0;
}

/* ----------------------------------------------------------------------------- instructions */

void release_tiles(void)
{
    memset(tiles, 0, sizeof tiles);
    has_config = 0;
}

void load_config(const void *from)
{
    uint8_t config[CONFIG_BYTES];
    memcpy(config, from, CONFIG_BYTES);
    if (fails(config[0] > 1, "config: palette")) return;
    release_tiles();
    if (config[0] == 0) return;
    int reserved = 0;
    for (int i = 1; i < CONFIG_BYTES; i++) { /* the row to begin at; reserved ones; tiles behind the last */
        int is_shape = (i >= 16 && i < 16 + 2 * TILE_COUNT) || (i >= 48 && i < 48 + TILE_COUNT);
        reserved |= is_shape ? 0 : config[i];
    }
    if (fails(reserved, "config: reserved bytes")) return;
    for (int t = 0; t < TILE_COUNT; t++) {
        int bytes = config[16 + 2 * t] | config[17 + 2 * t] << 8, rows = config[48 + t];
        if (fails(bytes > MOST_BYTES || rows > MOST_ROWS, "config: a tile too large")) return;
        if (fails((bytes == 0) != (rows == 0), "config: rows of nothing")) return;
        tiles[t].rows = rows;
        tiles[t].bytes = bytes;
    }
    has_config = 1;
}

static EmulatedTile *tile_of(int t)
{
    if (fails(!has_config, "a tile without a configuration")) return NULL;
    if (fails(t < 0 || t >= TILE_COUNT || !tiles[t].rows || tiles[t].bytes % 4, "an unused tile")) return NULL;
    return tiles + t;
}

void zero_tile(int t)
{
    EmulatedTile *tile = tile_of(t);
    if (tile) memset(tile->data, 0, sizeof tile->data);
}

void load_tile(int t, const void *from, ptrdiff_t stride)
{
    EmulatedTile *tile = tile_of(t);
    if (!tile) return;
    memset(tile->data, 0, sizeof tile->data);
    for (int i = 0; i < tile->rows; i++) {
        const uint8_t *place = (const uint8_t *)from + i * stride;
        if (fails(is_outside(place, tile->bytes, 0), "a read outside of a matrix")) return;
        memcpy(tile->data[i], place, (size_t)tile->bytes);
    }
}

void store_tile(int t, void *to, ptrdiff_t stride)
{
    EmulatedTile *tile = tile_of(t);
    for (int i = 0; tile && i < tile->rows; i++) {
        uint8_t *place = (uint8_t *)to + i * stride;
        if (fails(is_outside(place, tile->bytes, 1), "a write outside of a matrix")) return;
        memcpy(place, tile->data[i], (size_t)tile->bytes);
    }
}

/* Numbers below 2^-126 are 0, before an operation and after it. */
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static float sum_of(float x, float y) { return flushed(flushed(x) + flushed(y)); }

static float number_at(const uint8_t *row, int place)
{
    uint32_t bits = (uint32_t)row[2 * place] << 16 | (uint32_t)row[2 * place + 1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

/* Add to a tile of sums the product of a tile of pairs by rows and another by columns. */
void multiply_tiles(int sums, int left, int right)
{
    EmulatedTile *c = tile_of(sums), *a = tile_of(left), *b = tile_of(right);
    if (!c || !a || !b || fails(c == a || a == b || b == c, "a tile multiplied twice")) return;
    if (fails(c->rows != a->rows || c->bytes != b->bytes || a->bytes / 4 != b->rows, "other shapes")) return;
    for (int i = 0; i < c->rows; i++)
        for (int j = 0; j < c->bytes / 4; j++) {
            float parts[2] = {0, 0}, sum;
            uint8_t *place = c->data[i] + 4 * j;
            for (int k = 0; k < b->rows; k++)
                for (int p = 0; p < 2; p++)
                    parts[p] = flushed(
                        fmaf(number_at(a->data[i], 2 * k + p), number_at(b->data[k], 2 * j + p), parts[p]));
            memcpy(&sum, place, sizeof sum);
            if (are_split)
                sum = sum_of(sum_of(sum, parts[1]), parts[0]);
            else
                sum = sum_of(sum, sum_of(parts[0], parts[1]));
            memcpy(place, &sum, sizeof sum);
        }
}
