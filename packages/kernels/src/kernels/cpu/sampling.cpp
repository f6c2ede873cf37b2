// Penalties, filters and log probabilities over the vocabulary, one row at a time, rows shared by threads.

#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "parallel.h"
#include "vec.h"

namespace pagoda {
namespace {

float max_of(const float* x, int64_t n) {
  vf best = splat(-kInf);
  for_lanes(n, [&](int64_t i, std::integral_constant<int, kLanes>) { best = vmax(load(x + i), best); },
            [&](int64_t i, int) { best = vmax(splat(x[i]), best); });
  return max(best);
}

void forbid_below(float* x, int64_t n, float threshold) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < threshold ? -kInf : x[i];
}

// NaN counts as forbidden where logits are put in order: a comparison it breaks must not break a sort.
float order_key(float x) { return x == x ? x : -kInf; }

// The row in bins of falling logits: bin 0 starts at the largest, the last bin takes all that is far below it.
// Finding a cut then needs an exact order only inside one bin, instead of a sort of the vocabulary.
class Histogram {
 public:
  static constexpr int kBins = 1024;

  Histogram(const float* row, int64_t n, float largest)
      : row_(row), size_(n), largest_(largest), bin_of_(new uint16_t[n]) {
    constexpr float kBinsPerUnit = 32.0f;
    const vf last = splat((float)(kBins - 1));
    for_lanes(n, [&](int64_t i, auto lanes) {
      const vf place = (largest - load_lanes(row + i, lanes)) * kBinsPerUnit;
      // False for a NaN, which lands in the last bin.
      const vi fits = place < last;
      const vh bins = __builtin_convertvector(__builtin_convertvector(select(fits, place, last), vi), vh);
      std::memcpy(bin_of_.get() + i, &bins, lanes * sizeof(uint16_t));
      // After another filter most of a row is forbidden: all of it in the last bin.
      if (!any(fits)) {
        counts_[kBins - 1] += lanes;
        return;
      }
      for (int lane = 0; lane < lanes; ++lane) ++counts_[bin_of_[i + lane]];
    });
  }

  float largest() const { return largest_; }
  int64_t count(int bin) const { return counts_[bin]; }

  // Mass in units of the largest token's.
  float mass_at(float logit) const { return exp(logit - largest_); }

  std::vector<double> masses() const {
    std::vector<double> masses(kBins);
    for_lanes(size_, [&](int64_t i, auto lanes) {
      const vf logits = load_lanes(row_ + i, lanes);
      if (!any(logits > splat(-kInf))) return;
      float mass[kLanes];
      store(mass, exp(logits - largest_));
      for (int lane = 0; lane < lanes; ++lane) masses[bin_of_[i + lane]] += mass[lane];
    });
    return masses;
  }

  // The bin's logits, largest first.
  std::vector<float> sorted(int bin) const {
    std::vector<float> values;
    values.reserve(counts_[bin]);
    for_lanes(size_, [&](int64_t i, auto lanes) {
      vh bins = {};
      std::memcpy(&bins, bin_of_.get() + i, lanes * sizeof(uint16_t));
      if (!any(__builtin_convertvector(bins, vi) == bin)) return;
      for (int lane = 0; lane < lanes; ++lane)
        if (bins[lane] == bin) values.push_back(order_key(row_[i + lane]));
    });
    std::sort(values.begin(), values.end(), std::greater<float>());
    return values;
  }

 private:
  const float* row_;
  int64_t size_;
  float largest_;
  std::unique_ptr<uint16_t[]> bin_of_;
  int64_t counts_[kBins] = {};
};

// The top_k-th largest logit.
float cut_top_k(const Histogram& histogram, int64_t top_k) {
  int bin = 0;
  int64_t above = 0;
  for (; above + histogram.count(bin) < top_k; ++bin) above += histogram.count(bin);
  return histogram.sorted(bin)[top_k - above - 1];
}

// The smallest logit such that what is strictly above it holds less than top_p of the mass.
float cut_top_p(const Histogram& histogram, float top_p) {
  const std::vector<double> masses = histogram.masses();
  double wanted = 0.0, above = 0.0;
  for (double mass : masses) wanted += mass;
  wanted *= top_p;
  float smallest = histogram.largest();
  for (int bin = 0; bin < Histogram::kBins; ++bin) {
    if (bin < Histogram::kBins - 1 && above + masses[bin] < wanted) {
      above += masses[bin];
      continue;
    }
    const std::vector<float> values = histogram.sorted(bin);
    for (size_t i = 0; i < values.size();) {
      if (above >= wanted) return smallest;
      smallest = values[i];
      // Equals stay or go together.
      for (; i < values.size() && values[i] == smallest; ++i) above += histogram.mass_at(smallest);
    }
  }
  return smallest;
}

void filter_row(float* row, int64_t n, int64_t top_k, float top_p) {
  const bool has_k = top_k > 0 && top_k < n, has_p = top_p < 1.0f;
  if (!has_k && !has_p) return;
  const float largest = max_of(row, n);
  if (!(std::fabs(largest) < kInf)) return;  // nothing to choose from, or a row that fails anyway
  if (has_k) forbid_below(row, n, cut_top_k(Histogram(row, n, largest), top_k));
  if (has_p) forbid_below(row, n, cut_top_p(Histogram(row, n, largest), top_p));
}

double log_sum_exp(const float* row, int64_t n) {
  float largest = max_of(row, n);
  if (!(std::fabs(largest) < kInf)) return largest;
  // Blocks summed in float, their sums in double: 150k terms keep float's relative precision.
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    vf block = {};
    float tail = 0.0f;
    for_lanes(std::min<int64_t>(1024, n - begin),
              [&](int64_t i, std::integral_constant<int, kLanes>) {
                block += exp(load(row + begin + i) - largest);
              },
              [&](int64_t i, int) { tail += exp(row[begin + i] - largest); });
    total += (double)sum(block) + tail;
  }
  return largest + std::log(total);
}

