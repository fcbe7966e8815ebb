// The CPU kernels of the library; see tiles.h for how scores are computed and parallel.h for how
// work is divided.
//
// Plain C functions on addresses, loaded with ctypes: only a C++ compiler is needed to build them.
// The functions in Python that call them check all sizes. Each has a simple equivalent in PyTorch,
// with which the tests compare it. Logarithms that are returned are natural.
//
// A function returns 0 unless it says otherwise, and OUT_OF_MEMORY instead of an exception.
#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#define PUBLIC extern "C" __attribute__((visibility("default")))

// The version of this interface, which the Python side checks first.
PUBLIC int tapas_interface() { return 10; }

// Whether this CPU has the instructions that are compiled below.
PUBLIC int tapas_usable() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

#include "best.h"
#include "draws.h"
#include "few.h"
#include "gradients.h"
#include "order.h"
#include "priority.h"
#include "sampled.h"
#include "scores.h"
#include "updates.h"

using namespace tapas;

// Whether this CPU has instructions for products of bfloat16 numbers: see halves.h.
PUBLIC int tapas_halves() { return has_halves(); }

constexpr int64_t OUT_OF_MEMORY = INT64_MIN, NOT_FINITE = -3, OUT_OF_RANGE = -2;

template <class Work>
static int64_t guarded(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OUT_OF_MEMORY;
  }
}

// Joins the sums of a panel of `real` queries.
static void write_sums(Sums& sums, int64_t panel, int64_t real, float* terms, int64_t stride,
                       float* log_sum, float* reference, float* inverse) {
  sums.join(panel);
  if (terms) sums.rescale(panel, real, terms, stride);
  for (int64_t q = panel * PANEL; q < panel * PANEL + real; ++q) {
    log_sum[q] = sums.log_sum(q);
    reference[q] = terms ? sums.reference[q] : sums.moved(q);
    inverse[q] = sums.inverse(q, reference[q]);
  }
}

// log_sum[q] = log sum_p exp(row_p . query_q + offset_p) over the rows that are not targets of the
// query; also reference and inverse of each sum for tapas_gradients, 0 for an empty sum. The
// targets are (queries, per_query), negative is padding.
PUBLIC int64_t tapas_log_sum(const void* table, int half, int64_t dim, const float* offset,
                             int64_t count, const float* query, int64_t queries,
                             const int64_t* sorted_ids, const int64_t* targets, int64_t per_query,
                             int threads, float* log_sum, float* reference, float* inverse) {
  return guarded([&] {
    const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
    Panels panels(query, queries, dim, 1.0f);
    Hits hits(panels.count, per_query);
    Sums sums(count, panels.count, dim, LOG2_E);
    threads = threads_for(count * queries * dim, threads);
    Memory memory;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 4)
      for (int64_t j = 0; j < panels.count; ++j) {
        panels.pack(j);
        hits.find(j, sorted_ids, count, targets, queries, per_query);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < sums.tasks(); ++task)
        memory.within([&] { sums.run(task, rows, panels, hits, nullptr, 0); });
#pragma omp for schedule(dynamic, 4)
      for (int64_t j = 0; j < panels.count; ++j)
        write_sums(sums, j, panels.real(j), nullptr, 0, log_sum, reference, inverse);
    }
    memory.check();
    return 0;
  });
}

// The parts of a SampleMemory: `starts` (10) in it, in floats; returns its size.
PUBLIC int64_t tapas_sample_memory(int64_t kept, int64_t queries, int64_t per_query, int64_t dim,
                                   int with_terms, int64_t* starts) {
  const SampleMemory memory(nullptr, kept, queries, per_query, dim, with_terms != 0);
  std::copy_n(memory.starts, 10, starts);
  return memory.size;
}

