/* Uniform numbers in [0, 1), bit for bit as NumPy's Generator(Philox).random(dtype=float32) draws them.
 *
 * Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). NumPy counts
 * up before each block, and makes of each of a block's four words two numbers, the low half first,
 * each of its upper 24 bits. Numbers are made 16 blocks at a time, to keep a core's units busy.
 */
#ifndef SYNCPRETRAIN_PHILOX_H
#define SYNCPRETRAIN_PHILOX_H

#include <stddef.h>
#include <stdint.h>

#include "_loops.h"

#define PHILOX_M0 0xD2E7470EE14C6C93ULL
#define PHILOX_M1 0xCA5A826395121157ULL
#define PHILOX_W0 0x9E3779B97F4A7C15ULL
#define PHILOX_W1 0xBB67AE8584CAA73BULL
enum { ROUNDS = 10, PER_BLOCK = 8, BLOCKS = 16, BATCH = BLOCKS * PER_BLOCK };

/* Only the lowest word differs between blocks: half of the first two rounds is the same in all. */
typedef struct {
    uint64_t block; /* the lowest word of the next block's counter */
    uint64_t keys[ROUNDS][2];
    uint64_t first;    /* w2 of the first round, but for the product */
    uint64_t second_0; /* w0 of the second round, but for the product */
    uint64_t second_2; /* w2 of the second round, but for w3 of the first */
    uint64_t second_3; /* w3 of the second round */
} Philox;

typedef struct {
    uint64_t w0, w1, w2, w3;
} Words;

INLINED uint64_t product(uint64_t a, uint64_t b, uint64_t *high)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 full = (unsigned __int128)a * b;
    *high = (uint64_t)(full >> 64);
    return (uint64_t)full;
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t t = a1 * b0 + (a0 * b0 >> 32);
    uint64_t w = a0 * b1 + (uint32_t)t;
    *high = a1 * b1 + (t >> 32) + (w >> 32);
    return a * b;
#endif
}

/* Counter words as NumPy's, lowest first: the first block is the one after them. */
static void philox_start(Philox *state, const uint64_t key[2], const uint64_t counter[4])
{
    for (int round = 0; round < ROUNDS; round++) {
        state->keys[round][0] = key[0] + (uint64_t)round * PHILOX_W0;
        state->keys[round][1] = key[1] + (uint64_t)round * PHILOX_W1;
    }
    uint64_t high, low = product(PHILOX_M1, counter[2], &high);
    uint64_t w0 = high ^ counter[1] ^ state->keys[0][0];
    state->block = counter[0] + 1;
    state->first = counter[3] ^ state->keys[0][1];
    state->second_0 = low ^ state->keys[1][0];
    state->second_3 = product(PHILOX_M0, w0, &high);
    state->second_2 = high ^ state->keys[1][1];
}

INLINED Words first_two_rounds(const Philox *state, uint64_t block)
{
    Words w;
    uint64_t high, low = product(PHILOX_M0, block, &high);
    w.w1 = product(PHILOX_M1, high ^ state->first, &high);
    w.w0 = high ^ state->second_0;
    w.w2 = low ^ state->second_2;
    w.w3 = state->second_3;
    return w;
}

INLINED Words one_round(Words w, const uint64_t key[2])
{
    uint64_t high0, low0 = product(PHILOX_M0, w.w0, &high0);
    uint64_t high1, low1 = product(PHILOX_M1, w.w2, &high1);
    return (Words){high1 ^ w.w1 ^ key[0], low1, high0 ^ w.w3 ^ key[1], low0};
}

INLINED void to_floats(Words w, float *out)
{
    const uint64_t words[4] = {w.w0, w.w1, w.w2, w.w3};
    for (int i = 0; i < 4; i++) {
        out[2 * i] = (float)(int32_t)((uint32_t)words[i] >> 8) * 0x1p-24f;
        out[2 * i + 1] = (float)(int32_t)(words[i] >> 40) * 0x1p-24f;
    }
}

/* Two blocks at once: a processor multiplies for one while it waits for the other. */
VECTORIZED static void philox_batch(const Philox *state, float *out)
{
    for (int i = 0; i < BLOCKS; i += 2, out += 2 * PER_BLOCK) {
        Words a = first_two_rounds(state, state->block + i);
        Words b = first_two_rounds(state, state->block + i + 1);
        for (int round = 2; round < ROUNDS; round++) {
            a = one_round(a, state->keys[round]);
            b = one_round(b, state->keys[round]);
        }
        to_floats(a, out);
        to_floats(b, out + PER_BLOCK);
    }
}

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX512_INLINED AVX512 static inline __attribute__((always_inline))

