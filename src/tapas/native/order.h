// A keyed random permutation of 0 .. size-1, with the same results as permutation.py.
#pragma once

#include <cstdint>

namespace tapas {

constexpr uint64_t PRIME = (uint64_t{1} << 31) - 1;
constexpr int ROUNDS = 4;
constexpr int BLOCK = 512;  // numbers processed together

// The product of factors below 2^32, in one vector instruction.
inline uint64_t product(uint64_t a, uint64_t b) { return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu); }

// x % PRIME for x < 2^62, without a division and without a branch.
inline uint64_t modulo(uint64_t x) {
  x = (x & PRIME) + (x >> 31);
  x = (x & PRIME) + (x >> 31);
  return x - PRIME * (x >= PRIME);
}

struct Order {
  int half;             // bits of one half of a number
  const int64_t* keys;  // (ROUNDS, 2)
  uint64_t size;

  uint64_t mask() const { return (uint64_t{1} << half) - 1; }

  uint64_t mix(uint64_t part, int round) const {
    uint64_t mixed = modulo(product(part, keys[2 * round]) + keys[2 * round + 1]);
    mixed = modulo(product(mixed ^ (mixed >> 15), 0x2C1B3C6D));
    return (mixed ^ (mixed >> 13)) & mask();
  }

  uint64_t encrypt(uint64_t id) const {
    uint64_t left = id >> half, right = id & mask();
    for (int round = 0; round < ROUNDS; ++round) {
      const uint64_t next = left ^ mix(right, round);
      left = right;
      right = next;
    }
    return (left << half) | right;
  }

  uint64_t decrypt(uint64_t id) const {
    uint64_t left = id >> half, right = id & mask();
    for (int round = ROUNDS - 1; round >= 0; --round) {
      const uint64_t before = right ^ mix(left, round);
      right = left;
      left = before;
    }
    return (left << half) | right;
  }

  // Cycle walking: numbers that are not below `size` are encrypted again until they are.
  template <bool BACKWARDS>
  void walk(const int64_t* ids, int count, int64_t* out) const {
    uint64_t number[BLOCK];
    int place[BLOCK];
    for (int i = 0; i < count; ++i) {
      number[i] = ids[i];
      place[i] = i;
    }
    while (count) {
      for (int i = 0; i < count; ++i)
        number[i] = BACKWARDS ? decrypt(number[i]) : encrypt(number[i]);
      int outside = 0;
      for (int i = 0; i < count; ++i) {
        const uint64_t reached = number[i];
        const int at = place[i];
        out[at] = reached;  // overwritten in a later round if it is outside
        number[outside] = reached;
        place[outside] = at;
        outside += reached >= size;
      }
      count = outside;
    }
  }
};

}  // namespace tapas
