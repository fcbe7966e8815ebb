// Products of class rows and queries, block by block, without storing the scores.
//
// A tile of 6 rows by 16 queries is kept in registers. Queries are packed once into transposed
// panels of 16, so that a tile is a sum of (row element) x (16 query elements). Rows are gathered
// from the table one block at a time, into a buffer that fits the L1 cache. Each tile is used (for
// an exponential, a sum, a comparison) before the next one is computed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#endif

namespace tapas {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Bits __attribute__((vector_size(32)));
constexpr int LANES = 8;
constexpr int HIGH = 6;              // rows of a tile
constexpr int WIDE = 2;              // vectors of a tile's row
constexpr int PANEL = WIDE * LANES;  // queries of a tile
constexpr int64_t ROWS_BYTES = 12 << 10;     // of a block of rows: under half of a small L1 cache
constexpr int64_t QUERY_BYTES = 256 << 10;   // of a block of queries: half of a small L2 cache
constexpr float LOG2_E = 1.44269504088896f;
constexpr float LN_2 = 0.693147180559945f;

#define ALWAYS inline __attribute__((always_inline))

static ALWAYS Floats splat(float x) { return Floats{x, x, x, x, x, x, x, x}; }

static ALWAYS Floats load(const float* from) {
  Floats x;
  memcpy(&x, from, sizeof x);
  return x;
}

static ALWAYS void store(float* to, Floats x) { memcpy(to, &x, sizeof x); }

// 2^(unit * x), accurate to two units in the last place; 0 below about 2^-125; NaN for NaN. The
// product is only used in fused operations, because rounding it would lose accuracy for large x.
static ALWAYS Floats exp2_of(Floats x, float unit) {
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Floats rounded = x * unit + shift;
  const Ints vanishes = rounded < shift - 125.0f;
  Bits whole = (Bits)rounded << 23;
  Floats f = x * unit - (rounded - shift);
  Floats p = splat(0.00132764608f);
  p = p * f + 0.00967554096f;
  p = p * f + 0.0555071346f;
  p = p * f + 0.240221202f;
  p = p * f + 0.693146944f;
  p = p * f + 1.0f;
  return (Floats)((Ints)(p * (Floats)(whole + 0x3f800000u)) & ~vanishes);
}

static ALWAYS bool any(Ints mask) {
  typedef int64_t Longs __attribute__((vector_size(32)));
  Longs wide = (Longs)mask;
  return (wide[0] | wide[1] | wide[2] | wide[3]) != 0;
}

static inline float sum_of(Floats x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// Memory for intermediate results, not initialised.
template <class T>
struct Scratch {
  std::unique_ptr<T[]> at;
  int64_t size;

  explicit Scratch(int64_t size) : at(new T[std::max<int64_t>(size, 1)]), size(size) {}
  Scratch(int64_t size, T value) : Scratch(size) { std::fill_n(at.get(), size, value); }
  T& operator[](int64_t i) { return at[i]; }
  const T& operator[](int64_t i) const { return at[i]; }
  T* data() const { return at.get(); }
};

// The class table in memory; bfloat16 if `half`.
struct Table {
  const void* rows;
  bool half;
  int64_t dim;

  void copy(int64_t id, float* to) const {
    if (!half) {
      memcpy(to, static_cast<const float*>(rows) + id * dim, dim * sizeof(float));
      return;
    }
    const uint16_t* from = static_cast<const uint16_t*>(rows) + id * dim;
    for (int64_t d = 0; d < dim; ++d) {
      uint32_t bits = static_cast<uint32_t>(from[d]) << 16;
      memcpy(to + d, &bits, sizeof bits);
    }
  }

  void prefetch(int64_t id) const {
    const char* at = static_cast<const char*>(rows) + id * dim * (half ? 2 : 4);
    for (int64_t line = 0; line < dim * (half ? 2 : 4); line += 64) __builtin_prefetch(at + line);
  }
};

// Rows `ids` of the table, or rows 0, 1, .. without ids, with an offset for each.
struct Rows {
  Table table;
  const int64_t* ids;
  const float* offset;  // null is 0
  int64_t count;

  int64_t id(int64_t place) const { return ids ? ids[place] : place; }
};

// The transpose of 8 vectors of 8 numbers.
static ALWAYS void transpose(Floats x[LANES]) {
  Floats y[LANES];
  for (int i = 0; i < LANES; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < LANES; i += 4)
    for (int j = i; j < i + 2; ++j) {
      x[j] = __builtin_shufflevector(y[j], y[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      x[j + 2] = __builtin_shufflevector(y[j], y[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < LANES / 2; ++i) {
    y[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    y[i + 4] = __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < LANES; ++i) x[i] = y[i];
}

// Queries in panels of 16, each (dim, 16), padded with zeros.
struct Panels {
  Scratch<float> packed;
  const float* query;
  int64_t dim, queries, count;
  float scale;

  // Call `pack` for every panel before it is used.
  Panels(const float* query, int64_t queries, int64_t dim, float scale)
      : packed((queries + PANEL - 1) / PANEL * dim * PANEL), query(query), dim(dim),
        queries(queries), count((queries + PANEL - 1) / PANEL), scale(scale) {}

  void pack(int64_t panel) {
    const float* from = query + panel * PANEL * dim;
    float* to = &packed[panel * dim * PANEL];
    const int64_t whole = real(panel) == PANEL ? dim / LANES * LANES : 0;
    for (int64_t d = 0; d < whole; d += LANES)
      for (int side = 0; side < WIDE; ++side) {
        Floats x[LANES];
        for (int q = 0; q < LANES; ++q) x[q] = load(from + (side * LANES + q) * dim + d) * scale;
        transpose(x);
        for (int i = 0; i < LANES; ++i) store(to + (d + i) * PANEL + side * LANES, x[i]);
      }
    for (int64_t d = whole; d < dim; ++d)
      for (int64_t q = 0; q < PANEL; ++q)
        to[d * PANEL + q] = q < real(panel) ? from[q * dim + d] * scale : 0.0f;
  }

  const float* operator[](int64_t panel) const { return &packed[panel * dim * PANEL]; }
  int64_t real(int64_t panel) const { return std::min<int64_t>(PANEL, queries - panel * PANEL); }
};

static inline int64_t queries_at_once(int64_t dim) {
  return std::max<int64_t>(4 * PANEL, QUERY_BYTES / (4 * dim) / PANEL * PANEL);
}

static inline int64_t rows_at_once(int64_t dim) {
  return std::min<int64_t>(8, std::max<int64_t>(1, ROWS_BYTES / (4 * dim * HIGH))) * HIGH;
}

// A block of rows, padded to whole tiles with rows whose score is -inf. Rows that are not one after
// the other as floats in memory are copied into a buffer that fits the L1 cache.
struct Block {
  std::vector<float> copied, offset;
  const float* rows;
  int64_t first, count, size, next;

  explicit Block(const Rows& from)
      : copied(rows_at_once(from.table.dim) * from.table.dim, 0.0f),
        offset(rows_at_once(from.table.dim), 0.0f), rows(copied.data()), first(0), count(0),
        size(rows_at_once(from.table.dim)), next(0) {}

  void read(const Rows& from, int64_t start, int64_t stop, float scale) {
    first = start;
    count = stop - start;
    const int64_t dim = from.table.dim, padded = tiles() * HIGH;
    for (int64_t i = 0; i < count; ++i)
      offset[i] = from.offset ? from.offset[start + i] * scale : 0.0f;
    for (int64_t i = count; i < padded; ++i) offset[i] = -INFINITY;
    next = stop;
    if (!from.ids && !from.table.half && padded == count) {
      rows = static_cast<const float*>(from.table.rows) + start * dim;
      return;
    }
    for (int64_t i = 0; i < count; ++i) from.table.copy(from.id(start + i), &copied[i * dim]);
    std::fill(copied.begin() + count * dim, copied.begin() + padded * dim, 0.0f);
    rows = copied.data();
  }

  // Prefetches `rows` more rows of the next block.
  void prefetch_next(const Rows& from, int64_t rows) {
    if (!from.ids) return;  // the hardware prefetches consecutive rows
    const int64_t end = std::min({next + rows, first + count + size, from.count});
    for (; next < end; ++next) from.table.prefetch(from.id(next));
  }

  int64_t tiles() const { return (count + HIGH - 1) / HIGH; }
};

// score[i][w] = offset of row i + row i . queries of the panel; rows begin `stride` apart
static ALWAYS void multiply(const float* rows, int64_t stride, const float* offset,
                            const float* panel, int64_t dim, Floats score[HIGH][WIDE]) {
  for (int i = 0; i < HIGH; ++i)
    for (int w = 0; w < WIDE; ++w) score[i][w] = splat(offset[i]);
  for (int64_t d = 0; d < dim; ++d) {
    const Floats left = load(panel + d * PANEL), right = load(panel + d * PANEL + LANES);
    for (int i = 0; i < HIGH; ++i) {
      const Floats element = splat(rows[i * stride + d]);
      score[i][0] += element * left;
      score[i][1] += element * right;
    }
  }
}

static ALWAYS void multiply(const float* rows, const float* offset, const float* panel, int64_t dim,
                            Floats score[HIGH][WIDE]) {
  multiply(rows, dim, offset, panel, dim, score);
}

}  // namespace tapas
