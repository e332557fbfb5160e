// Causal attention of new tokens over a slot-indexed KV pool, for decode and extend alike.
//
// Online softmax over blocks of keys (FlashAttention). All query rows of a request that read one KV head form the rows
// of two small matrix products a block, so that each key and value is fetched, and widened, once for the whole group:
// with encoder and decoder rows of a token side by side, that is the joined call of ICaRus.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "multiply.h"

namespace descant {

constexpr int64_t KEYS = 64;        // keys a block
constexpr int64_t TILE_ROWS = 192;  // query rows a tile, at most
constexpr int64_t SPLIT = 512;      // keys a split, where there are too few tiles for the threads

// weights = e^(scores * scaling - maximum); their sum.
inline float weigh(const float* scores, float scaling, float maximum, int64_t count, float* weights) {
  vec total = {};
  for (int64_t j = 0; j < count; j += LANES) {
    const vec weight = exp(load(scores + j) * splat(scaling) - splat(maximum));
    store(weights + j, weight);
    total += weight;
  }
  return sum(total);
}

#ifdef __AVX512BF16__
inline float weigh(const float* scores, float scaling, float maximum, int64_t count, bf16* weights) {
  constexpr float LOG2_E = 1.44269504f;
  const __m512 factor = _mm512_set1_ps(scaling * LOG2_E), top = _mm512_set1_ps(maximum * LOG2_E);
  const auto at = [&](int64_t j) { return exp2(_mm512_fmsub_ps(_mm512_loadu_ps(scores + j), factor, top)); };
  __m512 total = _mm512_setzero_ps();
  for (int64_t j = 0; j < count; j += PAIRS) {
    const __m512 low = at(j), high = at(j + PAIRS / 2);
    _mm512_storeu_si512(weights + j, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    total = _mm512_add_ps(total, _mm512_add_ps(low, high));
  }
  return _mm512_reduce_add_ps(total);
}
#endif

// One request's share of a call: query rows [first_row, first_row + rows) in token order, `copies` rows a token, the
// last token at position length - 1; slots[0 .. length) hold the keys and values of its tokens.
struct Request {
  const int32_t* slots;
  int64_t first_row, rows, length;
};

template <typename T>
struct Attention {
  const T* q;  // [total rows, heads, dim]
  int64_t q_stride;
  const T* keys;  // [pool, kv_heads, dim]
  const T* values;
  int64_t pool_stride;
  T* out;  // [total rows, heads, dim]
  int64_t heads, kv_heads, dim, copies;
  float scaling;
  std::vector<Request> requests;

  // A tile: some consecutive query rows of a request, all heads of one KV head's group, keys [from, to).
  struct Tile {
    int64_t request, kv_head, row, rows, from, to;
    float* partial;  // [rows * group, dim + 2]: sums, maximum, denominator; null if the tile sees all keys
  };

  // Whether two elements of a row are multiplied as one; dim is then even.
  static constexpr bool PAIRED = std::is_same_v<Row<T>, bf16>;

  int64_t group() const { return heads / kv_heads; }
  int64_t width() const { return (dim + PANEL - 1) / PANEL * PANEL; }  // dim, padded to whole panels

  int64_t visible(const Request& request, int64_t row) const {
    return request.length - (request.rows - 1 - row) / copies;
  }

  // A block of keys and values, packed for `multiply`: kt [dim, KEYS] and v [KEYS, width()], or half as many rows of
  // pairs where rows are bfloat16.
  void gather(const Request& request, int64_t kv_head, int64_t from, int64_t count, float* kt, float* v) const {
    const auto row = [&](const T* pool, int64_t j) {
      return pool + request.slots[from + j] * pool_stride + kv_head * dim;
    };
    using Packed = std::conditional_t<PAIRED, float, T>;  // two bfloat16 travel as one float
    for (int64_t j = 0; j < KEYS; j += LANES) {
      const Packed* rows[LANES];
      for (int i = 0; i < LANES; i++)
        rows[i] = reinterpret_cast<const Packed*>(row(keys, std::min(j + i, count - 1)));
      pack_columns(rows, PAIRED ? dim / 2 : dim, kt + j, KEYS);
    }
    const int64_t padded = width();
    if constexpr (PAIRED) {
      for (int64_t j = 0; j < count; j += 2)
        interleave(row(values, j), j + 1 < count ? row(values, j + 1) : nullptr, dim, v + j / 2 * padded);
    } else {
      for (int64_t j = 0; j < count; j++) {
        widen(row(values, j), v + j * padded, dim);
        std::fill(v + j * padded + dim, v + (j + 1) * padded, 0.f);
      }
    }
  }

  void run_tile(const Tile& tile, float* scratch) const {
    const Request& request = requests[tile.request];
    const int64_t g = group(), rows = tile.rows * g, padded = width();
    float* sums = scratch;                 // [rows, padded]
    float* scores = sums + rows * padded;  // [rows, KEYS]
    float* kt = scores + rows * KEYS;      // [dim, KEYS]
    float* v = kt + dim * KEYS;            // [KEYS, padded]
    float* maxima = v + KEYS * padded;     // [rows]
    float* totals = maxima + rows;         // [rows]
    auto* queries = reinterpret_cast<Row<T>*>(totals + rows);  // [rows, dim]
    auto* weights = queries + rows * dim;                      // [rows, KEYS], of the values
    for (int64_t r = 0; r < tile.rows; r++) {
      const T* source = q + (request.first_row + tile.row + r) * q_stride + tile.kv_head * g * dim;
      if constexpr (PAIRED)
        std::copy(source, source + g * dim, queries + r * g * dim);
      else
        widen(source, queries + r * g * dim, g * dim);
    }
    std::fill(sums, sums + rows * padded, 0.f);
    std::fill(maxima, maxima + rows, -std::numeric_limits<float>::infinity());
    std::fill(totals, totals + rows, 0.f);
    const int64_t to = std::min(tile.to, visible(request, tile.row + tile.rows - 1));
    for (int64_t from = tile.from; from < to; from += KEYS) {
      const int64_t count = std::min(KEYS, to - from);
      gather(request, tile.kv_head, from, count, kt, v);
      std::fill(scores, scores + rows * KEYS, 0.f);
      multiply(queries, dim, kt, KEYS, dim, scores, KEYS, rows);
      for (int64_t r = 0; r < rows; r++) {
        float* s = scores + r * KEYS;
        Row<T>* p = weights + r * KEYS;
        const int64_t seen = std::min(count, visible(request, tile.row + r / g) - from);
        if (seen <= 0) {
          std::fill(p, p + KEYS, Row<T>{});
          continue;
        }
        std::fill(s + seen, s + KEYS, -std::numeric_limits<float>::infinity());
        vec top = load(s);
        for (int64_t j = LANES; j < KEYS; j += LANES) top = max(top, load(s + j));
        const float maximum = std::max(maxima[r], max(top) * scaling);
        const float shrink = maxima[r] == maximum ? 1.f : std::exp(maxima[r] - maximum);
        maxima[r] = maximum;
        totals[r] = totals[r] * shrink + weigh(s, scaling, maximum, KEYS, p);
        if (shrink != 1.f)
          for (int64_t k = 0; k < padded; k += LANES)
            store(sums + r * padded + k, load(sums + r * padded + k) * splat(shrink));
      }
      multiply(weights, KEYS, v, padded, PAIRED ? (count + 1) / 2 * 2 : count, sums, padded, rows);
    }
    for (int64_t r = 0; r < rows; r++) {
      if (tile.partial) {
        float* p = tile.partial + r * (dim + 2);
        std::copy(sums + r * padded, sums + r * padded + dim, p);
        p[dim] = maxima[r];
        p[dim + 1] = totals[r];
      } else {
        write(request, tile, r, sums + r * padded, 1.f / totals[r]);
      }
    }
  }

  void write(const Request& request, const Tile& tile, int64_t r, const float* sums, float factor) const {
    const int64_t g = group(), row = request.first_row + tile.row + r / g;
    T* target = out + (row * heads + tile.kv_head * g + r % g) * dim;
    for (int64_t k = 0; k < dim; k++) put(target + k, sums[k] * factor);
  }

  // Merge the partial results of the splits tiles[first .. last), which share rows and differ in keys.
  void merge(const std::vector<Tile>& tiles, size_t first, size_t last) const {
    const Tile& tile = tiles[first];
    std::vector<float> sums(dim);
    for (int64_t r = 0; r < tile.rows * group(); r++) {
      float maximum = -std::numeric_limits<float>::infinity(), total = 0;
      for (size_t t = first; t < last; t++) maximum = std::max(maximum, tiles[t].partial[r * (dim + 2) + dim]);
      std::fill(sums.begin(), sums.end(), 0.f);
      for (size_t t = first; t < last; t++) {
        const float* p = tiles[t].partial + r * (dim + 2);
        if (p[dim + 1] == 0) continue;  // no row of this split sees a key of it
        const float weight = std::exp(p[dim] - maximum);
        total += weight * p[dim + 1];
        for (int64_t k = 0; k < dim; k++) sums[k] += weight * p[k];
      }
      write(requests[tile.request], tile, r, sums.data(), 1.f / total);
    }
  }

  void run() const {
    const int64_t g = group(), padded = width();
    const int64_t step = std::max<int64_t>(copies, TILE_ROWS / g / copies * copies);  // whole tokens a tile
    int64_t whole = 0;  // tiles, if none were split
    for (const Request& request : requests) whole += kv_heads * ((request.rows + step - 1) / step);
    const bool few = whole < 4 * at::get_num_threads();
    std::vector<Tile> tiles;
    std::vector<std::pair<size_t, size_t>> merges;
    int64_t partial_size = 0;
    for (size_t i = 0; i < requests.size(); i++)
      for (int64_t h = 0; h < kv_heads; h++)
        for (int64_t row = 0; row < requests[i].rows; row += step) {
          const int64_t rows = std::min(step, requests[i].rows - row);
          const int64_t length = visible(requests[i], row + rows - 1);
          const bool split = few && length > SPLIT;
          const size_t first = tiles.size();
          for (int64_t from = 0; from < length; from += split ? SPLIT : length)
            tiles.push_back({int64_t(i), h, row, rows, from, split ? std::min(from + SPLIT, length) : length, nullptr});
          if (split) {
            merges.emplace_back(first, tiles.size());
            partial_size += (tiles.size() - first) * rows * g * (dim + 2);
          }
        }
    std::vector<float> partials(partial_size);
    float* next = partials.data();
    for (auto [first, last] : merges)
      for (size_t t = first; t < last; t++) {
        tiles[t].partial = next;
        next += tiles[t].rows * g * (dim + 2);
      }
    const int64_t most = step * g;
    const int64_t scratch_size = most * (dim + padded + 2 * KEYS + 2) + KEYS * (dim + padded);
    // Taken one by one from the end: later tiles of a request see more keys, and threads must finish together.
    std::atomic<int64_t> left(tiles.size());
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), tiles.size());
    at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
      std::vector<float> scratch(scratch_size);
      for (int64_t t; (t = --left) >= 0;) run_tile(tiles[t], scratch.data());
    });
    at::parallel_for(0, merges.size(), 1, [&](int64_t first, int64_t last) {
      for (int64_t m = first; m < last; m++) merge(tiles, merges[m].first, merges[m].second);
    });
  }
};

}  // namespace descant
