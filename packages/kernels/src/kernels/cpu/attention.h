// Attention over a paged cache on raw pointers. The callers have checked lengths, tables and shapes.
#pragma once

#include <cstdint>

namespace pagoda {

template <typename T>
struct AttentionCall {
  T* out;  // [tokens, heads, head_size], contiguous
  const T* query;
  int64_t query_token_stride, query_head_stride;
  const T *key_cache, *value_cache;  // [blocks, kv_heads, block_size, head_size], last dimension contiguous
  int64_t key_block_stride, key_head_stride, key_slot_stride;
  int64_t value_block_stride, value_head_stride, value_slot_stride;
  const int32_t* block_table;
  int64_t block_table_stride;
  const int32_t *query_start_loc, *seq_lens;
  const float* sinks;  // one per head, or null
  int64_t num_requests, num_heads, num_kv_heads, head_size, block_size;
  float scale, soft_cap;   // a soft_cap of 0 is off
  int64_t sliding_window;  // 0 is off
  bool is_causal;
};

template <typename T>
void paged_attention(const AttentionCall<T>& call, int num_threads);

}  // namespace pagoda
