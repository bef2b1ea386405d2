// Whole steps of contrastive divergence on tensor cores, in four launches: hidden states of the
// data, their reconstruction, its hidden means, and the parameters moved. Each is a product with
// what stands around it: rows are gathered as they are loaded, biases, means, states, errors and
// the sums of biases' gradients are made of the product where it is. For compute capability 8.0 and
// later; compiled behind kernels.cu, whose draws and units it uses.
//
// Tensor cores take factors of 11 bits (TF32). A float32 is split into two of these, and three of
// the four products of the parts are added up in float32: only the smallest is left out, which is
// below the last bit of a float32. Every sum has an order of its own, the same every time.
//
// A block of 256 threads makes a tile of 64 x 32 of a product. Its 8 warps have 32 rows each, and
// of every 32 terms that are loaded, 8; the four parts of each sum are added at the end. Loads are
// two steps ahead of the products. The tiles of a launch are numbered row by row of tiles.

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
#endif

#define TF32_BITS 0xffffe000u

// x is high and low, both TF32; low lacks at most the last bit. A NaN is one in low, and so is what
// overflows.
__device__ static __forceinline__ void split(float x, uint32 *high, uint32 *low)
{
    *high = (__float_as_uint(x) + 0x1000u) & TF32_BITS;
    *low = __float_as_uint(x - __uint_as_float(*high)) & TF32_BITS;
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
};

__device__ static __forceinline__ bool begins_wide(const float *first, long long step)
{
    return ((uint64)first & 15) == 0 && (step & 3) == 0;
}

// Rows one after another.
__device__ static __forceinline__ struct Rows rows_of(
    const float *first, long long step, int count, int width)
{
    return {first, first, step, step, 0, 0, count, count, width, begins_wide(first, step)};
}

// Rows of the data by their numbers, or one after another, then those below. What is gathered from
// is elsewhere each time that a recorded graph is launched: see `address_of`.
__device__ static __forceinline__ struct Rows gathered(
    const float *x, long long ldx, long long last, const long long *numbers,
    const float *below, long long step, int split, int count, int width, const uint64 *now)
{
    if (numbers && now && now[2]) x = (const float *)now[2];
    bool is_wide = begins_wide(x, ldx) && begins_wide(below, step);
    return {x, below, ldx, step, numbers, last, split, count, width, is_wide};
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

// Loads `many` rows of 4 `fours` numbers from (row, column) on; zeros where there are none.
__device__ static __forceinline__ void load_rows(
    float *to, int step, int many, int fours, const struct Rows &rows, int row, int column)
{
    for (int piece = threadIdx.x; piece < many * fours; piece += FUSED_THREADS) {
        int i = row + piece / fours, j = column + piece % fours * 4, left = rows.width - j;
        if (i >= rows.count || left < 0) left = 0;
        const float *from = left ? row_of(rows, i) + j : rows.above;
        float *place = to + piece / fours * step + piece % fours * 4;
        if (rows.is_wide) {
            copy_four(place, from, left < 4 ? 4 * left : 16);
        } else {
            for (int e = 0; e < 4; e++)
                copy_one(place + e, e < left ? from + e : rows.above, e < left ? 4 : 0);
        }
    }
}

// ---------------------------------------------------------------- products
// A factor of a product: rows that are outputs with their terms side by side, or the other way.
struct Factor {
    struct Rows rows;
    bool is_fast;  // the terms are side by side
    int outputs;   // of a tile
    int first;     // of this tile
};

__device__ static __forceinline__ void load_factor(float *to, const struct Factor &from, int term)
{
    if (from.is_fast)
        load_rows(to, FAST, from.outputs, DEPTH / 4, from.rows, from.first, term);
    else
        load_rows(to, from.outputs + 8, DEPTH, from.outputs / 4, from.rows, term, from.first);
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
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_add(c[i][j], a_low[i], b_high);
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_add(c[i][j], a_high[i], b_low);
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_add(c[i][j], a_high[i], b_high);
    }
}