typedef struct {
    __m512i w0, w1, w2, w3;
} Lanes;

/* As `product`, in each of eight lanes, of four products of 32 bits. */
AVX512_INLINED __m512i product_lanes(__m512i m, __m512i x, __m512i *high)
{
    const __m512i lower = _mm512_set1_epi64(0xFFFFFFFF);
    __m512i m_high = _mm512_srli_epi64(m, 32), x_high = _mm512_srli_epi64(x, 32);
    __m512i p = _mm512_mul_epu32(x, m);
    __m512i t = _mm512_add_epi64(_mm512_mul_epu32(x_high, m), _mm512_srli_epi64(p, 32));
    __m512i w = _mm512_add_epi64(_mm512_mul_epu32(x, m_high), _mm512_and_si512(t, lower));
    *high = _mm512_add_epi64(
        _mm512_add_epi64(_mm512_mul_epu32(x_high, m_high), _mm512_srli_epi64(t, 32)),
        _mm512_srli_epi64(w, 32));
    return _mm512_mask_shuffle_epi32(p, 0xAAAA, w, _MM_PERM_CCAA); /* w << 32 | lower half of p */
}

AVX512_INLINED __m512i lanes_of(uint64_t x)
{
    return _mm512_set1_epi64((long long)x);
}

AVX512_INLINED Lanes first_two_rounds_lanes(const Philox *state, uint64_t block)
{
    /* In the order in which `lanes_to_floats` brings the words of a block together. */
    __m512i blocks = _mm512_add_epi64(lanes_of(block), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
    Lanes w;
    __m512i high, low = product_lanes(lanes_of(PHILOX_M0), blocks, &high);
    w.w1 = product_lanes(
        lanes_of(PHILOX_M1), _mm512_xor_si512(high, lanes_of(state->first)), &high);
    w.w0 = _mm512_xor_si512(high, lanes_of(state->second_0));
    w.w2 = _mm512_xor_si512(low, lanes_of(state->second_2));
    w.w3 = lanes_of(state->second_3);
    return w;
}

AVX512_INLINED Lanes one_round_lanes(Lanes w, const uint64_t key[2])
{
    __m512i high0, low0 = product_lanes(lanes_of(PHILOX_M0), w.w0, &high0);
    __m512i high1, low1 = product_lanes(lanes_of(PHILOX_M1), w.w2, &high1);
    enum { three_xor = 0x96 }; /* Clang takes no variable for it */
    return (Lanes){_mm512_ternarylogic_epi64(high1, w.w1, lanes_of(key[0]), three_xor), low1,
                   _mm512_ternarylogic_epi64(high0, w.w3, lanes_of(key[1]), three_xor), low0};
}

AVX512_INLINED void lanes_to_floats(Lanes w, float *out)
{
    const __m512i front = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i back = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i a = _mm512_unpacklo_epi64(w.w0, w.w1), c = _mm512_unpacklo_epi64(w.w2, w.w3);
    __m512i b = _mm512_unpackhi_epi64(w.w0, w.w1), d = _mm512_unpackhi_epi64(w.w2, w.w3);
    const __m512i words[4] = {
        _mm512_permutex2var_epi64(a, front, c), _mm512_permutex2var_epi64(a, back, c),
        _mm512_permutex2var_epi64(b, front, d), _mm512_permutex2var_epi64(b, back, d)};
    for (int i = 0; i < 4; i++) {
        __m512 whole = _mm512_cvtepi32_ps(_mm512_srli_epi32(words[i], 8));
        _mm512_storeu_ps(out + 16 * i, _mm512_mul_ps(whole, _mm512_set1_ps(0x1p-24f)));
    }
}

AVX512 static void philox_batch_lanes(const Philox *state, float *out)
{
    Lanes a = first_two_rounds_lanes(state, state->block);
    Lanes b = first_two_rounds_lanes(state, state->block + BLOCKS / 2);
    for (int round = 2; round < ROUNDS; round++) {
        a = one_round_lanes(a, state->keys[round]);
        b = one_round_lanes(b, state->keys[round]);
    }
    lanes_to_floats(a, out);
    lanes_to_floats(b, out + BATCH / 2);
}
#endif

/* Fill out with the next numbers, `count` of them rounded up to whole batches. */
static void philox_fill(Philox *state, float *out, ptrdiff_t count)
{
    void (*batch)(const Philox *, float *) = philox_batch;
#if defined(__x86_64__)
    if (widest() >= 16) batch = philox_batch_lanes;
#endif
    for (ptrdiff_t i = 0; i < count; i += BATCH) {
        batch(state, out + i);
        state->block += BLOCKS;
    }
}

#endif
