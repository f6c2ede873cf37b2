// Fixed-width float vectors on the compiler's vector extension: one source for AVX-512, AVX2 and others.
// Knows lanes, conversions of 16-bit floats and elementary functions; nothing of tensors or threads.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace pagoda {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

// Storage types: same size and bits as torch's, without its headers.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

constexpr float kInf = std::numeric_limits<float>::infinity();

inline vf splat(float x) { return x - vf{}; }

// A function, since `mask ? a : b` on vectors is not spelled alike by all compilers.
inline vf select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

inline vf vmax(vf a, vf b) { return select(a > b, a, b); }
inline vf vmin(vf a, vf b) { return select(a < b, a, b); }

// Asks for a cache line. In assembly, because GCC drops functions that do nothing but __builtin_prefetch.
inline void prefetch_line(const char* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 %0" ::"m"(*p));
#else
  __builtin_prefetch(p);
#endif
}

inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

inline vf load(const bf16* p) {
#if defined(__AVX512F__)
  // The generic form below is compiled to two halves and an insert.
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#endif
  vh v;
  std::memcpy(&v, p, sizeof(v));
  return (vf)(__builtin_convertvector(v, vu) << 16);
}

inline vf load(const f16* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  vf v;
  for (int i = 0; i < kLanes; ++i) {
    _Float16 half;
    std::memcpy(&half, p + i, 2);
    v[i] = (float)half;
  }
  return v;
#endif
}

inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof(v)); }

// Rounds to nearest even, as torch does; a NaN stays a NaN.
inline void store(bf16* p, vf v) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
  const __m256bh narrow = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(p, &narrow, sizeof(narrow));
  return;
#endif
  vu bits = (vu)v;
  vu rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  vi is_nan = v != v;
  rounded = ((vu)is_nan & 0x7FC0u) | (~(vu)is_nan & rounded);
  vh out = __builtin_convertvector(rounded, vh);
  std::memcpy(p, &out, sizeof(out));
}

inline void store(f16* p, vf v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) {
    _Float16 half = (_Float16)v[i];
    std::memcpy(p + i, &half, 2);
  }
#endif
}

// The first n < kLanes values; the other lanes are zero and their memory is not touched.
template <typename T>
inline vf load_part(const T* p, int n) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, n * sizeof(T));
  return load(lanes);
}

template <typename T>
inline void store_part(T* p, vf v, int n) {
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, n * sizeof(T));
}

template <typename T>
inline float to_float(T x) {
  return load_part(&x, 1)[0];
}
template <>
inline float to_float(float x) {
  return x;
}

template <typename T>
inline T from_float(float x) {
  T out;
  store_part(&out, splat(x), 1);
  return out;
}
template <>
inline float from_float(float x) {
  return x;
}

// x rounded to T and back.
template <typename T>
inline vf round_to(vf v) {
  T lanes[kLanes];
  store(lanes, v);
  return load(lanes);
}
template <>
inline vf round_to<float>(vf v) {
  return v;
}
#if defined(__AVX512BF16__) && defined(__AVX512F__)
template <>
inline vf round_to<bf16>(vf v) {
  // Without the way through memory.
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v)), 16);
}
#endif

// Calls body(offset, count) over [0, n): count is kLanes, except for what is left at the end.
template <typename Body>
inline void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, std::integral_constant<int, kLanes>());
  if (i < n) body(i, (int)(n - i));
}
// The same with a body of its own for each value left at the end, called as tail(offset, 1).
template <typename Body, typename Tail>
inline void for_lanes(int64_t n, Body body, Tail tail) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, std::integral_constant<int, kLanes>());
  for (; i < n; ++i) tail(i, 1);
}
template <typename T>
inline vf load_lanes(const T* p, std::integral_constant<int, kLanes>) {
  return load(p);
}
template <typename T>
inline vf load_lanes(const T* p, int n) {
  return load_part(p, n);
}
template <typename T>
inline void store_lanes(T* p, vf v, std::integral_constant<int, kLanes>) {
  store(p, v);
}
template <typename T>
inline void store_lanes(T* p, vf v, int n) {
  store_part(p, v, n);
}

inline float sum(vf v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

inline float max(vf v) {
  float lanes[kLanes];
  store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

inline bool any(vi mask) {
  int32_t lanes[kLanes], bits = 0;
  std::memcpy(lanes, &mask, sizeof(mask));
  for (int i = 0; i < kLanes; ++i) bits |= lanes[i];
  return bits != 0;
}

inline vi lane_ids() {
  vi ids;
  for (int i = 0; i < kLanes; ++i) ids[i] = i;
  return ids;
}

// e^x within 2 units in the last place; 0 below -87.3 (also at -inf), a large finite number above 88.3.
inline vf exp(vf x) {
  const vf low = splat(-87.3f);
  vi underflows = x < low;
  vf t = vmin(vmax(x, low), splat(88.3f));
  // Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
  const vf magic = splat(12582912.0f);
  vf shifted = t * 1.44269504088896341f + magic;
  vf n = shifted - magic;
  vf r = t - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  vf scale = (vf)((((vi)shifted - (vi)magic) + 127) << 23);
  return (vf)(~underflows & (vi)(p * scale));
}

inline float exp(float x) { return exp(splat(x))[0]; }

inline vf tanh(vf x) {
  vf magnitude = (vf)((vi)x & 0x7FFFFFFF);
  vf large = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
  // Near 0 the difference above loses its bits; the series to x^9 is exact to float there.
  vf z = x * x;
  vf tail = z * (62.0f / 2835.0f) + (-17.0f / 315.0f);
  tail = z * tail + (2.0f / 15.0f);
  tail = z * tail + (-1.0f / 3.0f);
  vf small = magnitude + magnitude * (z * tail);
  vf result = select(magnitude < splat(0.25f), small, large);
  return (vf)((vi)result | ((vi)x & (vi)splat(-0.0f)));
}

}  // namespace pagoda