// Everything that a sampled softmax computes from a table, into a SampleMemory `work`. `kept_at` and
// `target_at` are positions in the table, negative is padding; `kept_ids`, ascending, and `targets`
// are the classes, to find targets among the kept. `counted` is null, or 0 for targets that do not
// count in the partition sum. Unless null, cost (queries, per_query) is -log of the share of each
// target, 0 for padding, and loss (1) is factor times the sum of these.
// Returns OUT_OF_RANGE if a position is not below num_rows or kept_ids do not ascend, NOT_FINITE
// if a query holds NaN or inf; then results are meaningless.
PUBLIC int64_t tapas_sampled(const void* table, int half, int64_t dim, const void* bias,
                             int64_t num_rows, const int64_t* kept_at, const int64_t* kept_ids,
                             const float* log_q, int64_t kept, const float* query, int64_t queries,
                             const int64_t* target_at, const int64_t* targets, int64_t per_query,
                             const char* counted, int threads, int with_terms, float* work,
                             float* cost, float* loss, float factor) {
  return guarded([&]() -> int64_t {
    const SampleMemory m(work, kept, queries, per_query, dim, with_terms != 0);
    const int64_t flat = queries * per_query;
    bool fits = all_below(kept_at, kept, num_rows);
    for (int64_t k = 1; k < kept; ++k) fits &= kept_ids[k] > kept_ids[k - 1];
    for (int64_t i = 0; i < flat; ++i) fits &= target_at[i] < num_rows;
    if (!fits) return OUT_OF_RANGE;
    const BiasedTable from{{table, half != 0, dim}, bias};
    const Rows rows{{m.kept_rows, false, dim}, nullptr, m.offset, kept};
    Panels panels(query, queries, dim, 1.0f);
    Hits hits(panels.count, per_query);
    Sums sums(kept, panels.count, dim, LOG2_E);
    Scratch<float> own_costs(cost ? 0 : flat);
    float* costs = cost ? cost : own_costs.data();
    const int64_t row_chunks = (kept + PANEL - 1) / PANEL, chunks = panels.count + row_chunks;
    threads = threads_for(kept * queries * dim + 4 * (kept + flat) * dim, threads);
    bool finite = true;
    Memory memory;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 4) reduction(&& : finite)
      for (int64_t c = 0; c < chunks; ++c) {
        if (c >= panels.count) {
          read_kept(from, kept_at, log_q, range_of(kept, PANEL, c - panels.count, row_chunks),
                    m.kept_rows, m.offset);
          continue;
        }
        const Range mine{c * PANEL, c * PANEL + panels.real(c)};
        finite = all_finite(query + mine.start * dim, (mine.stop - mine.start) * dim) && finite;
        read_targets(from, target_at, query, per_query,
                     {mine.start * per_query, mine.stop * per_query}, m.target_rows, m.positive);
        panels.pack(c);
        hits.find(c, kept_ids, kept, targets, queries, per_query);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < sums.tasks(); ++task)
        memory.within([&] { sums.run(task, rows, panels, hits, m.terms, m.stride); });
#pragma omp for schedule(dynamic, 4)
      for (int64_t j = 0; j < panels.count; ++j) {
        write_sums(sums, j, panels.real(j), m.terms, m.stride, m.log_sum, m.reference, m.inverse);
        for (int64_t q = j * PANEL; q < j * PANEL + panels.real(j); ++q) {
          const int64_t at = q * per_query;
          costs_of(m.positive + at, target_at + at, counted ? counted + at : nullptr, per_query,
                   m.log_sum[q], costs + at, m.rest + q, m.own + at);
        }
      }
    }
    memory.check();
    double total = 0.0;
    for (int64_t i = 0; i < flat; ++i) total += costs[i];
    if (loss) *loss = static_cast<float>(factor * total);
    return finite ? 0 : NOT_FINITE;
  });
}

// Gradients of sum_q scale[q] * log_sum[q], see tapas_gradients.
static void sum_gradients(const Rows& rows, const float* query, int64_t queries,
                          const int64_t* sorted_ids, const int64_t* targets, int64_t per_query,
                          const float* reference, const float* inverse, const float* scale,
                          int threads, float* row_grad, float* offset_grad, float* query_grad) {
  const int64_t dim = rows.table.dim, count = rows.count;
  Panels panels(query, queries, dim, 1.0f);
  Hits hits(panels.count, per_query);
  Gradients found(rows, panels, hits);
  threads = threads_for(3 * count * queries * dim, threads);
  Memory memory;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 4)
    for (int64_t j = 0; j < panels.count; ++j) {
      panels.pack(j);
      hits.find(j, sorted_ids, count, targets, queries, per_query);
      found.prepare(j, reference, inverse, scale);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t part = 0; part < found.parts; ++part) memory.within([&] { found.run(part); });
#pragma omp for schedule(dynamic, 64) nowait
    for (int64_t p = 0; p < count; ++p) found.row_grad(p, row_grad + p * dim, offset_grad + p);
#pragma omp for schedule(dynamic, 64)
    for (int64_t q = 0; q < queries; ++q) found.query_grad(q, query_grad + q * dim);
  }
  memory.check();
}

