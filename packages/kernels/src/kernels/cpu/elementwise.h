// Norms, gated activations, rotary embedding and cache writes on raw pointers. The callers have checked shapes
// and indices.
#pragma once

#include <cstdint>

#include "vec.h"

namespace pagoda {

// Rows of x, addressed as [outer, inner] with a stride each; the last dimension is contiguous.
struct Rows {
  int64_t num_outer, num_inner, outer_stride, inner_stride, width;
};

// The largest rotary dimension a token is rotated in; the caller refuses larger ones.
constexpr int64_t kMaxRotaryDim = 1024;

enum class Gate { kSilu, kGelu, kGeluTanh };

template <typename T>
void rms_norm(T* out, const T* x, const Rows& rows, const T* weight, float eps, int num_threads);

template <typename T>
void fused_add_rms_norm(T* out, T* new_residual, const T* x, int64_t x_stride, const T* residual,
                        int64_t residual_stride, const T* weight, int64_t num_rows, int64_t width, float eps,
                        int num_threads);

template <typename T>
void gate_and_mul(T* out, const T* x, int64_t x_stride, int64_t num_rows, int64_t width, Gate gate,
                  int num_threads);

// Cosines and sines in float or in T.
template <typename T, typename C>
void rotary_embedding(const int64_t* positions, T* query, int64_t query_stride, int64_t num_heads, T* key,
                      int64_t key_stride, int64_t num_kv_heads, const C* cos_sin, int64_t num_tokens,
                      int64_t head_size, int64_t rotary_dim, bool is_neox, int num_threads);

struct CacheStrides {
  int64_t block, head, slot;
};

void write_kv_cache(const char* key, const char* value, int64_t key_stride, int64_t key_head_stride,
                    int64_t value_stride, int64_t value_head_stride, char* key_cache, char* value_cache,
                    CacheStrides key_strides, CacheStrides value_strides, const int64_t* slots,
                    int64_t num_tokens, int64_t num_kv_heads, int64_t block_size, int64_t head_bytes,
                    int num_threads);

}  // namespace pagoda
