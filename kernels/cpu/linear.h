// y = x W^T + bias, with the low-rank updates of the rows' adapters added.
//
// Weights stay as torch keeps them, [out, in], and each is read once. For very few rows an output is a dot product over
// `in`, at the speed of memory; for more, sixteen outputs' weights are packed first, at the speed of multiplication.
// bfloat16 is widened as it is read: the arithmetic is float32, the memory traffic half. A processor that multiplies
// bfloat16 itself needs neither: its dot products are as fast for any number of rows.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "multiply.h"

namespace descant {

// The adapter of one row: its update is scale * B (A x), with A [stacks * rank, in] and B [out, rank] of row length
// b_stride. `hidden` holds A x, [stacks * rank], once `shrink` has run. rank 0: no adapter.
template <typename T>
struct RowUpdate {
  const T* a = nullptr;
  const T* b = nullptr;
  int64_t rank = 0;
  float scale = 0;
  float* hidden = nullptr;
};

// From here on packing pays.
constexpr int64_t PACKED_ROWS = 8;

// Rows that stay in the second cache while all weights pass them.
constexpr int64_t CACHED_ROWS = 192;

// Weights fetched ahead where few rows leave the processor waiting for memory; measured, a third faster than without.
constexpr int64_t AHEAD = 8192;

// Sums of a tile of rows by outputs, and what they need, fill the 16 registers of AVX2, or the 32 of AVX512.
template <typename T>
struct TileShape {
  static constexpr int ROWS = 4, OUTS = 3;
};
#ifdef __AVX512BF16__
template <>
struct TileShape<bf16> {
  static constexpr int ROWS = 6, OUTS = 4;
};
#endif

// y [ROWS, OUTS] = x w^T. The first of the tiles that weights meet fetches what comes after them.
template <int ROWS, int OUTS, typename T>
__attribute__((always_inline)) inline void dot_tile(
    const float* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t in, bool first, float* y) {
  vec acc[ROWS][OUTS] = {};
  int64_t k = 0;
  for (; k + LANES <= in; k += LANES) {
    vec xs[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) xs[r] = load(x + r * x_stride + k);
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) {
      if (first) __builtin_prefetch(w + o * w_stride + k + AHEAD);
      vec ws = load(w + o * w_stride + k);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) acc[r][o] += xs[r] * ws;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) {
      float total = sum(acc[r][o]);
      for (int64_t j = k; j < in; j++) total += x[r * x_stride + j] * get(w + o * w_stride + j);
      y[r * OUTS + o] = total;
    }
}

#ifdef __AVX512BF16__
template <int ROWS, int OUTS>
__attribute__((always_inline)) inline void dot_tile(
    const bf16* x, int64_t x_stride, const bf16* w, int64_t w_stride, int64_t in, bool first, float* y) {
  __m512 acc[ROWS][4] = {};  // OUTS of each row's; the others stay zero
  const auto step = [&](int64_t k, auto load) {
    __m512bh ws[OUTS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) {
      ws[o] = load(w + o * w_stride + k);
      if (first) __builtin_prefetch(w + o * w_stride + k + AHEAD);
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const __m512bh xs = load(x + r * x_stride + k);
#pragma GCC unroll 4
      for (int o = 0; o < OUTS; o++) acc[r][o] = _mm512_dpbf16_ps(acc[r][o], xs, ws[o]);
    }
  };
  int64_t k = 0;
  for (; k + PAIRS <= in; k += PAIRS) step(k, [](const bf16* p) { return load_pairs(p); });
  if (k < in) step(k, [&](const bf16* p) { return load_pairs(p, in - k); });
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
    const __m128 four = sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    std::memcpy(y + r * OUTS, &four, OUTS * sizeof(float));
  }
}

inline float dot(const bf16* x, const bf16* w, int64_t n) {
  float y;
  dot_tile<1, 1>(x, 0, w, 0, n, false, &y);
  return y;
}
#endif

template <typename T>
inline float dot(const float* x, const T* w, int64_t n) {
  vec acc = {};
  int64_t k = 0;
  for (; k + LANES <= n; k += LANES) acc += load(x + k) * load(w + k);
  float total = sum(acc);
  for (; k < n; k++) total += x[k] * get(w + k);
  return total;
}

// hidden = scale * A x for one row; stacks of A lie densely behind each other.
template <typename T>
inline void shrink(const RowUpdate<T>& update, const Row<T>* x, int64_t in, int64_t stacks) {
  for (int64_t j = 0; j < stacks * update.rank; j++) update.hidden[j] = update.scale * dot(x, update.a + j * in, in);
}

