// Whole steps of contrastive divergence on tensor cores, in four launches: hidden states of the
// data, their reconstruction, its hidden means, and the parameters moved. Each is a product with
// what stands around it: rows are gathered as they are loaded, biases, means, states, errors and
// the sums of biases' gradients are made of the product where it is. Compiled behind kernels.cu,
// whose draws and units it uses, and products.cu, which has the products.

// ---------------------------------------------------------------- hidden states
// In a recorded graph the step and the epoch are so much further than the recorded ones, and rows
// of the data begin at now[2]. Outside of a recording now is null.
__device__ static struct Address address_of(
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    return {key0, key1, c0, c1 + (now ? now[0] : 0), c2 + (now ? now[1] : 0), c3};
}

// Number k of a block of draws. Not by an index, which would put the words into memory.
__device__ static __forceinline__ float number_of(const uint64 words[4], int k)
{
    uint64 word = k & 4 ? (k & 2 ? words[3] : words[2]) : (k & 2 ? words[1] : words[0]);
    return uniform_of(&word, k & 1);
}

// Means and states of binary units for n rows of x, those of some numbers or one after another. A
// thread makes some units of an example side by side, for which one block of draws or two are needed.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) draw_hidden(
    const float *x, long long ldx, long long last, const long long *numbers,
    const float *weight, long long ldw, const float *bias,
    float *means, long long ldm, float *states, long long lds,
    long long n, long long visible, long long hidden,
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    int width = (int)hidden, m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    struct Rows data = gathered(x, ldx, last, numbers, x, ldx, (int)n, (int)n, (int)visible, now);
    struct Rows weights = rows_of(weight, ldw, (int)visible, width);
    int row = threadIdx.x / (32 / Few::EACH), column = threadIdx.x % (32 / Few::EACH) * Few::EACH;
    int i = m0 + row, first = n0 + column;
    float *parts = product<Few>({data, true, m0}, {weights, false, n0}, (int)visible, [&] {
        if (i >= n || first >= width) return;
        struct Address at = address_of(key0, key1, c0, c1, c2, c3, now);
        uint32 number = (uint32)i * (uint32)width + (uint32)first;
        uint64 own[4], next[4] = {};
        philox(at, number / 8, own);
        if (number % 8 + Few::EACH > 8) philox(at, number / 8 + 1, next);
#pragma unroll
        for (int e = 0; e < Few::EACH; e++) {
            int k = number % 8 + e;
            kept(e) = k < 8 ? number_of(own, k) : number_of(next, k - 8);
        }
    });
#pragma unroll
    for (int e = 0; e < Few::EACH; e++) {
        if (i >= n || first + e >= width) continue;
        float mean = sigmoid(sum_at<Few>(parts, row, column + e) + bias[first + e]);
        means[i * ldm + first + e] = mean;
        states[i * lds + first + e] = kept(e) < mean ? 1.0f : 0.0f;
    }
}

// ---------------------------------------------------------------- differences
// Means of units times `sign`, and their differences from what the data have there: of each column
// of the tile the sum, into a row of `sums` for each row of tiles, and of all the squared error.
__device__ static __forceinline__ void compare(
    const float *parts, const float *bias, long long units,
    float *means, long long ldm, float sign, int m0, int n0, int count, int width,
    float *sums, double *errors)
{
    int warp = threadIdx.x / 32, column = threadIdx.x % 32, j = n0 + column;
    float sum = 0.0f;
    double error = 0.0;
#pragma unroll
    for (int e = 0; e < Few::EACH; e++) {
        int row = warp + WARPS * e;
        if (m0 + row >= count || j >= width) continue;
        float mean = mean_of(sum_at<Few>(parts, row, column) + bias[j], units);
        float difference = kept(e) - mean;
        means[(m0 + row) * ldm + j] = sign * mean;
        sum += difference;
        error += (double)difference * difference;
    }
    sum_columns(sum, sums, m0, j, width);
    if (!errors) return;
    error = total_of_block(error);
    if (threadIdx.x == 0) errors[blockIdx.x] = error;
}