// The tile of a product: a returned array of SLICES parts, each of rows of SUM_ROW floats.
__device__ static __forceinline__ float *product(
    const struct Factor &a, const struct Factor &b, int terms)
{
    __shared__ __align__(16) float memory[STAGES * STAGE_FLOATS];
    float c[2][4][4] = {};
    int tiles = (terms + DEPTH - 1) / DEPTH;
    for (int tile = 0; tile < STAGES - 1 + tiles; tile++) {
        int now = tile - (STAGES - 1);
        if (now >= 0) {
            await_copies();
            __syncthreads();  // this tile is there, and nobody multiplies the one before
        }
        if (tile < tiles) {
            float *to = memory + tile % STAGES * STAGE_FLOATS;
            load_factor(to, a, tile * DEPTH);
            load_factor(to + ROW_FLOATS, b, tile * DEPTH);
        }
        end_copies();
        __syncwarp();  // tensor cores want all threads of a warp at once
        if (now >= 0) add_products(c, memory + now % STAGES * STAGE_FLOATS, a, b);
    }
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

// Where this block's tile begins, of a product with so many columns.
__device__ static __forceinline__ int first_row(int columns)
{
    return blockIdx.x / ((columns + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS) * PRODUCT_ROWS;
}

__device__ static __forceinline__ int first_column(int columns)
{
    return blockIdx.x % ((columns + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS) * PRODUCT_COLUMNS;
}

// ---------------------------------------------------------------- hidden states
// In a recorded graph the step and the epoch are so much further than the recorded ones, and rows
// of the data begin at now[2]. Outside of a recording now is null.
__device__ static struct Address address_of(
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    return {key0, key1, c0, c1 + (now ? now[0] : 0), c2 + (now ? now[1] : 0), c3};
}

// Means and states of binary units for n rows of x, those of some numbers or one after another. A
// thread makes 8 units of an example, for which one block of draws or two are needed.
extern "C" __global__ void draw_hidden(
    const float *x, long long ldx, long long last, const long long *numbers,
    const float *weight, long long ldw, const float *bias,
    float *means, long long ldm, float *states, long long lds,
    long long n, long long visible, long long hidden,
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    int width = (int)hidden, m0 = first_row(width), n0 = first_column(width);
    struct Rows data = gathered(x, ldx, last, numbers, x, ldx, (int)n, (int)n, (int)visible, now);
    struct Rows weights = rows_of(weight, ldw, (int)visible, width);
    float *parts = product(
        {data, true, PRODUCT_ROWS, m0}, {weights, false, PRODUCT_COLUMNS, n0}, (int)visible);
    struct Address at = address_of(key0, key1, c0, c1, c2, c3, now);
    float *own_states = parts + PRODUCT_ROWS * SUM_ROW;  // in the place of sums that were added
    int row = threadIdx.x / 4, first = threadIdx.x % 4 * 8;
    uint64 words[4];
#pragma unroll 1
    for (int j = first; j < first + 8 && m0 + row < n && n0 + j < width; j++) {
        uint32 number = (uint32)(m0 + row) * (uint32)width + (uint32)(n0 + j), k = number % 8;
        if (j == first || k == 0) philox(at, number / 8, words);
        uint64 word = k & 4 ? (k & 2 ? words[3] : words[2]) : (k & 2 ? words[1] : words[0]);
        float mean = sigmoid(sum_at(parts, row, j) + bias[n0 + j]);
        parts[row * SUM_ROW + j] = mean;
        own_states[row * SUM_ROW + j] = uniform_of(&word, k & 1) < mean ? 1.0f : 0.0f;
    }
    __syncthreads();
    int column = threadIdx.x % 32;
    for (row = threadIdx.x / 32; row < PRODUCT_ROWS; row += WARPS) {
        if (m0 + row >= n || n0 + column >= width) continue;
        means[(m0 + row) * ldm + n0 + column] = parts[row * SUM_ROW + column];
        states[(m0 + row) * lds + n0 + column] = own_states[row * SUM_ROW + column];
    }
}

// ---------------------------------------------------------------- differences
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

// Means of units times `sign`, and their differences from what the data have there: of each column
// of the tile the sum, into a row of `sums` for each row of tiles, and of all the squared error.
__device__ static __forceinline__ void compare(
    const float *parts, const float given[ROWS_EACH], const float *bias, long long units,
    float *means, long long ldm, float sign, int m0, int n0, int count, int width,
    float *sums, double *errors)
{
    __shared__ float share[WARPS][PRODUCT_COLUMNS];
    int warp = threadIdx.x / 32, column = threadIdx.x % 32, j = n0 + column;
    float sum = 0.0f;
    double error = 0.0;
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++) {
        int row = warp + WARPS * e;
        if (m0 + row >= count || j >= width) continue;
        float mean = mean_of(sum_at(parts, row, column) + bias[j], units);
        float difference = given[e] - mean;
        means[(m0 + row) * ldm + j] = sign * mean;
        sum += difference;
        error += (double)difference * difference;
    }
    share[warp][column] = sum;
    __syncthreads();
    if (warp == 0 && j < width) {
        sum = 0.0f;
        for (int i = 0; i < WARPS; i++) sum += share[i][column];
        sums[m0 / PRODUCT_ROWS * width + j] = sum;
    }
    if (!errors) return;
    error = total_of_block(error);
    if (threadIdx.x == 0) errors[blockIdx.x] = error;
}

// Visible means for n rows of hidden states, and their differences from the rows of x.
extern "C" __global__ void reconstruct(
    const float *states, long long lds, const float *weight, long long ldw, const float *bias,
    const float *x, long long ldx, long long last, const long long *numbers,
    float *means, long long ldm, float *sums, double *errors,
    long long n, long long visible, long long hidden, long long units, const uint64 *now)
{
    int width = (int)visible, m0 = first_row(width), n0 = first_column(width);
    struct Rows h = rows_of(states, lds, (int)n, (int)hidden);
    struct Rows weights = rows_of(weight, ldw, width, (int)hidden);
    struct Rows data = gathered(x, ldx, last, numbers, x, ldx, (int)n, (int)n, width, now);
    float given[ROWS_EACH];
    load_given(given, data, m0, n0);
    float *parts = product(
        {h, true, PRODUCT_ROWS, m0}, {weights, true, PRODUCT_COLUMNS, n0}, (int)hidden);
    compare(parts, given, bias, units, means, ldm, 1.0f, m0, n0, (int)n, width, sums, errors);
}

// Hidden means for n rows of v1, and their differences from those of the data, in the rows of h0.
// They have the other sign in h1: then one product over both phases is the gradient.
extern "C" __global__ void find_hidden(
    const float *v1, long long ldv, const float *weight, long long ldw, const float *bias,
    const float *h0, long long ldh, float *h1, float *sums,
    long long n, long long visible, long long hidden)
{
    int width = (int)hidden, m0 = first_row(width), n0 = first_column(width);
    struct Rows v = rows_of(v1, ldv, (int)n, (int)visible);
    struct Rows weights = rows_of(weight, ldw, (int)visible, width);
    float given[ROWS_EACH];
    load_given(given, rows_of(h0, ldh, (int)n, width), m0, n0);
    float *parts = product(
        {v, true, PRODUCT_ROWS, m0}, {weights, false, PRODUCT_COLUMNS, n0}, (int)visible);
    compare(
        parts, given, bias, UNITS_BERNOULLI, h1, ldh, -1.0f, m0, n0, (int)n, width, sums, 0);
}

// ---------------------------------------------------------------- parameters
// How a parameter moves along its gradient; see momentum_step.
struct Pace {
    float scale, momentum, rate, decay, l1;
};

__device__ static __forceinline__ void move_along(
    float *parameter, float *velocity, float sum, const struct Pace &pace, bool decays)
{
    float p = *parameter, now = *velocity * pace.momentum + sum * pace.scale * pace.rate;
    if (decays && pace.decay != 0.0f) now = now - p * pace.decay;
    if (decays && pace.l1 != 0.0f)
        now = now - (p > 0.0f ? pace.l1 : p < 0.0f ? -pace.l1 : p * pace.l1);
    *velocity = now;
    *parameter = p + now;
}

// The bias at a place moves along the sums of the rows of tiles.
__device__ static __forceinline__ void move_bias(
    float *bias, float *velocity, const float *sums, int tiles, int width, int at,
    const struct Pace &pace)
{
    if (at >= width) return;
    float sum = 0.0f;
    for (int tile = 0; tile < tiles; tile++) sum += sums[tile * width + at];
    move_along(bias + at, velocity + at, sum, pace, false);
}

// One step of all parameters: the weights along [v0; v1]^T h, where v0 are rows of x and h has the
// means of both phases, the second with the other sign. The first block adds up the error too.
extern "C" __global__ void move_parameters(
    const float *x, long long ldx, long long last, const long long *numbers,
    const float *v1, long long ldv, const float *h, long long ldh,
    float *weight, long long ldw, float *of_weight, long long ldo,
    float *visible_bias, float *of_visible, const float *visible_sums,
    float *hidden_bias, float *of_hidden, const float *hidden_sums,
    const double *errors, double *error, long long n, long long visible, long long hidden,
    float scale, float momentum, float rate, float decay, float l1, const uint64 *now)
{
    int width = (int)hidden, both = 2 * (int)n, m0 = first_row(width), n0 = first_column(width);
    struct Pace pace = {scale, momentum, rate, decay, l1};
    struct Rows v = gathered(
        x, ldx, last, numbers, v1, ldv, (int)n, both, (int)visible, now);
    struct Rows means = rows_of(h, ldh, both, width);
    float *parts = product(
        {v, false, PRODUCT_ROWS, m0}, {means, false, PRODUCT_COLUMNS, n0}, both);
    int column = threadIdx.x % 32, j = n0 + column, first = threadIdx.x / 32;
    float p[ROWS_EACH], speed[ROWS_EACH];  // all loads go before the first store
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++) {
        long long i = m0 + first + WARPS * e;
        bool is_inside = i < visible && j < width;
        p[e] = is_inside ? weight[i * ldw + j] : 0.0f;
        speed[e] = is_inside ? of_weight[i * ldo + j] : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++) {
        long long i = m0 + first + WARPS * e;
        if (i >= visible || j >= width) continue;
        float sum = sum_at(parts, first + WARPS * e, column);
        move_along(&p[e], &speed[e], sum, pace, true);
        weight[i * ldw + j] = p[e];
        of_weight[i * ldo + j] = speed[e];
    }
    int tiles = ((int)n + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    if (n0 == 0 && threadIdx.x < PRODUCT_ROWS)
        move_bias(visible_bias, of_visible, visible_sums, tiles, (int)visible,
                  m0 + threadIdx.x, pace);
    if (m0 == 0 && threadIdx.x < PRODUCT_COLUMNS)
        move_bias(hidden_bias, of_hidden, hidden_sums, tiles, width, n0 + threadIdx.x, pace);
    if (blockIdx.x) return;
    int count = tiles * (((int)visible + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS);
    double sum = 0.0;
    for (int at = threadIdx.x; at < count; at += FUSED_THREADS) sum += errors[at];
    sum = total_of_block(sum);
    if (threadIdx.x == 0) *error = sum;
}