template <typename T>
struct Linear {
  const Row<T>* x;  // [rows, in]
  int64_t x_stride;
  const T* w;     // [out, in]
  const T* bias;  // [out] or null
  T* y;           // [rows, out]
  int64_t rows, in, out;
  const RowUpdate<T>* updates;  // [rows] or null
  int64_t b_stride;
  const int64_t* stack_ends;  // [stacks]: the outputs of stack s end at stack_ends[s]
  int64_t stacks;

  template <int ROWS, int OUTS>
  __attribute__((always_inline)) inline void tile(int64_t row, int64_t first, bool fetch) const {
    float part[ROWS * OUTS];
    dot_tile<ROWS, OUTS>(x + row * x_stride, x_stride, w + first * in, in, in, fetch, part);
    for (int r = 0; r < ROWS; r++) finish<OUTS>(row + r, first, part + r * OUTS);
  }

  // Outputs o to o + OUTS of a row, given their sums.
  template <int OUTS>
  __attribute__((always_inline)) inline void finish(int64_t row, int64_t o, float* values) const {
    if (bias)
      for (int i = 0; i < OUTS; i++) values[i] += get(bias + o + i);
    if (updates && updates[row].rank) {
      const auto& u = updates[row];
      int64_t stack = 0;
      for (int i = 0; i < OUTS; i++) {
        while (stack < stacks && o + i >= stack_ends[stack]) stack++;
        if (stack < stacks) values[i] += dot(u.hidden + stack * u.rank, u.b + (o + i) * b_stride, u.rank);
      }
    }
    put<OUTS>(y + row * out + o, values);
  }

  template <int OUTS>
  inline void columns(int64_t o, int64_t row, int64_t last) const {
    constexpr int ROWS = TileShape<T>::ROWS;
    bool fetch = true;
    for (; row + ROWS <= last; row += ROWS, fetch = false) tile<ROWS, OUTS>(row, o, fetch);
    switch (last - row) {
      case 5: return tile<5, OUTS>(row, o, fetch);
      case 4: return tile<4, OUTS>(row, o, fetch);
      case 3: return tile<3, OUTS>(row, o, fetch);
      case 2: return tile<2, OUTS>(row, o, fetch);
      case 1: return tile<1, OUTS>(row, o, fetch);
    }
  }

  void run() const {
    if constexpr (std::is_same_v<Row<T>, float>)
      if (rows >= PACKED_ROWS) return run_packed();
    for (int64_t row = 0; row < rows; row += CACHED_ROWS) run_dots(row, std::min(row + CACHED_ROWS, rows));
  }

  void run_packed() const {
    at::parallel_for(0, (out + PANEL - 1) / PANEL, 4, [&](int64_t first, int64_t last) {
      static thread_local std::vector<float> room;
      room.resize(in * PANEL + rows * PANEL);
      float *panel = room.data(), *sums = panel + in * PANEL;
      for (int64_t o = first * PANEL; o < std::min(last * PANEL, out); o += PANEL) {
        for (int64_t j = 0; j < PANEL; j += LANES) {
          const T* columns[LANES];  // past the last output, the last again: computed, and left out
          for (int i = 0; i < LANES; i++) columns[i] = w + std::min(o + j + i, out - 1) * in;
          pack_columns(columns, in, panel + j, PANEL, PANEL * in);
        }
        std::fill(sums, sums + rows * PANEL, 0.f);
        multiply(x, x_stride, panel, PANEL, in, sums, PANEL, rows);
        for (int64_t r = 0; r < rows; r++)
          for (int64_t j = 0; j < std::min(PANEL, out - o); j++) finish<1>(r, o + j, sums + r * PANEL + j);
      }
    });
  }

  void run_dots(int64_t row, int64_t last_row) const {
    constexpr int OUTS = TileShape<T>::OUTS;
    at::parallel_for(0, (out + OUTS - 1) / OUTS, 16, [&](int64_t first, int64_t last) {
      for (int64_t o = first * OUTS; o < std::min(last * OUTS, out); o += OUTS)
        if (o + OUTS <= out)
          columns<OUTS>(o, row, last_row);
        else
          for (int64_t rest = o; rest < out; rest++) columns<1>(rest, row, last_row);
    });
  }
};

}  // namespace descant
