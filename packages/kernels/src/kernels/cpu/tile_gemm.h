// The small matrix product inside prompt attention, and the packing of its operands.
//
// C[rows, kTileColumns] (+)= A[rows, depth] * B[depth, kTileColumns]. An element of A and B is a float, or, where
// the processor multiplies pairs of bfloat16, two of them in 32 bits, so that one step of depth is two terms.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "vec.h"

namespace pagoda {

constexpr int64_t kTileColumns = 64;

#if defined(__AVX512BF16__) && defined(__AVX512F__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif


// One exchange step between vectors whose index differs in bit `step`: lane i of the first result is lane i of a
// where bit `step` of i is clear, else lane i - step of b; the second result takes the other halves.
template <int step>
inline void exchange(vf& a, vf& b) {
  vi from_a, from_b;
  for (int i = 0; i < kLanes; ++i) {
    from_a[i] = i & step ? kLanes + i - step : i;
    from_b[i] = i & step ? kLanes + i : i + step;
  }
  vf low = __builtin_shuffle(a, b, from_a), high = __builtin_shuffle(a, b, from_b);
  a = low;
  b = high;
}

template <int step>
inline void exchange_all(vf (&v)[kLanes]) {
  for (int i = 0; i < kLanes; ++i)
    if (!(i & step)) exchange<step>(v[i], v[i | step]);
}

inline void transpose(vf (&v)[kLanes]) {
  exchange_all<1>(v);
  exchange_all<2>(v);
  if constexpr (kLanes > 4) exchange_all<4>(v);
  if constexpr (kLanes > 8) exchange_all<8>(v);
}

template <int step>
inline void add_pairs(vf (&v)[kLanes]) {
  for (int i = 0; i < kLanes; i += 2 * step) {
    exchange<step>(v[i], v[i + step]);
    v[i] += v[i + step];
  }
}

// Lane i of the result is the sum over the lanes of v[i].
inline vf add_across(const vf (&vectors)[kLanes]) {
  vf v[kLanes];
  for (int i = 0; i < kLanes; ++i) v[i] = vectors[i];
  add_pairs<1>(v);
  add_pairs<2>(v);
  if constexpr (kLanes > 4) add_pairs<4>(v);
  if constexpr (kLanes > 8) add_pairs<8>(v);
  return v[0];
}

template <typename T>
struct TileGemm {
  static constexpr bool kPairs = kHasPairs && std::is_same_v<T, bf16>;
  using Element = std::conditional_t<kPairs, uint32_t, float>;

  // Steps of depth for n terms.
  static int64_t depth(int64_t n) { return kPairs ? (n + 1) / 2 : n; }

  static void pack_row(Element* to, const T* from, int64_t n) {
    if constexpr (kPairs) {
      to[depth(n) - 1] = 0;
      std::memcpy(to, from, n * sizeof(T));
    } else {
      for_lanes(n, [&](int64_t i, auto count) { store_lanes(to + i, load_lanes(from + i, count), count); });
    }
  }

  // B[d, i] = rows[i][d]; columns past `count` and those of null rows are zero.
  static void pack_transposed(Element* to, const T* const* rows, int64_t count, int64_t n) {
    const int64_t steps = depth(n);
    for (int64_t column = 0; column < kTileColumns; column += kLanes) {
      for (int64_t d = 0; d < steps; d += kLanes) {
        const int num_steps = (int)std::min<int64_t>(kLanes, steps - d);
        vf v[kLanes];
        for (int i = 0; i < kLanes; ++i)
          v[i] = column + i < count && rows[column + i] ? load_steps(rows[column + i], d, num_steps, n) : vf{};
        transpose(v);
        for (int i = 0; i < num_steps; ++i)
          std::memcpy(to + (d + i) * kTileColumns + column, &v[i], sizeof(vf));
      }
    }
  }

