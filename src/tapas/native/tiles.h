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
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "scratch.h"

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
constexpr int64_t IN_PLACE_BYTES = 96 << 10;  // of a block of rows that are not copied
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

// 2^(unit * x), accurate to two units in the last place; 0 below about 2^-126; NaN for NaN. The
// product is only used in fused operations, because rounding it would lose accuracy for large x.
static ALWAYS Floats exp2_of(Floats x, float unit) {
  // Adding 1.5 * 2^23 rounds to an integer. With 127 more, its last bits are the exponent of a
  // float, and 0, the exponent of 0.0, is that of 2^-127.
  const Floats shift = splat(12582912.0f + 127.0f), least = splat(-127.0f / unit);
  x = least > x ? least : x;
  const Floats rounded = x * unit + shift;
  const Floats power = (Floats)((Bits)rounded << 23);
  const Floats f = x * unit - (rounded - shift);
  Floats p = splat(0.00132764608f);
  p = p * f + 0.00967554096f;
  p = p * f + 0.0555071346f;
  p = p * f + 0.240221202f;
  p = p * f + 0.693146944f;
  p = p * f + 1.0f;
  return p * power;
}

// log(x), accurate to two units in the last place, for normal x > 0; -inf for 0; NaN for NaN.
static ALWAYS Floats log_of(Floats x) {
  // x = 2^whole * m with m in [sqrt(1/2), sqrt(2))
  const Ints whole = (Ints)((Bits)x - 0x3f3504f3u) >> 23;
  const Floats m = (Floats)((Bits)x - ((Bits)whole << 23));
  const Floats power = __builtin_convertvector(whole, Floats);
  // log(m) = 2 atanh(s) with s = (m - 1) / (m + 1), |s| < 0.172
  const Floats f = m - 1.0f, s = f / (m + 1.0f), z = s * s;
  Floats p = splat(0.2437f);
  p = p * z + 0.28498787f;
  p = p * z + 0.4f;
  p = p * z + 0.66666667f;
  // 2 s = f - s f: so the rounding of s does not matter
  Floats found = f - s * (f - z * p);
  found = (power * 6.9314575195e-1f + found) + power * 1.4286067653e-6f;
  found = x > 3.4028234e38f ? x : found;
  return (x == 0.0f) ? splat(-INFINITY) : (x == x ? found : x);
}

static ALWAYS bool any(Ints mask) {
  typedef int64_t Longs __attribute__((vector_size(32)));
  Longs wide = (Longs)mask;
  return (wide[0] | wide[1] | wide[2] | wide[3]) != 0;
}

static inline float sum_of(Floats x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// Whether all of x (count) are finite.
static inline bool all_finite(const float* x, int64_t count) {
  Floats sum = {};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Floats v = load(x + i);
    sum += v - v;  // 0, or NaN
  }
  float rest = sum_of(sum);
  for (; i < count; ++i) rest += x[i] - x[i];
  return rest == 0.0f;
}

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
    // into the L2 cache: requests for more lines than the L1 cache can wait for would stop everything
    for (int64_t line = 0; line < dim * (half ? 2 : 4); line += 64)
      __builtin_prefetch(at + line, 0, 2);
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

// A block of rows in tiles of 6, of which the last is padded with rows whose score is -inf. Rows
// that are not floats one after the other in memory are copied into a buffer that fits the L1 cache;
// others stay where they are, in blocks that fit the L2 cache.
struct Block {
  int64_t dim, size;
  bool in_place;
  Scratch<float> copied;
  std::vector<float> offset;
  const float* start;
  int64_t first, count, next;

  explicit Block(const Rows& from)
      : dim(from.table.dim), size(rows_at_once(dim)), in_place(!from.ids && !from.table.half),
        copied(in_place ? HIGH * dim : size * dim), start(nullptr), first(0), count(0), next(0) {
    if (in_place) size = std::max(size, IN_PLACE_BYTES / (4 * dim * HIGH) * HIGH);
    offset.resize(size);
  }

