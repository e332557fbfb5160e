// Products of bfloat16 by the processor's own instruction, where it has one (AVX512-BF16): 32 at once, summed in float32.
#pragma once

#include <algorithm>

#include "vector.h"

#ifdef __AVX512BF16__
namespace descant {

constexpr int64_t PAIRS = 32;  // elements a vector: 16 sums of two products each

inline __m512bh load_pairs(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }

// The first `count` elements, below PAIRS, and zeros.
inline __m512bh load_pairs(const bf16* p, int64_t count) {
  return (__m512bh)_mm512_maskz_loadu_epi16((1u << count) - 1, p);
}

inline __m256 halves(__m512 v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }

// The sums of four vectors.
inline __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d) {
  __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// 2^x to 1 part in 13,000, where bfloat16 keeps 1 in 256, for x up to 0; 0 from -150 on; NaN stays NaN.
inline __m512 exp2(__m512 given) {
  const __m512 x = _mm512_max_ps(_mm512_set1_ps(-150.f), given);
  const __m512 n = _mm512_roundscale_ps(x, 0);  // the nearest integer
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.05517167f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24261113f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69326099f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99992807f));
  return _mm512_scalef_ps(p, n);
}

// Two rows as one of pairs, padded with zeros to a whole vector; without b, its halves are zero.
inline void interleave(const bf16* a, const bf16* b, int64_t count, float* out) {
  const auto words = [&](const bf16* p, int64_t k) {
    const int64_t left = std::min<int64_t>(16, count - k);
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((1u << left) - 1, p + k));
  };
  for (int64_t k = 0; k < count; k += 16) {
    const __m512i high = b ? _mm512_slli_epi32(words(b, k), 16) : _mm512_setzero_si512();
    _mm512_storeu_si512(out + k, _mm512_or_si512(words(a, k), high));
  }
}

}  // namespace descant
#endif
