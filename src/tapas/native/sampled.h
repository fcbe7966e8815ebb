// What surrounds the sum over kept classes in a sampled softmax: rows are read from the table, the
// targets are scored, and the gradients of rows that occur several times are added up.
#pragma once

#include "sums.h"
#include "updates.h"

namespace tapas {

// Table and biases as they are stored, both bfloat16 if `table.half`.
struct BiasedTable {
  Table table;
  const void* bias;  // null is 0

  float bias_of(int64_t id) const {
    if (!bias) return 0.0f;
    if (!table.half) return static_cast<const float*>(bias)[id];
    uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(bias)[id]) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
  }

  void prefetch_bias(int64_t id) const {
    if (bias) __builtin_prefetch(static_cast<const char*>(bias) + id * (table.half ? 2 : 4));
  }
};

constexpr int64_t ROWS_AHEAD = 4;  // rows whose memory is prefetched

// The sum of products.
static ALWAYS float dot(const float* x, const float* y, int64_t dim) {
  Floats sum[2] = {};
  int64_t d = 0;
  for (; d + 2 * LANES <= dim; d += 2 * LANES) {
    sum[0] += load(x + d) * load(y + d);
    sum[1] += load(x + d + LANES) * load(y + d + LANES);
  }
  float rest = 0.0f;
  for (; d < dim; ++d) rest += x[d] * y[d];
  return sum_of(sum[0] + sum[1]) + rest;
}

// Copies rows `ids` start .. stop of the table; offset = bias - log_q.
static inline void read_kept(const BiasedTable& from, const int64_t* ids, const float* log_q,
                             Range part, float* rows, float* offset) {
  for (int64_t i = part.start; i < part.stop; ++i) {
    if (i + ROWS_AHEAD < part.stop) from.table.prefetch(ids[i + ROWS_AHEAD]);
    from.table.copy(ids[i], rows + i * from.table.dim);
    offset[i] = from.bias_of(ids[i]) - log_q[i];
  }
}

// Copies the rows of targets start .. stop (flat, L for each query) and computes their scores,
// -inf for padding.
static inline void read_targets(const BiasedTable& from, const int64_t* ids, const float* query,
                                int64_t per_query, Range part, float* rows, float* positive) {
  const int64_t dim = from.table.dim;
  for (int64_t i = part.start; i < part.stop; ++i) {
    if (i + ROWS_AHEAD < part.stop && ids[i + ROWS_AHEAD] >= 0)
      from.table.prefetch(ids[i + ROWS_AHEAD]);
    float* row = rows + i * dim;
    if (ids[i] < 0) {
      std::fill_n(row, dim, 0.0f);
      positive[i] = -INFINITY;
      continue;
    }
    from.table.copy(ids[i], row);
    positive[i] = dot(row, query + i / per_query * dim, dim) + from.bias_of(ids[i]);
  }
}

// Cost of each target of one query, -log of its share in the partition sum; 0 for padding, whose
// `at` is negative, and inf for a target with a score of -inf. `rest` is the share of the kept
// classes, own[l] that of a target if it counts.
static inline void costs_of(const float* positive, const int64_t* at, const char* counted,
                            int64_t per_query, float log_sum, float* cost, float* rest,
                            float* own) {
  if (per_query == 1 && !counted) {
    // computed from the difference: that of two large logarithms would lose digits
    const float z = log_sum - positive[0], small = std::exp(-std::fabs(z));
    const bool padding = at[0] < 0;
    cost[0] = padding ? 0.0f : std::max(z, 0.0f) + std::log1p(small);
    *rest = padding ? 0.0f : (z > 0.0f ? 1.0f : small) / (1.0f + small);
    if (z != z && !padding) cost[0] = *rest = z;
    own[0] = 1.0f - *rest;
    return;
  }
  float most = log_sum;
  for (int64_t l = 0; l < per_query; ++l)
    if (!counted || counted[l]) most = std::max(most, positive[l]);
  const float shift = most == -INFINITY ? 0.0f : most;
  float total = std::exp(log_sum - shift);
  for (int64_t l = 0; l < per_query; ++l)
    if (!counted || counted[l]) total += std::exp(positive[l] - shift);
  const float partition = shift + std::log(total);
  *rest = std::exp(log_sum - shift) / total;
  for (int64_t l = 0; l < per_query; ++l) {
    const bool counts = !counted || counted[l];
    cost[l] = at[l] < 0 ? 0.0f : partition - positive[l];
    own[l] = counts ? std::exp(positive[l] - shift) / total : 0.0f;
  }
}

