// Sums of exponentials over rows or over queries, block by block, without a matrix of scores.
//
// A sum of 2^(score - reference) overflows unless the reference is near the highest score. Finding
// the highest score first would need a second matrix product. Instead the reference is the highest
// of a few scores, and every score is checked against it. Only if one is far above it, the highest
// score is found and the sum is computed again.
#pragma once

#include "tiles.h"

namespace tapas {

// The rows of each query's targets, which are left out of its sum.
struct TargetRows {
  std::vector<std::pair<int64_t, int64_t>> at;  // (row, query), sorted

  // `sorted_ids` (rows) ascending; `targets` (queries, per_query), negative is padding
  TargetRows(const int64_t* sorted_ids, int64_t rows, const int64_t* targets, int64_t first, int64_t last,
      int64_t per_query) {
    if (!sorted_ids || !targets) return;
    for (int64_t q = first; q < last; ++q)
      for (int64_t l = 0; l < per_query; ++l) {
        const int64_t id = targets[q * per_query + l];
        const int64_t* place = std::lower_bound(sorted_ids, sorted_ids + rows, id);
        if (place != sorted_ids + rows && *place == id) at.emplace_back(place - sorted_ids, q - first);
      }
    std::sort(at.begin(), at.end());
  }

  std::pair<int64_t, int64_t> between(int64_t row, int64_t stop) const {
    auto low = std::lower_bound(at.begin(), at.end(), std::make_pair(row, INT64_C(-1)));
    auto high = std::lower_bound(low, at.end(), std::make_pair(stop, INT64_C(-1)));
    return {low - at.begin(), high - at.begin()};
  }

  // writes -inf into the tile of `row` and `panel`
  ALWAYS void mask(Floats score[HIGH][WIDE], int64_t low, int64_t high, int64_t row,
                   int64_t panel) const {
    for (int64_t k = low; k < high; ++k) {
      const int64_t lane = at[k].second - panel * PANEL;
      if (lane < 0 || lane >= PANEL) continue;
      float flat[HIGH][PANEL];
      memcpy(flat, score, sizeof flat);
      flat[at[k].first - row][lane] = -INFINITY;
      memcpy(score, flat, sizeof flat);
    }
  }
};

constexpr float FAR = 64.0f;  // how far a score may be above the reference, in powers of two

// The maximum; NaN if either is NaN.
static ALWAYS Floats higher(Floats x, Floats most) {
  return (~(x <= most) & (most == most)) ? x : most;
}

// The highest score of every query among rows start .. stop and `peak`, in place.
static void peaks(const Rows& rows, const Panels& panels, const TargetRows& targets, int64_t start,
                  int64_t stop, float* peak) {
  Block block(rows);
  for (int64_t at = start; at < stop; at += block.size) {
    block.read(rows, at, std::min(at + block.size, stop), 1.0f);
    for (int64_t i = 0; i < block.count; i += HIGH) {
      const auto [low, high] = targets.between(at + i, at + i + HIGH);
      for (int64_t j = 0; j < panels.count; ++j) {
        Floats score[HIGH][WIDE];
        multiply(&block.rows[i * rows.table.dim], &block.offset[i], panels[j], panels.dim, score);
        targets.mask(score, low, high, at + i, j);
        for (int w = 0; w < WIDE; ++w) {
          float* to = peak + j * PANEL + w * LANES;
          Floats most = load(to);
          for (int64_t r = 0; r < std::min<int64_t>(HIGH, block.count - i); ++r)
            most = higher(score[r][w], most);
          store(to, most);
        }
      }
    }
  }
}

// mass[p, q] = 2^(unit * (score_pq - reference_q)) for rows start .. stop; adds their sum to
// total[q]. Returns false if a score is too far above its reference.
static bool exponentials(const Rows& rows, const Panels& panels, const TargetRows& targets, int64_t start,
                         int64_t stop, float unit, const float* reference, float* mass,
                         int64_t stride, double* total) {
  Block block(rows);
  Floats highest = {};
  std::vector<std::pair<int64_t, int64_t>> mine(block.size / HIGH);
  const int64_t each = HIGH / std::max<int64_t>(1, panels.count) + 1;
  for (int64_t at = start; at < stop; at += block.size) {
    block.read(rows, at, std::min(at + block.size, stop), 1.0f);
    for (int64_t t = 0; t < block.tiles(); ++t)
      mine[t] = targets.between(at + t * HIGH, at + (t + 1) * HIGH);
    for (int64_t j = 0; j < panels.count; ++j) {
      const Floats far[WIDE] = {load(reference + j * PANEL), load(reference + j * PANEL + LANES)};
      Floats sum[WIDE] = {};
      const bool whole = panels.real(j) == PANEL;
      for (int64_t t = 0; t < block.tiles(); ++t) {
        const int64_t i = t * HIGH;
        block.prefetch_next(rows, each);
        Floats score[HIGH][WIDE];
        multiply(&block.rows[i * rows.table.dim], &block.offset[i], panels[j], panels.dim, score);
        if (mine[t].first != mine[t].second)
          targets.mask(score, mine[t].first, mine[t].second, at + i, j);
        const int64_t real = std::min<int64_t>(HIGH, block.count - i);
        for (int r = 0; r < HIGH; ++r) {
          if (r >= real) break;
          for (int w = 0; w < WIDE; ++w) {
            const Floats x = score[r][w] - far[w];
            highest = x > highest ? x : highest;
            score[r][w] = exp2_of(x, unit);
            sum[w] += score[r][w];
          }
        }
        if (!mass) continue;
        for (int64_t r = 0; r < real; ++r) {
          float* to = mass + (at + i + r) * stride + j * PANEL;
          if (whole)
            for (int w = 0; w < WIDE; ++w) store(to + w * LANES, score[r][w]);
          else
            memcpy(to, score[r], panels.real(j) * sizeof(float));
        }
      }
      for (int lane = 0; lane < PANEL; ++lane)  // a float would stop growing at 2^24 small terms
        total[j * PANEL + lane] += sum[lane / LANES][lane % LANES];
    }
  }
  return !any(highest > FAR / unit);
}

struct Range {
  int64_t start, stop;
};

// Part `part` of `parts` of `count` rows, in whole blocks.
static Range range_of(int64_t count, int64_t block, int64_t part, int64_t parts) {
  const int64_t blocks = (count + block - 1) / block;
  return {blocks * part / parts * block, std::min(count, blocks * (part + 1) / parts * block)};
}

constexpr int64_t WORTH_A_THREAD = 1 << 18;  // multiplications, about 10 microseconds

static int useful_threads(int64_t rows, int64_t queries, int64_t dim, int threads) {
  const int64_t most = rows * queries * dim / WORTH_A_THREAD + 1;
  return static_cast<int>(std::min<int64_t>(threads, most));
}

// The result of mass_of_rows for every query (panels * 16 entries). The share of a row in the sum
// is 2^(unit * (score - reference)) * inverse. It is not computed from the log of the sum: if that
// is about 1000, rounding it to a float would change all shares by up to 3e-5.
struct Sums {
  float unit;
  std::vector<float> reference;
  std::vector<double> total;
  std::vector<char> empty;  // 1 where nothing is left to sum

