// Convolutions on the GPU: what stands beside the products, which are cuBLAS'. The equations are
// those of syncpretrain/kernels/convolution.py, with its symbols; units and the rest that is used
// here is that of kernels.cu, behind which this is compiled.
//
// Images are rows of numbers, channel by channel where `first` is 1, else pixel by pixel. Columns
// and maps are arrays of their own, without gaps; a row of them is a position of an example. Each
// number is written by one thread, which adds up what it needs in a fixed order: no atomics, so
// the sums are the same every time.

__device__ static uint32 number_of(
    uint32 channel, uint32 y, uint32 x, long long channels, long long height, long long width,
    long long first)
{
    if (first) return (channel * (uint32)height + y) * (uint32)width + x;
    return (y * (uint32)width + x) * (uint32)channels + channel;
}

// A block of the maps of `own` filters, from number `begin` of all `filters` on: a number of their
// code, whose numbers lie by example, row, column and filter.
struct Block {
    uint32 example, column;  // where that number is among those of all filters
    uint64 first, wide;      // the first unit in the maps of an example, and the units of their rows
};

__device__ static Block block_of(
    uint32 at, uint32 rows, uint32 cols, uint32 pool, uint32 own, uint32 filters, uint32 begin)
{
    uint32 f = at % own, i = at / own;
    uint32 col = i % cols, row = i / cols % rows;
    Block block;
    block.example = i / cols / rows;
    block.column = (row * cols + col) * filters + begin + f;
    block.wide = (uint64)(cols * pool) * own;
    block.first = row * pool * block.wide + col * pool * own + f;
    return block;
}

// The k-th unit of a block, row by row.
__device__ static uint64 unit_of(Block block, uint32 k, uint32 pool, uint32 own)
{
    return block.first + k / pool * block.wide + k % pool * own;
}

// Columns of shape (n positions, size size channels): what the filters see at each position.
extern "C" __global__ void lower_images(
    const float *x, long long ldx, float *columns, long long n, long long channels,
    long long height, long long width, long long size, long long pad, long long first)
{
    uint32 rows = (uint32)(height + 2 * pad - size + 1), cols = (uint32)(width + 2 * pad - size + 1);
    uint32 side = (uint32)size, each = (uint32)channels;
    uint32 count = (uint32)(n * rows * cols * side * side * each);
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        uint32 channel = at % each, left = at / each;
        long long j = left % side, i = left / side % side;
        left = left / side / side;
        long long xx = left % cols + j - pad, yy = left / cols % rows + i - pad;
        const float *image = x + (uint64)(left / cols / rows) * (uint64)ldx;
        bool inside = yy >= 0 && yy < height && xx >= 0 && xx < width;
        columns[at] = inside ? image[number_of(
            channel, (uint32)yy, (uint32)xx, channels, height, width, first)] : 0.0f;
    }
}

// The transposed: each number of some channels of the images adds up what the filters say of it,
// place by place in the filter.
extern "C" __global__ void raise_images(
    const float *columns, float *out, long long ldo, long long n, long long channels,
    long long height, long long width, long long size, long long pad, long long first,
    long long begin, long long end)
{
    long long rows = height + 2 * pad - size + 1, cols = width + 2 * pad - size + 1;
    uint32 own = (uint32)(end - begin), high = (uint32)height, wide = (uint32)width;
    uint32 count = (uint32)(n * height * width) * own;
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        uint32 pixel = first ? at % (high * wide) : at / own % (high * wide);
        uint32 channel = (uint32)begin + (first ? at / (high * wide) % own : at % own);
        uint32 example = at / (high * wide * own), x = pixel % wide, y = pixel / wide;
        float sum = 0.0f;
        for (long long i = 0; i < size; i++) {
            long long row = y + pad - i;
            if (row < 0 || row >= rows) continue;
            for (long long j = 0; j < size; j++) {
                long long col = x + pad - j;
                if (col < 0 || col >= cols) continue;
                uint64 position = ((uint64)example * (uint64)rows + (uint64)row) * (uint64)cols
                    + (uint64)col;
                uint64 place = (uint64)((i * size + j) * channels) + channel;
                sum += columns[position * (uint64)(size * size * channels) + place];
            }
        }
        out[(uint64)example * (uint64)ldo
            + number_of(channel, y, x, channels, height, width, first)] = sum;
    }
}

// Maps of `own` filters to codes of all `filters`, from number `begin` on: the largest number of
// each block or its mean, the bias and the unit in one pass. With `keeps` places are written too.
extern "C" __global__ void pool_maps(
    const float *maps, const float *bias, float *out, long long ldo, float *places, long long ldp,
    long long n, long long rows, long long cols, long long pool, long long own, long long filters,
    long long begin, long long has_places, long long keeps, long long units)
{
    uint32 count = (uint32)(n * rows * cols * own), side = (uint32)pool, mine = (uint32)own;
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        Block block = block_of(
            at, (uint32)rows, (uint32)cols, side, mine, (uint32)filters, (uint32)begin);
        const float *map = maps + block.example * (uint64)(rows * pool) * block.wide;
        float found = has_places ? map[block.first] : 0.0f;
        uint32 place = 0;
        for (uint32 k = 0; k < side * side; k++) {
            float value = map[unit_of(block, k, side, mine)];
            if (!has_places) {
                found += value;
            } else if (value > found || (value != value && found == found)) {  // the first NaN
                found = value;
                place = k;
            }
        }
        if (!has_places) found = found / (float)(side * side);
        out[block.example * (uint64)ldo + block.column] = mean_of(found + bias[at % mine], units);
        if (keeps) places[block.example * (uint64)ldp + block.column] = (float)place;
    }
}

