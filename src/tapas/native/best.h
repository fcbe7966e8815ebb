// The k best rows of each query, and the sum of exp(score) over all rows if asked for, in one pass.
// Most scores are below the k-th best so far and never leave registers.
#pragma once

#include "sums.h"

namespace tapas {

// A class and its score; ties by ascending id, NaN before everything.
struct Found {
  float score;
  int64_t id;

  bool operator<(const Found& other) const {
    if (score != score || other.score != other.score)
      return score != score && (other.score == other.score || id < other.id);
    return score > other.score || (score == other.score && id < other.id);
  }
};

// The k best of a stream of classes with ascending ids.
struct Best {
  std::vector<Found> kept;

  // Returns the score to beat from now on.
  float add(Found found, size_t k, float bar) {
    kept.push_back(found);
    if (kept.size() < 2 * k + 16) return bar;
    cut(k);
    return std::max_element(kept.begin(), kept.end())->score;
  }

  void cut(size_t k) {
    if (kept.size() <= k) return;
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end());
    kept.resize(k);
  }
};

struct Excluded {
  const int64_t* start;  // (queries + 1), null if nothing is excluded
  const int64_t* ids;    // ascending within a query

  bool holds(int64_t query, int64_t id) const {
    return start && std::binary_search(ids + start[query], ids + start[query + 1], id);
  }
};

// Collects the best rows among start .. stop for all queries. With SUMS, also adds exp(score) of
// every row, excluded or not, to the sums of the queries; see `Lanes`.
template <bool SUMS>
static void best_of_rows(const Rows& rows, const Panels& panels, Range part, int64_t k,
                         const Excluded& excluded, Best* best, float* reference, double* total) {
  Block block(rows);
  PartialScores partial(block, panels.dim);
  std::vector<float> bar(panels.count * PANEL, -INFINITY);
  for (int64_t q = panels.queries; q < panels.count * PANEL; ++q) bar[q] = INFINITY;
  for (int64_t at = part.start; at < part.stop; at += block.size) {
    block.read(rows, at, std::min(at + block.size, part.stop), 1.0f);
    const bool finite = block.is_finite();
    for (int64_t j = 0; j < panels.count; ++j) {
      Lanes lanes{LOG2_E, reference + j * PANEL, total + j * PANEL, nullptr, 0, 0, {}, {}, 0};
      if (SUMS) lanes.begin();
      partial.compute(block, panels[j]);
      for (int64_t i = 0; i < block.count; i += HIGH) {
        Floats tile[HIGH][WIDE];
        partial.finish(block, i, panels[j], tile);
        const int64_t real = std::min<int64_t>(HIGH, block.count - i);
        Floats most[WIDE];
        highest(tile, most);
        const Ints beaten =
            ~(most[0] <= load(&bar[j * PANEL])) | ~(most[1] <= load(&bar[j * PANEL + LANES]));
        if (any(beaten) || !finite)  // NaN beats all, but may be lost in `most`
          for (int64_t r = 0; r < real; ++r)
            for (int w = 0; w < WIDE; ++w) {
              if (!any(~(tile[r][w] <= load(&bar[j * PANEL + w * LANES])))) continue;
              for (int lane = 0; lane < LANES; ++lane) {
                const float score = tile[r][w][lane];
                const int64_t q = j * PANEL + w * LANES + lane, id = at + i + r;
                if (score <= bar[q] || q >= panels.queries || excluded.holds(q, id)) continue;
                bar[q] = best[q].add({score, id}, k, bar[q]);
              }
            }
        if (SUMS) lanes.add(tile, 0, most);
      }
      if (SUMS) lanes.end();
    }
  }
}

}  // namespace tapas