// Where the gradients of targets belong: rows 0 .. kept - 1 are those of the kept classes, and
// targets that were not kept get rows of their own after these, ascending.
struct TargetPlaces {
  Groups groups;  // of targets that are no padding
  Scratch<int64_t> place;  // of each group
  int64_t rows;            // in all

  TargetPlaces(const int64_t* ids, int64_t count, int64_t bound, const int64_t* kept_ids,
               int64_t kept)
      : groups(ids, count, bound), place(groups.count()), rows(kept) {
    int64_t next = 0;
    for (int64_t g = 0; g < groups.count(); ++g) {
      while (next < kept && kept_ids[next] < groups.id(g)) ++next;
      place[g] = next < kept && kept_ids[next] == groups.id(g) ? next : rows++;
    }
  }
};

// The intermediate results of a sampled softmax, from the scores to the gradients, in one block of
// memory.
struct SampleMemory {
  int64_t kept, queries, per_query, dim, stride;  // stride: 0 without terms
  float* kept_rows;    // (kept, dim)
  float* offset;       // (kept) bias - log_q
  float* target_rows;  // (queries * per_query, dim), 0 for padding
  float* positive;     // (queries, per_query) scores of the targets, -inf for padding
  float* log_sum;      // (queries)
  float* reference;    // (queries), and `inverse`: the share of a class in the sum over kept classes
  float* inverse;      //   is exp(score - reference) * inverse
  float* rest;         // (queries) share of the kept classes in the partition sum
  float* own;          // (queries, per_query) share of each target that counts
  float* terms;        // (kept, stride) exp(score - reference); null without
  int64_t size;        // floats
  int64_t starts[10];  // of these parts, in this order

  SampleMemory(float* base, int64_t kept, int64_t queries, int64_t per_query, int64_t dim,
               bool with_terms)
      : kept(kept), queries(queries), per_query(per_query), dim(dim),
        // rows a power of two apart would compete for the same places in the caches
        stride(with_terms ? (queries + 15) / 16 * 16 + 16 : 0), size(0) {
    const int64_t flat = queries * per_query;
    float** parts[] = {&kept_rows, &offset,    &target_rows, &positive, &log_sum,
                       &reference, &inverse, &rest,        &own,      &terms};
    const int64_t sizes[] = {kept * dim, kept,    flat * dim, flat, queries,
                             queries,    queries, queries,    flat, kept * stride};
    for (int i = 0; i < 10; ++i) {
      starts[i] = size;
      *parts[i] = base ? base + size : nullptr;
      size += (sizes[i] + 15) / 16 * 16;
    }
    if (!with_terms) terms = nullptr;
  }
};

// Gradients of the scores of targets, target_grad (queries, per_query), and of the logs of the sums
// over kept classes, sum_grad (queries), from those of
//   LOSS    factor * the sum of all costs, grad (1)
//   COSTS   the costs, grad (queries, per_query)
//   LOGITS  the scores, grad (queries, per_query), and the logs, log_sum_grad (queries)
enum Result { LOSS = 0, COSTS = 1, LOGITS = 2 };

static inline void score_gradients(const SampleMemory& m, const int64_t* targets, int result,
                                   float factor, const float* grad, const float* log_sum_grad,
                                   float* target_grad, float* sum_grad) {
  const auto of_cost = [&](int64_t l) {  // the cost of padding is always 0
    return targets[l] < 0 ? 0.0f : result == LOSS ? factor * grad[0] : grad[l];
  };
  for (int64_t q = 0; q < m.queries; ++q) {
    const int64_t first = q * m.per_query;
    if (result == LOGITS) {
      sum_grad[q] = log_sum_grad[q];
      std::copy_n(grad + first, m.per_query, target_grad + first);
    } else if (m.per_query == 1) {
      sum_grad[q] = of_cost(q) * m.rest[q];
      target_grad[q] = -sum_grad[q];
    } else {
      float total = 0.0f;
      for (int64_t l = first; l < first + m.per_query; ++l) total += of_cost(l);
      for (int64_t l = first; l < first + m.per_query; ++l)
        target_grad[l] = m.own[l] * total - of_cost(l);
      sum_grad[q] = m.rest[q] * total;
    }
  }
}

}  // namespace tapas
