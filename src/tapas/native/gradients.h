// Gradients of a log-sum of exponentials. Scores are recomputed block by block, and each block is
// added to both gradients while it is in the cache; no matrix of rows x queries is stored.
#pragma once

#include "sums.h"

namespace tapas {

constexpr int64_t SIDE = 48;  // rows and queries of a block, a multiple of both sides of a tile

// to[i][c] += sum_d left[i * i_step + d * d_step] * right[d * width + c] for 6 x 16 elements
static ALWAYS void add_product(const float* left, int64_t i_step, int64_t d_step, const float* right,
                               int64_t width, int64_t depth, float* to) {
  Floats sum[HIGH][WIDE] = {};
  for (int64_t d = 0; d < depth; ++d) {
    const Floats first = load(right + d * width), second = load(right + d * width + LANES);
    for (int i = 0; i < HIGH; ++i) {
      const Floats element = splat(left[i * i_step + d * d_step]);
      sum[i][0] += element * first;
      sum[i][1] += element * second;
    }
  }
  for (int i = 0; i < HIGH; ++i)
    for (int w = 0; w < WIDE; ++w) {
      float* at = to + i * width + w * LANES;
      store(at, load(at) + sum[i][w]);
    }
}

// A matrix whose width is padded to full panels and whose height to full blocks.
struct Padded {
  int64_t width;
  std::vector<float> values;

  Padded(int64_t rows, int64_t dim)
      : width((dim + PANEL - 1) / PANEL * PANEL),
        values((rows + SIDE - 1) / SIDE * SIDE * width, 0.0f) {}

  float* operator[](int64_t row) { return &values[row * width]; }
  const float* operator[](int64_t row) const { return &values[row * width]; }
};

struct Gradients {
  float *row, *offset;  // (count, dim) and (count)
  Padded query;         // (queries, dim), one for each thread
};

// Adds the gradients of rows start .. stop, where row p and query q have the share
// exp(score - reference[q]) * scale[q]. The scale contains the inverse of the query's sum.
static void gradients_of_rows(const Rows& rows, const Panels& panels, const Padded& queries,
                              const TargetRows& targets, int64_t start, int64_t stop, const float* reference,
                              const float* scale, Gradients& to) {
  const int64_t dim = rows.table.dim, width = queries.width;
  std::vector<float> tiles(SIDE * SIDE), block(SIDE * dim), offset(SIDE);
  Padded flat(SIDE, dim), row_grad(SIDE, dim);
  for (int64_t at = start; at < stop; at += SIDE) {
    const int64_t count = std::min(SIDE, stop - at);
    std::fill(block.begin(), block.end(), 0.0f);
    std::fill(row_grad.values.begin(), row_grad.values.end(), 0.0f);
    for (int64_t i = 0; i < SIDE; ++i) {
      // rows of padding have a score of -inf and no share
      offset[i] = i < count ? (rows.offset ? rows.offset[at + i] : 0.0f) : -INFINITY;
      if (i < count) rows.table.copy(rows.id(at + i), &block[i * dim]);
      std::copy_n(&block[i * dim], dim, flat[i]);
    }
    std::vector<float> mass(SIDE * LANES, 0.0f);
    std::pair<int64_t, int64_t> mine[SIDE / HIGH];
    for (int64_t t = 0; t < SIDE / HIGH; ++t)
      mine[t] = targets.between(at + t * HIGH, at + (t + 1) * HIGH);
    for (int64_t first = 0; first < panels.count * PANEL; first += SIDE) {
      const int64_t wide = std::min(SIDE / PANEL, panels.count - first / PANEL);
      for (int64_t j = 0; j < wide; ++j) {
        const int64_t panel = first / PANEL + j;
        const float *references = reference + panel * PANEL, *scales = scale + panel * PANEL;
        const Floats far[WIDE] = {load(references), load(references + LANES)};
        const Floats times[WIDE] = {load(scales), load(scales + LANES)};
        for (int64_t t = 0; t < SIDE / HIGH; ++t) {
          Floats score[HIGH][WIDE];
          multiply(&block[t * HIGH * dim], &offset[t * HIGH], panels[panel], dim, score);
          if (mine[t].first != mine[t].second)
            targets.mask(score, mine[t].first, mine[t].second, at + t * HIGH, panel);
          for (int r = 0; r < HIGH; ++r) {
            Floats sum = load(&mass[(t * HIGH + r) * LANES]);
            for (int w = 0; w < WIDE; ++w) {
              const Floats share = exp2_of(score[r][w] - far[w], LOG2_E) * times[w];
              store(&tiles[(t * HIGH + r) * SIDE + j * PANEL + w * LANES], share);
              sum += share;
            }
            store(&mass[(t * HIGH + r) * LANES], sum);
          }
        }
      }
      if (wide < SIDE / PANEL)  // clear what an earlier block left
        for (int64_t i = 0; i < SIDE; ++i)
          std::fill_n(&tiles[i * SIDE + wide * PANEL], SIDE - wide * PANEL, 0.0f);
      for (int64_t c = 0; c < width; c += PANEL) {
        for (int64_t i = 0; i < SIDE; i += HIGH)
          add_product(&tiles[i * SIDE], SIDE, 1, queries[first] + c, width, SIDE, row_grad[i] + c);
        for (int64_t q = 0; q < SIDE; q += HIGH)
          add_product(&tiles[q], 1, SIDE, flat[0] + c, width, SIDE, to.query[first + q] + c);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(row_grad[i], dim, to.row + (at + i) * dim);
      to.offset[at + i] = sum_of(load(&mass[i * LANES]));
    }
  }
}

}  // namespace tapas
