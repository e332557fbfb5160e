// Vectors of eight floats, and the two data types that rows and weights have in memory.
//
// GCC's vector extensions: the compiler makes of them what the machine has, AVX2 or NEON.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace descant {

constexpr int LANES = 8;
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef uint32_t uvec __attribute__((vector_size(32)));
typedef uint16_t hvec __attribute__((vector_size(16)));

struct bf16 {
  uint16_t bits;
};

inline vec splat(float x) { return vec{x, x, x, x, x, x, x, x}; }

inline vec load(const float* p) {
  vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline vec load(const bf16* p) {
#ifdef __AVX2__  // GCC 12 widens with four instructions where one does
  return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  hvec h;
  std::memcpy(&h, p, sizeof h);
  return (vec)(__builtin_convertvector(h, uvec) << 16);
#endif
}

inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }

// Round to nearest even, as torch does; NaN stays NaN.
inline void store(bf16* p, vec v) {
#ifdef __AVX512BF16__  // what is below 2^-126 becomes 0
  const auto h = _mm256_cvtneps_pbh((__m256)v);
#else
  uvec u = (uvec)v;
  uvec rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  uvec nan = (uvec)(v != v);
  hvec h = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0), hvec);
#endif
  std::memcpy(p, &h, sizeof h);
}

inline float get(const float* p) {
  float f;
  std::memcpy(&f, p, sizeof f);
  return f;
}
inline float get(const bf16* p) {
  uint32_t u = uint32_t(p->bits) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {
  bf16 out[LANES];
  store(out, splat(x));
  *p = out[0];
}

template <int COUNT, typename T>
inline void put(T* p, const float* x) {
#ifdef __AVX512BF16__
  if constexpr (COUNT == 4 && std::is_same_v<T, bf16>) {
    const auto four = _mm_cvtneps_pbh(_mm_loadu_ps(x));
    std::memcpy(p, &four, 4 * sizeof(bf16));
    return;
  }
#endif
  for (int i = 0; i < COUNT; i++) put(p + i, x[i]);
}

template <typename T>
inline void widen(const T* from, float* to, int64_t count) {
  int64_t k = 0;
  for (; k + LANES <= count; k += LANES) store(to + k, load(from + k));
  for (; k < count; k++) to[k] = get(from + k);
}

inline float sum(vec v) {
  vec a = v + __builtin_shuffle(v, ivec{4, 5, 6, 7, 0, 1, 2, 3});
  a = a + __builtin_shuffle(a, ivec{2, 3, 0, 1, 6, 7, 4, 5});
  return a[0] + a[1];
}

inline vec max(vec a, vec b) { return a > b ? a : b; }

inline float max(vec v) {
  float m = v[0];
  for (int i = 1; i < LANES; i++) m = v[i] > m ? v[i] : m;
  return m;
}

// e^x to about 2 units in the last place for x up to 88, and e^88 above; 0 below -87.3; NaN stays NaN. Range reduction
// by ln 2, then a polynomial.
inline vec exp(vec given) {
  vec x = given < splat(88.f) ? given : splat(88.f);
  x = max(x, splat(-87.3f));
  vec n = x * splat(1.44269504f);
  n = (n + splat(12582912.f)) - splat(12582912.f);  // round to an integer
  vec r = x - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  vec p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  ivec scale = (__builtin_convertvector(n, ivec) + 127) << 23;
  vec y = (vec)((ivec)(p * (vec)scale) & ~(given < splat(-87.3f)));
  return given == given ? y : given;
}

}  // namespace descant
