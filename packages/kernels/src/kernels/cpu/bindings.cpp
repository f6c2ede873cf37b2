// Registers the CPU implementations with torch: checks shapes, types and every index, then hands raw pointers
// to the kernels. What is wrong raises ValueError and touches no memory.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>

#include "attention.h"
#include "elementwise.h"
#include "sampling.h"
#include "vec.h"

namespace {

using at::Tensor;

template <typename T>
T* data(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

int num_threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

Tensor with_contiguous_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

Tensor as_column(const Tensor& x, at::ScalarType type) { return x.to(type).contiguous(); }

// Calls body(value of the kernel's element type) for the tensor's type.
template <typename Body>
auto for_float_type(const Tensor& x, const char* name, Body body) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return body(float());
    case at::kBFloat16:
      return body(pagoda::bf16());
    case at::kHalf:
      return body(pagoda::f16());
    default:
      TORCH_CHECK_VALUE(false, name, ": dtype ", x.scalar_type(), " is not float32, bfloat16 or float16");
  }
}

void check_weight(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), "weight: shape ",
                    weight.sizes(), " must be [", x.dim() ? x.size(-1) : 0, "]");
  TORCH_CHECK_VALUE(weight.scalar_type() == x.scalar_type(), "weight: dtype ", weight.scalar_type(),
                    " differs from x (", x.scalar_type(), "); convert it while loading");
}

Tensor rms_norm(const Tensor& x_in, const Tensor& weight_in, double eps) {
  check_weight(x_in, weight_in);
  Tensor x = with_contiguous_rows(x_in), weight = weight_in.contiguous();
  if (x.dim() > 3) x = x.contiguous();
  Tensor out = at::empty(x.sizes(), x.options());
  if (out.numel() == 0) return out;
  pagoda::Rows rows{1, 1, 0, 0, x.size(-1)};
  if (x.dim() == 2) {
    rows = {x.size(0), 1, x.stride(0), 0, x.size(-1)};
  } else if (x.dim() == 3) {
    rows = {x.size(0), x.size(1), x.stride(0), x.stride(1), x.size(-1)};
  } else if (x.dim() > 3) {
    rows = {x.numel() / x.size(-1), 1, x.size(-1), 0, x.size(-1)};
  }
  for_float_type(x, "x", [&](auto element) {
    using T = decltype(element);
    pagoda::rms_norm<T>(data<T>(out), data<T>(x), rows, data<T>(weight), (float)eps, num_threads());
  });
  return out;
}

std::tuple<Tensor, Tensor> fused_add_rms_norm(const Tensor& x_in, const Tensor& residual_in,
                                              const Tensor& weight_in, double eps) {
  check_weight(x_in, weight_in);
  TORCH_CHECK_VALUE(x_in.sizes() == residual_in.sizes() && x_in.scalar_type() == residual_in.scalar_type(),
                    "residual: ", residual_in.sizes(), " ", residual_in.scalar_type(), " must be like x, ",
                    x_in.sizes(), " ", x_in.scalar_type());
  int64_t width = x_in.size(-1);
  // 2-D rows may be strided; anything else is copied.
  auto rows_of = [&](const Tensor& x) {
    return x.dim() == 2 ? with_contiguous_rows(x) : x.contiguous().view({-1, width});
  };
  Tensor out = at::empty(x_in.sizes(), x_in.options()), new_residual = at::empty(x_in.sizes(), x_in.options());
  if (out.numel() == 0) return {out, new_residual};
  Tensor x = rows_of(x_in), residual = rows_of(residual_in), weight = weight_in.contiguous();
  for_float_type(x, "x", [&](auto element) {
    using T = decltype(element);
    pagoda::fused_add_rms_norm<T>(data<T>(out), data<T>(new_residual), data<T>(x), x.stride(0),
                                  data<T>(residual), residual.stride(0), data<T>(weight), x.size(0), width,
                                  (float)eps, num_threads());
  });
  return {out, new_residual};
}

Tensor gate_and_mul(const Tensor& x_in, pagoda::Gate gate) {
  TORCH_CHECK_VALUE(x_in.dim() >= 1 && x_in.size(-1) % 2 == 0,
                    "x: the last dimension holds [gate | up] and must be even, not ", x_in.sizes());
  auto sizes = x_in.sizes().vec();
  int64_t width = sizes.back() / 2;
  sizes.back() = width;
  Tensor out = at::empty(sizes, x_in.options());
  if (out.numel() == 0) return out;
  Tensor x = x_in.dim() == 2 ? with_contiguous_rows(x_in) : x_in.contiguous().view({-1, 2 * width});
  for_float_type(x, "x", [&](auto element) {
    using T = decltype(element);
    pagoda::gate_and_mul<T>(data<T>(out), data<T>(x), x.stride(0), x.size(0), width, gate, num_threads());
  });
  return out;
}