// Gradients of sum_q scale[q] * log_sum[q] with respect to rows (count, dim), offsets (count) and
// queries (queries, dim); `reference` and `inverse` are from tapas_log_sum.
PUBLIC int64_t tapas_gradients(const void* table, int half, int64_t dim, const float* offset,
                               int64_t count, const float* query, int64_t queries,
                               const int64_t* sorted_ids, const int64_t* targets,
                               int64_t per_query, const float* reference, const float* inverse,
                               const float* scale, int threads, float* row_grad,
                               float* offset_grad, float* query_grad) {
  return guarded([&] {
    const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
    sum_gradients(rows, query, queries, sorted_ids, targets, per_query, reference, inverse, scale,
                  threads, row_grad, offset_grad, query_grad);
    return 0;
  });
}

enum Phase { EVERYTHING = 0, BEFORE_PRODUCTS = 1, AFTER_PRODUCTS = 2 };

// Gradients of a sampled softmax, from the SampleMemory `work` that tapas_sampled has filled; see
// score_gradients for `result`, `factor` and the gradients that are given.
//
// row_grad (kept + queries * per_query, dim), offset_grad and ids begin with the kept classes;
// targets that were not kept are appended. offset_grad is also written if there is no bias, then to
// be ignored: `biased` says whether it counts. `square` is the sum of the squares of all gradients
// of rows and offsets, query_grad is (queries, dim).
//
// With terms, the matrix products are those of the caller, between two calls with the same
// arguments. The first fills target_grad (queries, per_query), scale (queries) and scaled (queries,
// dim), queries times scale. Then the caller fills row_grad (kept, dim) = terms . scaled, query_grad
// = terms^T . kept_rows and, if `biased`, offset_grad (kept) = terms . scale.
//
// Returns the number of rows with a gradient, each of a different class.
PUBLIC int64_t tapas_sample_gradients(float* work, int64_t kept, int64_t queries,
                                      int64_t per_query, int64_t dim, int with_terms, int phase,
                                      const float* query, const int64_t* targets,
                                      const int64_t* kept_ids, int64_t num_classes, int biased,
                                      int result, float factor, const float* grad,
                                      const float* log_sum_grad, int threads, float* target_grad,
                                      float* scale, float* scaled, int64_t* ids, float* row_grad,
                                      float* offset_grad, float* query_grad, double* square) {
  return guarded([&]() -> int64_t {
    const SampleMemory m(work, kept, queries, per_query, dim, with_terms != 0);
    if (phase != AFTER_PRODUCTS)
      score_gradients(m, targets, result, factor, grad, log_sum_grad, target_grad, scale);
    if (phase == BEFORE_PRODUCTS) {
#pragma omp parallel for num_threads(threads_for(4 * queries * dim, threads)) schedule(dynamic, 64)
      for (int64_t q = 0; q < queries; ++q) {
        scale[q] *= m.inverse[q];
        for (int64_t d = 0; d < dim; ++d) scaled[q * dim + d] = query[q * dim + d] * scale[q];
      }
      return 0;
    }
    if (phase == EVERYTHING)
      sum_gradients({{m.kept_rows, false, dim}, nullptr, m.offset, kept}, query, queries, kept_ids,
                    targets, per_query, m.reference, m.inverse, scale, threads, row_grad,
                    offset_grad, query_grad);
    const TargetPlaces places(targets, queries * per_query, num_classes, kept_ids, kept);
    const Groups& groups = places.groups;
    const int64_t chunk = 64, num_chunks = (places.rows + chunk - 1) / chunk;
    Scratch<double> squares(num_chunks);
    threads = threads_for(8 * (kept + queries * per_query) * dim, threads);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 64) nowait
      for (int64_t k = 0; k < kept; ++k) ids[k] = kept_ids[k];
#pragma omp for schedule(dynamic, 16) nowait
      for (int64_t q = 0; q < queries; ++q) {
        float* to = query_grad + q * dim;
        if (phase == AFTER_PRODUCTS)
          for (int64_t d = 0; d < dim; ++d) to[d] *= scale[q];
        for (int64_t l = q * per_query; l < (q + 1) * per_query; ++l) {
          const float* row = m.target_rows + l * dim;
          if (targets[l] >= 0)
            for (int64_t d = 0; d < dim; ++d) to[d] += target_grad[l] * row[d];
        }
      }
#pragma omp for schedule(dynamic, 16)
      for (int64_t g = 0; g < groups.count(); ++g) {
        const int64_t place = places.place[g];
        float* to = row_grad + place * dim;
        float own = 0.0f;
        if (place >= kept) {
          std::fill_n(to, dim, 0.0f);
          offset_grad[place] = 0.0f;
          ids[place] = groups.id(g);
        }
        for (int64_t at = groups.begin(g); at < groups.end(g); ++at) {
          const int64_t l = groups.position(at);
          const float* from = query + l / per_query * dim;
          for (int64_t d = 0; d < dim; ++d) to[d] += target_grad[l] * from[d];
          own += target_grad[l];
        }
        offset_grad[place] += own;
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t c = 0; c < num_chunks; ++c) {
        const int64_t start = c * chunk, stop = std::min(start + chunk, places.rows);
        squares[c] = square_sum(row_grad + start * dim, (stop - start) * dim);
        if (biased) squares[c] += square_sum(offset_grad + start, stop - start);
      }
    }
    *square = 0.0;
    for (int64_t c = 0; c < num_chunks; ++c) *square += squares[c];
    return places.rows;
  });
}

