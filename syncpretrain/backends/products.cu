// Products of matrices on tensor cores, in tiles, for kernels that make whole steps with them: see
// fused.cu. For compute capability 8.0 and later; compiled behind kernels.cu.
//
// Tensor cores take factors of 11 bits (TF32). How those of a product are made of floats is
// PRECISION, which Python defines ahead of the source:
// - PRECISION_FLOAT32: a float is split into two of 11 bits, and three of the four products of the
//   parts are added up in float32. Only the smallest is left out, which is below a float's last bit.
// - PRECISION_TF32: it is rounded to 11 bits, and there is one product.
// - PRECISION_BFLOAT16: it is rounded to the 8 bits of a bfloat16, of which TF32 loses none, and there
//   is one product.
// Tensor cores round sums toward zero, so that a long one loses up to a last bit of a float with
// each product, always to the same side. PRECISION_FLOAT32 therefore adds up 8 terms there and those
// sums outside, where they are rounded to nearest; products with a low part are so small that whole
// sums of them lose nothing. The others leave whole sums to tensor cores: for
// 784 terms that makes 5e-7, or 1e-6 if all have one sign, beside 3e-4 and 2e-5 by rounded factors.
// Every sum has an order of its own, the same every time.
//
// A block makes a tile of a product, of one of two shapes (see Shape). Its warps have 32 x 32 of it
// each, and a part of the terms that are loaded together: so few loads and splits are needed for each
// product of tensor cores. Loads are STAGES - 1 tiles of terms ahead of the products. The tiles of a
// launch are numbered row by row of tiles.

#define PRECISION_FLOAT32 0
#define PRECISION_TF32 1
#define PRECISION_BFLOAT16 2
#ifndef PRECISION
#error "no PRECISION is defined"
#endif

#define FUSED_THREADS 256
#define WARPS (FUSED_THREADS / 32)
#define STAGES 3  // of loads: one is multiplied, the others are on the way
#define TILE_FLOATS 15360  // of shared memory: what the larger shape needs

// The shape of a tile: its rows and columns, in how many slices each sum is made, and the terms of
// the sums that are loaded together.
template <int ROWS_, int COLUMNS_, int SLICES_, int DEPTH_>
struct Shape {
    static const int ROWS = ROWS_, COLUMNS = COLUMNS_, SLICES = SLICES_, DEPTH = DEPTH_;
    static const int STEPS = DEPTH / (8 * SLICES);           // of 8 terms, of a warp
    static const int EACH = ROWS * COLUMNS / FUSED_THREADS;  // numbers of a tile, by a thread
    static const int APART = FUSED_THREADS / COLUMNS;        // their rows
    static const int SUM_ROW = COLUMNS + 1;                  // floats from row to row of its sums
    static const int OF_A = DEPTH * (ROWS + 8), STAGE = OF_A + DEPTH * (COLUMNS + 8);
    static_assert(ROWS / 32 * (COLUMNS / 32) * SLICES == WARPS, "a warp for each 32 x 32");
    static_assert(STAGES * STAGE <= TILE_FLOATS, "loads have room");
    static_assert(SLICES * ROWS * SUM_ROW <= TILE_FLOATS, "sums have room");
};

// For a minibatch of some 100 rows: small tiles, so that most multiprocessors have one, and long
// sums, so that warps can share them.
typedef Shape<32, 32, 8, 64> Few;
// For parameters: many tiles, and sums as long as the minibatch.
typedef Shape<64, 64, 2, 32> Many;

// ---------------------------------------------------------------- tensor cores
#ifdef __CUDACC__  // what stands in for CUDA in the tests has its own
extern __shared__ __align__(16) float tiles[];  // more than a kernel may declare

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

// Waits for all groups of this thread but the NEWEST.
template <int NEWEST>
__device__ static __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(NEWEST) : "memory");
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

