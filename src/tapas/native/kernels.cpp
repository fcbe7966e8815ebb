// The CPU kernels of the library; see tiles.h for how scores are computed.
//
// Plain C functions on addresses, loaded with ctypes: only a C++ compiler is needed to build them.
// Each has a simple equivalent in PyTorch, with which the tests compare it. Logarithms that are
// returned are natural.
#include "best.h"
#include "draws.h"
#include "gradients.h"
#include "order.h"
#include "updates.h"

using namespace tapas;

#define PUBLIC extern "C" __attribute__((visibility("default")))

// The version of this interface, which the Python side checks first.
PUBLIC int tapas_interface() { return 5; }

// Whether this CPU has the instructions that were compiled.
PUBLIC int tapas_usable() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

// log_sum[q] = log sum_p exp(row_p . query_q + offset_p) over the rows that are not targets of the
// query; also reference and inverse of each sum for tapas_gradients, 0 for an empty sum. The
// targets are (queries, per_query), negative is padding.
PUBLIC void tapas_log_sum(const void* table, int half, int64_t dim, const float* offset,
                          int64_t count, const float* query, int64_t queries,
                          const int64_t* sorted_ids, const int64_t* targets, int64_t per_query,
                          int threads, float* log_sum, float* reference, float* inverse) {
  const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
  const int64_t step = queries_at_once(dim);
  for (int64_t first = 0; first < queries; first += step) {
    const int64_t last = std::min(first + step, queries);
    const Panels panels(query, first, last, dim, 1.0f);
    const TargetRows mine(sorted_ids, count, targets, first, last, per_query);
    const Sums found = mass_of_rows(rows, panels, mine, LOG2_E, threads, nullptr, 0);
    for (int64_t q = first; q < last; ++q) {
      log_sum[q] = found.log_sum(q - first);
      reference[q] = found.moved(q - first);
      inverse[q] = found.inverse(q - first, reference[q]);
    }
  }
}

// Gradients of sum_q scale[q] * log_sum[q] with respect to rows (count, dim), offsets (count) and
// queries (queries, dim); `reference` and `inverse` are from tapas_log_sum.
PUBLIC void tapas_gradients(const void* table, int half, int64_t dim, const float* offset,
                            int64_t count, const float* query, int64_t queries,
                            const int64_t* sorted_ids, const int64_t* targets, int64_t per_query,
                            const float* reference, const float* inverse, const float* scale,
                            int threads, float* row_grad, float* offset_grad, float* query_grad) {
  const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
  const Panels panels(query, 0, queries, dim, 1.0f);
  const TargetRows mine(sorted_ids, count, targets, 0, queries, per_query);
  Padded flat(queries, dim);
  // with an infinite reference, lanes without a query have no share
  std::vector<float> far(panels.count * PANEL, INFINITY), times(panels.count * PANEL, 0.0f);
  for (int64_t q = 0; q < queries; ++q) {
    std::copy_n(query + q * dim, dim, flat[q]);
    far[q] = reference[q];
    times[q] = inverse[q] * scale[q];
  }
  threads = useful_threads(count, queries, dim, threads);
  std::vector<Gradients> found;
  for (int part = 0; part < threads; ++part)
    found.push_back({row_grad, offset_grad, Padded(queries, dim)});
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static, 1)
    for (int part = 0; part < threads; ++part) {
      const Range piece = range_of(count, SIDE, part, threads);
      gradients_of_rows(rows, panels, flat, mine, piece.start, piece.stop, far.data(),
                        times.data(), found[part]);
    }
#pragma omp for
    for (int64_t q = 0; q < queries; ++q)
      for (int64_t d = 0; d < dim; ++d) {
        float sum = 0.0f;
        for (int part = 0; part < threads; ++part) sum += found[part].query[q][d];
        query_grad[q * dim + d] = sum;
      }
  }
}

