// Products of matrices on tensor cores, in tiles, for kernels that make whole steps with them: see
// fused.cu. For compute capability 8.0 and later; compiled behind kernels.cu.
//
// Tensor cores take factors of 11 bits (TF32). How those of a product are made of floats is
// PRECISION, which Python defines ahead of the source:
// - PRECISION_FLOAT32: a float is split into two of 11 bits, and three of the four products of the
//   parts are added up in float32. Only the smallest is left out, which is below a float's last bit.
// - PRECISION_TF32: it is rounded to 11 bits, and there is one product.
// - PRECISION_BFLOAT16: it is rounded to the 8 bits of a bfloat16 (nearest_bfloat16 in kernels.cu),
//   of which TF32 loses none, and there is one product.
// Tensor cores round sums toward zero, so that a long one loses up to a last bit of a float with
// each product, always to the same side. PRECISION_FLOAT32 therefore adds up 8 terms there and those
// sums outside, where they are rounded to nearest. The others leave whole sums to tensor cores: for
// 784 terms that makes 5e-7, or 1e-6 if all have one sign, beside 3e-4 and 2e-5 by rounded factors.
// Every sum has an order of its own, the same every time.
//
// A block of 256 threads makes a tile of 64 x 32 of a product. Its 8 warps have 32 rows each, and
// of every 32 terms that are loaded, 8; the four parts of each sum are added at the end. Loads are
// two steps ahead of the products. The tiles of a launch are numbered row by row of tiles.

#define PRECISION_FLOAT32 0
#define PRECISION_TF32 1
#define PRECISION_BFLOAT16 2
#ifndef PRECISION
#error "no PRECISION is defined"
#endif

#define FUSED_THREADS 256
#define PRODUCT_ROWS 64
#define PRODUCT_COLUMNS 32
#define DEPTH 32    // terms of the sums that are loaded together
#define STAGES 3    // of loads: one is multiplied, two are on the way
#define SLICES 4    // of the sums, each of other terms
#define WARPS 8     // which share the rows of a tile once it is made
#define ROWS_EACH 8
#define FAST 36     // floats from row to row of a tile whose terms are side by side: no two threads
#define SUM_ROW 33  // of a warp want the same bank; and from row to row of a tile of sums
#define MOST_PIECES (PRODUCT_ROWS / 32)  // of a tile of a factor, by a thread
#define ROW_FLOATS (DEPTH * (PRODUCT_ROWS + 8))
#define STAGE_FLOATS (ROW_FLOATS + DEPTH * (PRODUCT_COLUMNS + 8))

// ---------------------------------------------------------------- tensor cores
#ifdef __CUDACC__  // what stands in for CUDA in the tests has its own

// Copies 4 or 1 floats to shared memory, without waiting; what is beyond `bytes` becomes 0.
__device__ static __forceinline__ void copy_four(float *to, const float *from, int bytes)
{
    uint32 place = (uint32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(place), "l"(from), "r"(bytes) : "memory");
}

__device__ static __forceinline__ void copy_one(float *to, const float *from, int bytes)
{
    uint32 place = (uint32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(place), "l"(from), "r"(bytes) : "memory");
}

// Ends a group of copies of this thread.
__device__ static __forceinline__ void end_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups of this thread but the newest.
__device__ static __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

