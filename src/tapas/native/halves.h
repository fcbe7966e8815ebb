// Scores from products of bfloat16 numbers, which some CPUs multiply twice as fast as floats.
//
// Each product is off by about 1/500 of its size: good enough to choose classes by, not for a loss.
#pragma once

#include "tiles.h"

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
#define TAPAS_HALVES 1
#define HALVES __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512bf16")))
#else
#define TAPAS_HALVES 0
#endif

namespace tapas {

constexpr int64_t WORTH_HALVES = 1 << 22;  // multiplications

#if TAPAS_HALVES

static inline bool has_halves() { return __builtin_cpu_supports("avx512bf16"); }

constexpr int TALL = 12;  // rows of a tile of 12 x 16

// Two bfloat16 numbers in each of 16 lanes: of x and of y.
static HALVES inline __m512i pairs_of(__m512 x, __m512 y) {
  const __m512i low = _mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)_mm512_cvtneps_pbh(x));
  const __m512i high = _mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)_mm512_cvtneps_pbh(y));
  return _mm512_or_si512(low, _mm512_maskz_slli_epi32(0xFFFF, high, 16));
}

// Panels of 16 queries, each (dim / 2, 16) pairs of neighbouring dimensions.
struct HalfPanels {
  const Panels& from;
  int64_t pairs;
  Scratch<uint32_t> packed;

  explicit HalfPanels(const Panels& from)
      : from(from), pairs((from.dim + 1) / 2), packed(from.count * pairs * PANEL) {}

  HALVES void pack(int64_t panel) {
    const float* x = from[panel];
    for (int64_t p = 0; p < pairs; ++p) {
      const __m512 first = _mm512_loadu_ps(x + 2 * p * PANEL);
      const __m512 second =
          2 * p + 1 < from.dim ? _mm512_loadu_ps(x + (2 * p + 1) * PANEL) : _mm512_setzero_ps();
      _mm512_storeu_si512(&packed[(panel * pairs + p) * PANEL], pairs_of(first, second));
    }
  }

  const uint32_t* operator[](int64_t panel) const { return &packed[panel * pairs * PANEL]; }
};

// A block of rows as pairs of bfloat16 numbers, and its scores for one panel. In place of `Block`
// and `PartialScores`.
struct HalfScores {
  const Rows& rows;
  const HalfPanels& panels;
  int64_t pairs, size, first, count, next;
  Scratch<uint32_t> copied;       // (size, pairs)
  Scratch<float> offset, scores;  // (size), (size, 16)

  HalfScores(const Rows& rows, const HalfPanels& panels)
      : rows(rows), panels(panels), pairs(panels.pairs), size(rows_at_once(pairs)), first(0),
        count(0), next(0), copied(size * pairs), offset(size), scores(size * PANEL) {}

  static int64_t rows_at_once(int64_t pairs) {
    return std::clamp<int64_t>(ROWS_BYTES / (4 * pairs * TALL), 1, 4) * TALL;
  }

  HALVES void read(int64_t begin, int64_t end) {
    first = begin;
    next = end;
    count = end - begin;
    const int64_t dim = rows.table.dim;
    for (int64_t i = 0; i < size; ++i) {
      uint32_t* to = &copied[i * pairs];
      offset[i] = i < count ? rows.offset[begin + i] : -INFINITY;
      if (i >= count) {
        std::fill_n(to, pairs, 0u);
        continue;
      }
      const int64_t id = rows.id(begin + i);
      if (rows.table.half) {
        to[pairs - 1] = 0;
        memcpy(to, static_cast<const uint16_t*>(rows.table.rows) + id * dim, dim * 2);
        continue;
      }
      const float* from = static_cast<const float*>(rows.table.rows) + id * dim;
      int64_t d = 0;
      for (; d + 32 <= dim; d += 32)
        _mm512_storeu_si512(to + d / 2, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + d + 16),
                                                                     _mm512_loadu_ps(from + d)));
      if (d == dim) continue;
      const uint32_t left = static_cast<uint32_t>((uint64_t{1} << (dim - d)) - 1);
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(left), from + d);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(left >> 16), from + d + 16);
      _mm512_mask_storeu_epi32(to + d / 2, static_cast<__mmask16>((1u << (pairs - d / 2)) - 1),
                               (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
  }

  // The scores of all rows of the block for the queries of a panel.
  HALVES void compute(int64_t panel) {
    const uint32_t* query = panels[panel];
    for (int64_t i = 0; i < count; i += TALL) {
      const uint32_t* row = &copied[i * pairs];
      __m512 score[TALL];
      for (int r = 0; r < TALL; ++r) score[r] = _mm512_set1_ps(offset[i + r]);
      for (int64_t p = 0; p < pairs; ++p) {
        const __m512bh x = (__m512bh)_mm512_loadu_si512(query + p * PANEL);
        for (int r = 0; r < TALL; ++r)
          score[r] = _mm512_dpbf16_ps(
              score[r], x, (__m512bh)_mm512_set1_epi32(static_cast<int>(row[r * pairs + p])));
      }
      for (int r = 0; r < TALL; ++r) _mm512_storeu_ps(&scores[(i + r) * PANEL], score[r]);
    }
  }

  ALWAYS void finish(int64_t i, int64_t, Floats score[HIGH][WIDE]) const {
    for (int r = 0; r < HIGH; ++r)
      for (int w = 0; w < WIDE; ++w) score[r][w] = load(&scores[(i + r) * PANEL + w * LANES]);
  }

  // Prefetches `more` rows of the next block.
  void prefetch_next(int64_t more) {
    const int64_t end = std::min({next + more, first + count + size, rows.count});
    for (; next < end; ++next) rows.table.prefetch(rows.id(next));
  }
};

#else

static inline bool has_halves() { return false; }
struct HalfPanels {
  explicit HalfPanels(const Panels&) {}
  void pack(int64_t) {}
};

#endif

}  // namespace tapas