Tensor silu_and_mul(const Tensor& x) { return gate_and_mul(x, pagoda::Gate::kSilu); }

Tensor gelu_and_mul(const Tensor& x, std::string_view approximate) {
  TORCH_CHECK_VALUE(approximate == "none" || approximate == "tanh", "approximate: '", std::string(approximate),
                    "' is not 'none' or 'tanh'");
  return gate_and_mul(x, approximate == "tanh" ? pagoda::Gate::kGeluTanh : pagoda::Gate::kGelu);
}

void rotary_embedding(const Tensor& positions_in, const Tensor& query, const Tensor& key,
                      const Tensor& cos_sin_in, int64_t head_size, bool is_neox) {
  TORCH_CHECK_VALUE(cos_sin_in.dim() == 2, "cos_sin_cache: shape ", cos_sin_in.sizes(),
                    " must be [positions, rotary dim]");
  int64_t num_positions = cos_sin_in.size(0), rotary_dim = cos_sin_in.size(1), num_tokens = positions_in.numel();
  TORCH_CHECK_VALUE(rotary_dim > 0 && rotary_dim % 2 == 0 && rotary_dim <= head_size &&
                        rotary_dim <= pagoda::kMaxRotaryDim,
                    "cos_sin_cache: rotary dim ", rotary_dim, " must be even and at most head_size=", head_size,
                    " and ", pagoda::kMaxRotaryDim);
  TORCH_CHECK_VALUE(positions_in.dim() == 1, "positions: shape ", positions_in.sizes(), " must be [tokens]");
  for (const auto& [name, x] : {std::pair{"query", query}, std::pair{"key", key}}) {
    TORCH_CHECK_VALUE(x.dim() == 2 && x.size(0) == num_tokens && x.size(1) % head_size == 0, name, ": shape ",
                      x.sizes(), " must be [", num_tokens, ", a multiple of ", head_size, "]");
    TORCH_CHECK_VALUE(x.size(1) <= 1 || x.stride(1) == 1, name, ": the last dimension must be contiguous");
  }
  TORCH_CHECK_VALUE(query.scalar_type() == key.scalar_type(), "key: dtype ", key.scalar_type(),
                    " differs from query (", query.scalar_type(), ")");
  Tensor positions = as_column(positions_in, at::kLong), cos_sin = cos_sin_in.contiguous();
  const int64_t* position = data<int64_t>(positions);
  for (int64_t i = 0; i < num_tokens; ++i)
    TORCH_CHECK_VALUE(position[i] >= 0 && position[i] < num_positions, "positions: must lie in [0, ",
                      num_positions, "), got ", position[i]);
  for_float_type(query, "query", [&](auto element) {
    using T = decltype(element);
    auto rotate = [&](auto angle) {
      using C = decltype(angle);
      pagoda::rotary_embedding<T, C>(position, data<T>(query), query.stride(0), query.size(1) / head_size,
                                     data<T>(key), key.stride(0), key.size(1) / head_size, data<C>(cos_sin),
                                     num_tokens, head_size, rotary_dim, is_neox, num_threads());
    };
    if (cos_sin.scalar_type() == query.scalar_type()) return rotate(element);
    cos_sin = cos_sin.to(at::kFloat);
    return rotate(float());
  });
}

// What the paged ops share: both halves of a cache fit each other and are read along contiguous heads.
void check_cache(const Tensor& key_cache, const Tensor& value_cache) {
  TORCH_CHECK_VALUE(key_cache.dim() == 4 && key_cache.size(2) > 0 && key_cache.size(3) > 0, "key_cache: shape ",
                    key_cache.sizes(), " must be [blocks, kv heads, block size, head size]");
  TORCH_CHECK_VALUE(value_cache.sizes() == key_cache.sizes(), "value_cache: shape ", value_cache.sizes(),
                    " differs from key_cache");
  TORCH_CHECK_VALUE(value_cache.scalar_type() == key_cache.scalar_type(), "value_cache: dtype ",
                    value_cache.scalar_type(), " differs from key_cache");
  TORCH_CHECK_VALUE(key_cache.stride(3) == 1 && value_cache.stride(3) == 1,
                    "key_cache: the last dimension must be contiguous, of value_cache too");
}