// share[p] = mean over queries of the softmax over all rows that are not targets of the query.
// `scratch` holds count * width floats; width is the number of queries at a time, a multiple of 16.
PUBLIC void tapas_mean_share(const void* table, int half, int64_t dim, const int64_t* ids,
                             const float* offset, int64_t count, const float* query,
                             int64_t queries, const int64_t* sorted_ids, const int64_t* targets,
                             int64_t per_query, float scale, int threads, float* scratch,
                             int64_t width, float* share) {
  const Rows rows{{table, half != 0, dim}, ids, offset, count};
  std::fill_n(share, count, 0.0f);
  for (int64_t first = 0; first < queries; first += width) {
    const int64_t last = std::min(first + width, queries);
    const Panels panels(query, first, last, dim, 1.0f);
    const TargetRows mine(sorted_ids, count, targets, first, last, per_query);
    const Sums found =
        mass_of_rows(rows, panels, mine, scale * LOG2_E, threads, scratch, width);
    std::vector<float> inverse(panels.count * PANEL, 0.0f);
    for (int64_t q = 0; q < last - first; ++q)
      inverse[q] = found.inverse(q, found.reference[q]) / queries;
    const int parts = useful_threads(count, panels.queries, panels.dim, threads);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int part = 0; part < parts; ++part)
      for (int64_t p = count * part / parts; p < count * (part + 1) / parts; ++p) {
        const float* from = scratch + p * width;
        Floats sum = {};
        int64_t q = 0;
        for (; q + LANES <= last - first; q += LANES) sum += load(from + q) * load(&inverse[q]);
        float rest = 0.0f;
        for (; q < last - first; ++q) rest += from[q] * inverse[q];
        share[p] += sum_of(sum) + rest;
      }
  }
}

// score[p] = log sum_q exp(scale * (row_p . query_q + offset_p))
PUBLIC void tapas_batch_score(const void* table, int half, int64_t dim, const int64_t* ids,
                              const float* offset, int64_t count, const float* query,
                              int64_t queries, float scale, int threads, float* score) {
  const Rows rows{{table, half != 0, dim}, ids, offset, count};
  const int64_t step = queries_at_once(dim);
  std::fill_n(score, count, -INFINITY);
  threads = useful_threads(count, queries, dim, threads);
  for (int64_t first = 0; first < queries; first += step) {
    const Panels panels(query, first, std::min(first + step, queries), dim, scale * LOG2_E);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int part = 0; part < threads; ++part) {
      Block block(rows);
      const Range mine = range_of(count, block.size, part, threads);
      for (int64_t at = mine.start; at < mine.stop; at += block.size) {
        block.read(rows, at, std::min(at + block.size, mine.stop), scale * LOG2_E);
        block.prefetch_next(rows, block.size);
        if (block_scores(block, panels, nullptr, score + at)) continue;
        block_scores(block, panels, row_peaks(block, panels).data(), score + at);
      }
    }
  }
  for (int64_t p = 0; p < count; ++p) score[p] *= LN_2;
}