// c += a b of a warp, for a of 16 x 8 and b of 8 x 8 in TF32. With g and t the quotient and the
// remainder of a thread's number by 4: a are rows g, g + 8, g, g + 8 of columns t, t, t + 4, t + 4,
// b are rows t, t + 4 of column g, c are rows g, g, g + 8, g + 8 of columns 2 t and 2 t + 1.
__device__ static __forceinline__ void multiply_add(
    float c[4], const uint32 a[4], const uint32 b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// x rounded to TF32, of two as near to the larger one; a NaN stays one.
__device__ static __forceinline__ uint32 nearest_tf32(float x)
{
    uint32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
#endif

#define TF32_BITS 0xffffe000u
#define HAS_LOW (PRECISION == PRECISION_FLOAT32)

// The parts of a factor, both TF32: high is x rounded as PRECISION says, and where that is float32,
// low is the rest, of which tensor cores leave out the last bits, else 0. A NaN is one in high or
// low, and so is what overflows.
__device__ static __forceinline__ void split(float x, uint32 *high, uint32 *low)
{
    *low = 0;
    if (PRECISION == PRECISION_TF32) {
        *high = nearest_tf32(x);
    } else if (PRECISION == PRECISION_BFLOAT16) {
        *high = nearest_bfloat16(x);
    } else {
        *high = (__float_as_uint(x) + 0x1000u) & TF32_BITS;
        *low = __float_as_uint(x - __uint_as_float(*high));
    }
}

// ---------------------------------------------------------------- loads
// Rows of numbers that tiles are loaded from: first those above, of which some may be gathered,
// then those below.
struct Rows {
    const float *above, *below;
    long long step_above, step_below;  // floats from row to row
    const long long *numbers;          // of the rows above; null: one after another
    long long last;                    // a number outside is that of the nearest row
    int split, count, width;           // rows above, all of them, and their numbers
    bool is_wide;                      // every row begins at a multiple of 16 bytes
    bool is_plain;                     // one after another, all of them
};

__device__ static __forceinline__ bool begins_wide(const float *first, long long step)
{
    return ((uint64)first & 15) == 0 && (step & 3) == 0;
}

// Rows one after another.
__device__ static __forceinline__ struct Rows rows_of(
    const float *first, long long step, int count, int width)
{
    return {first, first, step, step, 0, 0, count, count, width, begins_wide(first, step), true};
}

// Rows of the data by their numbers, or one after another, then those below. What is gathered from
// is elsewhere each time that a recorded graph is launched: see `address_of`.
__device__ static __forceinline__ struct Rows gathered(
    const float *x, long long ldx, long long last, const long long *numbers,
    const float *below, long long step, int split, int count, int width, const uint64 *now)
{
    if (numbers && now && now[2]) x = (const float *)now[2];
    bool is_wide = begins_wide(x, ldx) && begins_wide(below, step);
    return {x, below, ldx, step, numbers, last, split, count, width, is_wide, false};
}

__device__ static __forceinline__ const float *row_of(const struct Rows &rows, int i)
{
    if (i >= rows.split) return rows.below + (i - rows.split) * rows.step_below;
    long long row = i;
    if (rows.numbers) {
        row = rows.numbers[i];
        row = row < 0 ? 0 : row > rows.last ? rows.last : row;
    }
    return rows.above + row * rows.step_above;
}

// ---------------------------------------------------------------- products
// A factor of a product: rows that are outputs with their terms side by side, or the other way.
struct Factor {
    struct Rows rows;
    bool is_fast;  // the terms are side by side
    int outputs;   // of a tile
    int first;     // of this tile
};

// What a thread copies of a factor's tiles: four numbers side by side, and four 32 outputs further.
// All that stays the same from tile to tile is found once, before the sums begin.
struct Pieces {
    const float *from[MOST_PIECES];  // in the next tile; where terms are rows, the first alone
    int left[MOST_PIECES];           // numbers of the row from there on; below 1 there are none
    int term;                        // where terms are rows: that of the row
};

// Where a row begins; of one that there is not, which is never read, any place.
__device__ static __forceinline__ const float *row_or_any(const struct Rows &rows, int i)
{
    return i < rows.count ? row_of(rows, i) : rows.above;
}

__device__ static __forceinline__ struct Pieces pieces_of(const struct Factor &factor)
{
    const struct Rows &rows = factor.rows;
    struct Pieces pieces;
    int row = threadIdx.x / 8, column = threadIdx.x % 8 * 4;
    pieces.term = row;
#pragma unroll
    for (int e = 0; e < factor.outputs / 32; e++) {
        int i = row + (factor.is_fast ? factor.first + 32 * e : 0);
        int j = column + (factor.is_fast ? 0 : factor.first);
        pieces.from[e] = row_or_any(rows, i) + j;
        pieces.left[e] = factor.is_fast && i >= rows.count ? 0 : rows.width - j;
    }
    return pieces;
}

// Copies four numbers, or as many as are left, and zeros for the others.
__device__ static __forceinline__ void copy_piece(
    float *to, const float *from, int left, bool is_wide)
{
    if (is_wide) {
        copy_four(to, from, left >= 4 ? 16 : left > 0 ? 4 * left : 0);
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) copy_one(to + k, from + k, k < left ? 4 : 0);
    }
}

// Copies the pieces of a tile, and moves on to the next one.
__device__ static __forceinline__ void load_pieces(
    float *tile, struct Pieces *pieces, const struct Factor &factor, bool is_wide)
{
    const struct Rows &rows = factor.rows;
    int row = threadIdx.x / 8, column = threadIdx.x % 8 * 4;
    if (factor.is_fast) {
        float *to = tile + row * FAST + column;
#pragma unroll
        for (int e = 0; e < factor.outputs / 32; e++) {
            copy_piece(to + 32 * e * FAST, pieces->from[e], pieces->left[e], is_wide);
            pieces->from[e] += DEPTH;
            pieces->left[e] -= DEPTH;
        }
        return;
    }
    float *to = tile + row * (factor.outputs + 8) + column;
    int left = pieces->term < rows.count ? pieces->left[0] : 0;
#pragma unroll
    for (int e = 0; e < factor.outputs / 32; e++)
        copy_piece(to + 32 * e, pieces->from[0] + 32 * e, left - 32 * e, is_wide);
    pieces->term += DEPTH;
    if (rows.is_plain)
        pieces->from[0] += DEPTH * rows.step_above;
    else if (pieces->term < rows.count)  // looked up a tile ahead: no copy waits for its number
        pieces->from[0] = row_of(rows, pieces->term) + factor.first + column;
}

__device__ static __forceinline__ float factor_at(
    const float *tile, const struct Factor &of, int output, int term)
{
    return of.is_fast ? tile[output * FAST + term] : tile[term * (of.outputs + 8) + output];
}

// Adds the products of this warp's terms of a tile, for its 32 x 32 of the outputs.
__device__ static __forceinline__ void add_products(
    float c[2][4][4], const float *tile, const struct Factor &a, const struct Factor &b)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int row = warp % 2 * 32 + g, term = warp / 2 * 8 + t;
    uint32 a_high[2][4], a_low[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = factor_at(tile, a, row + 16 * i + 8 * (e & 1), term + 4 * (e >> 1));
            split(x, &a_high[i][e], &a_low[i][e]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32 b_high[2], b_low[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = factor_at(tile + ROW_FLOATS, b, 8 * j + g, term + 4 * e);
            split(x, &b_high[e], &b_low[e]);
        }
        float of_few[2][4] = {};  // sums of 8 terms, before tensor cores lose more of them
#pragma unroll
        for (int i = 0; i < 2 * HAS_LOW; i++) multiply_add(of_few[i], a_low[i], b_high);
#pragma unroll
        for (int i = 0; i < 2 * HAS_LOW; i++) multiply_add(of_few[i], a_high[i], b_low);
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_add(HAS_LOW ? of_few[i] : c[i][j], a_high[i], b_high);
#pragma unroll
        for (int i = 0; i < 2 * HAS_LOW; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) c[i][j][e] += of_few[i][e];
        }
    }
}

