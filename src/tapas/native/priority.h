// Priority sampling (Duffield, Lund, Thorup 2007): see selection/priority.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "tiles.h"

namespace tapas {

constexpr float TINY = 1e-30f;  // g must be positive even if a softmax underflows

// A number that orders positive floats, of which NaN is the largest.
static ALWAYS uint32_t order_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return x != x ? 0x7FFFFFFFu : bits;
}

// The (nth + 1)-th largest of `keys`, nth < count. First by a histogram of the upper bits, then
// among the few keys that share them.
static inline uint64_t nth_largest(const uint64_t* keys, int64_t count, int64_t nth) {
  constexpr int SHIFT = 52;  // upper 12 bits: sign, exponent and three digits of a float
  int32_t many[1 << (64 - SHIFT)] = {};
  for (int64_t p = 0; p < count; ++p) ++many[keys[p] >> SHIFT];
  int64_t group = (1 << (64 - SHIFT)) - 1, above = 0;
  while (above + many[group] <= nth) above += many[group--];
  Scratch<uint64_t> same(many[group]);
  int64_t found = 0;
  for (int64_t p = 0; p < count; ++p)
    if (keys[p] >> SHIFT == static_cast<uint64_t>(group)) same[found++] = keys[p];
  std::nth_element(&same[0], &same[nth - above], &same[0] + found, std::greater<uint64_t>());
  return same[nth - above];
}

// Turns share into g and keeps the `keep` largest of g / noise; keep < count.
static inline void keep_by_priority(float* share, const float* noise, int64_t count, float floor,
                                    int64_t keep, int64_t* kept, float* log_weight) {
  Scratch<uint64_t> keys(count);  // by priority, then the lower position
  for (int64_t p = 0; p < count; ++p) {
    share[p] = (1.0f - floor) * share[p] + floor / count;
    share[p] = share[p] < TINY ? TINY : share[p];  // a NaN stays
    keys[p] = uint64_t{order_of(share[p] / noise[p])} << 32 | static_cast<uint32_t>(~p);
  }
  const uint64_t last = nth_largest(keys.data(), count, keep);  // the largest that is left out
  const uint32_t bits = static_cast<uint32_t>(last >> 32);
  float threshold;
  memcpy(&threshold, &bits, sizeof bits);
  int64_t place = 0;
  for (int64_t p = 0; p < count; ++p) {
    if (keys[p] <= last) continue;
    kept[place] = p;
    const float weight = threshold / share[p];
    log_weight[place++] = weight < 1.0f ? 1.0f : weight;
  }
  for (int64_t i = 0; i < keep; i += LANES) {
    const int64_t size = std::min<int64_t>(LANES, keep - i);
    Floats x = splat(1.0f);
    memcpy(&x, log_weight + i, size * sizeof(float));
    x = log_of(x);
    memcpy(log_weight + i, &x, size * sizeof(float));
  }
}

}  // namespace tapas
