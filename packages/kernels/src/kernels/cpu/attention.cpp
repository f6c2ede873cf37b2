// Attention over a paged cache: one call for a whole batch of decodes, prompts and chunks of prompts.
//
// Query heads that share a kv head are worked on together, so that each key and value is read once for all of
// them. Two kernels, by the number of query tokens of a request:
//   decode (one token)  work item = request x kv head x run of kRunKeys keys; dot products along the head.
//                       Runs start at fixed key positions, so that a row's result depends on its own length
//                       alone; partial results are merged in order.
//   prompt (more)       work item = request x kv head x tile of query rows; blocked matrix products with an
//                       online softmax over tiles of kTileKeys keys, which also start at fixed positions.
// Sums are float32. With bfloat16 dot-product instructions the prompt kernel rounds probabilities to bfloat16
// before the product with the values; elsewhere it does not.

#include "attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "parallel.h"
#include "tile_gemm.h"
#include "vec.h"

namespace pagoda {
namespace {

constexpr int64_t kRunKeys = 512;
constexpr int64_t kTileKeys = kTileColumns;
constexpr int64_t kTileRows = 96;  // a multiple of the rows a matrix product holds in registers
constexpr int64_t kCacheLine = 64;
constexpr int kGroupHeads = 4;  // query heads a decode pass holds in registers
// Below this many key x kv-head pairs, at 12 ns each on a Zen 5 core, waking a thread is not worth it.
constexpr int64_t kMinParallelKeys = 1000;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Grow-only scratch of one thread; contents are not kept between uses.
class Scratch {
 public:
  template <typename U>
  U* get(int64_t count) {
    int64_t bytes = count * (int64_t)sizeof(U) + 64;
    if (bytes > size_) {
      data_.reset(new char[bytes]);
      size_ = bytes;
    }
    return reinterpret_cast<U*>((reinterpret_cast<uintptr_t>(data_.get()) + 63) & ~(uintptr_t)63);
  }

 private:
  std::unique_ptr<char[]> data_;
  int64_t size_ = 0;
};

struct Item {
  int32_t request, kv_head;
  int32_t begin, end;  // keys of a decode run, or query tokens of a prompt tile
  int32_t partial;     // index of the partial result; -1 if the item is the whole row; prompt tiles: -1
  bool is_decode;
};

// The running softmax of one row: largest score, sum of exponentials; the weighted values lie elsewhere.
struct Softmax {
  float largest = -kInf, total = 0.0f;
};

template <typename T>
class Attention {
 public:
  Attention(const AttentionCall<T>& call) : call_(call), group_size_(call.num_heads / call.num_kv_heads) {}

  void run(int num_threads) {
    plan();
    if (num_parallel_keys_ < kMinParallelKeys) num_threads = 1;
    // Neighbouring decodes go to one thread, which then knows what it will read next.
    const int64_t num_items = (int64_t)items_.size();
    const int64_t chunk = num_prompt_items_ > 0 ? 1 : std::clamp<int64_t>(num_items / (8 * num_threads), 1, 8);
    parallel_chunks(num_items, chunk, num_threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (items_[i].is_decode)
          decode(items_[i], i + 1 < end && items_[i + 1].is_decode ? &items_[i + 1] : nullptr);
        else
          prompt(items_[i]);
      }
    });
    parallel_items((int64_t)merges_.size(), merges_.size() > 16 ? num_threads : 1,
                   [&](int64_t i) { merge(merges_[i]); });
  }

 private:
  // Partial results [first, first + count) of one request and kv head.
  struct Merge {
    int32_t request, kv_head, first, count;
  };

  int64_t padded_head() const { return round_up(call_.head_size, kLanes); }
  int64_t partial_size() const { return group_size_ * (padded_head() + 2); }

  int64_t first_visible(int64_t position) const {
    return call_.sliding_window > 0 ? std::max<int64_t>(0, position - call_.sliding_window + 1) : 0;
  }