// Adds up this warp's sums of a tile, with loads two tiles of terms ahead.
__device__ static __forceinline__ void add_up(
    float c[2][4][4], float *memory, const struct Factor &a, const struct Factor &b, int terms,
    bool is_wide)
{
    struct Pieces of_a = pieces_of(a), of_b = pieces_of(b);
    int tiles = (terms + DEPTH - 1) / DEPTH, stage = 0;
    for (int tile = 0; tile < STAGES - 1 + tiles; tile++) {
        bool is_there = tile >= STAGES - 1;
        if (is_there) {
            await_copies();
            __syncthreads();  // this tile is there, and nobody multiplies the one before
        }
        if (tile < tiles) {
            float *to = memory + stage * STAGE_FLOATS;
            load_pieces(to, &of_a, a, is_wide);
            load_pieces(to + ROW_FLOATS, &of_b, b, is_wide);
        }
        end_copies();
        __syncwarp();  // tensor cores want all threads of a warp at once
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (is_there) add_products(c, memory + stage * STAGE_FLOATS, a, b);
    }
}

// The tile of a product: a returned array of SLICES parts, each of rows of SUM_ROW floats.
__device__ static __forceinline__ float *product(
    const struct Factor &a, const struct Factor &b, int terms)
{
    __shared__ __align__(16) float memory[STAGES * STAGE_FLOATS];
    float c[2][4][4] = {};
    if (a.rows.is_wide && b.rows.is_wide)
        add_up(c, memory, a, b, terms, true);
    else
        add_up(c, memory, a, b, terms, false);
    __syncthreads();  // nobody multiplies any more
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float *part = memory + (warp / 2 * PRODUCT_ROWS + warp % 2 * 32 + g) * SUM_ROW + 2 * t;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                part[(16 * i + 8 * (e >> 1)) * SUM_ROW + 8 * j + (e & 1)] = c[i][j][e];
        }
    }
    __syncthreads();
    return memory;
}

