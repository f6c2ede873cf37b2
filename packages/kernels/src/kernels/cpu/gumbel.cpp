// The random choice: argmax of logits plus Gumbel noise that is a pure function of (seed, position, token id).
//
// The bits are those of the reference (reference/gumbel.py): the same operations on float32 in the same order,
// none fused. This file is therefore compiled with -ffp-contract=off.

#include <memory>

#include "parallel.h"
#include "sampling.h"
#include "vec.h"

namespace pagoda {
namespace {

typedef uint64_t vq __attribute__((vector_size(kLanes * 8)));
typedef int64_t viq __attribute__((vector_size(kLanes * 8)));

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint64_t kMix1 = 0xBF58476D1CE4E5B9u;
constexpr uint64_t kMix2 = 0x94D049BB133111EBu;

// Tokens per item: enough to pay for handing it out, few enough to share one row between threads.
constexpr int64_t kTokensPerItem = 8192;

template <typename U>
U mix(U x) {
  x = (x ^ (x >> 30)) * kMix1;
  x = (x ^ (x >> 27)) * kMix2;
  return x ^ (x >> 31);
}

vf two_atanh(vf s) {
  vf z = s * s;
  vf tail = z * (float)(2.0 / 9.0) + (float)(2.0 / 7.0);
  tail = z * tail + (float)(2.0 / 5.0);
  tail = z * tail + (float)(2.0 / 3.0);
  return s * (z * tail) + s * 2.0f;
}

vf log(vf x) {
  vi shifted = (vi)x - 0x3F3504F3;
  vf exponent = __builtin_convertvector(shifted >> 23, vf);
  vf mantissa = (vf)((shifted & 0x007FFFFF) + 0x3F3504F3);
  vf series = two_atanh((mantissa - 1.0f) / (mantissa + 1.0f));
  constexpr double kLn2High = 0.693145751953125;
  return exponent * (float)kLn2High + (exponent * (float)(0.693147180559945309417 - kLn2High) + series);
}

// Noise of the tokens first, first + 1, ..., one per lane.
vf noise(uint64_t row_key, int64_t first) {
  vq ids;
  for (int i = 0; i < kLanes; ++i) ids[i] = (uint64_t)i;
  vq hash = mix(row_key + (ids + (uint64_t)(first + 1)) * kGolden);
  vf u = __builtin_convertvector((viq)((hash >> 1) | 1), vf) * 0x1p-63f;
  u = vmin(u, splat(1.0f - 0x1p-24f));
  vf small = two_atanh(u / (2.0f - u));
  vf large = -log(1.0f - u);
  return -log(select(u < splat(0.25f), small, large));
}

struct Best {
  float score;
  int64_t token;
};

Best find_best(const float* row, int64_t begin, int64_t end, uint64_t row_key) {
  vf best = splat(-kInf);
  vi best_at = {};
  for (int64_t i = begin; i < end; i += kLanes) {
    vf logits = splat(-kInf);
    if (i + kLanes <= end)
      logits = load(row + i);
    else
      for (int lane = 0; lane < end - i; ++lane) logits[lane] = row[i + lane];
    // After a filter most of the vocabulary is forbidden; it needs no noise.
    if (!any(logits > splat(-kInf))) continue;
    vf scores = logits + noise(row_key, i);
    vi is_better = scores > best;
    best = select(is_better, scores, best);
    best_at = (is_better & ((int32_t)(i - begin) + lane_ids())) | (~is_better & best_at);
  }
  Best winner{-kInf, begin};
  for (int lane = 0; lane < kLanes; ++lane) {
    int64_t token = begin + best_at[lane];
    if (best[lane] > winner.score || (best[lane] == winner.score && token < winner.token))
      winner = {best[lane], token};
  }
  return winner;
}

}  // namespace

void gumbel_sample(int64_t* tokens, Logits logits, const int64_t* seeds, const int64_t* positions,
                   int num_threads) {
  int64_t items_per_row = (logits.vocab_size + kTokensPerItem - 1) / kTokensPerItem;
  auto winners = std::make_unique<Best[]>(logits.num_rows * items_per_row);
  parallel_items(logits.num_rows * items_per_row, num_threads, [&](int64_t item) {
    int64_t row = item / items_per_row, begin = item % items_per_row * kTokensPerItem;
    int64_t end = begin + kTokensPerItem < logits.vocab_size ? begin + kTokensPerItem : logits.vocab_size;
    uint64_t row_key = mix(mix((uint64_t)seeds[row]) + (uint64_t)positions[row] * kGolden);
    winners[item] = find_best(logits.row(row), begin, end, row_key);
  });
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    Best winner{-kInf, 0};
    for (int64_t i = 0; i < items_per_row; ++i) {
      const Best& candidate = winners[row * items_per_row + i];
      if (candidate.score > winner.score) winner = candidate;
    }
    tokens[row] = winner.token;
  }
}

}  // namespace pagoda
