// Draws from an alias table, and the distinct classes among draws, by hashing instead of sorting.
//
// All of it is bound by memory latency, so memory is prefetched well before it is used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tapas {

constexpr int64_t AHEAD = 32;  // draws whose memory is prefetched

// Walker's alias method: see proposals/alias.py.
struct Alias {
  const double* threshold;
  const int64_t* partner;
  int64_t buckets;

  int64_t bucket(double uniform) const {
    return std::min<int64_t>(static_cast<int64_t>(uniform * buckets), buckets - 1);
  }

  void draw(const double* uniform, int64_t count, int64_t* position) const {
    for (int64_t i = 0; i < std::min(AHEAD, count); ++i) prefetch(bucket(uniform[i]));
    for (int64_t i = 0; i < count; ++i) {
      if (i + AHEAD < count) prefetch(bucket(uniform[i + AHEAD]));
      const int64_t at = bucket(uniform[i]), other = partner[at];
      // round the product before the subtraction, as PyTorch does: volatile prevents an FMA
      const volatile double product = uniform[i] * buckets;
      const int64_t stays = product - at < threshold[at];
      position[i] = other + (at - other) * stays;  // a branch would be mispredicted
    }
  }

  void prefetch(int64_t at) const {
    __builtin_prefetch(threshold + at);
    __builtin_prefetch(partner + at);
  }
};

struct Seen {
  int64_t id, place;  // place: number of distinct ids before it; -1 for an empty bucket
};

// A hash table from ids to the order of their first occurrence.
class FirstOccurrences {
 public:
  explicit FirstOccurrences(int64_t most) {
    while ((int64_t{1} << bits_) < 2 * most) ++bits_;
    buckets_.assign(size_t{1} << bits_, Seen{0, -1});
  }

  void prefetch(int64_t id) const { __builtin_prefetch(&buckets_[home(id)]); }

  // The place of `id`; a new id is inserted with place `next`.
  int64_t place(int64_t id, int64_t next) {
    const uint64_t mask = buckets_.size() - 1;
    uint64_t at = home(id);
    while (buckets_[at].place >= 0) {
      if (buckets_[at].id == id) return buckets_[at].place;
      at = (at + 1) & mask;
    }
    buckets_[at] = {id, next};
    return next;
  }

 private:
  uint64_t home(int64_t id) const {
    return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u) >> (64 - bits_);
  }

  int bits_ = 4;
  std::vector<Seen> buckets_;
};

// An id and how often it occurred again.
struct Counted {
  int64_t id, again;
};

// Radix sort by id, with digits of 11 bits; all ids are below `bound`.
inline void sort_by_id(std::vector<Counted>& all, int64_t bound) {
  constexpr int BITS = 11;
  std::vector<Counted> other(all.size());
  for (int shift = 0; shift < 63 && (bound - 1) >> shift; shift += BITS) {
    size_t start[(1 << BITS) + 1] = {};
    for (const Counted& one : all) ++start[((one.id >> shift) & ((1 << BITS) - 1)) + 1];
    for (int digit = 0; digit < 1 << BITS; ++digit) start[digit + 1] += start[digit];
    for (const Counted& one : all) other[start[(one.id >> shift) & ((1 << BITS) - 1)]++] = one;
    all.swap(other);
  }
}

constexpr int64_t LIST_LIMIT = 16;  // classes per wanted class up to which a list is faster

// tapas_distinct with a count for every class instead of a hash table and a sort.
inline int64_t distinct_by_list(const int64_t* draws, int64_t count, int64_t k, int64_t bound,
                                int64_t* ids, int64_t* again) {
  std::vector<int32_t> times(bound, 0);
  int64_t found = 0, end = 0;
  for (; end < count; ++end) {
    if (end + AHEAD < count) __builtin_prefetch(&times[draws[end + AHEAD]], 1);
    int32_t& mine = times[draws[end]];
    if (mine == 0 && found == k) break;
    found += mine == 0;
    ++mine;
  }
  if (end == count) return -found;
  for (int64_t id = 0, place = 0; place < k; ++id)
    if (times[id]) {
      ids[place] = id;
      again[place++] = times[id] - 1;
    }
  return end;
}

}  // namespace tapas