  void plan() {
    int64_t num_partials = 0;
    for (int64_t r = 0; r < call_.num_requests; ++r) {
      int64_t num_queries = call_.query_start_loc[r + 1] - call_.query_start_loc[r];
      if (num_queries == 0) continue;
      int64_t num_keys = call_.seq_lens[r];
      for (int64_t h = 0; h < call_.num_kv_heads; ++h) {
        if (num_queries == 1)
          num_partials = plan_decode(r, h, num_keys, num_partials);
        else
          plan_prompt(r, h, num_queries);
      }
      num_parallel_keys_ += call_.num_kv_heads * num_keys * num_queries;
    }
    partials_.reset(new float[num_partials * partial_size()]);
  }

  int64_t plan_decode(int64_t r, int64_t h, int64_t num_keys, int64_t num_partials) {
    int64_t first = first_visible(num_keys - 1);
    int64_t num_runs = ceil_div(num_keys, kRunKeys) - first / kRunKeys;
    if (num_runs > 1) merges_.push_back({(int32_t)r, (int32_t)h, (int32_t)num_partials, (int32_t)num_runs});
    for (int64_t run = first / kRunKeys; run * kRunKeys < num_keys; ++run) {
      int64_t begin = std::max(first, run * kRunKeys), end = std::min(num_keys, (run + 1) * kRunKeys);
      int64_t partial = num_runs > 1 ? num_partials++ : -1;
      items_.push_back({(int32_t)r, (int32_t)h, (int32_t)begin, (int32_t)end, (int32_t)partial, true});
    }
    return num_partials;
  }

  void plan_prompt(int64_t r, int64_t h, int64_t num_queries) {
    int64_t step = std::max<int64_t>(1, kTileRows / group_size_);
    // Last tiles first: they see the most keys, and threads should not end on them.
    for (int64_t end = num_queries; end > 0; end -= std::min(end, step)) {
      int64_t begin = std::max<int64_t>(0, end - step);
      items_.push_back({(int32_t)r, (int32_t)h, (int32_t)begin, (int32_t)end, -1, false});
      ++num_prompt_items_;
    }
  }

  const T* key_row(const int32_t* table, int64_t h, int64_t position) const {
    int64_t block = table[position / call_.block_size], slot = position % call_.block_size;
    return call_.key_cache + block * call_.key_block_stride + h * call_.key_head_stride +
           slot * call_.key_slot_stride;
  }

  const T* value_row(const int32_t* table, int64_t h, int64_t position) const {
    int64_t block = table[position / call_.block_size], slot = position % call_.block_size;
    return call_.value_cache + block * call_.value_block_stride + h * call_.value_head_stride +
           slot * call_.value_slot_stride;
  }

  const int32_t* table_of(int64_t request) const {
    return call_.block_table + request * call_.block_table_stride;
  }

  const T* query_row(int64_t token, int64_t head) const {
    return call_.query + token * call_.query_token_stride + head * call_.query_head_stride;
  }

  T* out_row(int64_t token, int64_t head) const {
    return call_.out + (token * call_.num_heads + head) * call_.head_size;
  }

  vf score(vf dot) const {
    vf scaled = dot * call_.scale;
    return call_.soft_cap > 0.0f ? call_.soft_cap * tanh(scaled / call_.soft_cap) : scaled;
  }

  // ---- one query token ----