// The k best rows of each query, best first, ties by ascending id; -1 and -inf if fewer than k
// remain. `excluded_start` (queries + 1) splits `excluded` into an ascending list for each query.
// Unless null, log_sum[q] = log sum exp(score) over all rows, excluded or not.
PUBLIC void tapas_top(const void* table, int half, int64_t dim, const float* offset, int64_t count,
                      const float* query, int64_t queries, int64_t k,
                      const int64_t* excluded_start, const int64_t* excluded, int threads,
                      float* score, int64_t* id, float* log_sum) {
  const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
  const Excluded to_exclude{excluded_start, excluded};
  const TargetRows none(nullptr, 0, nullptr, 0, 0, 0);
  const int64_t step = queries_at_once(dim);
  threads = useful_threads(count, queries, dim, threads);
  for (int64_t first = 0; first < queries; first += step) {
    const Panels panels(query, first, std::min(first + step, queries), dim, 1.0f);
    std::vector<Best> best(threads * panels.queries);
    const int64_t width = panels.count * PANEL;
    Sums sums{LOG2_E, std::vector<float>(width, -INFINITY), {}, std::vector<char>(width, 0)};
    std::vector<double> totals(threads * width, 0.0);
    if (log_sum) first_references(rows, panels, none, sums.reference.data());
    bool near = true;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(&& : near)
    for (int part = 0; part < threads; ++part) {
      const Range mine = range_of(count, rows_at_once(dim), part, threads);
      const auto search = log_sum ? best_of_rows<true> : best_of_rows<false>;
      near = search(rows, panels, first, mine.start, mine.stop, k, to_exclude,
                    &best[part * panels.queries], sums.reference.data(), &totals[part * width]) &&
             near;
    }
    if (log_sum) {
      sums.add(totals, threads);
      if (!near || !sums.precise(panels.queries))
        sums = mass_of_rows(rows, panels, none, LOG2_E, threads, nullptr, 0);
      for (int64_t q = 0; q < panels.queries; ++q) log_sum[first + q] = sums.log_sum(q);
    }
#pragma omp parallel for num_threads(threads)
    for (int64_t q = 0; q < panels.queries; ++q) {
      std::vector<Found>& all = best[q].kept;
      for (int part = 1; part < threads; ++part) {
        const auto& more = best[part * panels.queries + q].kept;
        all.insert(all.end(), more.begin(), more.end());
      }
      std::sort(all.begin(), all.end());
      for (int64_t r = 0; r < k; ++r) {
        const bool there = r < static_cast<int64_t>(all.size());
        score[(first + q) * k + r] = there ? all[r].score : -INFINITY;
        id[(first + q) * k + r] = there ? all[r].id : -1;
      }
    }
  }
}

// position[i] = a bucket of an alias table, or its partner: see proposals/alias.py.
PUBLIC void tapas_alias(const double* uniform, int64_t count, const double* threshold,
                        const int64_t* partner, int64_t buckets, int threads, int64_t* position) {
  const Alias table{threshold, partner, buckets};
  threads = static_cast<int>(std::min<int64_t>(threads, count / 4096 + 1));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) {
    const int64_t start = count * part / threads, stop = count * (part + 1) / threads;
    table.draw(uniform + start, stop - start, position + start);
  }
}

// ids[i] = head_ids[position], with the next position of an alias table, wherever which[i] is at
// least `share`: see proposals/squashed.py.
PUBLIC void tapas_mix(const double* which, int64_t count, double share, const double* uniform,
                      const double* threshold, const int64_t* partner, int64_t buckets,
                      const int64_t* head_ids, int threads, int64_t* ids) {
  const Alias table{threshold, partner, buckets};
  threads = static_cast<int>(std::min<int64_t>(threads, count / 4096 + 1));
  std::vector<int64_t> used(threads + 1, 0);
  for (int part = 0; part < threads; ++part) {
    const int64_t start = count * part / threads, stop = count * (part + 1) / threads;
    used[part + 1] = used[part];
    for (int64_t i = start; i < stop; ++i) used[part + 1] += which[i] >= share;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) {
    int64_t at = count * part / threads, position[AHEAD];
    for (int64_t start = used[part]; start < used[part + 1]; start += AHEAD) {
      const int64_t size = std::min(AHEAD, used[part + 1] - start);
      table.draw(uniform + start, size, position);
      for (int64_t i = 0; i < size; ++i) __builtin_prefetch(head_ids + position[i]);
      for (int64_t i = 0; i < size; ++at)
        if (which[at] >= share) ids[at] = head_ids[position[i++]];
    }
  }
}

