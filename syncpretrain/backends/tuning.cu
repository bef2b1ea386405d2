// Whole steps of fine-tuning a chain of dense layers: a launch for each layer on the way up, one for
// each but the first on the way down, and one in which all parameters move. Each is a product on
// tensor cores with what stands around it: biases and means, the derivative of units, the sums of
// biases' gradients, errors, and the optimizer. Gradients are not kept. Compiled behind kernels.cu,
// whose units and steps it uses, and products.cu, which has the products.
//
// The weights of a layer, of shape (inputs, outputs), and its bias lie one after the other in a flat
// vector of all parameters, and the moments of the optimizer alike.

// ---------------------------------------------------------------- the way up
// What units of a layer read times its weights: a tile of their inputs without bias.
template <typename Work>
__device__ static __forceinline__ float *inputs_of(
    const float *read, long long ldr, const float *weight, int n, int inputs, int width,
    const Work &meanwhile)
{
    int m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    struct Rows rows = rows_of(read, ldr, n, inputs);
    struct Rows weights = rows_of(weight, width, inputs, width);
    return product<Few>({rows, true, m0}, {weights, false, n0}, inputs, meanwhile);
}

// The means of a layer's units.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) forward_layer(
    const float *read, long long ldr, const float *weight, const float *bias, float *out,
    long long n, long long inputs, long long outputs, long long units)
{
    int width = (int)outputs, m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    int warp = threadIdx.x / 32, column = threadIdx.x % 32, j = n0 + column;
    float *parts = inputs_of(read, ldr, weight, (int)n, (int)inputs, width, [] {});
#pragma unroll
    for (int e = 0; e < Few::EACH; e++) {
        int row = warp + WARPS * e;
        if (m0 + row >= n || j >= width) continue;
        out[(m0 + row) * outputs + j] = mean_of(sum_at<Few>(parts, row, column) + bias[j], units);
    }
}

// The last layer: delta of its units for the rows of the target, y - target times `scale`, and times
// the derivative if the loss is the squared error; its sums, and the squared error of the tile.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) forward_output(
    const float *read, long long ldr, const float *weight, const float *bias,
    const float *target, long long ldt, float *delta, float *sums, double *errors,
    long long n, long long inputs, long long outputs, long long units, long long squared,
    float scale)
{
    int width = (int)outputs, m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    int warp = threadIdx.x / 32, column = threadIdx.x % 32, j = n0 + column;
    float *parts = inputs_of(read, ldr, weight, (int)n, (int)inputs, width, [&] {
        keep_given(rows_of(target, ldt, (int)n, width), m0, n0);
    });
    float sum = 0.0f;
    double error = 0.0;
#pragma unroll
    for (int e = 0; e < Few::EACH; e++) {
        int row = warp + WARPS * e;
        if (m0 + row >= n || j >= width) continue;
        float y = mean_of(sum_at<Few>(parts, row, column) + bias[j], units);
        float difference = y - kept(e), own = difference * scale;
        if (squared) own = times_slope(own, y, units);
        delta[(m0 + row) * outputs + j] = own;
        sum += own;
        error += (double)difference * difference;
    }
    sum_columns(sum, sums, m0, j, width);
    error = total_of_block(error);
    if (threadIdx.x == 0) errors[blockIdx.x] = error;
}

// ---------------------------------------------------------------- the way down
// delta of the units below a layer, whose means are `a`, and its sums.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) delta_of_layer(
    const float *delta, const float *weight, const float *a, float *below, float *sums,
    long long n, long long inputs, long long outputs, long long units)
{
    int width = (int)inputs, m0 = first_row<Few>(width), n0 = first_column<Few>(width);
    struct Rows deltas = rows_of(delta, outputs, (int)n, (int)outputs);
    struct Rows weights = rows_of(weight, outputs, width, (int)outputs);
    float *parts = product<Few>({deltas, true, m0}, {weights, true, n0}, (int)outputs, [&] {
        keep_given(rows_of(a, inputs, (int)n, width), m0, n0);
    });
    int warp = threadIdx.x / 32, column = threadIdx.x % 32, j = n0 + column;
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < Few::EACH; e++) {
        int row = warp + WARPS * e;
        if (m0 + row >= n || j >= width) continue;
        float own = times_slope(sum_at<Few>(parts, row, column), kept(e), units);
        below[(m0 + row) * inputs + j] = own;
        sum += own;
    }
    sum_columns(sum, sums, m0, j, width);
}