  // B[i, d] = rows[i][d], num_columns wide; null rows and what is past `count` rows or n columns are zero.
  static void pack_straight(Element* to, const T* const* rows, int64_t count, int64_t n, int64_t num_columns) {
    constexpr int64_t kTerms = kPairs ? 2 : 1;
    const int64_t steps = depth((count + kLanes - 1) / kLanes * kLanes);
    for (int64_t step = 0; step < steps; ++step, to += num_columns) {
      const T* first = step * kTerms < count ? rows[step * kTerms] : nullptr;
      const T* second = kPairs && step * kTerms + 1 < count ? rows[step * kTerms + 1] : nullptr;
      if (!first && !second) {
        std::fill(to, to + num_columns, Element(0));
        continue;
      }
      for_lanes(n, [&](int64_t i, auto lanes) {
        vf v = first ? load_lanes(first + i, lanes) : vf{};
        if constexpr (kPairs) {
          vu high = second ? (vu)load_lanes(second + i, lanes) : vu{};
          v = (vf)(((vu)v >> 16) | high);
        }
        std::memcpy(to + i, &v, lanes * sizeof(Element));
      });
      std::fill(to + n, to + num_columns, Element(0));
    }
  }

  // A row of kTileColumns probabilities as a row of A.
  static void pack_weights(Element* to, const float* weights) {
    if constexpr (kPairs) {
      bf16* pairs = reinterpret_cast<bf16*>(to);
      for (int64_t i = 0; i < kTileColumns; i += kLanes) store(pairs + i, load(weights + i));
    } else {
      std::memcpy(to, weights, kTileColumns * sizeof(float));
    }
  }

  static void multiply(float* c, int64_t c_stride, const Element* a, int64_t a_stride, const Element* b,
                       int64_t b_stride, int64_t num_rows, int64_t num_steps, bool adds) {
    constexpr int kVectors = kLanes == 16 ? 4 : 2;
    for (int64_t column = 0; column < kTileColumns; column += kVectors * kLanes) {
      int64_t row = 0;
      for (; row + kRows <= num_rows; row += kRows)
        multiply_rows<kRows, kVectors>(c + row * c_stride + column, c_stride, a + row * a_stride, a_stride,
                                       b + column, b_stride, num_steps, adds);
      multiply_rest<kRows - 1, kVectors>(num_rows - row, c + row * c_stride + column, c_stride,
                                         a + row * a_stride, a_stride, b + column, b_stride, num_steps, adds);
    }
  }

 private:
  // Sums held in registers: 6 x 4 of the 32 of AVX-512, 4 x 2 of the 16 of AVX2.
  static constexpr int kRows = kLanes == 16 ? 6 : 4;

  // kLanes steps of depth of one row, starting at step d.
  static vf load_steps(const T* row, int64_t d, int num_steps, int64_t n) {
    if constexpr (kPairs) {
      vf v = {};
      const int64_t num_terms = std::min<int64_t>(2 * num_steps, n - 2 * d);
      std::memcpy(&v, row + 2 * d, num_terms * sizeof(T));
      return v;
    } else {
      return num_steps == kLanes ? load(row + d) : load_part(row + d, num_steps);
    }
  }

  static vf multiply_add(vf sum, vf a, vf b) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
    if constexpr (kPairs) return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    return sum + a * b;
  }

  static vf broadcast(const Element* p) {
    float bits;
    std::memcpy(&bits, p, sizeof(bits));
#if defined(__AVX512F__)
    // Not splat(): the bits are not a number where they hold a pair.
    return (vf)_mm512_set1_ps(bits);
#else
    return splat(bits);
#endif
  }

  // The rows left over, with their number as a constant.
  template <int rows, int vectors, typename... Args>
  static void multiply_rest(int64_t num_rows, Args... args) {
    if constexpr (rows > 0) {
      if (num_rows == rows)
        multiply_rows<rows, vectors>(args...);
      else
        multiply_rest<rows - 1, vectors>(num_rows, args...);
    }
  }

  template <int rows, int vectors>
  static void multiply_rows(float* c, int64_t c_stride, const Element* a, int64_t a_stride, const Element* b,
                            int64_t b_stride, int64_t num_steps, bool adds) {
    vf sums[rows][vectors] = {};
    for (int64_t step = 0; step < num_steps; ++step, b += b_stride) {
      vf columns[vectors];
      for (int j = 0; j < vectors; ++j) std::memcpy(&columns[j], b + j * kLanes, sizeof(vf));
      for (int i = 0; i < rows; ++i) {
        const vf term = broadcast(a + i * a_stride + step);
        for (int j = 0; j < vectors; ++j) sums[i][j] = multiply_add(sums[i][j], term, columns[j]);
      }
    }
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < vectors; ++j) {
        float* to = c + i * c_stride + j * kLanes;
        store(to, adds ? load(to) + sums[i][j] : sums[i][j]);
      }
  }
};

}  // namespace pagoda
