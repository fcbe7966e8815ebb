// The k best rows of a few queries, and their sums of exp(score), in one pass.
//
// With fewer than 16 queries most lanes of a panel would be empty. Here a lane is a row: 8 rows at
// a time are transposed on the way, and one query costs little more than reading them. Each score
// is added up in the order of the panels, so a list does not depend on how many are made together.
#pragma once

#include "best.h"

namespace tapas {

constexpr int FEW_QUERIES = 8;           // more are faster as a panel
constexpr int64_t FETCHED = 8 * LANES;   // rows ahead that are prefetched

// One query's part of a sum: total * 2^(LOG2_E * reference). See `Lanes`, whose lanes are queries.
struct RowLanes {
  float* reference;
  double* total;
  Floats sum = {};
  int vectors = 0;  // in `sum`

  ALWAYS void add(Floats score) {
    if (__builtin_expect(any((score - splat(*reference)) * LOG2_E > RAISE), 0)) raise(score);
    sum += exp2_of(score - splat(*reference), LOG2_E);
    if (++vectors == 8) end();
  }

  ALWAYS void end() {
    for (int lane = 0; lane < LANES; ++lane) *total += sum[lane];
    sum = Floats{};
    vectors = 0;
  }

 private:
  // Makes the highest score the reference.
  __attribute__((noinline)) void raise(Floats score) {
    float most = LOWEST;
    for (int lane = 0; lane < LANES; ++lane) most = score[lane] > most ? score[lane] : most;
    const float less = std::exp2(LOG2_E * (*reference - most));
    *reference = most;
    sum *= less;
    *total *= less;
  }
};

// score[q] = offset + row . query q, for the 8 rows that begin at `from`
template <int QUERIES>
static ALWAYS void multiply_rows(const float* from, int64_t dim, Floats offset, const float* query,
                                 Floats score[QUERIES]) {
  for (int q = 0; q < QUERIES; ++q) score[q] = offset;
  int64_t d = 0;
  for (; d + LANES <= dim; d += LANES) {
    Floats column[LANES];
    for (int i = 0; i < LANES; ++i) column[i] = load(from + i * dim + d);
    transpose(column);
    for (int i = 0; i < LANES; ++i)
      for (int q = 0; q < QUERIES; ++q) score[q] += column[i] * splat(query[q * dim + d + i]);
  }
  for (; d < dim; ++d) {
    Floats column;
    for (int i = 0; i < LANES; ++i) column[i] = from[i * dim + d];
    for (int q = 0; q < QUERIES; ++q) score[q] += column * splat(query[q * dim + d]);
  }
}

// What `best_of_rows` does, for at most `QUERIES` queries.
template <bool SUMS, int QUERIES = FEW_QUERIES>
static void best_for_few(const Rows& rows, const float* query, int64_t queries, Range part,
                         int64_t k, const Excluded& excluded, Best* best, float* reference,
                         double* total) {
  if constexpr (QUERIES > 1)
    if (queries < QUERIES)
      return best_for_few<SUMS, QUERIES - 1>(rows, query, queries, part, k, excluded, best,
                                             reference, total);
  const int64_t dim = rows.table.dim;
  const float* in_place = rows.table.half ? nullptr : static_cast<const float*>(rows.table.rows);
  Scratch<float> copied(LANES * dim);
  float bar[QUERIES];
  RowLanes lanes[QUERIES];
  for (int q = 0; q < QUERIES; ++q) {
    bar[q] = -INFINITY;
    lanes[q] = RowLanes{reference + q, total + q};
  }
  for (int64_t at = part.start; at < part.stop; at += LANES) {
    const int64_t real = std::min<int64_t>(LANES, part.stop - at);
    const float* from = copied.data();
    if (in_place && real == LANES) {
      from = in_place + at * dim;
      for (int64_t d = 0; d < LANES * dim; d += 16) __builtin_prefetch(from + FETCHED * dim + d);
    } else {
      for (int64_t i = 0; i < real; ++i) rows.table.copy(at + i, &copied[i * dim]);
      std::fill_n(&copied[real * dim], (LANES - real) * dim, 0.0f);
    }
    Floats offset = splat(0.0f);
    for (int64_t i = 0; i < LANES; ++i)
      if (i >= real || rows.offset) offset[i] = i < real ? rows.offset[at + i] : -INFINITY;
    Floats score[QUERIES];
    multiply_rows<QUERIES>(from, dim, offset, query, score);
    for (int q = 0; q < QUERIES; ++q) {
      if (any(~(score[q] <= splat(bar[q]))))
        for (int64_t i = 0; i < real; ++i) {
          if (score[q][i] <= bar[q] || excluded.holds(q, at + i)) continue;
          bar[q] = best[q].add({score[q][i], at + i}, k, bar[q]);
        }
      if (SUMS) lanes[q].add(score[q]);
    }
  }
  if (SUMS)
    for (RowLanes& each : lanes) each.end();
}

}  // namespace tapas