// Visible means for n rows of hidden states, and their differences from the rows of x.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) reconstruct(
    const float *states, long long lds, const float *weight, long long ldw, const float *bias,
    const float *x, long long ldx, long long last, const long long *numbers,
    float *means, long long ldm, float *sums, double *errors,
    long long n, long long visible, long long hidden, long long units, const uint64 *now)
{
    int width = (int)visible, m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    struct Rows h = rows_of(states, lds, (int)n, (int)hidden);
    struct Rows weights = rows_of(weight, ldw, width, (int)hidden);
    struct Rows data = gathered(x, ldx, last, numbers, x, ldx, (int)n, (int)n, width, now);
    float *parts = product<Few>({h, true, m0}, {weights, true, n0}, (int)hidden, [&] {
        keep_given(data, m0, n0);
    });
    compare(parts, bias, units, means, ldm, 1.0f, m0, n0, (int)n, width, sums, errors);
}

// Hidden means for n rows of v1, and their differences from those of the data, in the rows of h0.
// They have the other sign in h1: then one product over both phases is the gradient.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) find_hidden(
    const float *v1, long long ldv, const float *weight, long long ldw, const float *bias,
    const float *h0, long long ldh, float *h1, float *sums,
    long long n, long long visible, long long hidden)
{
    int width = (int)hidden, m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    struct Rows v = rows_of(v1, ldv, (int)n, (int)visible);
    struct Rows weights = rows_of(weight, ldw, (int)visible, width);
    float *parts = product<Few>({v, true, m0}, {weights, false, n0}, (int)visible, [&] {
        keep_given(rows_of(h0, ldh, (int)n, width), m0, n0);
    });
    compare(
        parts, bias, UNITS_BERNOULLI, h1, ldh, -1.0f, m0, n0, (int)n, width, sums, 0);
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
    float sum = sum_of_tiles(sums, tiles, width, at);
    move_along(bias + at, velocity + at, sum, pace, false);
}

// One step of all parameters: the weights along [v0; v1]^T h, where v0 are rows of x and h has the
// means of both phases, the second with the other sign. The first block adds up the error too.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) move_parameters(
    const float *x, long long ldx, long long last, const long long *numbers,
    const float *v1, long long ldv, const float *h, long long ldh,
    float *weight, long long ldw, float *of_weight, long long ldo,
    float *visible_bias, float *of_visible, const float *visible_sums,
    float *hidden_bias, float *of_hidden, const float *hidden_sums,
    const double *errors, double *error, long long n, long long visible, long long hidden,
    float scale, float momentum, float rate, float decay, float l1, const uint64 *now)
{
    int width = (int)hidden, both = 2 * (int)n;
    int m0 = first_row<Many>(width), n0 = first_column<Many>(width);
    struct Pace pace = {scale, momentum, rate, decay, l1};
    struct Rows v = gathered(
        x, ldx, last, numbers, v1, ldv, (int)n, both, (int)visible, now);
    struct Rows means = rows_of(h, ldh, both, width);
    float *parts = product<Many>({v, false, m0}, {means, false, n0}, both, [] {});
    int column = threadIdx.x % Many::COLUMNS, j = n0 + column, first = threadIdx.x / Many::COLUMNS;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        float p[Many::EACH / 2], speed[Many::EACH / 2];  // all loads go before the first store
        int row = first + part * Many::ROWS / 2;
#pragma unroll
        for (int e = 0; e < Many::EACH / 2; e++) {
            long long i = m0 + row + Many::APART * e;
            bool is_inside = i < visible && j < width;
            p[e] = is_inside ? weight[i * ldw + j] : 0.0f;
            speed[e] = is_inside ? of_weight[i * ldo + j] : 0.0f;
        }
#pragma unroll
        for (int e = 0; e < Many::EACH / 2; e++) {
            long long i = m0 + row + Many::APART * e;
            if (i >= visible || j >= width) continue;
            float sum = sum_at<Many>(parts, row + Many::APART * e, column);
            move_along(&p[e], &speed[e], sum, pace, true);
            weight[i * ldw + j] = p[e];
            of_weight[i * ldo + j] = speed[e];
        }
    }
    int tiles = ((int)n + Few::ROWS - 1) / Few::ROWS;
    if (n0 == 0 && threadIdx.x < Many::ROWS)
        move_bias(visible_bias, of_visible, visible_sums, tiles, (int)visible,
                  m0 + threadIdx.x, pace);
    if (m0 == 0 && threadIdx.x < Many::COLUMNS)
        move_bias(hidden_bias, of_hidden, hidden_sums, tiles, width, n0 + threadIdx.x, pace);
    if (blockIdx.x) return;
    add_errors(errors, tiles * (((int)visible + Few::COLUMNS - 1) / Few::COLUMNS), error);
}