// Whether a batch can be used as it is: 0, OUT_OF_RANGE if a target (count) is not in 0 ..
// num_classes - 1, NOT_FINITE if one of the numbers `query` (size) is not.
PUBLIC int64_t tapas_check_batch(const float* query, int64_t size, const int64_t* targets,
                                 int64_t count, int64_t num_classes) {
  if (!all_below(targets, count, num_classes)) return OUT_OF_RANGE;
  return all_finite(query, size) ? 0 : NOT_FINITE;
}

// The draws of a second pass, from the numbers of a key: `choose` of the queries, those with the least
// of the first numbers, by position, with their targets; and noise (size), uniform in (0, 1], from
// the numbers after these. If choose is 0, there are no queries to choose.
PUBLIC int64_t tapas_second_pass(uint64_t key, const float* query, int64_t queries, int64_t dim,
                                 const int64_t* targets, int64_t per_query, int64_t choose,
                                 int64_t size, float* chosen, int64_t* chosen_targets,
                                 float* noise) {
  return guarded([&] {
    const Philox philox(key);
    constexpr int64_t STEP = Philox::AT_ONCE;
    uint64_t numbers[STEP];
    const int64_t before = choose ? (queries + STEP - 1) / STEP * STEP : 0;
    if (choose) {
      std::vector<std::pair<uint64_t, int64_t>> order(before);
      for (int64_t first = 0; first < before; first += STEP) {
        philox.numbers(first, numbers);
        for (int64_t i = 0; i < STEP; ++i) order[first + i] = {numbers[i], first + i};
      }
      std::nth_element(order.begin(), order.begin() + choose - 1, order.begin() + queries);
      std::sort(order.begin(), order.begin() + choose,
                [](const auto& x, const auto& y) { return x.second < y.second; });
      for (int64_t i = 0; i < choose; ++i) {
        std::copy_n(query + order[i].second * dim, dim, chosen + i * dim);
        std::copy_n(targets + order[i].second * per_query, per_query, chosen_targets + i * per_query);
      }
    }
    for (int64_t first = 0; first < size; first += STEP) {
      philox.numbers(before + first, numbers);
      for (int64_t i = 0; i < std::min(STEP, size - first); ++i)
        noise[first + i] = 1.0f - static_cast<float>(static_cast<int32_t>(numbers[i] >> 40)) * 0x1p-24f;
    }
    return 0;
  });
}