// The transposed: maps with each number of delta at its place and zeros elsewhere, or without
// places spread evenly.
extern "C" __global__ void unpool_maps(
    const float *delta, long long ldd, const float *places, long long ldp, float *maps,
    long long n, long long rows, long long cols, long long pool, long long filters,
    long long has_places)
{
    uint32 side = (uint32)pool, each = (uint32)filters, high = (uint32)rows, wide = (uint32)cols;
    uint32 count = (uint32)(n * rows * cols * pool * pool * filters);
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        uint32 f = at % each, left = at / each;
        uint32 x = left % (wide * side), y = left / (wide * side) % (high * side);
        uint32 example = left / (wide * side) / (high * side);
        uint32 column = (y / side * wide + x / side) * each + f;
        float value = delta[(uint64)example * (uint64)ldd + column];
        if (has_places) {
            float place = (float)(y % side * side + x % side);
            bool here = places[(uint64)example * (uint64)ldp + column] == place;
            maps[at] = value * (here ? 1.0f : 0.0f);
        } else {
            maps[at] = value / (float)(side * side);
        }
    }
}

// The numbers of the maps of some filters at the places of a code of all; see pool_maps.
extern "C" __global__ void choose_places(
    const float *maps, const float *places, long long ldp, float *out, long long ldo,
    long long n, long long rows, long long cols, long long pool, long long own, long long filters,
    long long begin)
{
    uint32 count = (uint32)(n * rows * cols * own), side = (uint32)pool, mine = (uint32)own;
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        Block block = block_of(
            at, (uint32)rows, (uint32)cols, side, mine, (uint32)filters, (uint32)begin);
        const float *map = maps + block.example * (uint64)(rows * pool) * block.wide;
        uint32 place = (uint32)places[block.example * (uint64)ldp + block.column];
        out[block.example * (uint64)ldo + block.column] = map[unit_of(block, place, side, mine)];
    }
}

// Images of visible units: a bias a channel, which a channel's `run` numbers in a row share.
extern "C" __global__ void channel_means(
    float *x, long long ldx, const float *bias, long long rows, long long cols, long long run,
    long long channels, long long units)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        float *input = x + place(i, width, ldx);
        *input = mean_of(*input + bias[i % width / (uint32)run % (uint32)channels], units);
    }
}

// ---------------------------------------------------------------- probabilistic max pooling
// A thread makes a block. The inputs of its units, with bias, become the probabilities that they
// are on; with `draws` the one is on in whose share of [0, 1) the noise lies, place after place.
extern "C" __global__ void block_units(
    float *maps, long long ldm, const float *noise, long long ldn, float *states, long long lds,
    long long n, long long rows, long long cols, long long pool, long long filters,
    long long draws)
{
    uint32 count = (uint32)(n * rows * cols * filters), side = (uint32)pool, all = (uint32)filters;
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        Block block = block_of(at, (uint32)rows, (uint32)cols, side, all, all, 0);
        float *map = maps + block.example * (uint64)ldm;
        float *state = states + block.example * (uint64)lds;
        float left = draws ? noise[block.example * (uint64)ldn + block.column] : 0.0f;
        float largest = 0.0f;  // the input of a block in which no unit is on
        for (uint32 k = 0; k < side * side; k++)
            largest = fmaxf(largest, map[unit_of(block, k, side, all)]);
        float total = expf(-largest);
        for (uint32 k = 0; k < side * side; k++) {
            float *mean = map + unit_of(block, k, side, all);
            *mean = expf(*mean - largest);
            total += *mean;
        }
        for (uint32 k = 0; k < side * side; k++) {
            uint64 unit = unit_of(block, k, side, all);
            float mean = map[unit] / total;
            map[unit] = mean;
            if (!draws) continue;
            state[unit] = left >= 0.0f && left < mean ? 1.0f : 0.0f;
            left -= mean;
        }
    }
}

extern "C" __global__ void block_sums(
    const float *maps, long long ldm, float *out, long long ldo, long long n, long long rows,
    long long cols, long long pool, long long filters)
{
    uint32 count = (uint32)(n * rows * cols * filters), side = (uint32)pool, all = (uint32)filters;
    for (uint32 at = FIRST; at < count; at += STRIDE) {
        Block block = block_of(at, (uint32)rows, (uint32)cols, side, all, all, 0);
        const float *map = maps + block.example * (uint64)ldm;
        float sum = 0.0f;
        for (uint32 k = 0; k < side * side; k++) sum += map[unit_of(block, k, side, all)];
        out[block.example * (uint64)ldo + block.column] = sum;
    }
}
