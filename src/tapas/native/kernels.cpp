// The inner loops of the library, for CPUs: see tiles.h for how scores are computed.
//
// Plain C functions on addresses, without Python and without torch, loaded with ctypes: nothing is
// needed to build them but a compiler. Each has a slow, obvious double in PyTorch that the tests
// compare it with. Scores are in units of log 2 inside; what goes out is in nats.
#include "best.h"
#include "draws.h"
#include "sums.h"

using namespace tapas;

#define PUBLIC extern "C" __attribute__((visibility("default")))

// Whether this CPU has the instructions that were compiled in.
PUBLIC int tapas_usable() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

// log_sum[q] = log sum_p exp(scale * (row_p . query_q + offset_p)) over the rows that are not the
// query's own; with `mass` (count, queries) also the terms, up to a factor of their own for each
// query: term / sum = mass[p, q] * inverse[q].
PUBLIC void tapas_log_sum(const void* table, int half, int64_t dim, const int64_t* ids,
                          const float* offset, int64_t count, const float* query, int64_t queries,
                          const int64_t* sorted_ids, const int64_t* own, int64_t per_query,
                          float scale, int threads, float* mass, float* log_sum, float* inverse) {
  const Rows rows{{table, half != 0, dim}, ids, offset, count};
  const int64_t step = queries_at_once(dim);
  for (int64_t first = 0; first < queries; first += step) {
    const int64_t last = std::min(first + step, queries);
    const Panels panels(query, first, last, dim, scale * LOG2_E);
    const Own mine(sorted_ids, count, own, first, last, per_query);
    const Sums found = mass_of_rows(rows, panels, mine, scale * LOG2_E, threads,
                                    mass ? mass + first : nullptr, queries);
    for (int64_t q = first; q < last; ++q) {
      log_sum[q] = found.log_sum(q - first);
      if (inverse) inverse[q] = found.inverse(q - first);
    }
  }
}

// share[p] = mean over the queries of the softmax over all rows but the query's own.
// `scratch` holds count * width floats; width is a multiple of 16 queries normalised at a time.
PUBLIC void tapas_mean_share(const void* table, int half, int64_t dim, const int64_t* ids,
                             const float* offset, int64_t count, const float* query,
                             int64_t queries, const int64_t* sorted_ids, const int64_t* own,
                             int64_t per_query, float scale, int threads, float* scratch,
                             int64_t width, float* share) {
  const Rows rows{{table, half != 0, dim}, ids, offset, count};
  std::fill_n(share, count, 0.0f);
  for (int64_t first = 0; first < queries; first += width) {
    const int64_t last = std::min(first + width, queries);
    const Panels panels(query, first, last, dim, scale * LOG2_E);
    const Own mine(sorted_ids, count, own, first, last, per_query);
    const Sums found =
        mass_of_rows(rows, panels, mine, scale * LOG2_E, threads, scratch, width);
    std::vector<float> inverse(panels.count * PANEL, 0.0f);
    for (int64_t q = 0; q < last - first; ++q) inverse[q] = found.inverse(q) / queries;
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
      const Stretch mine = stretch(count, block.size, part, threads);
      for (int64_t at = mine.start; at < mine.stop; at += block.size) {
        block.read(rows, at, std::min(at + block.size, mine.stop), scale * LOG2_E);
        if (block_scores(block, panels, nullptr, score + at)) continue;
        block_scores(block, panels, row_peaks(block, panels).data(), score + at);
      }
    }
  }
  for (int64_t p = 0; p < count; ++p) score[p] *= LN_2;
}

// The k best rows of each query, highest first, equal scores by rising id; -1 and -inf where fewer
// than k are left. `excluded_start` (queries + 1) cuts `excluded` into a rising list for each query.
PUBLIC void tapas_top(const void* table, int half, int64_t dim, const float* offset, int64_t count,
                      const float* query, int64_t queries, int64_t k,
                      const int64_t* excluded_start, const int64_t* excluded, int threads,
                      float* score, int64_t* id) {
  const Rows rows{{table, half != 0, dim}, nullptr, offset, count};
  const Excluded banned{excluded_start, excluded};
  const int64_t step = queries_at_once(dim);
  threads = useful_threads(count, queries, dim, threads);
  for (int64_t first = 0; first < queries; first += step) {
    const Panels panels(query, first, std::min(first + step, queries), dim, 1.0f);
    std::vector<Best> best(threads * panels.queries);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int part = 0; part < threads; ++part) {
      const Stretch mine = stretch(count, rows_at_once(dim), part, threads);
      best_of_rows(rows, panels, first, mine.start, mine.stop, k, banned,
                   &best[part * panels.queries]);
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
                        const int64_t* partner, int64_t buckets, int64_t* position) {
  constexpr int64_t AHEAD = 64;  // draws whose buckets are asked of memory before the first is used
  int64_t bucket[AHEAD];
  for (int64_t start = 0; start < count; start += AHEAD) {
    const int64_t size = std::min(AHEAD, count - start);
    for (int64_t i = 0; i < size; ++i) {
      const double u = uniform[start + i] * buckets;
      bucket[i] = std::min<int64_t>(static_cast<int64_t>(u), buckets - 1);
      __builtin_prefetch(threshold + bucket[i]);
      __builtin_prefetch(partner + bucket[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = bucket[i], other = partner[at];
      const int64_t stays = uniform[start + i] * buckets - at < threshold[at];
      position[start + i] = other + (at - other) * stays;  // a branch would be guessed wrong
    }
  }
}

// The first k distinct of `draws`, rising, and how often each came again before the draw that
// brought the next class, whose number is returned; minus the number of distinct ids if there are
// no more than k. Draws are from 0 to bound - 1.
PUBLIC int64_t tapas_distinct(const int64_t* draws, int64_t count, int64_t k, int64_t bound,
                              int64_t* ids, int64_t* again) {
  Firsts seen(k + 1);
  std::vector<Counted> found;
  found.reserve(k + 1);
  constexpr int64_t AHEAD = 16;
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