// Priority sampling by mean share, as in selection/priority.py: share[p] is the mean over queries of
// the softmax over all rows that are not targets of the query. Unless keep is 0, share becomes
// g = (1 - floor) share + floor / count, and `kept` are the positions of the `keep` largest g /
// noise, ascending, with log_weight = log max(1, t / g), where t is the largest that was left out.
// Ties go to the lower position, and a NaN is the largest. `width` is the number of queries at a
// time, a multiple of 16. Returns OUT_OF_RANGE if a position is not below num_rows.
PUBLIC int64_t tapas_priority(const void* table, int half, int64_t dim, const void* bias,
                              int64_t num_rows, const int64_t* positions, const int64_t* ids, const float* log_q,
                              int64_t count, const float* query, int64_t queries,
                              const int64_t* targets, int64_t per_query, float scale, int64_t width,
                              int threads, const float* noise, float floor, int64_t keep,
                              float* share, int64_t* kept, float* log_weight) {
  return guarded([&]() -> int64_t {
    if (!all_below(positions, count, num_rows)) return OUT_OF_RANGE;
    const BiasedTable from{{table, half != 0, dim}, bias};
    Scratch<float> offset(count), scratch(count * width);
    const Rows rows{from.table, positions, offset.data(), count};
    threads = threads_for(count * queries * dim, threads);
    // the classes that are kept may depend on rounding; a share that is asked for may not
    const bool rough = keep && has_halves() && count * queries * dim >= WORTH_HALVES;
    Memory memory;
    for (int64_t first = 0; first < queries; first += width) {
      const int64_t size = std::min(width, queries - first);
      Panels panels(query + first * dim, size, dim, 1.0f);
      std::optional<HalfPanels> halves;
      if (rough) halves.emplace(panels);
      Hits hits(panels.count, per_query);
      Sums sums(count, panels.count, dim, scale * LOG2_E);
      Scratch<float> times(sums.row_parts * panels.count * PANEL);
#pragma omp parallel num_threads(threads)
      {
#pragma omp for schedule(dynamic, 1024) nowait
        for (int64_t p = 0; p < (first ? 0 : count); ++p) {
          if (p + AHEAD < count) from.prefetch_bias(positions[p + AHEAD]);
          offset[p] = from.bias_of(positions[p]) - log_q[p];
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t j = 0; j < panels.count; ++j) {
          panels.pack(j);
          if (halves) halves->pack(j);
          hits.find(j, ids, count, targets + first * per_query, size, per_query);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < sums.tasks(); ++task)
          memory.within([&] {
            sums.run(task, rows, panels, hits, scratch.data(), width, halves ? &*halves : nullptr);
          });
#pragma omp for schedule(dynamic, 4)
        for (int64_t j = 0; j < panels.count; ++j) {
          sums.join(j);
          for (int64_t part = 0; part < sums.row_parts; ++part)
            for (int64_t q = j * PANEL; q < (j + 1) * PANEL; ++q)
              times[part * sums.width + q] =
                  q < size ? sums.inverse(q, sums.reference[q]) * sums.factor(part, q) / queries
                           : 0.0f;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t part = 0; part < sums.row_parts; ++part)
          for (int64_t p = sums.rows_of(part).start; p < sums.rows_of(part).stop; ++p) {
            const float more = dot(&scratch[p * width], &times[part * sums.width], size);
            share[p] = first ? share[p] + more : more;
          }
      }
      memory.check();
    }
    if (!queries) std::fill_n(share, count, 0.0f);
    if (keep) keep_by_priority(share, noise, count, floor, keep, kept, log_weight);
    return 0;
  });
}

// score[p] = log sum_q exp(scale * (row_p . query_q + bias_p)) of the rows `ids`. Returns
// OUT_OF_RANGE if one of these is not below num_rows.
PUBLIC int64_t tapas_batch_score(const void* table, int half, int64_t dim, const void* bias,
                                 int64_t num_rows, const int64_t* ids, int64_t count,
                                 const float* query, int64_t queries, float scale, int threads,
                                 float* score) {
  return guarded([&]() -> int64_t {
    if (!all_below(ids, count, num_rows)) return OUT_OF_RANGE;
    const BiasedTable from{{table, half != 0, dim}, bias};
    Scratch<float> offset(count);
    for (int64_t p = 0; p < count; ++p) {
      if (p + AHEAD < count) from.prefetch_bias(ids[p + AHEAD]);
      offset[p] = from.bias_of(ids[p]);
    }
    const Rows rows{from.table, ids, offset.data(), count};
    const int64_t step = queries_at_once(dim);
    std::fill_n(score, count, -INFINITY);
    threads = threads_for(count * queries * dim, threads);
    const int64_t parts = std::min<int64_t>(tasks_for(count * queries * dim), count / 48 + 1);
    Memory memory;
    for (int64_t first = 0; first < queries; first += step) {
      Panels panels(query + first * dim, std::min(step, queries - first), dim, scale * LOG2_E);
#pragma omp parallel num_threads(threads)
      {
#pragma omp for schedule(dynamic, 4)
        for (int64_t j = 0; j < panels.count; ++j) panels.pack(j);
#pragma omp for schedule(dynamic, 1)
        for (int64_t part = 0; part < parts; ++part)
          memory.within([&] {
            Block block(rows);
            const Range mine = range_of(count, block.size, part, parts);
            for (int64_t at = mine.start; at < mine.stop; at += block.size) {
              block.read(rows, at, std::min(at + block.size, mine.stop), scale * LOG2_E);
              block.prefetch_next(rows, block.size);
              if (block_scores(block, panels, nullptr, score + at)) continue;
              block_scores(block, panels, row_peaks(block, panels).data(), score + at);
            }
          });
      }
      memory.check();
    }
    for (int64_t p = 0; p < count; ++p) score[p] *= LN_2;
    return 0;
  });
}

