// Draws of classes by counter, and the distinct ones among them, by hashing instead of sorting.
//
// All of it is bound by memory latency, so memory is prefetched well before it is used.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tapas {

constexpr int64_t AHEAD = 32;  // draws whose memory is prefetched

// Philox4x32-10 (Salmon et al. 2011): four random words for each counter, the same in any order.
struct Philox {
  static constexpr int LANE_COUNT = 64;  // counters at a time
  uint32_t key[2];

  // high[i] and low[i], two random numbers of 64 bits each, for counters start + i, i < 64
  void numbers(uint64_t start, uint64_t* high, uint64_t* low) const {
    uint32_t c0[LANE_COUNT], c1[LANE_COUNT], c2[LANE_COUNT], c3[LANE_COUNT];
    for (int i = 0; i < LANE_COUNT; ++i) {
      c0[i] = static_cast<uint32_t>(start + i);
      c1[i] = static_cast<uint32_t>((start + i) >> 32);
      c2[i] = c3[i] = 0;
    }
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < LANE_COUNT; ++i) {
        const uint64_t first = uint64_t{0xD2511F53} * c0[i], second = uint64_t{0xCD9E8D57} * c2[i];
        c0[i] = static_cast<uint32_t>(second >> 32) ^ c1[i] ^ k0;
        c1[i] = static_cast<uint32_t>(second);
        c2[i] = static_cast<uint32_t>(first >> 32) ^ c3[i] ^ k1;
        c3[i] = static_cast<uint32_t>(first);
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    for (int i = 0; i < LANE_COUNT; ++i) {
      high[i] = uint64_t{c1[i]} << 32 | c0[i];
      low[i] = uint64_t{c3[i]} << 32 | c2[i];
    }
  }
};

// A uniform number in [0, 1) from the upper 53 bits.
inline double uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// A uniform distribution over all classes, and an alias table over some of them, the head: see
// proposals/floor_and_head.py and proposals/alias.py.
struct FloorAndHead {
  int64_t num_classes;
  double floor_share;       // chance of a draw from the uniform part
  double floor_not_drawn;   // log(1 - probability) of a class outside of the head
  int64_t heads;            // classes in the head
  const double* threshold;  // (heads) of the alias table
  const int64_t* partner;
  const int64_t* head_ids;  // ascending
  const double* not_drawn;  // (heads) log(1 - probability)
  const int32_t* first;     // directory: heads with ids from (i << shift) begin at first[i]
  int shift;

  // The class, and its place in the head if it was drawn from there, else -1.
  void draw(const uint64_t* high, const uint64_t* low, int count, int64_t* id, int32_t* place) const {
    for (int i = 0; i < count; ++i) {
      const bool floor = !heads || uniform(high[i]) < floor_share;
      const unsigned __int128 product =
          static_cast<unsigned __int128>(low[i]) * static_cast<uint64_t>(floor ? num_classes : heads);
      id[i] = static_cast<int64_t>(product >> 64);
      place[i] = floor ? -1 : static_cast<int32_t>(id[i]);
      if (floor) continue;
      __builtin_prefetch(threshold + id[i]);
      __builtin_prefetch(partner + id[i]);
    }
    for (int i = 0; i < count; ++i) {
      if (place[i] < 0) continue;
      const double fraction = uniform(low[i] * static_cast<uint64_t>(heads));
      const int64_t stays = fraction < threshold[place[i]], other = partner[place[i]];
      place[i] = static_cast<int32_t>(other + (place[i] - other) * stays);  // without a branch
      __builtin_prefetch(head_ids + place[i]);
    }
    for (int i = 0; i < count; ++i)
      if (place[i] >= 0) id[i] = head_ids[place[i]];
  }

  // The place of a class in the head, or -1.
  int64_t place_of(int64_t id) const {
    if (!heads) return -1;
    int64_t at = first[id >> shift];
    const int64_t end = first[(id >> shift) + 1];
    while (at < end && head_ids[at] < id) ++at;
    return at < end && head_ids[at] == id ? at : -1;
  }
};

// The log of the chance to be drawn, given that of not being drawn.
inline float log_kept(double log_not_drawn) {
  return std::log(-std::expm1(static_cast<float>(log_not_drawn)));
}

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

// An id and how often it occurred again, or another number that belongs to it.
struct Counted {
  int64_t id;
  int32_t again, place;
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