void write_kv_cache(const Tensor& key_in, const Tensor& value_in, const Tensor& key_cache,
                    const Tensor& value_cache, const Tensor& slots_in) {
  check_cache(key_cache, value_cache);
  int64_t num_tokens = slots_in.numel(), num_kv_heads = key_cache.size(1), block_size = key_cache.size(2);
  int64_t num_slots = key_cache.size(0) * block_size, head_size = key_cache.size(3);
  for (const auto& [name, x] : {std::pair{"key", key_in}, std::pair{"value", value_in}})
    TORCH_CHECK_VALUE(x.dim() == 3 && x.size(0) == num_tokens && x.size(1) == num_kv_heads &&
                          x.size(2) == head_size,
                      name, ": shape ", x.sizes(), " must be [", num_tokens, ", ", num_kv_heads, ", ", head_size,
                      "], as the cache and slot_mapping say");
  Tensor slots = as_column(slots_in, at::kLong);
  const int64_t* slot = data<int64_t>(slots);
  for (int64_t i = 0; i < num_tokens; ++i)
    TORCH_CHECK_VALUE(slot[i] < num_slots, "slot_mapping: slots must be below ", num_slots, ", got ", slot[i]);
  Tensor key = with_contiguous_rows(key_in.to(key_cache.scalar_type()));
  Tensor value = with_contiguous_rows(value_in.to(value_cache.scalar_type()));
  int64_t size = key_cache.element_size();
  auto strides = [&](const Tensor& cache) {
    return pagoda::CacheStrides{cache.stride(0) * size, cache.stride(1) * size, cache.stride(2) * size};
  };
  pagoda::write_kv_cache(data<char>(key), data<char>(value), key.stride(0) * size, key.stride(1) * size,
                         value.stride(0) * size, value.stride(1) * size, data<char>(key_cache),
                         data<char>(value_cache), strides(key_cache), strides(value_cache), slot, num_tokens,
                         num_kv_heads, block_size, head_size * size, num_threads());
}

// Every query token belongs to one request at most, every visible key lies in a block of the cache.
void check_lengths(const Tensor& query, const Tensor& key_cache, const Tensor& block_table, const int32_t* starts,
                   const int32_t* lens, int64_t num_requests, int64_t sliding_window) {
  int64_t num_tokens = query.size(0), block_size = key_cache.size(2), num_blocks = key_cache.size(0);
  int64_t table_keys = block_table.size(1) * block_size;
  TORCH_CHECK_VALUE(starts[0] >= 0 && starts[num_requests] <= num_tokens,
                    "query_start_loc: must rise from 0 to at most ", num_tokens, " tokens");
  for (int64_t r = 0; r < num_requests; ++r) {
    int64_t num_queries = (int64_t)starts[r + 1] - starts[r], num_keys = lens[r];
    TORCH_CHECK_VALUE(num_queries >= 0, "query_start_loc: must rise from 0 to at most ", num_tokens, " tokens");
    if (num_queries == 0) continue;
    TORCH_CHECK_VALUE(num_queries <= num_keys && num_keys <= table_keys, "seq_lens: ", num_keys, " of request ", r,
                      " must be at least its ", num_queries, " query tokens and at most the ",
                      block_table.size(1), " blocks of its table row");
    int64_t first = sliding_window > 0 ? std::max<int64_t>(0, num_keys - num_queries - sliding_window + 1) : 0;
    const int32_t* row = data<int32_t>(block_table) + r * block_table.stride(0);
    bool is_inside = true;
    for (int64_t i = first / block_size; i * block_size < num_keys; ++i)
      is_inside &= row[i] >= 0 && row[i] < num_blocks;
    TORCH_CHECK_VALUE(is_inside, "block_table: row ", r, " names a block outside [0, ", num_blocks, ")");
  }
}

