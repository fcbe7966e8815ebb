// Draws of classes by counter, and the distinct ones among them, by bits or by hashing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tiles.h"

namespace tapas {

constexpr int64_t AHEAD = 32;  // draws whose memory is prefetched

// The upper and lower halves of 8 products.
static ALWAYS void multiply_wide(Bits x, uint32_t by, Bits& high, Bits& low) {
#if defined(__x86_64__)
  const __m256i times = _mm256_set1_epi32(static_cast<int>(by));
  const __m256i even = _mm256_mul_epu32((__m256i)x, times);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), times);
  high = (Bits)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = (Bits)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#else
  for (int i = 0; i < LANES; ++i) {
    const uint64_t product = uint64_t{x[i]} * by;
    high[i] = static_cast<uint32_t>(product >> 32);
    low[i] = static_cast<uint32_t>(product);
  }
#endif
}

// Philox4x32-10 (Salmon et al. 2011): random numbers by counter, the same in any order.
struct Philox {
  static constexpr int AT_ONCE = 64;
  uint32_t key[2];

  explicit Philox(uint64_t key) : key{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)} {}

  // 64 numbers of 64 bits, number `start` and those after it; start is a multiple of 64
  void numbers(uint64_t start, uint64_t* to) const {
    for (int first = 0; first < AT_ONCE; first += 2 * LANES) {  // two for each counter
      Bits c0, c1, c2 = {}, c3 = {};
      for (int i = 0; i < LANES; ++i) {
        c0[i] = static_cast<uint32_t>((start + first) / 2 + i);
        c1[i] = static_cast<uint32_t>(((start + first) / 2 + i) >> 32);
      }
      uint32_t k0 = key[0], k1 = key[1];
      for (int round = 0; round < 10; ++round) {
        Bits high0, low0, high2, low2;
        multiply_wide(c0, 0xD2511F53, high0, low0);
        multiply_wide(c2, 0xCD9E8D57, high2, low2);
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
      }
      for (int i = 0; i < LANES; ++i) {
        to[first + 2 * i] = uint64_t{c1[i]} << 32 | c0[i];
        to[first + 2 * i + 1] = uint64_t{c3[i]} << 32 | c2[i];
      }
    }
  }
};

// A uniform number in [0, 1) from the upper 52 bits: those of a number in [1, 2), less 1.
static ALWAYS double uniform(uint64_t bits) {
  const uint64_t shifted = bits >> 12 | 0x3FF0000000000000u;
  double x;
  memcpy(&x, &shifted, sizeof x);
  return x - 1.0;
}

struct Bucket {
  uint32_t threshold;  // chance of the bucket's own class, in units of 2^-32
  int32_t partner;     // the place of the other class in the head
};

// A uniform distribution over all classes, and an alias table over some of them, the head: see
// proposals/floor_and_head.py and proposals/alias.py.
struct FloorAndHead {
  int64_t num_classes;
  double floor_share;       // chance of a draw from the uniform part
  double floor_not_drawn;   // log(1 - probability) of a class outside of the head
  int64_t heads;            // classes in the head
  const Bucket* buckets;    // (heads) of the alias table
  const int64_t* head_ids;  // ascending
  const double* not_drawn;  // (heads) log(1 - probability)
  const int32_t* first;     // directory: heads with ids from (i << shift) begin at first[i]
  int shift;

