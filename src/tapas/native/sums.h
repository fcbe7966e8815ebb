// Sums of exponentials over rows, block by block, without a matrix of scores.
//
// A sum of 2^(score - reference) overflows unless the reference is near the highest score, and
// loses its digits if it is far above. The reference of a query is the highest score of the first
// rows; whenever a score is far above it, that score becomes the reference, and the sum so far is
// scaled down.
#pragma once

#include <utility>

#include "halves.h"
#include "parallel.h"
#include "tiles.h"

namespace tapas {

// Which rows are targets of a query, and so left out of its sum.
struct Hits {
  struct Hit {
    int64_t row;
    int32_t lane;
    bool operator<(const Hit& other) const { return row < other.row; }
  };

  Scratch<Hit> found;     // by panel, each ascending by row
  Scratch<int64_t> many;  // of each panel
  int64_t per_panel;

  Hits(int64_t panels, int64_t per_query)
      : found(panels * PANEL * per_query), many(panels, 0), per_panel(PANEL * per_query) {}

  // Looks up the `targets` (queries, per_query) of a panel in ascending `ids`; negative is padding.
  void find(int64_t panel, const int64_t* ids, int64_t count, const int64_t* targets,
            int64_t queries, int64_t per_query) {
    Hit* to = &found[panel * per_panel];
    int64_t here = 0;
    if (ids && targets)
      for (int64_t q = panel * PANEL; q < std::min((panel + 1) * PANEL, queries); ++q)
        for (int64_t l = 0; l < per_query; ++l) {
          const int64_t id = targets[q * per_query + l];
          const int64_t* place = std::lower_bound(ids, ids + count, id);
          if (place != ids + count && *place == id)
            to[here++] = {place - ids, static_cast<int32_t>(q - panel * PANEL)};
        }
    std::sort(to, to + here);
    many[panel] = here;
  }

  const Hit* begin(int64_t panel) const { return &found[panel * per_panel]; }
  const Hit* end(int64_t panel) const { return begin(panel) + many[panel]; }
  const Hit* from(int64_t panel, int64_t row) const {
    return std::lower_bound(begin(panel), end(panel), Hit{row, 0});
  }
};

// Writes -inf into the tile that begins at `row` for each hit in it; returns the next hit.
static ALWAYS const Hits::Hit* mask_hits(const Hits::Hit* hit, const Hits::Hit* end, int64_t row,
                                         Floats score[HIGH][WIDE]) {
  while (__builtin_expect(hit != end && hit->row < row + HIGH, 0)) {
    float flat[HIGH][PANEL];
    memcpy(flat, score, sizeof flat);
    for (; hit != end && hit->row < row + HIGH; ++hit) flat[hit->row - row][hit->lane] = -INFINITY;
    memcpy(score, flat, sizeof flat);
  }
  return hit;
}

constexpr float RAISE = 32.0f;    // how far a score may be above its reference, in powers of two
constexpr float LOWEST = -3e38f;  // the reference before the first score

// The highest score of each query, of those that are not NaN, or NaN.
static ALWAYS void highest(const Floats score[HIGH][WIDE], Floats most[WIDE]) {
  for (int w = 0; w < WIDE; ++w) most[w] = score[0][w];
  for (int r = 1; r < HIGH; ++r)
    for (int w = 0; w < WIDE; ++w) most[w] = score[r][w] > most[w] ? score[r][w] : most[w];
}

// One panel's part of a sum: the totals of its lanes are total * 2^(unit * reference). Terms that
// were stored relative to the reference begin at `terms`, if not null.
struct Lanes {
  float unit;
  float* reference;  // (16)
  double* total;     // (16)
  float* terms;
  int64_t stride;
  int lanes;  // of `terms`
  Floats far[WIDE], sum[WIDE];
  int tiles = 0;  // in `sum`

  ALWAYS void begin() {
    for (int w = 0; w < WIDE; ++w) {
      far[w] = load(reference + w * LANES);
      sum[w] = Floats{};
    }
  }

  // Replaces scores by their terms and adds these. `terms_so_far` rows of terms are stored.
  ALWAYS void add(Floats score[HIGH][WIDE], int64_t terms_so_far) {
    Floats most[WIDE];
    highest(score, most);
    add(score, terms_so_far, most);
  }

  // The same, given the highest scores.
  ALWAYS void add(Floats score[HIGH][WIDE], int64_t terms_so_far, const Floats most[WIDE]) {
    if (__builtin_expect(any(((most[0] - far[0]) * unit > RAISE) |
                             ((most[1] - far[1]) * unit > RAISE)), 0))
      raise(score, terms_so_far);
    for (int r = 0; r < HIGH; ++r)
      for (int w = 0; w < WIDE; ++w) {
        score[r][w] = exp2_of(score[r][w] - far[w], unit);
        sum[w] += score[r][w];
      }
    if (++tiles == 8) end();
  }