// The first k distinct ids of `draws`, ascending, and how often each was repeated before the draw
// of the next distinct id. Returns the number of that draw; if there are at most k distinct ids,
// minus their number. Draws are in 0 .. bound - 1.
PUBLIC int64_t tapas_distinct(const int64_t* draws, int64_t count, int64_t k, int64_t bound,
                              int64_t* ids, int64_t* again) {
  if (bound <= LIST_LIMIT * k) return distinct_by_list(draws, count, k, bound, ids, again);
  FirstOccurrences seen(k + 1);
  std::vector<Counted> found;
  found.reserve(k + 1);
  for (int64_t i = 0; i < count; ++i) {
    if (i + AHEAD < count) seen.prefetch(draws[i + AHEAD]);
    const int64_t next = found.size(), place = seen.place(draws[i], next);
    if (place < next) {
      ++found[place].again;
      continue;
    }
    if (next == k) {
      sort_by_id(found, bound);
      for (int64_t j = 0; j < k; ++j) {
        ids[j] = found[j].id;
        again[j] = found[j].again;
      }
      return i;
    }
    found.push_back({draws[i], 0});
  }
  return -static_cast<int64_t>(found.size());
}

// One optimizer step of the rows `ids` (count) and of their offsets, if any. Gradients (count, dim)
// of repeated ids are summed; offsets do not decay. See updates.h for `rule`, `numbers` and state.
// Returns 0, without moving a row, if an id is out of range.
PUBLIC int tapas_update(int rule, const float* numbers, int64_t num_rows, const int64_t* ids,
                        int64_t count, int64_t dim, float* rows, const float* grad,
                        float* first_state, float* second_state, float* offsets,
                        const float* offset_grad, float* first_of_offsets,
                        float* second_of_offsets, int threads) {
  if (!all_below(ids, count, num_rows)) return 0;
  const RowsToMove wide{dim, rows, grad, first_state, second_state};
  const RowsToMove narrow{1, offsets, offset_grad, first_of_offsets, second_of_offsets};
  const Groups groups(ids, count, num_rows);
  const int64_t found = groups.count();
  threads = useful_threads(count, 64, dim, threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) {
    std::vector<float> sum(dim);
    for (int64_t g = found * part / threads; g < found * (part + 1) / threads; ++g) {
      if (g + 8 < found) {
        wide.prefetch(rule, groups.id(g + 8));
        if (offsets) narrow.prefetch(rule, groups.id(g + 8));
      }
      groups.sum(g, grad, dim, sum.data());
      move_row(rule, numbers, numbers[1], groups.id(g), sum.data(), wide);
      if (offsets) {
        groups.sum(g, offset_grad, 1, sum.data());
        move_row(rule, numbers, 0.0f, groups.id(g), sum.data(), narrow);
      }
    }
  }
  return 1;
}

// Sums the gradients of rows (count, dim) and of offsets (count) for each id: distinct ids,
// ascending, their sums, and the sum of all squares. Returns the number of distinct ids, or -1 if
// an id is out of range.
PUBLIC int64_t tapas_sum_rows(const int64_t* ids, int64_t count, int64_t num_rows, int64_t dim,
                              const float* grad, const float* offset_grad, int threads,
                              int64_t* found_ids, float* sum, float* offset_sum, double* square) {
  if (!all_below(ids, count, num_rows)) return -1;
  const Groups groups(ids, count, num_rows);
  const int64_t found = groups.count();
  double total = 0.0;
  threads = useful_threads(count, 64, dim, threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : total)
  for (int part = 0; part < threads; ++part)
    for (int64_t g = found * part / threads; g < found * (part + 1) / threads; ++g) {
      found_ids[g] = groups.id(g);
      groups.sum(g, grad, dim, sum + g * dim);
      groups.sum(g, offset_grad, 1, offset_sum + g);
      double here = static_cast<double>(offset_sum[g]) * offset_sum[g];
      for (int64_t d = 0; d < dim; ++d) {
        const double x = sum[g * dim + d];
        here += x * x;
      }
      total += here;
    }
  *square = total;
  return found;
}

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

// The position of each id in the order given by `keys`; backwards, the id at each position.
PUBLIC void tapas_permute(const int64_t* ids, int64_t count, int half, const int64_t* keys,
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
}