  // Blocks lie anywhere in memory, which no hardware prefetcher foresees. So that memory is never idle, the pass
  // over the keys asks for this item's values, and the pass over the values asks for the next item's keys.
  void decode(const Item& item, const Item* next) {
    thread_local Scratch query_scratch, score_scratch, value_scratch;
    const int64_t width = padded_head(), num_keys = item.end - item.begin;
    const int64_t score_stride = round_up(num_keys, kLanes);
    float* query = query_scratch.get<float>(kGroupHeads * width);
    float* scores = score_scratch.get<float>(kGroupHeads * score_stride);
    float* values = value_scratch.get<float>(kGroupHeads * width);
    const int64_t token = call_.query_start_loc[item.request];
    for (int64_t g = 0; g < group_size_; g += kGroupHeads) {
      const int64_t count = std::min<int64_t>(kGroupHeads, group_size_ - g);
      const int64_t head = item.kv_head * group_size_ + g;
      for (int64_t i = 0; i < count; ++i) widen(query + i * width, query_row(token, head + i));
      for_heads(count, [&](auto heads) {
        decode_scores<heads>(item, query, scores, score_stride);
        Softmax softmax[heads];
        for (int i = 0; i < heads; ++i) softmax[i] = exponentiate(scores + i * score_stride, num_keys);
        decode_values<heads>(item, scores, score_stride, values, next);
        for (int i = 0; i < heads; ++i) {
          if (item.partial < 0)
            finish(out_row(token, head + i), values + i * width, softmax[i], head + i);
          else
            keep(item.partial, g + i, values + i * width, softmax[i]);
        }
      });
    }
  }

  // Calls body with the number of heads as a constant, so that their sums live in registers.
  template <typename Body>
  static void for_heads(int64_t count, Body body) {
    switch (count) {
      case 1:
        return body(std::integral_constant<int, 1>());
      case 2:
        return body(std::integral_constant<int, 2>());
      case 3:
        return body(std::integral_constant<int, 3>());
      default:
        return body(std::integral_constant<int, kGroupHeads>());
    }
  }

  // Fills whole vectors: the lanes past the head are zero.
  void widen(float* to, const T* from) const {
    for_lanes(call_.head_size, [&](int64_t i, auto n) { store(to + i, load_lanes(from + i, n)); });
  }

  // Calls body(position, count) for the runs of keys that lie in one block.
  template <typename Body>
  void for_blocks(int64_t begin, int64_t end, Body body) const {
    for (int64_t position = begin; position < end;) {
      int64_t count = std::min(end, (position / call_.block_size + 1) * call_.block_size) - position;
      body(position, count);
      position += count;
    }
  }

  void prefetch(const T* row, int64_t num_rows, int64_t stride) const {
    const int64_t bytes = call_.head_size * (int64_t)sizeof(T);
    for (int64_t i = 0; i < num_rows; ++i, row += stride)
      for (int64_t offset = 0; offset < bytes; offset += kCacheLine) prefetch_line((const char*)row + offset);
  }

  void prefetch_values(const Item& item, int64_t position, int64_t count) const {
    prefetch(value_row(table_of(item.request), item.kv_head, position), count, call_.value_slot_stride);
  }

  // The block of keys that holds `position`, as far as the item goes; nothing past its end.
  void prefetch_keys(const Item& item, int64_t position) const {
    if (position >= item.end) return;
    const int64_t block_end = (position / call_.block_size + 1) * call_.block_size;
    prefetch(key_row(table_of(item.request), item.kv_head, position), std::min<int64_t>(item.end, block_end) - position,
             call_.key_slot_stride);
  }

  // Head sizes with whole vectors have them as a constant, so that sums and queries stay in registers.
  template <int heads>
  void decode_scores(const Item& item, const float* query, float* scores, int64_t score_stride) const {
    switch (call_.head_size) {
      case 4 * kLanes:
        return decode_scores<heads, 4>(item, query, scores, score_stride);
      case 8 * kLanes:
        return decode_scores<heads, 8>(item, query, scores, score_stride);
      default:
        return decode_scores<heads, 0>(item, query, scores, score_stride);
    }
  }

