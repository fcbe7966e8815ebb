// How work is divided among threads.
//
// Work is cut into tasks whose number depends on its size only, and threads claim one task after
// the other. So a thread whose core is taken by another process delays the others by at most one
// task, and the order of all sums, hence every bit of a result, is the same for any number of
// threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

namespace tapas {

constexpr int64_t WORTH_A_TASK = 1 << 19;  // multiplications, about 15 microseconds
constexpr int64_t MOST_TASKS = 64;

// Into how many tasks to cut work of so many multiplications.
static inline int64_t tasks_for(int64_t multiplications) {
  return std::clamp<int64_t>(multiplications / WORTH_A_TASK, 1, MOST_TASKS);
}

// How many of `threads` threads are worth waking for so many multiplications: at least two tasks
// for each.
static inline int threads_for(int64_t multiplications, int threads) {
  const int64_t most = multiplications / (2 * WORTH_A_TASK) + 1;
  return static_cast<int>(std::clamp<int64_t>(threads, 1, most));
}

struct Range {
  int64_t start, stop;
};

// Part `part` of `parts` of `count` things, in whole blocks.
static inline Range range_of(int64_t count, int64_t block, int64_t part, int64_t parts) {
  const int64_t blocks = (count + block - 1) / block;
  return {blocks * part / parts * block, std::min(count, blocks * (part + 1) / parts * block)};
}

// An exception must not leave a parallel region. Work in it that allocates is done `within`, and
// `check` throws after the region what was caught in it.
class Memory {
 public:
  template <class Work>
  void within(Work work) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      exhausted_ = true;
    }
  }

  void check() const {
    if (exhausted_) throw std::bad_alloc();
  }

 private:
  std::atomic<bool> exhausted_{false};
};

}  // namespace tapas