constexpr int64_t TOP_PARTS = 8;  // of the rows; each finds k rows of its own

// The k best rows of each query, best first, ties by ascending id; -1 and -inf if fewer than k
// remain. `excluded_start` (queries + 1) splits `excluded` into an ascending list for each query.
// Unless null, log_sum[q] = log sum exp(score) over all rows, excluded or not.
PUBLIC int64_t tapas_top(const void* table, int half, int64_t dim, const float* offset,
                         int64_t count, const float* query, int64_t queries, int64_t k,
                         const int64_t* excluded_start, const int64_t* excluded, int threads,
                         float* score, int64_t* id, float* log_sum) {
  return guarded([&] {
    const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
    const int64_t step = queries_at_once(dim);
    Memory memory;
    threads = threads_for(count * queries * dim, threads);
    const int64_t parts = std::min(TOP_PARTS, tasks_for(count * queries * dim));
    for (int64_t first = 0; first < queries; first += step) {
      Panels panels(query + first * dim, std::min(step, queries - first), dim, 1.0f);
      const Excluded to_exclude{excluded_start ? excluded_start + first : nullptr, excluded};
      std::vector<Best> best(parts * panels.queries);
      const int64_t width = panels.count * PANEL;
      Scratch<float> reference(parts * width, LOWEST);
      Scratch<double> total(parts * width, 0.0);
#pragma omp parallel num_threads(threads)
      {
#pragma omp for schedule(dynamic, 4)
        for (int64_t j = 0; j < panels.count; ++j) panels.pack(j);
#pragma omp for schedule(dynamic, 1)
        for (int64_t part = 0; part < parts; ++part)
          memory.within([&] {
            const Range mine = range_of(count, rows_at_once(dim), part, parts);
            Best* found = &best[part * panels.queries];
            float* far = &reference[part * width];
            double* sum = &total[part * width];
            if (panels.queries <= FEW_QUERIES) {
              const auto search = log_sum ? best_for_few<true> : best_for_few<false>;
              search(rows, panels.query, panels.queries, mine, k, to_exclude, found, far, sum);
            } else {
              const auto search = log_sum ? best_of_rows<true> : best_of_rows<false>;
              search(rows, panels, mine, k, to_exclude, found, far, sum);
            }
          });
#pragma omp for schedule(dynamic, 16)
        for (int64_t q = 0; q < panels.queries; ++q)
          memory.within([&] {
            if (log_sum)
              log_sum[first + q] = joined_log_sum(&reference[q], &total[q], parts, width, LOG2_E);
            std::vector<Found>& all = best[q].kept;
            for (int64_t part = 1; part < parts; ++part) {
              const auto& more = best[part * panels.queries + q].kept;
              all.insert(all.end(), more.begin(), more.end());
            }
            std::sort(all.begin(), all.end());
            for (int64_t r = 0; r < k; ++r) {
              const bool there = r < static_cast<int64_t>(all.size());
              score[(first + q) * k + r] = there ? all[r].score : -INFINITY;
              id[(first + q) * k + r] = there ? all[r].id : -1;
            }
          });
      }
      memory.check();
    }
    return 0;
  });
}

constexpr int64_t DRAW = 256;  // multiplications in the time of a draw