  template <int heads, int vectors>
  void decode_scores(const Item& item, const float* query, float* scores, int64_t score_stride) const {
    const int64_t width = padded_head();
    const int32_t* table = table_of(item.request);
    vf sums[heads][kLanes];
    int64_t num_pending = 0;
    auto flush = [&] {
      for (int g = 0; g < heads; ++g) store(scores + g * score_stride, score(add_across(sums[g])));
      scores += kLanes;
      num_pending = 0;
    };
    for_blocks(item.begin, item.end, [&](int64_t position, int64_t count) {
      const T* key = key_row(table, item.kv_head, position);
      prefetch_values(item, position, count);
      prefetch_keys(item, position + count);
      for (int64_t i = 0; i < count; ++i, key += call_.key_slot_stride) {
        vf dots[heads] = {};
        if constexpr (vectors > 0) {
          for (int j = 0; j < vectors; ++j) {
            const vf k = load(key + j * kLanes);
            for (int g = 0; g < heads; ++g) dots[g] += load(query + g * width + j * kLanes) * k;
          }
        } else {
          for_lanes(call_.head_size, [&](int64_t d, auto n) {
            const vf k = load_lanes(key + d, n);
            for (int g = 0; g < heads; ++g) dots[g] += load(query + g * width + d) * k;
          });
        }
        for (int g = 0; g < heads; ++g) sums[g][num_pending] = dots[g];
        if (++num_pending == kLanes) flush();
      }
    });
    if (num_pending > 0) {
      for (int g = 0; g < heads; ++g)
        for (int64_t i = num_pending; i < kLanes; ++i) sums[g][i] = vf{};
      flush();
    }
  }

