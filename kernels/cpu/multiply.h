// Small matrix products, summed in float32, their factors packed so that every load is a whole vector.
#pragma once

#include "pairs.h"
#include "vector.h"

namespace descant {

// What rows are multiplied as: float32, or as they are where the processor multiplies bfloat16 itself.
#ifdef __AVX512BF16__
template <typename T>
using Row = T;
#else
template <typename T>
using Row = float;
#endif

constexpr int64_t PANEL = 2 * LANES;  // columns that one pass computes

// c [rows, width] += a [rows, depth] b [depth, width]; width a multiple of PANEL. 6 x 2 sums, and what they need, fill
// the 16 registers of AVX2.
template <int ROWS>
__attribute__((always_inline)) inline void multiply_rows(
    const float* a, int64_t a_stride, const float* b, int64_t width, int64_t depth, float* c, int64_t c_stride) {
  for (int64_t col = 0; col < width; col += PANEL) {
    vec acc[ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      acc[r][0] = load(c + r * c_stride + col);
      acc[r][1] = load(c + r * c_stride + col + LANES);
    }
    for (int64_t k = 0; k < depth; k++) {
      vec b0 = load(b + k * width + col), b1 = load(b + k * width + col + LANES);
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; r++) {
        vec value = splat(a[r * a_stride + k]);
        acc[r][0] += value * b0;
        acc[r][1] += value * b1;
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      store(c + r * c_stride + col, acc[r][0]);
      store(c + r * c_stride + col + LANES, acc[r][1]);
    }
  }
}

#ifdef __AVX512BF16__
// c [rows, width] += a [rows, depth] b, where b [depth / 2, width] holds two elements of a column as one of its own;
// width a multiple of PANEL. 6 x 4 sums, and what they need, fill the 32 registers of AVX512.
template <int ROWS, int WIDTH>
__attribute__((always_inline)) inline void multiply_rows(const bf16* a, int64_t a_stride, const float* b, int64_t width,
                                                         int64_t depth, float* c, int64_t c_stride) {
  __m512 acc[ROWS][WIDTH];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int j = 0; j < WIDTH; j++) acc[r][j] = _mm512_loadu_ps(c + r * c_stride + j * PANEL);
  for (int64_t k = 0; k < depth / 2; k++) {
    __m512bh columns[WIDTH];
#pragma GCC unroll 4
    for (int j = 0; j < WIDTH; j++) columns[j] = (__m512bh)_mm512_loadu_ps(b + k * width + j * PANEL);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      float pair;
      std::memcpy(&pair, a + r * a_stride + 2 * k, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_ps(pair);
#pragma GCC unroll 4
      for (int j = 0; j < WIDTH; j++) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], both, columns[j]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int j = 0; j < WIDTH; j++) _mm512_storeu_ps(c + r * c_stride + j * PANEL, acc[r][j]);
}

template <int ROWS>
inline void multiply_rows(const bf16* a, int64_t a_stride, const float* b, int64_t width, int64_t depth, float* c,
                          int64_t c_stride) {
  int64_t col = 0;
  for (; col + 4 * PANEL <= width; col += 4 * PANEL)
    multiply_rows<ROWS, 4>(a, a_stride, b + col, width, depth, c + col, c_stride);
  for (; col < width; col += PANEL) multiply_rows<ROWS, 1>(a, a_stride, b + col, width, depth, c + col, c_stride);
}
#endif

template <typename R>
inline void multiply(const R* a, int64_t a_stride, const float* b, int64_t width, int64_t depth, float* c,
                     int64_t c_stride, int64_t rows) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6)
    multiply_rows<6>(a + r * a_stride, a_stride, b, width, depth, c + r * c_stride, c_stride);
  a += r * a_stride;
  c += r * c_stride;
  switch (rows - r) {
    case 5: return multiply_rows<5>(a, a_stride, b, width, depth, c, c_stride);
    case 4: return multiply_rows<4>(a, a_stride, b, width, depth, c, c_stride);
    case 3: return multiply_rows<3>(a, a_stride, b, width, depth, c, c_stride);
    case 2: return multiply_rows<2>(a, a_stride, b, width, depth, c, c_stride);
    case 1: return multiply_rows<1>(a, a_stride, b, width, depth, c, c_stride);
  }
}

inline void transpose8(const vec in[8], vec out[8]) {
  vec a[8], b[8];
  for (int i = 0; i < 4; i++) {
    a[2 * i] = __builtin_shuffle(in[2 * i], in[2 * i + 1], ivec{0, 8, 1, 9, 4, 12, 5, 13});
    a[2 * i + 1] = __builtin_shuffle(in[2 * i], in[2 * i + 1], ivec{2, 10, 3, 11, 6, 14, 7, 15});
  }
  for (int i = 0; i < 2; i++) {
    const vec* p = a + 4 * i;
    b[4 * i] = __builtin_shuffle(p[0], p[2], ivec{0, 1, 8, 9, 4, 5, 12, 13});
    b[4 * i + 1] = __builtin_shuffle(p[0], p[2], ivec{2, 3, 10, 11, 6, 7, 14, 15});
    b[4 * i + 2] = __builtin_shuffle(p[1], p[3], ivec{0, 1, 8, 9, 4, 5, 12, 13});
    b[4 * i + 3] = __builtin_shuffle(p[1], p[3], ivec{2, 3, 10, 11, 6, 7, 14, 15});
  }
  for (int i = 0; i < 4; i++) {
    out[i] = __builtin_shuffle(b[i], b[i + 4], ivec{0, 1, 2, 3, 8, 9, 10, 11});
    out[i + 4] = __builtin_shuffle(b[i], b[i + 4], ivec{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

// Eight rows of `dim` become eight columns of out [dim, stride], widened. What lies `ahead` elements further is fetched
// meanwhile.
template <typename T>
inline void pack_columns(const T* const rows[LANES], int64_t dim, float* out, int64_t stride, int64_t ahead = 0) {
  int64_t k = 0;
  for (; k + LANES <= dim; k += LANES) {
    vec in[LANES], t[LANES];
    for (int i = 0; i < LANES; i++) {
      in[i] = load(rows[i] + k);
      if (ahead) __builtin_prefetch(rows[i] + k + ahead);
    }
    transpose8(in, t);
    for (int i = 0; i < LANES; i++) store(out + (k + i) * stride, t[i]);
  }
  for (; k < dim; k++)
    for (int i = 0; i < LANES; i++) out[k * stride + i] = get(rows[i] + k);
}

}  // namespace descant
