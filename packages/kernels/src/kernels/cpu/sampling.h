// Sampling on rows of float32 logits. The callers have checked shapes and ids.
#pragma once

#include <cstdint>

namespace pagoda {

// A matrix of rows; the last dimension is contiguous.
struct Logits {
  float* data;
  int64_t num_rows, vocab_size, stride;

  float* row(int64_t index) const { return data + index * stride; }
};

void nonfinite_rows(bool* out, Logits logits, int num_threads);

void apply_penalties(Logits logits, const uint8_t* prompt_mask, const int32_t* output_counts,
                     const float* repetition, const float* presence, const float* frequency, int num_threads);

void apply_min_p(Logits logits, const float* min_p, int num_threads);

// Either of top_k and top_p may be null.
void apply_top_k_top_p(Logits logits, const int32_t* top_k, const float* top_p, int num_threads);

void gumbel_sample(int64_t* tokens, Logits logits, const int64_t* seeds, const int64_t* positions,
                   int num_threads);

void gather_logprobs(float* logprobs, int64_t* ranks, int64_t* top_ids, float* top_logprobs, Logits logits,
                     const int64_t* tokens, int64_t num_top, int num_threads);

}  // namespace pagoda