// The bits of x rounded to the nearest bfloat16, of two as near to the even one; a NaN stays one. It is
// one instruction and leaves numbers below 2^-126. With nearest_bfloat16 of kernels.cu, which branches,
// a step of 784-1000 took 152 microseconds on an H200, and 63 in TF32.
__device__ static __forceinline__ uint32 bfloat16_of(float x)
{
    uint32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
    return bits;
}

// x rounded to TF32, of two as near to the larger one; a NaN stays one.
__device__ static __forceinline__ uint32 nearest_tf32(float x)
{
    uint32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
#else
static __align__(16) float tiles[TILE_FLOATS];
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
        *high = bfloat16_of(x);
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

// A factor of a product: rows that are outputs with their terms side by side, or the other way.
struct Factor {
    struct Rows rows;
    bool is_fast;  // the terms are side by side
    int first;     // output of this tile
};

// What a thread copies of a factor's tiles: four numbers side by side, of MOST_PIECES rows. All that
// stays the same from tile to tile is found once, before the sums begin.
#define MOST_PIECES 2
struct Pieces {
    const float *from[MOST_PIECES];  // in the next tile
    int left[MOST_PIECES];           // numbers of the row from there on; below 1 there are none
};

// How the tiles of a factor lie in shared memory. Rows are so far apart that no two threads of a warp
// want the same bank.
template <int OUTPUTS, int DEPTH>
struct Tiles {
    static const int FAST = DEPTH + 4, SLOW = OUTPUTS + 8;
    static const int PIECES = OUTPUTS * DEPTH / 4 / FUSED_THREADS;
    static_assert(PIECES <= MOST_PIECES, "pieces have room");

    __device__ static __forceinline__ float at(
        const float *tile, const struct Factor &of, int output, int term)
    {
        return of.is_fast ? tile[output * FAST + term] : tile[term * SLOW + output];
    }

    // Numbers of a row of a tile.
    __device__ static __forceinline__ int width(const struct Factor &of)
    {
        return of.is_fast ? DEPTH : OUTPUTS;
    }

    // Where in a tile a thread's first piece is.
    __device__ static __forceinline__ int row(const struct Factor &of)
    {
        return threadIdx.x / (width(of) / 4);
    }

    __device__ static __forceinline__ int column(const struct Factor &of)
    {
        return threadIdx.x % (width(of) / 4) * 4;
    }

    // Rows from piece to piece of a thread.
    __device__ static __forceinline__ int step(const struct Factor &of)
    {
        return FUSED_THREADS / (width(of) / 4);
    }

    __device__ static __forceinline__ struct Pieces pieces(const struct Factor &of)
    {
        const struct Rows &rows = of.rows;
        struct Pieces found;
        int at = column(of) + (of.is_fast ? 0 : of.first);
#pragma unroll
        for (int e = 0; e < PIECES; e++) {
            int i = row(of) + step(of) * e + (of.is_fast ? of.first : 0);
            // Where there is no such row, any place: it is never read.
            found.from[e] = (i < rows.count ? row_of(rows, i) : rows.above) + at;
            found.left[e] = of.is_fast && i >= rows.count ? 0 : rows.width - at;
        }
        return found;
    }

    // Copies the pieces of a tile with the terms from `term` on, and moves on to the next one.
    __device__ static __forceinline__ void load(
        float *tile, struct Pieces *pieces, const struct Factor &of, int term, bool is_wide)
    {
        const struct Rows &rows = of.rows;
        float *to = tile + row(of) * (of.is_fast ? FAST : SLOW) + column(of);
#pragma unroll
        for (int e = 0; e < PIECES; e++) {
            if (of.is_fast) {
                copy_piece(to + step(of) * e * FAST, pieces->from[e], pieces->left[e], is_wide);
                pieces->from[e] += DEPTH;
                pieces->left[e] -= DEPTH;
                continue;
            }
            int i = term + row(of) + step(of) * e;
            int left = i < rows.count ? pieces->left[e] : 0;
            copy_piece(to + step(of) * e * SLOW, pieces->from[e], left, is_wide);
            if (rows.is_plain)
                pieces->from[e] += DEPTH * rows.step_above;
            else if (i + DEPTH < rows.count)  // a tile ahead: no copy waits for its number
                pieces->from[e] = row_of(rows, i + DEPTH) + of.first + column(of);
        }
    }
};

// A warp's sums of 32 x 32 outputs: of 16 rows, 8 columns, and four numbers of each thread.
struct Sums {
    float whole[2][4][4];
    float small[2][4][4];  // of products with a low part, where there is one
};

// Adds 8 terms from `term` on of a tile, for this warp's outputs from `row` and `column` on.
template <typename S>
__device__ static __forceinline__ void add_terms(
    struct Sums *sums, const float *tile, const struct Factor &a, const struct Factor &b,
    int row, int column, int term)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32 a_high[2][4], a_low[2][4], b_high[4][2], b_low[4][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int output = row + 16 * i + 8 * (e & 1) + g;
            float x = Tiles<S::ROWS, S::DEPTH>::at(tile, a, output, term + 4 * (e >> 1) + t);
            split(x, &a_high[i][e], &a_low[i][e]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int output = column + 8 * j + g;
            float x = Tiles<S::COLUMNS, S::DEPTH>::at(tile + S::OF_A, b, output, term + 4 * e + t);
            split(x, &b_high[j][e], &b_low[j][e]);
        }
    }
    // No two products in a row are of the same sum: the second would wait for the first.
#pragma unroll
    for (int k = 0; k < 8 * HAS_LOW; k++)
        multiply_add(sums->small[k / 4][k % 4], a_low[k / 4], b_high[k % 4]);
#pragma unroll
    for (int k = 0; k < 8 * HAS_LOW; k++)
        multiply_add(sums->small[k / 4][k % 4], a_high[k / 4], b_low[k % 4]);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (!HAS_LOW) {
            multiply_add(sums->whole[k / 4][k % 4], a_high[k / 4], b_high[k % 4]);
            continue;
        }
        float of_few[4] = {};  // sums of 8 terms, before tensor cores lose more of them
        multiply_add(of_few, a_high[k / 4], b_high[k % 4]);
#pragma unroll
        for (int e = 0; e < 4; e++) sums->whole[k / 4][k % 4][e] += of_few[e];
    }
}