Tensor paged_attention(const Tensor& query_in, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& block_table_in, const Tensor& starts_in, const Tensor& lens_in, double scale,
                       int64_t sliding_window, double soft_cap, const std::optional<Tensor>& sinks_in,
                       bool causal, int64_t /* max_query_len, a hint this path has no use for */) {
  check_cache(key_cache, value_cache);
  TORCH_CHECK_VALUE(query_in.dim() == 3 && query_in.size(2) == key_cache.size(3) && key_cache.size(1) > 0 &&
                        query_in.size(1) % key_cache.size(1) == 0,
                    "query: shape ", query_in.sizes(), " does not fit a cache of ", key_cache.size(1),
                    " heads of ", key_cache.size(3));
  TORCH_CHECK_VALUE(query_in.scalar_type() == key_cache.scalar_type(), "query: dtype ", query_in.scalar_type(),
                    " differs from the cache (", key_cache.scalar_type(), ")");
  int64_t num_requests = lens_in.numel(), num_heads = query_in.size(1), head_size = query_in.size(2);
  TORCH_CHECK_VALUE(starts_in.numel() == num_requests + 1 && block_table_in.dim() == 2 &&
                        block_table_in.size(0) >= num_requests,
                    "seq_lens: ", num_requests, " requests need ", num_requests + 1,
                    " query_start_loc entries (got ", starts_in.numel(), ") and as many block_table rows (got ",
                    block_table_in.sizes(), ")");
  Tensor query = with_contiguous_rows(query_in), starts = as_column(starts_in, at::kInt);
  Tensor lens = as_column(lens_in, at::kInt), block_table = with_contiguous_rows(block_table_in.to(at::kInt));
  check_lengths(query, key_cache, block_table, data<int32_t>(starts), data<int32_t>(lens), num_requests,
                sliding_window);
  Tensor sinks;
  if (sinks_in) {
    sinks = as_column(*sinks_in, at::kFloat);
    TORCH_CHECK_VALUE(sinks.numel() == num_heads, "sinks: shape ", sinks.sizes(), " must be [", num_heads, "]");
  }
  Tensor out = at::empty(query.sizes(), query.options());
  // Tokens of no request are padding; they come back as zeros, never as what the memory held before.
  int64_t first = data<int32_t>(starts)[0], last = data<int32_t>(starts)[num_requests];
  if (first > 0) out.narrow(0, 0, first).zero_();
  if (last < out.size(0)) out.narrow(0, last, out.size(0) - last).zero_();
  for_float_type(query, "query", [&](auto element) {
    using T = decltype(element);
    pagoda::AttentionCall<T> call{};
    call.out = data<T>(out);
    call.query = data<T>(query);
    call.query_token_stride = query.stride(0);
    call.query_head_stride = query.stride(1);
    call.key_cache = data<T>(key_cache);
    call.value_cache = data<T>(value_cache);
    call.key_block_stride = key_cache.stride(0);
    call.key_head_stride = key_cache.stride(1);
    call.key_slot_stride = key_cache.stride(2);
    call.value_block_stride = value_cache.stride(0);
    call.value_head_stride = value_cache.stride(1);
    call.value_slot_stride = value_cache.stride(2);
    call.block_table = data<int32_t>(block_table);
    call.block_table_stride = block_table.stride(0);
    call.query_start_loc = data<int32_t>(starts);
    call.seq_lens = data<int32_t>(lens);
    call.sinks = sinks.defined() ? data<float>(sinks) : nullptr;
    call.num_requests = num_requests;
    call.num_heads = num_heads;
    call.num_kv_heads = key_cache.size(1);
    call.head_size = head_size;
    call.block_size = key_cache.size(2);
    call.scale = (float)scale;
    call.soft_cap = (float)soft_cap;
    call.sliding_window = sliding_window;
    call.is_causal = causal;
    pagoda::paged_attention<T>(call, num_threads());
  });
  return out;
}

pagoda::Logits rows_of(const Tensor& logits) {
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.scalar_type() == at::kFloat && logits.size(1) > 0,
                    "logits: must be float32 [rows, vocabulary], not ", logits.scalar_type(), " ",
                    logits.sizes());
  TORCH_CHECK_VALUE(logits.stride(1) == 1, "logits: the last dimension must be contiguous");
  return {data<float>(logits), logits.size(0), logits.size(1), logits.stride(0)};
}

Tensor column_of(const Tensor& logits, const char* name, const Tensor& column, at::ScalarType type) {
  TORCH_CHECK_VALUE(column.dim() == 1 && column.size(0) == logits.size(0), name, ": shape ", column.sizes(),
                    " must be [", logits.size(0), "]");
  return as_column(column, type);
}

Tensor nonfinite_rows(const Tensor& logits) {
  pagoda::Logits rows = rows_of(logits);
  Tensor out = at::empty({rows.num_rows}, logits.options().dtype(at::kBool));
  pagoda::nonfinite_rows(data<bool>(out), rows, num_threads());
  return out;
}

