// y = x W^T + bias, with the low-rank updates of the rows' adapters added, for a few rows.
//
// Weights stay as torch keeps them, [out, in], and each is read once. For very few rows an output is a dot product over
// `in`, at the speed of memory; for more, sixteen outputs' weights are packed first, at the speed of multiplication.
// bfloat16 is widened as it is read: the arithmetic is float32, the memory traffic half.
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

// Weights fetched ahead where few rows leave the processor waiting for memory; measured, a third faster than without.
constexpr int64_t AHEAD = 8192;

template <int ROWS, int OUTS, typename T>
__attribute__((always_inline)) inline void dot_tile(
    const float* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t in, float* y) {
  vec acc[ROWS][OUTS] = {};
  int64_t k = 0;
  for (; k + LANES <= in; k += LANES) {
    vec xs[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) xs[r] = load(x + r * x_stride + k);
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) {
      if (ROWS <= 2) __builtin_prefetch(w + o * w_stride + k + AHEAD);
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
inline void shrink(const RowUpdate<T>& update, const float* x, int64_t in, int64_t stacks) {
  for (int64_t j = 0; j < stacks * update.rank; j++) update.hidden[j] = update.scale * dot(x, update.a + j * in, in);
}

template <typename T>
struct Linear {
  const float* x;  // [rows, in]
  const T* w;      // [out, in]
  const T* bias;   // [out] or null
  T* y;            // [rows, out]
  int64_t rows, in, out;
  const RowUpdate<T>* updates;  // [rows] or null
  int64_t b_stride;
  const int64_t* stack_ends;  // [stacks]: the outputs of stack s end at stack_ends[s]
  int64_t stacks;

  template <int ROWS, int OUTS>
  __attribute__((always_inline)) inline void tile(int64_t row, int64_t first) const {
    float part[ROWS * OUTS];
    dot_tile<ROWS, OUTS>(x + row * in, in, w + first * in, in, in, part);
    for (int r = 0; r < ROWS; r++)
      for (int o = 0; o < OUTS; o++) finish(row + r, first + o, part[r * OUTS + o]);
  }

  inline void finish(int64_t row, int64_t o, float value) const {
    if (bias) value += get(bias + o);
    if (updates && updates[row].rank) {
      const auto& u = updates[row];
      int64_t stack = 0;
      while (stack < stacks && o >= stack_ends[stack]) stack++;
      if (stack < stacks) value += dot(u.hidden + stack * u.rank, u.b + o * b_stride, u.rank);
    }
    put(y + row * out + o, value);
  }

  template <int OUTS>
  inline void columns(int64_t o) const {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) tile<4, OUTS>(row, o);
    if (rows - row == 3) tile<3, OUTS>(row, o);
    if (rows - row == 2) tile<2, OUTS>(row, o);
    if (rows - row == 1) tile<1, OUTS>(row, o);
  }

  void run() const {
    if (rows >= PACKED_ROWS)
      run_packed();
    else
      run_dots();
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
        multiply(x, in, panel, PANEL, in, sums, PANEL, rows);
        for (int64_t r = 0; r < rows; r++)
          for (int64_t j = 0; j < std::min(PANEL, out - o); j++) finish(r, o + j, sums[r * PANEL + j]);
      }
    });
  }

  void run_dots() const {
    constexpr int OUTS = 3;  // 4 x 3 sums, 4 rows and a weight: the 16 registers of AVX2
    at::parallel_for(0, (out + OUTS - 1) / OUTS, 16, [&](int64_t first, int64_t last) {
      for (int64_t o = first * OUTS; o < std::min(last * OUTS, out); o += OUTS)
        if (o + OUTS <= out)
          columns<OUTS>(o);
        else
          for (int64_t rest = o; rest < out; rest++) columns<1>(rest);
    });
  }
};

}  // namespace descant