// Adds up this warp's sums of a tile. `meanwhile` is done while the first loads are on the way.
template <typename S, typename Work>
__device__ static __forceinline__ void add_up(
    struct Sums *sums, const struct Factor &a, const struct Factor &b, int terms, bool is_wide,
    const Work &meanwhile)
{
    typedef Tiles<S::ROWS, S::DEPTH> OfA;
    typedef Tiles<S::COLUMNS, S::DEPTH> OfB;
    struct Pieces of_a = OfA::pieces(a), of_b = OfB::pieces(b);
    auto load = [&](int stage, int term) {
        if (term < terms) {
            float *to = tiles + stage * S::STAGE;
            OfA::load(to, &of_a, a, term, is_wide);
            OfB::load(to + S::OF_A, &of_b, b, term, is_wide);
        }
        end_copies();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) load(stage, stage * S::DEPTH);
    meanwhile();
    int warp = threadIdx.x / 32, outputs = warp / S::SLICES, own = warp % S::SLICES * 8;
    int row = outputs / (S::COLUMNS / 32) * 32, column = outputs % (S::COLUMNS / 32) * 32;
    int stage = 0, free = STAGES - 1;
    for (int term = 0; term < terms; term += S::DEPTH) {
        await_copies<STAGES - 2>();
        __syncthreads();  // this tile is there, and nobody multiplies the one before
        load(free, term + (STAGES - 1) * S::DEPTH);
        __syncwarp();  // tensor cores want all threads of a warp at once
        const float *tile = tiles + stage * S::STAGE;
#pragma unroll
        for (int step = 0; step < S::STEPS; step++) {
            int first = own + 8 * S::SLICES * step;
            if (term + first < terms) add_terms<S>(sums, tile, a, b, row, column, first);
        }
        free = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
}

// The tile of a product: a returned array of SLICES parts, each of rows of SUM_ROW floats.
template <typename S, typename Work>
__device__ static __forceinline__ float *product(
    const struct Factor &a, const struct Factor &b, int terms, const Work &meanwhile)
{
    struct Sums sums = {};
    if (a.rows.is_wide && b.rows.is_wide)
        add_up<S>(&sums, a, b, terms, true, meanwhile);
    else
        add_up<S>(&sums, a, b, terms, false, meanwhile);
    __syncthreads();  // nobody multiplies any more
    int warp = threadIdx.x / 32, outputs = warp / S::SLICES;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int row = outputs / (S::COLUMNS / 32) * 32 + g, column = outputs % (S::COLUMNS / 32) * 32 + 2 * t;
    float *part = tiles + (warp % S::SLICES * S::ROWS + row) * S::SUM_ROW + column;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                part[(16 * i + 8 * (e >> 1)) * S::SUM_ROW + 8 * j + (e & 1)] =
                    sums.whole[i][j][e] + sums.small[i][j][e];
        }
    }
    __syncthreads();
    return tiles;
}

