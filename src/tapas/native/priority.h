// Priority sampling (Duffield, Lund, Thorup 2007): see selection/priority.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tiles.h"

namespace tapas {

constexpr float TINY = 1e-30f;  // g must be positive even if a softmax underflows

// Turns share into g and keeps the `keep` largest of g / noise; keep < count.
static inline void keep_by_priority(float* share, const float* noise, int64_t count, float floor,
                                    int64_t keep, int64_t* kept, float* log_weight) {
  struct Rank {
    float priority;
    int32_t position;
    bool operator<(const Rank& other) const {  // the larger first, NaN before all
      const bool nan = priority != priority, other_nan = other.priority != other.priority;
      if (nan || other_nan) return nan == other_nan ? position < other.position : nan;
      return priority > other.priority ||
             (priority == other.priority && position < other.position);
    }
  };
  Scratch<Rank> ranks(count);
  for (int64_t p = 0; p < count; ++p) {
    share[p] = (1.0f - floor) * share[p] + floor / count;
    share[p] = share[p] < TINY ? TINY : share[p];  // a NaN stays
    ranks[p] = {share[p] / noise[p], static_cast<int32_t>(p)};
  }
  std::nth_element(&ranks[0], &ranks[keep], &ranks[0] + count);
  const float threshold = ranks[keep].priority;
  Scratch<char> is_kept(count, 0);
  for (int64_t i = 0; i < keep; ++i) is_kept[ranks[i].position] = 1;
  for (int64_t p = 0, place = 0; p < count; ++p) {
    if (!is_kept[p]) continue;
    kept[place] = p;
    const float weight = threshold / share[p];
    log_weight[place++] = weight < 1.0f ? 0.0f : std::log(weight);
  }
}

}  // namespace tapas