  ALWAYS void end() {
    for (int lane = 0; lane < PANEL; ++lane)  // a float would stop growing at 2^24 small terms
      total[lane] += sum[lane / LANES][lane % LANES];
    for (int w = 0; w < WIDE; ++w) sum[w] = Floats{};
    tiles = 0;
  }

 private:
  // Makes the highest of `score` the reference of lanes in which it is far above the old one.
  __attribute__((noinline)) void raise(const Floats score[HIGH][WIDE], int64_t terms_so_far) {
    for (int lane = 0; lane < PANEL; ++lane) {
      const int w = lane / LANES, at = lane % LANES;
      float most = LOWEST;
      for (int r = 0; r < HIGH; ++r) most = score[r][w][at] > most ? score[r][w][at] : most;
      if (!((most - reference[lane]) * unit > RAISE)) continue;
      const float less = std::exp2(unit * (reference[lane] - most));
      reference[lane] = far[w][at] = most;
      sum[w][at] *= less;
      total[lane] *= less;
      if (lane < lanes)
        for (int64_t p = 0; p < terms_so_far; ++p) terms[p * stride + lane] *= less;
    }
  }
};

// Scores of blocks of rows; see HalfScores for the same with bfloat16.
struct FloatScores {
  const Rows& rows;
  const Panels& panels;
  Block block;
  PartialScores partial;
  int64_t size, count = 0;  // rows at once, and rows of the block

  FloatScores(const Rows& rows, const Panels& panels)
      : rows(rows), panels(panels), block(rows), partial(block, panels.dim), size(block.size) {}

  void read(int64_t begin, int64_t end) {
    block.read(rows, begin, end, 1.0f);
    count = block.count;
  }
  void compute(int64_t panel) { partial.compute(block, panels[panel]); }
  ALWAYS void finish(int64_t i, int64_t panel, Floats score[HIGH][WIDE]) const {
    partial.finish(block, i, panels[panel], score);
  }
  void prefetch_next(int64_t more) { block.prefetch_next(rows, more); }
};

// Adds the terms of rows start .. stop to the sums of panels first .. last: reference and total
// are those of panel `first`. Unless null, terms[p * stride + q] = 2^(unit * (score - reference)).
template <class Scores>
static void add_terms(Scores scores, const Panels& panels, const Hits& hits, Range part,
                      int64_t first, int64_t last, float unit, float* reference, double* total,
                      float* terms, int64_t stride) {
  const int64_t each = HIGH / std::max<int64_t>(1, last - first) + 1;
  for (int64_t at = part.start; at < part.stop; at += scores.size) {
    scores.read(at, std::min(at + scores.size, part.stop));
    for (int64_t j = first; j < last; ++j) {
      const int64_t real = panels.real(j);
      float* column = terms ? terms + part.start * stride + j * PANEL : nullptr;
      Lanes lanes{unit, reference + (j - first) * PANEL, total + (j - first) * PANEL, column,
                  stride, terms ? static_cast<int>(real) : 0, {}, {}, 0};
      lanes.begin();
      scores.compute(j);
      const Hits::Hit *hit = hits.from(j, at), *end = hits.end(j);
      for (int64_t i = 0; i < scores.count; i += HIGH) {
        scores.prefetch_next(each);
        Floats score[HIGH][WIDE];
        scores.finish(i, j, score);
        hit = mask_hits(hit, end, at + i, score);
        lanes.add(score, at + i - part.start);
        if (!terms) continue;
        for (int64_t r = 0; r < std::min<int64_t>(HIGH, scores.count - i); ++r) {
          float* to = terms + (at + i + r) * stride + j * PANEL;
          if (real == PANEL)
            for (int w = 0; w < WIDE; ++w) store(to + w * LANES, score[r][w]);
          else
            memcpy(to, score[r], real * sizeof(float));
        }
      }
      lanes.end();
    }
  }
}

// The log of a sum whose parts are total[i * step] * 2^(unit * reference[i * step]).
static inline float joined_log_sum(const float* reference, const double* total, int64_t parts,
                                   int64_t step, float unit) {
  float most = LOWEST;
  for (int64_t i = 0; i < parts; ++i) most = std::max(most, reference[i * step]);
  double sum = 0.0;
  for (int64_t i = 0; i < parts; ++i)
    sum += total[i * step] * std::exp2(unit * (reference[i * step] - most));
  return sum == 0.0 ? -INFINITY : most + std::log2(static_cast<float>(sum)) / unit;
}

// The sums of all queries over all rows, in tasks of some rows and some panels each. The share of
// a row in a sum is 2^(unit * (score - reference)) * inverse. It is not computed from the log of
// the sum: if that is about 1000, rounding it to a float would change all shares by up to 3e-5.
struct Sums {
  float unit;
  int64_t rows, panels, row_parts, panel_parts, block, width;
  Scratch<float> part_reference;  // (row_parts, panels * 16)
  Scratch<double> part_total;
  Scratch<float> reference;  // (panels * 16)
  Scratch<double> total;