int64_t count_above(const float* row, int64_t n, float x) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += row[i] > x;
  return count;
}

struct Candidate {
  float key;
  int64_t id;

  bool operator<(const Candidate& other) const {
    return key > other.key || (key == other.key && id < other.id);
  }
};

// The num_top first candidates in order, through a buffer that is cut back whenever it fills.
std::vector<Candidate> find_top(const float* row, int64_t n, int64_t num_top) {
  std::vector<Candidate> buffer;
  size_t capacity = (size_t)std::max<int64_t>(4 * num_top, 256);
  buffer.reserve(std::min<size_t>(capacity, n));
  bool has_bar = false;
  float bar = -kInf;
  for_lanes(n, [&](int64_t first, auto lanes) {
    // Ids rise, so a later equal of the last kept candidate ranks after it.
    if (has_bar && !any(load_lanes(row + first, lanes) > splat(bar))) return;
    for (int64_t i = first; i < first + lanes; ++i) {
      const float key = order_key(row[i]);
      if (has_bar && !(key > bar)) continue;
      buffer.push_back({key, i});
      if (buffer.size() < capacity) continue;
      std::nth_element(buffer.begin(), buffer.begin() + num_top - 1, buffer.end());
      buffer.resize(num_top);
      bar = buffer.back().key;
      has_bar = true;
    }
  });
  std::partial_sort(buffer.begin(), buffer.begin() + num_top, buffer.end());
  buffer.resize(num_top);
  return buffer;
}

}  // namespace

void nonfinite_rows(bool* out, Logits logits, int num_threads) {
  parallel_ranges(logits.num_rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = logits.row(r);
      vi bad = {}, has_choice = {};
      auto look = [&](vf x) {
        bad |= ~(x < splat(kInf));
        has_choice |= x > splat(-kInf);
      };
      for_lanes(logits.vocab_size, [&](int64_t i, std::integral_constant<int, kLanes>) { look(load(row + i)); },
                [&](int64_t i, int) { look(splat(row[i])); });
      out[r] = any(bad) || !any(has_choice);
    }
  });
}

void apply_penalties(Logits logits, const uint8_t* prompt_mask, const int32_t* output_counts,
                     const float* repetition, const float* presence, const float* frequency, int num_threads) {
  parallel_ranges(logits.num_rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = logits.row(r);
      const uint8_t* in_prompt = prompt_mask + r * logits.vocab_size;
      const int32_t* counts = output_counts + r * logits.vocab_size;
      float repeat = repetition[r], present = presence[r], frequent = frequency[r];
      for (int64_t i = 0; i < logits.vocab_size; ++i) {
        float x = row[i];
        bool is_generated = counts[i] > 0;
        float repeated = x > 0.0f ? x / repeat : x * repeat;
        x = (in_prompt[i] != 0) | is_generated ? repeated : x;
        row[i] = x - frequent * (float)counts[i] - (is_generated ? present : 0.0f);
      }
    }
  });
}

void apply_min_p(Logits logits, const float* min_p, int num_threads) {
  parallel_ranges(logits.num_rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (!(min_p[r] > 0.0f)) continue;
      float* row = logits.row(r);
      forbid_below(row, logits.vocab_size, max_of(row, logits.vocab_size) + std::log(min_p[r]));
    }
  });
}

void apply_top_k_top_p(Logits logits, const int32_t* top_k, const float* top_p, int num_threads) {
  parallel_items(logits.num_rows, num_threads, [&](int64_t r) {
    filter_row(logits.row(r), logits.vocab_size, top_k ? top_k[r] : 0, top_p ? top_p[r] : 1.0f);
  });
}

void gather_logprobs(float* logprobs, int64_t* ranks, int64_t* top_ids, float* top_logprobs, Logits logits,
                     const int64_t* tokens, int64_t num_top, int num_threads) {
  parallel_items(logits.num_rows, num_threads, [&](int64_t r) {
    const float* row = logits.row(r);
    double normalizer = log_sum_exp(row, logits.vocab_size);
    float chosen = row[tokens[r]];
    logprobs[r] = (float)(chosen - normalizer);
    ranks[r] = count_above(row, logits.vocab_size, chosen) + 1;
    if (num_top == 0) return;
    std::vector<Candidate> top = find_top(row, logits.vocab_size, num_top);
    for (int64_t i = 0; i < num_top; ++i) {
      top_ids[r * num_top + i] = top[i].id;
      top_logprobs[r * num_top + i] = (float)(row[top[i].id] - normalizer);
    }
  });
}

}  // namespace pagoda