template <typename S>
__device__ static __forceinline__ float sum_at(const float *parts, int row, int column)
{
    const float *part = parts + row * S::SUM_ROW + column;
    float sum = part[0];
#pragma unroll
    for (int slice = 1; slice < S::SLICES; slice++) sum += part[slice * S::ROWS * S::SUM_ROW];
    return sum;
}

// Where a tile begins, of a product with so many columns.
template <typename S>
__device__ static __forceinline__ int row_of_tile(int tile, int columns)
{
    return tile / ((columns + S::COLUMNS - 1) / S::COLUMNS) * S::ROWS;
}

template <typename S>
__device__ static __forceinline__ int column_of_tile(int tile, int columns)
{
    return tile % ((columns + S::COLUMNS - 1) / S::COLUMNS) * S::COLUMNS;
}

template <typename S>
__device__ static __forceinline__ int first_row(int columns)
{
    return row_of_tile<S>(blockIdx.x, columns);
}

template <typename S>
__device__ static __forceinline__ int first_column(int columns)
{
    return column_of_tile<S>(blockIdx.x, columns);
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
    __shared__ float share[WARPS][Few::COLUMNS];
    int warp = threadIdx.x / 32, column = threadIdx.x % 32;
    share[warp][column] = mine;
    __syncthreads();
    if (warp || j >= width) return;
    float sum = 0.0f;
    for (int i = 0; i < WARPS; i++) sum += share[i][column];
    sums[m0 / Few::ROWS * width + j] = sum;
}

// The sum of a column over all rows of tiles.
__device__ static __forceinline__ float sum_of_tiles(
    const float *sums, int tiles, int width, int at)
{
    float sum = 0.0f;
    for (int tile = 0; tile < tiles; tile++) sum += sums[tile * width + at];
    return sum;
}

// A number that a thread keeps while a product is made. It lies in shared memory: in registers
// these numbers would push sums out to memory that is far away.
__device__ static __forceinline__ float &kept(int e)
{
    __shared__ float numbers[Few::EACH][FUSED_THREADS];
    return numbers[e][threadIdx.x];
}

// Keeps what the data have in this thread's column of a tile.
__device__ static __forceinline__ void keep_given(const struct Rows &data, int m0, int n0)
{
    int row = m0 + threadIdx.x / Few::COLUMNS, j = n0 + threadIdx.x % Few::COLUMNS;
#pragma unroll
    for (int e = 0; e < Few::EACH; e++, row += WARPS)
        kept(e) = row < data.count && j < data.width ? row_of(data, row)[j] : 0.0f;
}