  Sums(int64_t rows, int64_t panels, int64_t dim, float unit)
      : unit(unit), rows(rows), panels(panels), row_parts(1), panel_parts(1),
        block(rows_at_once(dim)), width(panels * PANEL), part_reference(0), part_total(0),
        reference(width), total(width) {
    const int64_t wanted = tasks_for(rows * width * dim);
    // panels of a task stay in the L2 cache; several, so that a block of rows is used repeatedly
    const int64_t least = (width + queries_at_once(dim) - 1) / queries_at_once(dim);
    panel_parts = std::clamp<int64_t>(panels / 4, 1, std::max(least, wanted));
    panel_parts = std::max(panel_parts, std::min(least, panels));
    const int64_t blocks = (rows + block - 1) / block;
    row_parts = std::clamp<int64_t>(wanted / panel_parts, 1, std::max<int64_t>(blocks, 1));
    part_reference = Scratch<float>(row_parts * width, LOWEST);
    part_total = Scratch<double>(row_parts * width, 0.0);
  }

  int64_t tasks() const { return row_parts * panel_parts; }
  Range rows_of(int64_t part) const { return range_of(rows, block, part, row_parts); }

  // With `halves`, scores are products of bfloat16 numbers.
  void run(int64_t task, const Rows& from, const Panels& queries, const Hits& hits, float* terms,
           int64_t stride, const HalfPanels* halves = nullptr) {
    const int64_t part = task % row_parts;
    const Range mine = range_of(panels, 1, task / row_parts, panel_parts);
    const int64_t at = part * width + mine.start * PANEL;
    const auto add = [&](auto scores) {
      add_terms(std::move(scores), queries, hits, rows_of(part), mine.start, mine.stop, unit,
                &part_reference[at], &part_total[at], terms, stride);
    };
#if TAPAS_HALVES
    if (halves) return add(HalfScores(from, *halves));
#endif
    (void)halves;
    add(FloatScores(from, queries));
  }

  // Joins the parts of a panel.
  void join(int64_t panel) {
    for (int64_t q = panel * PANEL; q < (panel + 1) * PANEL; ++q) {
      reference[q] = LOWEST;
      for (int64_t part = 0; part < row_parts; ++part)
        reference[q] = std::max(reference[q], part_reference[part * width + q]);
      total[q] = 0.0;
      for (int64_t part = 0; part < row_parts; ++part)
        total[q] += part_total[part * width + q] * factor(part, q);
    }
  }

  // What the terms of a part must be multiplied by to be relative to the common reference.
  float factor(int64_t part, int64_t q) const {
    const float mine = part_reference[part * width + q];
    return mine == reference[q] ? 1.0f : std::exp2(unit * (mine - reference[q]));
  }

  // Makes the terms of a panel relative to the common reference.
  void rescale(int64_t panel, int64_t real, float* terms, int64_t stride) const {
    for (int64_t part = 0; part < row_parts; ++part) {
      float times[PANEL];
      bool same = true;
      for (int64_t lane = 0; lane < real; ++lane) {
        times[lane] = factor(part, panel * PANEL + lane);
        same &= times[lane] == 1.0f;
      }
      const Range mine = rows_of(part);
      for (int64_t p = mine.start; p < mine.stop && !same; ++p)
        for (int64_t lane = 0; lane < real; ++lane)
          terms[p * stride + panel * PANEL + lane] *= times[lane];
    }
  }

  // Whether nothing is left to sum.
  bool empty(int64_t q) const { return total[q] == 0.0; }
  float log_total(int64_t q) const { return std::log2(static_cast<float>(total[q])) / unit; }
  float log_sum(int64_t q) const { return empty(q) ? -INFINITY : reference[q] + log_total(q); }
  // The inverse of a sum far above its reference, times a small gradient, may underflow. With a
  // reference near the sum it is near 1; moving it by an integer often needs no rounding.
  float moved(int64_t q) const {
    return empty(q) ? 0.0f : reference[q] + std::floor(log_total(q));
  }
  float inverse(int64_t q, float moved) const {
    const double step = static_cast<double>(moved) - reference[q];
    return empty(q) ? 0.0f : static_cast<float>(std::exp2(unit * step) / total[q]);
  }
};

}  // namespace tapas
