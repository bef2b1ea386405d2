/* Multiplying pairs of bfloat16 in tiles: with Intel's AMX, and portably.
 *
 * A tile has up to 16 rows of 16 pairs or sums. The instruction adds to a tile of sums the product of two
 * tiles of pairs. By Intel's manual it adds up, for each sum, the products of the first numbers of up to 16
 * pairs and, apart from them, the products of the second numbers, both from 0 and in order; then both to each
 * other, and that to the sum. So every 32 numbers of the inner index are one term. Packed rows and panels are
 * filled up with pairs of 0, which change no sum, so that tiles of pairs are always 16 wide; tiles at the end of
 * the rows and columns are smaller. Included by _bfloat16.h alone.
 */
#if defined(TILE_INSTRUCTIONS) /* the name of a header that stands in for the instructions, in tests */
#include TILE_INSTRUCTIONS
#define WITH_TILES
#define HAS_AMX HAS_AVX512_BF16
#elif HAS_AVX512_BF16 && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define WITH_TILES __attribute__((target("amx-tile,amx-bf16")))
#define HAS_AMX 1
#else
#define HAS_AMX 0
#endif

enum {
    TILE_SIZE = 16,            /* rows of a tile, and pairs or sums of a row */
    SUMS_SIZE = 2 * TILE_SIZE, /* rows and columns of the sums that 2 x 2 tiles hold */
};

/* ------------------------------------------------------------------------------- portable */

/* Add to n sums the product of a row of up to 16 pairs with as many rows of a panel. */
VECTORIZED static void add_term(const Pair *a, const Pair *b, Py_ssize_t pairs, float *sums, Py_ssize_t n)
{
    float first[PANEL_COLUMNS] = {0}, second[PANEL_COLUMNS] = {0};
    for (Py_ssize_t k = 0; k < pairs; k++, b += PANEL_COLUMNS) {
        float x = wide(a[k] << 16), y = wide(a[k] & 0xffff0000);
        APART for (Py_ssize_t j = 0; j < n; j++)
        {
            first[j] += x * wide(b[j] << 16);
            second[j] += y * wide(b[j] & 0xffff0000);
        }
    }
    APART for (Py_ssize_t j = 0; j < n; j++) sums[j] += first[j] + second[j];
}

static void add_product_by_terms(const Pair *left, const NonZeros *nonzeros, const Pair *right, Py_ssize_t rows,
                                 Py_ssize_t pairs, Py_ssize_t columns, float *sums, Py_ssize_t stride,
                                 int begins)
{
    for (Py_ssize_t i = 0; i < rows; i++, left += pairs, sums += stride) {
        if (begins) memset(sums, 0, (size_t)columns * sizeof *sums);
        for (Py_ssize_t k = 0; k < pairs; k += TILE_SIZE)
            add_term(left + k, right + k * PANEL_COLUMNS, pairs - k < TILE_SIZE ? pairs - k : TILE_SIZE, sums,
                     columns);
    }
}

static const PairsForm PORTABLE_TILES = {"portable tiles", 1, pack_rows_portable, NULL, pack_panel_portable,
                                         add_product_by_terms};

/* ------------------------------------------------------------------------------------ AMX */

#if HAS_AMX
/* What the instruction that shapes the tiles reads. A tile that is not used has no rows of no bytes. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShapes;

static inline uint8_t up_to_tile(Py_ssize_t n)
{
    return (uint8_t)(n < 0 ? 0 : n > TILE_SIZE ? TILE_SIZE : n);
}

/* Shape the tiles for sums of up to 32 x 32: 0 to 3 hold them, 4 and 5 their rows of pairs, 6 and 7 columns. */
WITH_TILES static void shape_tiles(Py_ssize_t rows, Py_ssize_t columns)
{
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 2; i++) {
        uint8_t down = up_to_tile(rows - i * TILE_SIZE), across = up_to_tile(columns - i * TILE_SIZE);
        shapes.rows[4 + i] = down;
        shapes.row_bytes[4 + i] = down ? TILE_SIZE * sizeof(Pair) : 0;
        shapes.rows[6 + i] = across ? TILE_SIZE : 0;
        shapes.row_bytes[6 + i] = across * sizeof(Pair);
    }
    for (int t = 0; t < 4; t++)
        if (shapes.rows[4 + t / 2] && shapes.rows[6 + t % 2]) {
            shapes.rows[t] = shapes.rows[4 + t / 2];
            shapes.row_bytes[t] = shapes.row_bytes[6 + t % 2];
        }
    __asm__ volatile("" ::"r"(&shapes) : "memory"); /* GCC does not know that tile instructions read memory */
    _tile_loadconfig(&shapes);
}