// The first k distinct classes of a sequence of at most `count` draws, counter after counter from a
// key, in ascending order, and the log of the expected count of each: see proposals/base.py.
// Returns 0, or 1 if there are at most k distinct ones. Unless null, `draws` (count) are the draws
// themselves, and there are no other results.
PUBLIC int64_t tapas_pool(uint64_t key, int64_t count, int64_t k, int64_t num_classes,
                          double floor_share, double floor_not_drawn, int64_t heads,
                          const void* buckets, const int64_t* head_ids, const double* not_drawn,
                          const int32_t* first, int shift, int threads, int64_t* draws,
                          int64_t* ids, float* log_q) {
  return guarded([&]() -> int64_t {
    const FloorAndHead from{num_classes, floor_share, floor_not_drawn, heads,
                            static_cast<const Bucket*>(buckets), head_ids, not_drawn, first,
                            shift};
    const Philox philox(key);
    const auto draw = [&](int64_t start, int64_t stop, int64_t* to) {
      constexpr int STEP = Philox::AT_ONCE;
#pragma omp parallel for num_threads(threads_for(DRAW * (stop - start), threads)) schedule(dynamic, 16)
      for (int64_t at = start; at < stop; at += STEP) {
        uint64_t numbers[STEP];
        philox.numbers(at, numbers);
        from.draw(numbers, static_cast<int>(std::min<int64_t>(STEP, stop - at)), to + (at - start));
      }
    };
    if (draws) {
      draw(0, count, draws);
      return 0;
    }
    FirstDistinct distinct(k, num_classes);
    const int64_t most = (k + 64) / 64 * 64;
    Scratch<int64_t> piece(most);
    int64_t done = 0;
    for (bool complete = false; !complete;) {
      if (done == count) return 1;
      // as many as are still missing would be enough if none was drawn again
      const int64_t missing = std::max<int64_t>(k + 1 - distinct.found, k / 32);
      const int64_t stop = std::min(done + std::min((missing + 63) / 64 * 64, most), count);
      draw(done, stop, piece.data());
      complete = distinct.add(piece.data(), stop - done);
      done = stop;
    }
    Scratch<int64_t> again(k);
    distinct.write(ids, again.data());
    constexpr int64_t CHUNK = 512;
#pragma omp parallel for num_threads(threads_for(DRAW * k, threads)) schedule(dynamic, 1)
    for (int64_t start = 0; start < k; start += CHUNK) {
      const int64_t stop = std::min(start + CHUNK, k);
      float never[CHUNK];  // log of the chance of not being drawn at all
      for (int64_t j = start; j < stop; ++j)
        never[j - start] =
            static_cast<float>((distinct.end - again[j]) * from.log_not_drawn(ids[j]));
      log_drawn(never, stop - start, log_q + start);
    }
    return 0;
  });
}

// Class c arrives at time -log(1 - u) / probability[c], with u of the numbers of a key: the k classes
// that arrive first, k < count, ascending, and the log of the chance of each to arrive before the
// next one. Returns 0, or 1 if fewer than k classes have a chance.
PUBLIC int64_t tapas_race(uint64_t key, const double* probability, int64_t count, int64_t k,
                          int threads, int64_t* ids, float* log_q) {
  return guarded([&]() -> int64_t {
    const Philox philox(key);
    constexpr int64_t STEP = Philox::AT_ONCE;
    Scratch<uint64_t> speed(count);  // 1 / time, whose bits are in the order of the numbers
    Scratch<float> never(k);
#pragma omp parallel for num_threads(threads_for(DRAW * count, threads)) schedule(dynamic, 16)
    for (int64_t start = 0; start < count; start += STEP) {
      uint64_t numbers[STEP];
      philox.numbers(start, numbers);
      for (int64_t c = start; c < std::min(start + STEP, count); ++c) {
        const double wait = -std::log1p(-uniform(numbers[c - start]));
        const double found = probability[c] > 0.0 ? probability[c] / wait : 0.0;
        memcpy(&speed[c], &found, sizeof found);
      }
    }
    const uint64_t last = nth_largest(speed.data(), count, k);  // the first that is left out
    int64_t faster = 0, place = 0;
    for (int64_t c = 0; c < count; ++c) faster += speed[c] > last;
    if (last == 0 && faster < k) return 1;
    int64_t equal = k - faster;  // of several with the same time, the lower ids
    double limit;
    memcpy(&limit, &last, sizeof limit);
    for (int64_t c = 0; c < count; ++c)
      if (speed[c] > last || (speed[c] == last && equal-- > 0)) {
        never[place] = -static_cast<float>(std::min(probability[c] / limit, 1e30));
        ids[place++] = c;
      }
    log_drawn(never.data(), k, log_q);
    return 0;
  });
}