void apply_penalties(const Tensor& logits, const Tensor& prompt_mask_in, const Tensor& counts_in,
                     const Tensor& repetition_in, const Tensor& presence_in, const Tensor& frequency_in) {
  pagoda::Logits rows = rows_of(logits);
  for (const auto& [name, x] : {std::pair{"prompt_token_mask", prompt_mask_in}, {"output_counts", counts_in}})
    TORCH_CHECK_VALUE(x.sizes() == logits.sizes(), name, ": shape ", x.sizes(), " must be ", logits.sizes());
  Tensor repetition = column_of(logits, "repetition", repetition_in, at::kFloat);
  Tensor presence = column_of(logits, "presence", presence_in, at::kFloat);
  Tensor frequency = column_of(logits, "frequency", frequency_in, at::kFloat);
  // A bool is a byte of 0 or 1.
  Tensor prompt_mask =
      (prompt_mask_in.element_size() == 1 ? prompt_mask_in : prompt_mask_in.to(at::kBool)).contiguous();
  Tensor counts = as_column(counts_in, at::kInt);
  pagoda::apply_penalties(rows, data<uint8_t>(prompt_mask), data<int32_t>(counts), data<float>(repetition),
                          data<float>(presence), data<float>(frequency), num_threads());
}

void apply_min_p(const Tensor& logits, const Tensor& min_p_in) {
  pagoda::Logits rows = rows_of(logits);
  Tensor min_p = column_of(logits, "min_p", min_p_in, at::kFloat);
  pagoda::apply_min_p(rows, data<float>(min_p), num_threads());
}

void apply_top_k_top_p(const Tensor& logits, const std::optional<Tensor>& top_k_in,
                       const std::optional<Tensor>& top_p_in) {
  pagoda::Logits rows = rows_of(logits);
  Tensor top_k, top_p;
  if (top_k_in) top_k = column_of(logits, "top_k", *top_k_in, at::kInt);
  if (top_p_in) top_p = column_of(logits, "top_p", *top_p_in, at::kFloat);
  pagoda::apply_top_k_top_p(rows, top_k.defined() ? data<int32_t>(top_k) : nullptr,
                            top_p.defined() ? data<float>(top_p) : nullptr, num_threads());
}

Tensor gumbel_sample(const Tensor& logits, const Tensor& seeds_in, const Tensor& positions_in) {
  pagoda::Logits rows = rows_of(logits);
  Tensor seeds = column_of(logits, "seeds", seeds_in, at::kLong);
  Tensor positions = column_of(logits, "positions", positions_in, at::kLong);
  Tensor out = at::empty({rows.num_rows}, logits.options().dtype(at::kLong));
  pagoda::gumbel_sample(data<int64_t>(out), rows, data<int64_t>(seeds), data<int64_t>(positions), num_threads());
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gather_logprobs(const Tensor& logits, const Tensor& tokens_in,
                                                           int64_t num_top) {
  pagoda::Logits rows = rows_of(logits);
  Tensor tokens = column_of(logits, "token_ids", tokens_in, at::kLong);
  TORCH_CHECK_VALUE(num_top >= 0 && num_top <= rows.vocab_size, "num_top: ", num_top, " must lie in [0, ",
                    rows.vocab_size, "]");
  const int64_t* token = data<int64_t>(tokens);
  for (int64_t i = 0; i < rows.num_rows; ++i)
    TORCH_CHECK_VALUE(token[i] >= 0 && token[i] < rows.vocab_size, "token_ids: ids must lie in [0, ",
                      rows.vocab_size, "), got ", token[i]);
  auto ids = logits.options().dtype(at::kLong);
  Tensor logprobs = at::empty({rows.num_rows}, logits.options()), ranks = at::empty({rows.num_rows}, ids);
  Tensor top_ids = at::empty({rows.num_rows, num_top}, ids);
  Tensor top_logprobs = at::empty({rows.num_rows, num_top}, logits.options());
  pagoda::gather_logprobs(data<float>(logprobs), data<int64_t>(ranks), data<int64_t>(top_ids),
                          data<float>(top_logprobs), rows, token, num_top, num_threads());
  return {logprobs, ranks, top_ids, top_logprobs};
}

}  // namespace

TORCH_LIBRARY_IMPL(pagoda, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("fused_add_rms_norm", fused_add_rms_norm);
  library.impl("silu_and_mul", silu_and_mul);
  library.impl("gelu_and_mul", gelu_and_mul);
  library.impl("rotary_embedding", rotary_embedding);
  library.impl("write_kv_cache", write_kv_cache);
  library.impl("paged_attention", paged_attention);
  library.impl("nonfinite_rows", nonfinite_rows);
  library.impl("apply_penalties", apply_penalties);
  library.impl("apply_min_p", apply_min_p);
  library.impl("apply_top_k_top_p", apply_top_k_top_p);
  library.impl("gumbel_sample", gumbel_sample);
  library.impl("gather_logprobs", gather_logprobs);
}
