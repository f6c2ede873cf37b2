// Norms, gated activations, rotary embedding and cache writes: vectorised loops over rows.
//
// Rounding follows the reference: a normalised value or an activation is rounded to T before it is multiplied.

#include "elementwise.h"

#include <cmath>
#include <type_traits>

#include "parallel.h"

namespace pagoda {
namespace {

// Below this many elements per call one thread is faster than waking a second: a parallel region of two threads
// costs 1-2 us with warm threads, and these loops pass 10-20 elements per ns.
constexpr int64_t kMinParallelElements = 32768;

int threads_for(int64_t num_elements, int num_threads) {
  return num_elements < kMinParallelElements ? 1 : num_threads;
}

template <typename T>
float scale_of(const T* x, int64_t width, float eps) {
  vf squares = {};
  for_lanes(width, [&](int64_t i, auto n) {
    vf v = load_lanes(x + i, n);
    squares += v * v;
  });
  return 1.0f / std::sqrt(sum(squares) / (float)width + eps);
}

template <typename T>
void write_normed(T* out, const T* x, const T* weight, int64_t width, float scale) {
  for_lanes(width, [&](int64_t i, auto n) {
    vf normed = round_to<T>(load_lanes(x + i, n) * scale);
    store_lanes(out + i, normed * load_lanes(weight + i, n), n);
  });
}

template <Gate gate>
vf activate(vf x) {
  if constexpr (gate == Gate::kSilu) {
    return x / (1.0f + exp(-x));
  } else if constexpr (gate == Gate::kGeluTanh) {
    vf inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh(inner));
  } else {
    vf out;
    for (int i = 0; i < kLanes; ++i) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.7071067811865476f));
    return out;
  }
}

template <Gate gate, typename T>
void gate_rows(T* out, const T* x, int64_t x_stride, int64_t num_rows, int64_t width, int num_threads) {
  parallel_ranges(num_rows, threads_for(num_rows * width, num_threads), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * x_stride;
      for_lanes(width, [&](int64_t i, auto n) {
        vf gated = round_to<T>(activate<gate>(load_lanes(in + i, n)));
        store_lanes(out + row * width + i, gated * load_lanes(in + width + i, n), n);
      });
    }
  });
}

template <typename T>
void rotate_neox(T* head, const float* cos, const float* sin, int64_t half) {
  for_lanes(half, [&](int64_t i, auto n) {
    vf c = load_lanes(cos + i, n), s = load_lanes(sin + i, n);
    vf first = load_lanes(head + i, n), second = load_lanes(head + half + i, n);
    store_lanes(head + i, first * c - second * s, n);
    store_lanes(head + half + i, second * c + first * s, n);
  });
}

template <typename T>
void rotate_pairs(T* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    float first = to_float(head[2 * i]), second = to_float(head[2 * i + 1]);
    head[2 * i] = from_float<T>(first * cos[i] - second * sin[i]);
    head[2 * i + 1] = from_float<T>(second * cos[i] + first * sin[i]);
  }
}

}  // namespace

template <typename T>
void rms_norm(T* out, const T* x, const Rows& rows, const T* weight, float eps, int num_threads) {
  int64_t num_rows = rows.num_outer * rows.num_inner;
  parallel_ranges(num_rows, threads_for(num_rows * rows.width, num_threads), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in =
          x + row / rows.num_inner * rows.outer_stride + row % rows.num_inner * rows.inner_stride;
      write_normed(out + row * rows.width, in, weight, rows.width, scale_of(in, rows.width, eps));
    }
  });
}

template <typename T>
void fused_add_rms_norm(T* out, T* new_residual, const T* x, int64_t x_stride, const T* residual,
                        int64_t residual_stride, const T* weight, int64_t num_rows, int64_t width, float eps,
                        int num_threads) {
  parallel_ranges(num_rows, threads_for(num_rows * width, num_threads), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *in = x + row * x_stride, *carried = residual + row * residual_stride;
      T* total = new_residual + row * width;
      for_lanes(width, [&](int64_t i, auto n) {
        store_lanes(total + i, load_lanes(in + i, n) + load_lanes(carried + i, n), n);
      });
      write_normed(out + row * width, total, weight, width, scale_of(total, width, eps));
    }
  });
}