__device__ static __forceinline__ float sum_at(const float *parts, int row, int column)
{
    const float *part = parts + row * SUM_ROW + column;
    float sum = part[0];
#pragma unroll
    for (int slice = 1; slice < SLICES; slice++) sum += part[slice * PRODUCT_ROWS * SUM_ROW];
    return sum;
}

// Where a tile begins, of a product with so many columns.
__device__ static __forceinline__ int row_of_tile(int tile, int columns)
{
    return tile / ((columns + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS) * PRODUCT_ROWS;
}

__device__ static __forceinline__ int column_of_tile(int tile, int columns)
{
    return tile % ((columns + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS) * PRODUCT_COLUMNS;
}

__device__ static __forceinline__ int first_row(int columns)
{
    return row_of_tile(blockIdx.x, columns);
}

__device__ static __forceinline__ int first_column(int columns)
{
    return column_of_tile(blockIdx.x, columns);
}

// ---------------------------------------------------------------- sums beside products
// The sum over a block, at its first thread.
__device__ static double total_of_block(double mine)
{
    __shared__ double share[FUSED_THREADS];
    share[threadIdx.x] = mine;
    __syncthreads();
    for (int half = FUSED_THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) share[threadIdx.x] += share[threadIdx.x + half];
        __syncthreads();
    }
    return share[0];
}

// Adds up the errors of tiles; of one block.
__device__ static void add_errors(const double *errors, int count, double *error)
{
    double sum = 0.0;
    for (int at = threadIdx.x; at < count; at += FUSED_THREADS) sum += errors[at];
    sum = total_of_block(sum);
    if (threadIdx.x == 0) *error = sum;
}

// Adds up over a tile's rows what the threads of its column j have, into the row of these tiles.
__device__ static void sum_columns(float mine, float *sums, int m0, int j, int width)
{
    __shared__ float share[WARPS][PRODUCT_COLUMNS];
    int warp = threadIdx.x / 32, column = threadIdx.x % 32;
    share[warp][column] = mine;
    __syncthreads();
    if (warp || j >= width) return;
    float sum = 0.0f;
    for (int i = 0; i < WARPS; i++) sum += share[i][column];
    sums[m0 / PRODUCT_ROWS * width + j] = sum;
}

// The sum of a column over all rows of tiles.
__device__ static __forceinline__ float sum_of_tiles(
    const float *sums, int tiles, int width, int at)
{
    float sum = 0.0f;
    for (int tile = 0; tile < tiles; tile++) sum += sums[tile * width + at];
    return sum;
}

// What the data have in this thread's column of a tile. Asked for before the product, so that it is
// there afterwards.
__device__ static __forceinline__ void load_given(
    float given[ROWS_EACH], const struct Rows &data, int m0, int n0)
{
    int row = m0 + threadIdx.x / 32, j = n0 + threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++, row += WARPS)
        given[e] = row < data.count && j < data.width ? row_of(data, row)[j] : 0.0f;
}
