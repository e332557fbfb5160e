// The small operators between the matrix products, one pass over memory each.
#pragma once

#include <ATen/Parallel.h>

#include <cmath>

#include "vector.h"

namespace descant {

constexpr int64_t GRAIN = 32;  // rows a thread, at least: below, starting a thread costs more than it saves

// y = x / sqrt(mean(x^2) + eps) * weight; with a residual, x + residual takes the place of both x and residual first.
template <typename T>
void rms_norm(const T* x, int64_t x_stride, T* residual, const T* weight, T* y, int64_t rows, int64_t dim, float eps) {
  at::parallel_for(0, rows, GRAIN, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
      const T* in = x + r * x_stride;
      T* kept = residual ? residual + r * dim : nullptr;
      T* out = y + r * dim;
      vec squares = {};
      float rest = 0;
      int64_t k = 0;
      for (; k + LANES <= dim; k += LANES) {
        vec v = load(in + k);
        if (kept) v += load(kept + k);
        squares += v * v;
      }
      for (; k < dim; k++) {
        float v = get(in + k) + (kept ? get(kept + k) : 0);
        rest += v * v;
      }
      const float scale = 1.f / std::sqrt((sum(squares) + rest) / dim + eps);
      for (k = 0; k + LANES <= dim; k += LANES) {
        vec v = load(in + k);
        if (kept) {
          v += load(kept + k);
          store(kept + k, v);
        }
        store(out + k, v * splat(scale) * load(weight + k));
      }
      for (; k < dim; k++) {
        float v = get(in + k);
        if (kept) {
          v += get(kept + k);
          put(kept + k, v);
        }
        put(out + k, v * scale * get(weight + k));
      }
    }
  });
}

// silu(x[:, :dim]) * x[:, dim:].
template <typename T>
void silu_mul(const T* x, T* y, int64_t rows, int64_t dim) {
  at::parallel_for(0, rows, GRAIN, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
      const T *gate = x + r * 2 * dim, *up = gate + dim;
      T* out = y + r * dim;
      int64_t k = 0;
      for (; k + LANES <= dim; k += LANES) {
        vec g = load(gate + k);
        store(out + k, g / (splat(1.f) + exp(-g)) * load(up + k));
      }
      for (; k < dim; k++) {
        float g = get(gate + k);
        put(out + k, g / (1.f + std::exp(-g)) * get(up + k));
      }
    }
  });
}

// Rotate the first `rotary` dims of each head, in place. cos_sin [positions, rotary]: cosines, then sines.
// neox: dim i pairs with i + rotary / 2; otherwise 2 i with 2 i + 1.
template <typename T, typename C>
void rotate(T* x, int64_t x_stride, const int64_t* positions, const C* cos_sin, int64_t rows, int64_t heads, int64_t dim,
            int64_t rotary, bool neox) {
  const int64_t half = rotary / 2;
  at::parallel_for(0, rows, GRAIN, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
      const C *cosines = cos_sin + positions[r] * rotary, *sines = cosines + half;
      for (int64_t h = 0; h < heads; h++) {
        T* head = x + r * x_stride + h * dim;
        int64_t i = 0;
        if (neox)
          for (; i + LANES <= half; i += LANES) {
            vec a = load(head + i), b = load(head + half + i), c = load(cosines + i), s = load(sines + i);
            store(head + i, a * c - b * s);
            store(head + half + i, b * c + a * s);
          }
        for (; i < half; i++) {
          T *p = head + (neox ? i : 2 * i), *q = head + (neox ? half + i : 2 * i + 1);
          float a = get(p), b = get(q), c = get(cosines + i), s = get(sines + i);
          put(p, a * c - b * s);
          put(q, b * c + a * s);
        }
      }
    }
  });
}

}  // namespace descant
