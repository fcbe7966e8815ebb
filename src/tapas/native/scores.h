// Sums of exponentials over queries, for the rows of a block, without a matrix of scores.
//
// The reference of a row is the highest score of the first panel. If another score is far above
// it, the highest score is found first and the sum is computed again.
#pragma once

#include "sums.h"

namespace tapas {

constexpr float FAR = 64.0f;  // how far a score may be above the reference, in powers of two

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
      multiply(block.tile(i), &block.offset[i], panels[j], panels.dim, tile);
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
      multiply(block.tile(i), &block.offset[i], panels[j], panels.dim, tile);
      for (int r = 0; r < HIGH; ++r)
        for (int64_t lane = 0; lane < panels.real(j); ++lane) {
          const float x = tile[r][lane / LANES][lane % LANES];
          if (!(x <= most[i + r]) && most[i + r] == most[i + r]) most[i + r] = x;
        }
    }
  return most;
}

}  // namespace tapas
