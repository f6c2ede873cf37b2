// Sharing work between the threads of torch's own OpenMP pool. Knows counts, not what the work is.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>

namespace pagoda {

// Calls body(begin, end) over [0, n), one contiguous range per thread. Which thread takes what depends on n and
// the number of threads alone; bodies write disjoint results, so results do not depend on it.
template <typename Body>
void parallel_ranges(int64_t n, int num_threads, Body body) {
  if (num_threads <= 1 || n <= 1) {
    if (n > 0) body((int64_t)0, n);
    return;
  }
#pragma omp parallel num_threads(num_threads)
  {
    int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
    int64_t begin = n * thread / count, end = n * (thread + 1) / count;
    if (begin < end) body(begin, end);
  }
}

// Calls body(begin, end) over [0, n) in chunks; threads take the next free one. For items of unequal cost.
template <typename Body>
void parallel_chunks(int64_t n, int64_t chunk, int num_threads, Body body) {
  if (num_threads <= 1 || n <= chunk) {
    if (n > 0) body((int64_t)0, n);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(num_threads)
  {
    for (int64_t begin; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < n;)
      body(begin, begin + chunk < n ? begin + chunk : n);
  }
}

// Calls body(item) for every item in [0, n); threads take the next free item.
template <typename Body>
void parallel_items(int64_t n, int num_threads, Body body) {
  parallel_chunks(n, 1, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) body(item);
  });
}

}  // namespace pagoda