/* Add the product of rows and columns of pairs to down x across tiles of sums. */
WITH_TILES INLINED void add_tiles(const Pair *left, const Pair *right, Py_ssize_t pairs, float *sums,
                                  Py_ssize_t stride, int begins, const int down, const int across)
{
    const Py_ssize_t line = stride * (Py_ssize_t)sizeof *sums, row = pairs * (Py_ssize_t)sizeof *left;
    float *below = sums + TILE_SIZE * stride;
    if (begins) {
        _tile_zero(0);
        if (across > 1) _tile_zero(1);
        if (down > 1) _tile_zero(2);
        if (down > 1 && across > 1) _tile_zero(3);
    } else {
        _tile_loadd(0, sums, line);
        if (across > 1) _tile_loadd(1, sums + TILE_SIZE, line);
        if (down > 1) _tile_loadd(2, below, line);
        if (down > 1 && across > 1) _tile_loadd(3, below + TILE_SIZE, line);
    }
    for (Py_ssize_t k = 0; k < pairs; k += TILE_SIZE, left += TILE_SIZE, right += TILE_SIZE * PANEL_COLUMNS) {
        _tile_loadd(4, left, row);
        _tile_loadd(6, right, PANEL_COLUMNS * sizeof *right);
        _tile_dpbf16ps(0, 4, 6);
        if (across > 1) {
            _tile_loadd(7, right + TILE_SIZE, PANEL_COLUMNS * sizeof *right);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (down > 1) {
            _tile_loadd(5, left + TILE_SIZE * pairs, row);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (down > 1 && across > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, line);
    if (across > 1) _tile_stored(1, sums + TILE_SIZE, line);
    if (down > 1) _tile_stored(2, below, line);
    if (down > 1 && across > 1) _tile_stored(3, below + TILE_SIZE, line);
}

WITH_TILES static void add_product_tiles(const Pair *left, const NonZeros *nonzeros, const Pair *right,
                                         Py_ssize_t rows, Py_ssize_t pairs, Py_ssize_t columns, float *sums,
                                         Py_ssize_t stride, int begins)
{
    Py_ssize_t shaped_down = 0, shaped_across = 0;
    for (Py_ssize_t j = 0; j < columns; j += SUMS_SIZE)
        for (Py_ssize_t i = 0; i < rows; i += SUMS_SIZE) {
            Py_ssize_t down = rows - i < SUMS_SIZE ? rows - i : SUMS_SIZE;
            Py_ssize_t across = columns - j < SUMS_SIZE ? columns - j : SUMS_SIZE;
            const Pair *own = left + i * pairs;
            float *to = sums + i * stride + j;
            if (down != shaped_down || across != shaped_across) shape_tiles(down, across);
            shaped_down = down;
            shaped_across = across;
            switch (2 * (down > TILE_SIZE) + (across > TILE_SIZE)) {
            case 0: add_tiles(own, right + j, pairs, to, stride, begins, 1, 1); break;
            case 1: add_tiles(own, right + j, pairs, to, stride, begins, 1, 2); break;
            case 2: add_tiles(own, right + j, pairs, to, stride, begins, 2, 1); break;
            case 3: add_tiles(own, right + j, pairs, to, stride, begins, 2, 2); break;
            }
        }
    _tile_release(); /* of this thread: its registers need not be kept any longer */
}

static const PairsForm TILES = {"tiles", TILE_SIZE, pack_rows_avx512, NULL, pack_panel_avx512,
                                add_product_tiles};
#undef WITH_TILES

#ifndef TILE_INSTRUCTIONS
/* Return whether this processor has tiles, and the kernel lets this process use them. */
static int granted_tiles(void)
{
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

/* Return whether a product in tiles has the bits of the portable form, to the last one. */
static int has_bits_of_portable(void)
{
    enum { SIZE = SUMS_SIZE + 1, PAIRS = SUMS_SIZE };
    Pair left[SIZE * PAIRS], right[PAIRS * PANEL_COLUMNS];
    float sums[2][SIZE * SIZE];
    uint32_t bits = 1;
    for (int i = 0; i < SIZE * PAIRS + PAIRS * PANEL_COLUMNS; i++) {
        bits = bits * 1664525 + 1013904223;
        Pair pair = (bits & 0x83ff83ff) + 0x3e003e00; /* from 1/8 to 32, so that sums are rounded */
        *(i < SIZE * PAIRS ? left + i : right + (i - SIZE * PAIRS)) = pair;
    }
    TILES.add_product(left, NULL, right, SIZE, PAIRS, SIZE, sums[0], SIZE, 1);
    PORTABLE_TILES.add_product(left, NULL, right, SIZE, PAIRS, SIZE, sums[1], SIZE, 1);
    return memcmp(sums[0], sums[1], sizeof sums[0]) == 0;
}

/* Return whether tiles can be multiplied, as they should be. The permission is for all threads, and for
 * forked processes. It is asked for when the first needs it: from then on signals need more of their stacks. */
static int multiplies_tiles(void)
{
    static int known = -1; /* two threads that ask at once find the same */
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found < 0) {
        found = multiplies_pairs() && granted_tiles() && has_bits_of_portable();
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found;
}
#endif