  // The classes of at most 64 draws, each from a number in [0, 1): below floor_share it is stretched
  // over all classes, else over the buckets, and what is left within a bucket chooses the class.
  void draw(const uint64_t* numbers, int count, int64_t* id) const {
    // without branches, which would often be mispredicted: `head` is -1 for a draw from the head, else 0
    double x[Philox::AT_ONCE];
    int64_t head[Philox::AT_ONCE], place[Philox::AT_ONCE];
    const double per_class = num_classes / floor_share, per_head = heads / (1.0 - floor_share);
    for (int i = 0; i < count; ++i) {
      const double u = uniform(numbers[i]);
      const bool floor = u < floor_share;
      x[i] = (floor ? u : u - floor_share) * (floor ? per_class : per_head);
      head[i] = floor ? 0 : -1;
    }
    for (int i = 0; i < count; ++i) {
      id[i] = std::min(static_cast<int64_t>(x[i]), (heads & head[i]) + (num_classes & ~head[i]) - 1);
      place[i] = id[i] & head[i];
      __builtin_prefetch(buckets + place[i]);
    }
    if (!heads) return;
    for (int i = 0; i < count; ++i) {
      const Bucket bucket = buckets[place[i]];
      const double fraction = (x[i] - static_cast<double>(id[i])) * 0x1p32;
      const int64_t stays = -static_cast<int64_t>(fraction < static_cast<double>(bucket.threshold));
      place[i] = (place[i] & stays) | (bucket.partner & ~stays);
      __builtin_prefetch(head_ids + place[i]);
    }
    for (int i = 0; i < count; ++i) id[i] = (head_ids[place[i]] & head[i]) | (id[i] & ~head[i]);
  }

  // log(1 - probability)
  double log_not_drawn(int64_t id) const {
    if (!heads) return floor_not_drawn;
    int64_t at = first[id >> shift];
    // a binary search whose steps depend on the number of classes only, so that they are predicted
    for (int64_t left = first[(id >> shift) + 1] - at; left > 0; left /= 2) {
      const int64_t half = (left + 1) / 2;
      at += half & -static_cast<int64_t>(head_ids[at + half - 1] < id);
    }
    at = std::min(at, heads - 1);
    const double found[2] = {floor_not_drawn, not_drawn[at]};
    return found[head_ids[at] == id];
  }
};

// log(1 - exp(x)) for x <= 0: the log of the chance to be drawn, given that of not being drawn.
inline void log_drawn(const float* x, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += LANES) {
    const int64_t size = std::min<int64_t>(LANES, count - i);
    Floats v = {};
    memcpy(&v, x + i, size * sizeof(float));
    // near 0 by its series, because 1 - exp(x) would lose digits
    const Floats y = -v;
    Floats p = splat(-1.0f / 5040);
    p = p * y + 1.0f / 720;
    p = p * y - 1.0f / 120;
    p = p * y + 1.0f / 24;
    p = p * y - 1.0f / 6;
    p = p * y + 0.5f;
    p = y * (1.0f - y * p);
    const Floats drawn = y < 0.25f ? p : 1.0f - exp2_of(v, LOG2_E);
    v = log_of(drawn);
    memcpy(to + i, &v, size * sizeof(float));
  }
}

// An id and a number that belongs to it.
struct Numbered {
  int64_t id, number;
};

constexpr size_t FEW = 128;  // a radix sort clears its counters for longer than these take

// Sorts by id, equal ids by number, which must ascend; by digits of 11 bits. All ids are below
// `bound`.
inline void sort_by_id(std::vector<Numbered>& all, int64_t bound) {
  if (all.size() < FEW) {
    std::sort(all.begin(), all.end(), [](const Numbered& x, const Numbered& y) {
      return x.id < y.id || (x.id == y.id && x.number < y.number);
    });
    return;
  }
  constexpr int BITS = 11;
  std::vector<Numbered> other(all.size());
  for (int shift = 0; shift < 63 && (bound - 1) >> shift; shift += BITS) {
    size_t start[(1 << BITS) + 1] = {};
    for (const Numbered& one : all) ++start[((one.id >> shift) & ((1 << BITS) - 1)) + 1];
    for (int digit = 0; digit < 1 << BITS; ++digit) start[digit + 1] += start[digit];
    for (const Numbered& one : all) other[start[(one.id >> shift) & ((1 << BITS) - 1)]++] = one;
    all.swap(other);
  }
}

constexpr int64_t WORDS_LIMIT = 32;       // words with a bit for each class, per wanted class
constexpr int64_t MOST_WORDS = 1 << 18;  // 2 MB

// The first k distinct ids of a sequence of draws in 0 .. bound - 1, and how often each was drawn
// again before the next distinct id. Classes are looked up in bits, one for each, which also give
// their order; if that is too much memory to walk through, in a hash table.
class FirstDistinct {
 public:
  int64_t end = 0;    // draws before the (k + 1)-th distinct id
  int64_t found = 0;  // distinct ids, at most k