template <typename T>
void gate_and_mul(T* out, const T* x, int64_t x_stride, int64_t num_rows, int64_t width, Gate gate,
                  int num_threads) {
  switch (gate) {
    case Gate::kSilu:
      return gate_rows<Gate::kSilu>(out, x, x_stride, num_rows, width, num_threads);
    case Gate::kGelu:
      return gate_rows<Gate::kGelu>(out, x, x_stride, num_rows, width, num_threads);
    case Gate::kGeluTanh:
      return gate_rows<Gate::kGeluTanh>(out, x, x_stride, num_rows, width, num_threads);
  }
}

template <typename T, typename C>
void rotary_embedding(const int64_t* positions, T* query, int64_t query_stride, int64_t num_heads, T* key,
                      int64_t key_stride, int64_t num_kv_heads, const C* cos_sin, int64_t num_tokens,
                      int64_t head_size, int64_t rotary_dim, bool is_neox, int num_threads) {
  int64_t half = rotary_dim / 2;
  int64_t num_elements = num_tokens * (num_heads + num_kv_heads) * head_size;
  parallel_ranges(num_tokens, threads_for(num_elements, num_threads), [&](int64_t begin, int64_t end) {
    // Head sizes are a few hundred; the angles of a token are converted once for all its heads.
    float angles[kMaxRotaryDim];
    for (int64_t token = begin; token < end; ++token) {
      const C* line = cos_sin + positions[token] * rotary_dim;
      for_lanes(rotary_dim, [&](int64_t i, auto n) { store_lanes(angles + i, load_lanes(line + i, n), n); });
      auto rotate = [&](T* heads, int64_t count) {
        for (int64_t head = 0; head < count; ++head) {
          if (is_neox)
            rotate_neox(heads + head * head_size, angles, angles + half, half);
          else
            rotate_pairs(heads + head * head_size, angles, angles + half, half);
        }
      };
      rotate(query + token * query_stride, num_heads);
      rotate(key + token * key_stride, num_kv_heads);
    }
  });
}

void write_kv_cache(const char* key, const char* value, int64_t key_stride, int64_t key_head_stride,
                    int64_t value_stride, int64_t value_head_stride, char* key_cache, char* value_cache,
                    CacheStrides key_strides, CacheStrides value_strides, const int64_t* slots,
                    int64_t num_tokens, int64_t num_kv_heads, int64_t block_size, int64_t head_bytes,
                    int num_threads) {
  int64_t num_elements = num_tokens * num_kv_heads * head_bytes;
  parallel_ranges(num_tokens, threads_for(num_elements, num_threads), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      if (slots[token] < 0) continue;
      int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
      char* key_to = key_cache + block * key_strides.block + offset * key_strides.slot;
      char* value_to = value_cache + block * value_strides.block + offset * value_strides.slot;
      const char *key_from = key + token * key_stride, *value_from = value + token * value_stride;
      for (int64_t head = 0; head < num_kv_heads; ++head) {
        std::memcpy(key_to + head * key_strides.head, key_from + head * key_head_stride, head_bytes);
        std::memcpy(value_to + head * value_strides.head, value_from + head * value_head_stride, head_bytes);
      }
    }
  });
}

#define PAGODA_INSTANTIATE(T)                                                                              \
  template void rms_norm<T>(T*, const T*, const Rows&, const T*, float, int);                              \
  template void fused_add_rms_norm<T>(T*, T*, const T*, int64_t, const T*, int64_t, const T*, int64_t,     \
                                      int64_t, float, int);                                                \
  template void gate_and_mul<T>(T*, const T*, int64_t, int64_t, int64_t, Gate, int);                       \
  template void rotary_embedding<T, float>(const int64_t*, T*, int64_t, int64_t, T*, int64_t, int64_t,     \
                                           const float*, int64_t, int64_t, int64_t, bool, int);

PAGODA_INSTANTIATE(float)
PAGODA_INSTANTIATE(bf16)
PAGODA_INSTANTIATE(f16)

#define PAGODA_INSTANTIATE_ROTARY(T)                                                                    \
  template void rotary_embedding<T, T>(const int64_t*, T*, int64_t, int64_t, T*, int64_t, int64_t,      \
                                       const T*, int64_t, int64_t, int64_t, bool, int);

PAGODA_INSTANTIATE_ROTARY(bf16)
PAGODA_INSTANTIATE_ROTARY(f16)

}  // namespace pagoda