  // Adds up the totals of all threads.
  void add(const std::vector<double>& totals, int threads) {
    const int64_t width = static_cast<int64_t>(reference.size());
    total.assign(width, 0.0);
    for (int part = 0; part < threads; ++part)
      for (int64_t q = 0; q < width; ++q) total[q] += totals[part * width + q];
  }
  // Whether no sum has lost its digits, by a reference far above all scores.
  bool precise(int64_t queries) const {
    return std::all_of(total.begin(), total.begin() + queries, [](double t) { return !(t <= 1e-30); });
  }

  double log_total(int64_t q) const { return std::log2(total[q]) / unit; }
  float log_sum(int64_t q) const {
    return empty[q] ? -INFINITY : static_cast<float>(reference[q] + log_total(q));
  }
  // The inverse of a sum far above its reference, times a small gradient, may underflow. With a
  // reference near the sum it is near 1; moving it by an integer often needs no rounding.
  float moved(int64_t q) const {
    return empty[q] ? 0.0f : static_cast<float>(reference[q] + std::floor(log_total(q)));
  }
  float inverse(int64_t q, float moved) const {
    const double step = static_cast<double>(moved) - reference[q];
    return empty[q] ? 0.0f : static_cast<float>(std::exp2(unit * step) / total[q]);
  }
};

// A first reference for every query: any score near the highest will do, so take the highest of a
// few rows.
static void first_references(const Rows& rows, const Panels& panels, const TargetRows& targets,
                             float* reference) {
  peaks(rows, panels, targets, 0, std::min<int64_t>(rows.count, 2 * HIGH), reference);
  for (int64_t q = 0; q < panels.count * PANEL; ++q)
    if (reference[q] == -INFINITY) reference[q] = 0.0f;  // all are targets, or there is no query
}

// mass[p, q] = 2^(unit * (score_pq - reference_q)), unless null, and its sums over all rows.
static Sums mass_of_rows(const Rows& rows, const Panels& panels, const TargetRows& targets, float unit,
                         int threads, float* mass, int64_t stride) {
  Sums found{unit, {}, {}, {}};
  std::vector<float>& reference = found.reference;
  std::vector<char>& empty = found.empty;
  empty.assign(panels.count * PANEL, 0);
  const int64_t width = panels.count * PANEL;
  threads = useful_threads(rows.count, panels.queries, panels.dim, threads);
  reference.assign(width, -INFINITY);
  first_references(rows, panels, targets, reference.data());
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (float& r : reference)
      if (r == -INFINITY) r = 0.0f;
    std::vector<double> totals(threads * width, 0.0);
    bool near = true;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(&& : near)
    for (int part = 0; part < threads; ++part) {
      const Range mine = range_of(rows.count, rows_at_once(panels.dim), part, threads);
      near = exponentials(rows, panels, targets, mine.start, mine.stop, unit, reference.data(), mass,
                          stride, &totals[part * width]) && near;
    }
    found.add(totals, threads);
    if (near && found.precise(panels.queries)) return found;
    if (attempt) return found;
    std::vector<float> most(threads * width, -INFINITY);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int part = 0; part < threads; ++part) {
      const Range mine = range_of(rows.count, rows_at_once(panels.dim), part, threads);
      peaks(rows, panels, targets, mine.start, mine.stop, &most[part * width]);
    }
    reference.assign(width, -INFINITY);
    for (int part = 0; part < threads; ++part)
      for (int64_t q = 0; q < width; ++q)
        if (!(most[part * width + q] <= reference[q]) && reference[q] == reference[q])
          reference[q] = most[part * width + q];
    empty.assign(width, 0);
    for (int64_t q = 0; q < width; ++q) empty[q] = reference[q] == -INFINITY;
  }
  return found;
}