  FirstDistinct(int64_t k, int64_t bound)
      : k_(k), bound_(bound), by_bits_(bound / 64 <= std::min(WORDS_LIMIT * k, MOST_WORDS)),
        words_(by_bits_ ? (bound + 63) / 64 : 0), bits_(words_, 0), repeated_(0) {
    if (by_bits_) return;
    while ((int64_t{1} << log_size_) < 2 * (k + 1)) ++log_size_;
    buckets_.assign(size_t{1} << log_size_, 0);
    order_.reserve(k);
  }

  // Adds the next draws; true if the (k + 1)-th distinct id is among them.
  bool add(const int64_t* draws, int64_t count) {
    return by_bits_ ? add_to_bits(draws, count) : add_to_buckets(draws, count);
  }

  // The k ids, ascending, and how often each was drawn again, (k) each.
  void write(int64_t* ids, int64_t* again) {
    if (!by_bits_) {
      sort_by_id(order_, bound_);
      for (int64_t j = 0; j < k_; ++j) {
        ids[j] = order_[j].id;
        again[j] = order_[j].number;
      }
      return;
    }
    Scratch<int32_t> before(words_);  // ids in earlier words
    int64_t place = 0;
    for (int64_t w = 0; w < words_; ++w) {
      before[w] = static_cast<int32_t>(place);
      for (uint64_t left = bits_[w]; left; left &= left - 1)
        ids[place++] = w * 64 + __builtin_ctzll(left);
    }
    std::fill_n(again, k_, 0);
    for (int64_t i = 0; i < repeats_; ++i) {
      const int64_t id = repeated_[i];
      const uint64_t lower = (uint64_t{1} << (id & 63)) - 1;
      ++again[before[id >> 6] + __builtin_popcountll(bits_[id >> 6] & lower)];
    }
  }

 private:
  bool add_to_bits(const int64_t* draws, int64_t count) {
    if (repeats_ + count > room_) {
      Scratch<int64_t> more(2 * (repeats_ + count));
      std::copy_n(repeated_.data(), repeats_, more.data());
      room_ = 2 * (repeats_ + count);
      repeated_ = std::move(more);
    }
    for (int64_t i = 0; i < count; ++i, ++end) {
      uint64_t& word = bits_[draws[i] >> 6];
      const uint64_t bit = uint64_t{1} << (draws[i] & 63);
      const bool is_new = !(word & bit);
      if (is_new && found == k_) return true;
      word |= bit;
      found += is_new;
      repeated_[repeats_] = draws[i];  // overwritten by the next unless it counts
      repeats_ += !is_new;
    }
    return false;
  }

  bool add_to_buckets(const int64_t* draws, int64_t count) {
    const uint64_t mask = buckets_.size() - 1;
    for (int64_t i = 0; i < count; ++i, ++end) {
      if (i + AHEAD < count) __builtin_prefetch(&buckets_[home(draws[i + AHEAD])]);
      uint64_t at = home(draws[i]);
      while (buckets_[at] && order_[buckets_[at] - 1].id != draws[i]) at = (at + 1) & mask;
      if (buckets_[at]) {
        ++order_[buckets_[at] - 1].number;
        continue;
      }
      if (found == k_) return true;
      order_.push_back({draws[i], 0});
      buckets_[at] = static_cast<int32_t>(++found);
    }
    return false;
  }

  uint64_t home(int64_t id) const {
    return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u) >> (64 - log_size_);
  }

  int64_t k_, bound_;
  bool by_bits_;
  int64_t words_;
  Scratch<uint64_t> bits_;
  Scratch<int64_t> repeated_;
  int64_t repeats_ = 0, room_ = 0;  // in `repeated_`
  int log_size_ = 4;
  std::vector<int32_t> buckets_;  // place in `order_` + 1; 0 is empty
  std::vector<Numbered> order_;   // ids as they appeared, and how often again
};

}  // namespace tapas