// The first k distinct ids of `draws`, ascending, and how often each was repeated before the draw
// of the next distinct id. Returns the number of that draw; if there are at most k distinct ids,
// minus their number. Draws are in 0 .. bound - 1.
PUBLIC int64_t tapas_distinct(const int64_t* draws, int64_t count, int64_t k, int64_t bound,
                              int64_t* ids, int64_t* again) {
  return guarded([&] {
    FirstDistinct distinct(k, bound);
    if (!distinct.add(draws, count)) return -distinct.found;
    distinct.write(ids, again);
    return distinct.end;
  });
}

// One optimizer step of the rows `ids` (count) and of their offsets, if any. Gradients (count, dim)
// of repeated ids are summed; offsets do not decay. See updates.h for `rule`, `numbers` and state.
// Returns OUT_OF_RANGE, without moving a row, if an id is.
PUBLIC int64_t tapas_update(int rule, const float* numbers, int64_t num_rows, const int64_t* ids,
                            int64_t count, int64_t dim, float* rows, const float* grad,
                            float* first_state, float* second_state, float* offsets,
                            const float* offset_grad, float* first_of_offsets,
                            float* second_of_offsets, int threads) {
  return guarded([&]() -> int64_t {
    if (!all_below(ids, count, num_rows)) return OUT_OF_RANGE;
    const RowsToMove wide{dim, rows, grad, first_state, second_state};
    const RowsToMove narrow{1, offsets, offset_grad, first_of_offsets, second_of_offsets};
    const Groups groups(ids, count, num_rows);
    const int64_t found = groups.count(), parts = tasks_for(16 * count * dim);
    Scratch<float> sums(parts * dim);
    threads = threads_for(16 * count * dim, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t part = 0; part < parts; ++part) {
      float* sum = &sums[part * dim];
      const Range mine = range_of(found, 1, part, parts);
      for (int64_t g = mine.start; g < mine.stop; ++g) {
        if (g + ROWS_AHEAD < mine.stop) {
          wide.prefetch(rule, groups.id(g + ROWS_AHEAD));
          if (offsets) narrow.prefetch(rule, groups.id(g + ROWS_AHEAD));
        }
        groups.sum(g, grad, dim, sum);
        move_row(rule, numbers, numbers[1], groups.id(g), sum, wide);
        if (offsets) {
          groups.sum(g, offset_grad, 1, sum);
          move_row(rule, numbers, 0.0f, groups.id(g), sum, narrow);
        }
      }
    }
    return 0;
  });
}

// Sums the gradients of rows (count, dim) and of offsets (count) for each id: distinct ids,
// ascending, their sums, and the sum of all squares. Returns the number of distinct ids, or
// OUT_OF_RANGE.
PUBLIC int64_t tapas_sum_rows(const int64_t* ids, int64_t count, int64_t num_rows, int64_t dim,
                              const float* grad, const float* offset_grad, int threads,
                              int64_t* found_ids, float* sum, float* offset_sum, double* square) {
  return guarded([&]() -> int64_t {
    if (!all_below(ids, count, num_rows)) return OUT_OF_RANGE;
    const Groups groups(ids, count, num_rows);
    const int64_t found = groups.count(), parts = tasks_for(16 * count * dim);
    Scratch<double> squares(parts);
    threads = threads_for(16 * count * dim, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t part = 0; part < parts; ++part) {
      const Range mine = range_of(found, 1, part, parts);
      for (int64_t g = mine.start; g < mine.stop; ++g) {
        found_ids[g] = groups.id(g);
        groups.sum(g, grad, dim, sum + g * dim);
        groups.sum(g, offset_grad, 1, offset_sum + g);
      }
      squares[part] = square_sum(sum + mine.start * dim, (mine.stop - mine.start) * dim) +
                      square_sum(offset_sum + mine.start, mine.stop - mine.start);
    }
    *square = 0.0;
    for (int64_t part = 0; part < parts; ++part) *square += squares[part];
    return found;
  });
}

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

// The position of each id in the order given by `keys`; backwards, the id at each position.
PUBLIC int64_t tapas_permute(const int64_t* ids, int64_t count, int half, const int64_t* keys,
                          int64_t size, int backwards, int threads, int64_t* out) {
  const Order order{half, keys, static_cast<uint64_t>(size)};
#pragma omp parallel for num_threads(threads) if (count > 1 << 15)
  for (int64_t first = 0; first < count; first += BLOCK) {
    const int part = std::min<int64_t>(BLOCK, count - first);
    if (backwards)
      order.walk<true>(ids + first, part, out + first);
    else
      order.walk<false>(ids + first, part, out + first);
  }
  return 0;
}