  // Turns scores into exp(score - largest) in place.
  static Softmax exponentiate(float* scores, int64_t count) {
    vf best = splat(-kInf);
    for (int64_t i = count; i < round_up(count, kLanes); ++i) scores[i] = -kInf;
    for (int64_t i = 0; i < count; i += kLanes) best = vmax(best, load(scores + i));
    Softmax softmax;
    softmax.largest = max(best);
    vf total = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      vf weight = exp(load(scores + i) - softmax.largest);
      store(scores + i, weight);
      total += weight;
    }
    softmax.total = sum(total);
    return softmax;
  }

  template <int heads>
  void decode_values(const Item& item, const float* weights, int64_t stride, float* values,
                     const Item* next) const {
    const std::integral_constant<int, kLanes> whole;
    const int64_t head_size = call_.head_size;
    int64_t d = 0;
    for (; d + 4 * kLanes <= head_size; d += 4 * kLanes)
      decode_value_columns<heads, 4>(item, weights, stride, values + d, d, whole, d == 0 ? next : nullptr);
    for (; d + kLanes <= head_size; d += kLanes)
      decode_value_columns<heads, 1>(item, weights, stride, values + d, d, whole, nullptr);
    if (d < head_size)
      decode_value_columns<heads, 1>(item, weights, stride, values + d, d, (int)(head_size - d), nullptr);
  }

  // The sums of `vectors` columns of values, of which the last has `lanes` lanes, for all heads at once.
  template <int heads, int vectors, typename Lanes>
  void decode_value_columns(const Item& item, const float* weights, int64_t stride, float* values, int64_t d,
                            Lanes lanes, const Item* next) const {
    const int32_t* table = table_of(item.request);
    int64_t next_position = next ? next->begin : 0;
    vf sums[heads][vectors] = {};
    for_blocks(item.begin, item.end, [&](int64_t position, int64_t count) {
      const T* value = value_row(table, item.kv_head, position) + d;
      const float* weight = weights + (position - item.begin);
      if (next) {
        prefetch_keys(*next, next_position);
        next_position = (next_position / call_.block_size + 1) * call_.block_size;
      }
      for (int64_t i = 0; i < count; ++i, value += call_.value_slot_stride) {
        vf columns[vectors];
        for (int j = 0; j < vectors; ++j) columns[j] = load_lanes(value + j * kLanes, lanes);
        for (int g = 0; g < heads; ++g) {
          const vf factor = splat(weight[g * stride + i]);
          for (int j = 0; j < vectors; ++j) sums[g][j] += columns[j] * factor;
        }
      }
    });
    for (int g = 0; g < heads; ++g)
      for (int j = 0; j < vectors; ++j) store(values + g * padded_head() + j * kLanes, sums[g][j]);
  }

  void finish(T* out, const float* values, Softmax softmax, int64_t head) const {
    float factor = 1.0f;
    if (call_.sinks) {
      // A sink takes part in the softmax and has no value.
      float largest = std::max(softmax.largest, call_.sinks[head]);
      factor = exp(softmax.largest - largest);
      softmax.total = softmax.total * factor + exp(call_.sinks[head] - largest);
    }
    factor /= softmax.total;
    for_lanes(call_.head_size, [&](int64_t d, auto n) { store_lanes(out + d, load(values + d) * factor, n); });
  }

  // ---- partial results: per head largest, total, values ----

  float* partial_of(int64_t index, int64_t g) const {
    return partials_.get() + index * partial_size() + g * (padded_head() + 2);
  }

  void keep(int64_t index, int64_t g, const float* values, Softmax softmax) const {
    float* to = partial_of(index, g);
    to[0] = softmax.largest;
    to[1] = softmax.total;
    std::memcpy(to + 2, values, padded_head() * sizeof(float));
  }

  void merge(const Merge& merge) const {
    thread_local Scratch scratch;
    const int64_t width = padded_head(), token = call_.query_start_loc[merge.request];
    float* values = scratch.get<float>(width);
    for (int64_t g = 0; g < group_size_; ++g) {
      Softmax softmax;
      for (int32_t i = 0; i < merge.count; ++i)
        softmax.largest = std::max(softmax.largest, partial_of(merge.first + i, g)[0]);
      std::fill(values, values + width, 0.0f);
      for (int32_t i = 0; i < merge.count; ++i) {
        const float* from = partial_of(merge.first + i, g);
        const float factor = exp(from[0] - softmax.largest);
        softmax.total += from[1] * factor;
        for (int64_t d = 0; d < width; d += kLanes)
          store(values + d, load(values + d) + load(from + 2 + d) * factor);
      }
      const int64_t head = merge.kv_head * group_size_ + g;
      finish(out_row(token, head), values, softmax, head);
    }
  }

  // ---- several query tokens ----

  // Rows of a tile are (token, head of the group), token-major.
  void prompt(const Item& item) {
    using Gemm = TileGemm<T>;
    using Element = typename Gemm::Element;
    thread_local Scratch query_scratch, key_scratch, value_scratch, score_scratch, weight_scratch, out_scratch,
        softmax_scratch, factor_scratch;
    const int64_t head_size = call_.head_size, depth = Gemm::depth(head_size);
    const int64_t num_columns = round_up(head_size, kTileColumns);
    const int64_t num_rows = (item.end - item.begin) * group_size_;
    const int64_t first_token = call_.query_start_loc[item.request];
    const int64_t num_queries = call_.query_start_loc[item.request + 1] - first_token;
    const int64_t num_keys = call_.seq_lens[item.request];
    const int64_t offset = num_keys - num_queries;  // position of the request's first query token
    const int32_t* table = table_of(item.request);

    Element* query = query_scratch.get<Element>(num_rows * depth);
    Element* keys = key_scratch.get<Element>(depth * kTileKeys);
    Element* values = value_scratch.get<Element>(Gemm::depth(kTileKeys) * num_columns);
    float* scores = score_scratch.get<float>(num_rows * kTileKeys);
    Element* weights = weight_scratch.get<Element>(num_rows * Gemm::depth(kTileKeys));
    float* sums = out_scratch.get<float>(num_rows * num_columns);
    float* factors = factor_scratch.get<float>(num_rows);
    Softmax* softmax = softmax_scratch.get<Softmax>(num_rows);
    std::fill(sums, sums + num_rows * num_columns, 0.0f);
    std::fill(softmax, softmax + num_rows, Softmax());
    for (int64_t row = 0; row < num_rows; ++row)
      Gemm::pack_row(query + row * depth,
                     query_row(first_token + item.begin + row / group_size_,
                               item.kv_head * group_size_ + row % group_size_),
                     head_size);

    const int64_t last_key = call_.is_causal ? offset + item.end : num_keys;
    const int64_t first_key = first_visible(offset + item.begin), first_tile = first_key / kTileKeys;
    const T* rows[kTileKeys];
    for (int64_t tile = first_tile; tile * kTileKeys < last_key; ++tile) {
      const int64_t start = tile * kTileKeys, count = std::min(kTileKeys, last_key - start);
      // Blocks before the window may be gone: keys that no row sees are not looked up.
      auto is_seen = [&](int64_t i) { return start + i >= first_key; };
      for (int64_t i = 0; i < count; ++i) rows[i] = is_seen(i) ? key_row(table, item.kv_head, start + i) : nullptr;
      Gemm::pack_transposed(keys, rows, count, head_size);
      Gemm::multiply(scores, kTileKeys, query, depth, keys, kTileKeys, num_rows, depth, false);
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t position = offset + item.begin + row / group_size_;
        const int64_t low = std::clamp<int64_t>(first_visible(position) - start, 0, count);
        const int64_t high = call_.is_causal ? std::clamp<int64_t>(position + 1 - start, 0, count) : count;
        factors[row] = exponentiate_tile(scores + row * kTileKeys, low, high, softmax[row]);
        Gemm::pack_weights(weights + row * Gemm::depth(kTileKeys), scores + row * kTileKeys);
      }
      for (int64_t i = 0; i < count; ++i)
        rows[i] = is_seen(i) ? value_row(table, item.kv_head, start + i) : nullptr;
      Gemm::pack_straight(values, rows, count, head_size, num_columns);
      for (int64_t row = 0; row < num_rows; ++row) {
        if (factors[row] == 1.0f) continue;
        for (int64_t d = 0; d < num_columns; d += kLanes)
          store(sums + row * num_columns + d, load(sums + row * num_columns + d) * factors[row]);
      }
      for (int64_t column = 0; column < head_size; column += kTileColumns)
        Gemm::multiply(sums + column, num_columns, weights, Gemm::depth(kTileKeys), values + column, num_columns,
                       num_rows, Gemm::depth(round_up(count, kLanes)), true);
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t head = item.kv_head * group_size_ + row % group_size_;
      finish(out_row(first_token + item.begin + row / group_size_, head), sums + row * num_columns, softmax[row],
             head);
    }
  }

  // Turns dot products into exp(score - largest) in place, zero outside [low, high). Returns the factor that the
  // row's earlier sums must be multiplied by.
  float exponentiate_tile(float* scores, int64_t low, int64_t high, Softmax& softmax) const {
    if (low >= high) {
      std::fill(scores, scores + kTileKeys, 0.0f);
      return 1.0f;
    }
    vf best = splat(-kInf);
    for (int64_t i = 0; i < kTileKeys; i += kLanes) {
      const vi lanes = lane_ids() + (int32_t)i;
      const vi is_visible = (lanes >= (int32_t)low) & (lanes < (int32_t)high);
      vf scored = select(is_visible, score(load(scores + i)), splat(-kInf));
      store(scores + i, scored);
      best = vmax(best, scored);
    }
    const float largest = std::max(softmax.largest, max(best));
    const float factor = exp(softmax.largest - largest);
    vf total = {};
    for (int64_t i = 0; i < kTileKeys; i += kLanes) {
      vf weight = exp(load(scores + i) - largest);
      store(scores + i, weight);
      total += weight;
    }
    softmax.total = softmax.total * factor + sum(total);
    softmax.largest = largest;
    return factor;
  }

  const AttentionCall<T>& call_;
  const int64_t group_size_;
  int64_t num_parallel_keys_ = 0, num_prompt_items_ = 0;
  std::vector<Item> items_;
  std::vector<Merge> merges_;
  std::unique_ptr<float[]> partials_;
};

}  // namespace

template <typename T>
void paged_attention(const AttentionCall<T>& call, int num_threads) {
  Attention<T>(call).run(num_threads);
}

template void paged_attention<float>(const AttentionCall<float>&, int);
template void paged_attention<bf16>(const AttentionCall<bf16>&, int);
template void paged_attention<f16>(const AttentionCall<f16>&, int);

}  // namespace pagoda