// score[p] = log2 (2^score[p] + sum_q 2^(row p . query q)) for the rows of a block. Returns false,
// without changes, if a score is too far above the highest of the first panel, unless the highest
// score of every row is `known`.
static bool block_scores(const Block& block, const Panels& panels, const float* known, float* score) {
  Ints beyond = {};
  std::vector<float> sum(block.tiles() * HIGH * LANES, 0.0f);
  std::vector<float> reference(block.tiles() * HIGH, 0.0f);
  if (known) std::copy_n(known, reference.size(), reference.begin());
  for (int64_t j = 0; j < panels.count; ++j) {
    const int64_t real = panels.real(j);
    for (int64_t i = 0; i < block.count; i += HIGH) {
      Floats tile[HIGH][WIDE];
      multiply(&block.rows[i * panels.dim], &block.offset[i], panels[j], panels.dim, tile);
      if (j == 0 && !known)
        for (int r = 0; r < HIGH; ++r) {
          float most = -INFINITY;
          for (int64_t lane = 0; lane < real; ++lane)
            most = std::max(most, tile[r][lane / LANES][lane % LANES]);
          reference[i + r] = most;
        }
      for (int r = 0; r < HIGH; ++r) {
        // with a bias of -inf the sum is 0 for any reference
        const Floats far = splat(reference[i + r] == -INFINITY ? 0.0f : reference[i + r]);
        for (int w = 0; w < WIDE; ++w) {
          const Floats x = tile[r][w] - far;
          beyond |= x > FAR;
          tile[r][w] = exp2_of(x, 1.0f);
        }
      }
      if (real < PANEL)
        for (int r = 0; r < HIGH; ++r)
          for (int64_t lane = real; lane < PANEL; ++lane) tile[r][lane / LANES][lane % LANES] = 0.0f;
      for (int r = 0; r < HIGH; ++r) {
        float* to = &sum[(i + r) * LANES];
        store(to, load(to) + (tile[r][0] + tile[r][1]));
      }
    }
  }
  if (!known && any(beyond)) return false;
  for (int64_t i = 0; i < block.count; ++i) {
    const float mine = reference[i] + std::log2(sum_of(load(&sum[i * LANES])));
    const float high = std::max(mine, score[i]), low = std::min(mine, score[i]);
    if (mine != mine)
      score[i] = mine;
    else if (low > -INFINITY)
      score[i] = high + std::log2(1.0f + std::exp2(low - high));
    else
      score[i] = high;
  }
  return true;
}

// The highest score of each row of the block.
static std::vector<float> row_peaks(const Block& block, const Panels& panels) {
  std::vector<float> most(block.tiles() * HIGH, -INFINITY);
  for (int64_t j = 0; j < panels.count; ++j)
    for (int64_t i = 0; i < block.count; i += HIGH) {
      Floats tile[HIGH][WIDE];
      multiply(&block.rows[i * panels.dim], &block.offset[i], panels[j], panels.dim, tile);
      for (int r = 0; r < HIGH; ++r)
        for (int64_t lane = 0; lane < panels.real(j); ++lane) {
          const float x = tile[r][lane / LANES][lane % LANES];
          if (!(x <= most[i + r]) && most[i + r] == most[i + r]) most[i + r] = x;
        }
    }
  return most;
}

}  // namespace tapas