// ---------------------------------------------------------------- parameters
// How parameters move: by Adam, or by gradient descent, whose momentum and rate are in the places of
// beta1 and size. Weights shrink before.
struct Optimizer {
    bool is_adam, nesterov, has_first;
    float beta1, beta2, size, floor, shrink;
};

__device__ static __forceinline__ void move_by(
    float *p, float g, float *first, float *second, const struct Optimizer &by)
{
    if (by.is_adam)
        adapt(p, g, first, second, by.beta1, by.beta2, by.size, by.floor);
    else
        descend(p, g, first, by.size, by.beta1, by.nesterov);
}

// The numbers of a layer in the table of a network: where what it reads and its delta lie (0 for the
// rows of x), its sizes, where its weights begin in the flat vectors, its sums and its first tile.
#define READ 0
#define DELTA 1
#define INPUTS 2
#define OUTPUTS 3
#define START 4
#define SUMS 5
#define FIRST_TILE 6
#define TABLE_ROW 7

// One step of all parameters along the gradients of all layers. The first block adds up the errors
// of the last layer's tiles too, where there are any.
extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2) move_network(
    const float *x, long long ldx, const long long *table, long long layers, long long n,
    float *parameters, float *first, float *second, const double *errors, long long count,
    double *error, long long is_adam, long long nesterov, float beta1, float beta2, float size,
    float floor, float shrink, const float *numbers)
{
    if (numbers) {
        size = numbers[0];
        shrink = numbers[1];
        if (is_adam) floor = numbers[2];
    }
    bool has_first = is_adam || beta1 != 0.0f;
    struct Optimizer by = {
        is_adam != 0, nesterov != 0, has_first, beta1, beta2, size, floor, shrink};
    const long long *layer = table;
    for (int i = 1; i < layers; i++)
        if (table[i * TABLE_ROW + FIRST_TILE] <= blockIdx.x) layer = table + i * TABLE_ROW;
    int inputs = (int)layer[INPUTS], width = (int)layer[OUTPUTS];
    int tile = (int)(blockIdx.x - layer[FIRST_TILE]);
    int m0 = row_of_tile<Many>(tile, width), n0 = column_of_tile<Many>(tile, width);
    const float *read = layer[READ] ? (const float *)layer[READ] : x;
    struct Rows reads = rows_of(read, layer[READ] ? inputs : ldx, (int)n, inputs);
    struct Rows deltas = rows_of((const float *)layer[DELTA], width, (int)n, width);
    float *parts = product<Many>({reads, false, m0}, {deltas, false, n0}, (int)n, [] {});
    int column = threadIdx.x % Many::COLUMNS, j = n0 + column, row = threadIdx.x / Many::COLUMNS;
    long long start = layer[START];
#pragma unroll
    for (int part = 0; part < 4; part++) {
        float p[Many::EACH / 4], one[Many::EACH / 4], two[Many::EACH / 4];
        int from = row + part * Many::ROWS / 4;
#pragma unroll
        for (int e = 0; e < Many::EACH / 4; e++) {  // all loads go before the first store
            long long i = m0 + from + Many::APART * e, at = start + i * width + j;
            bool is_inside = i < inputs && j < width;
            p[e] = is_inside ? parameters[at] : 0.0f;
            one[e] = is_inside && by.has_first ? first[at] : 0.0f;
            two[e] = is_inside && by.is_adam ? second[at] : 0.0f;
        }
#pragma unroll
        for (int e = 0; e < Many::EACH / 4; e++) {
            long long i = m0 + from + Many::APART * e, at = start + i * width + j;
            if (i >= inputs || j >= width) continue;
            p[e] = p[e] * by.shrink;
            float sum = sum_at<Many>(parts, from + Many::APART * e, column);
            move_by(&p[e], sum, &one[e], &two[e], by);
            parameters[at] = p[e];
            if (by.has_first) first[at] = one[e];
            if (by.is_adam) second[at] = two[e];
        }
    }
    if (m0 == 0 && threadIdx.x < Many::COLUMNS && j < width) {
        int tiles = ((int)n + Few::ROWS - 1) / Few::ROWS;
        float sum = sum_of_tiles((const float *)layer[SUMS], tiles, width, j);
        long long at = start + (long long)inputs * width + j;
        float p = parameters[at], one = by.has_first ? first[at] : 0.0f;
        float two = by.is_adam ? second[at] : 0.0f;
        move_by(&p, sum, &one, &two, by);
        parameters[at] = p;
        if (by.has_first) first[at] = one;
        if (by.is_adam) second[at] = two;
    }
    if (blockIdx.x == 0 && count) add_errors(errors, (int)count, error);
}