  void read(const Rows& from, int64_t begin, int64_t end, float scale) {
    first = begin;
    count = end - begin;
    for (int64_t i = 0; i < count; ++i)
      offset[i] = from.offset ? from.offset[begin + i] * scale : 0.0f;
    for (int64_t i = count; i < tiles() * HIGH; ++i) offset[i] = -INFINITY;
    next = end;
    const int64_t whole = in_place ? count / HIGH * HIGH : 0;
    start = static_cast<const float*>(from.table.rows) + begin * dim;
    for (int64_t i = whole; i < tiles() * HIGH; ++i) {
      if (i < count)
        from.table.copy(from.id(begin + i), &copied[(i - whole) * dim]);
      else
        std::fill_n(&copied[(i - whole) * dim], dim, 0.0f);
    }
  }

  // The rows of the tile that begins at row i of the block.
  const float* tile(int64_t i) const {
    if (!in_place) return copied.data() + i * dim;
    return i + HIGH <= count ? start + i * dim : copied.data();
  }

  // Prefetches `rows` more rows of the next block.
  void prefetch_next(const Rows& from, int64_t rows) {
    if (!from.ids) return;  // the hardware prefetches consecutive rows
    const int64_t end = std::min({next + rows, first + count + size, from.count});
    for (; next < end; ++next) from.table.prefetch(from.id(next));
  }

  int64_t tiles() const { return (count + HIGH - 1) / HIGH; }

  // Whether no score can be NaN: sums that overflow are inf, because products in them are fused.
  bool is_finite() const {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) finite &= offset[i] < INFINITY;
    for (int64_t i = 0; i < count; i += HIGH) finite &= all_finite(tile(i), HIGH * dim);
    return finite;
  }
};

// score[i][w] += row i . queries of the panel, over `depth` dimensions; rows begin `stride` apart
static ALWAYS void add_dots(const float* rows, int64_t stride, const float* panel, int64_t depth,
                            Floats score[HIGH][WIDE]) {
  for (int64_t d = 0; d < depth; ++d) {
    const Floats left = load(panel + d * PANEL), right = load(panel + d * PANEL + LANES);
    for (int i = 0; i < HIGH; ++i) {
      const Floats element = splat(rows[i * stride + d]);
      score[i][0] += element * left;
      score[i][1] += element * right;
    }
  }
}

// score[i][w] = offset of row i + row i . queries of the panel
static ALWAYS void multiply(const float* rows, int64_t stride, const float* offset,
                            const float* panel, int64_t dim, Floats score[HIGH][WIDE]) {
  for (int i = 0; i < HIGH; ++i)
    for (int w = 0; w < WIDE; ++w) score[i][w] = splat(offset[i]);
  add_dots(rows, stride, panel, dim, score);
}

static ALWAYS void multiply(const float* rows, const float* offset, const float* panel, int64_t dim,
                            Floats score[HIGH][WIDE]) {
  multiply(rows, dim, offset, panel, dim, score);
}

constexpr int64_t DEPTH = 256;  // dimensions of a panel that stay in the L1 cache

// The scores of a panel and the rows of a block before their last dimensions, up to 256 of them.
struct PartialScores {
  int64_t done;  // dimensions
  Scratch<float> scores;

  PartialScores(const Block& block, int64_t dim)
      : done((dim - 1) / DEPTH * DEPTH), scores(done ? block.size * PANEL : 0) {}

  void compute(const Block& block, const float* panel) {
    for (int64_t d = 0; d < done; d += DEPTH)
      for (int64_t i = 0; i < block.count; i += HIGH) {
        Floats score[HIGH][WIDE];
        begin(block, i, d == 0, score);
        add_dots(block.tile(i) + d, block.dim, panel + d * PANEL, DEPTH, score);
        memcpy(&scores[i * PANEL], score, sizeof score);
      }
  }

  // The complete scores of the tile at row i.
  ALWAYS void finish(const Block& block, int64_t i, const float* panel,
                     Floats score[HIGH][WIDE]) const {
    begin(block, i, done == 0, score);
    add_dots(block.tile(i) + done, block.dim, panel + done * PANEL, block.dim - done, score);
  }

 private:
  ALWAYS void begin(const Block& block, int64_t i, bool first, Floats score[HIGH][WIDE]) const {
    if (!first) {
      memcpy(score, &scores[i * PANEL], sizeof(Floats) * HIGH * WIDE);
      return;
    }
    for (int r = 0; r < HIGH; ++r)
      for (int w = 0; w < WIDE; ++w) score[r][w] = splat(block.offset[i + r]);
  }
};

}  // namespace tapas
