// Gradients of a log-sum of exponentials. Scores are recomputed block by block, and each block is
// added to both gradients while it is in the cache; no matrix of rows x queries is stored.
#pragma once

#include "sums.h"

namespace tapas {

constexpr int64_t SIDE = 48;  // rows and queries of a block, a multiple of both sides of a tile
constexpr int64_t MOST_PARTS = 8;  // each has its own copy of one gradient, added up at the end

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

static inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// The gradients of sum_q scale[q] * log_sum[q], in tasks that are cut along the longer side.
struct Gradients {
  const Rows& rows;
  const Panels& panels;
  const Hits& hits;
  int64_t dim, width, padded_rows, padded_queries;  // padded to whole tiles and blocks
  bool by_rows;
  int64_t parts;
  Scratch<float> query;             // (queries, width)
  Scratch<float> reference, share;  // (queries) of the sums; share: inverse * scale
  Scratch<float> row_parts, offset_parts, query_parts;
  Scratch<float> blocks;  // (parts, 48, width) rows that must be copied

  Gradients(const Rows& rows, const Panels& panels, const Hits& hits)
      : rows(rows), panels(panels), hits(hits), dim(rows.table.dim), width(round_up(dim, PANEL)),
        padded_rows(round_up(rows.count, SIDE)), padded_queries(round_up(panels.queries, SIDE)),
        by_rows(rows.count >= panels.queries),
        parts(num_parts()), query(padded_queries * width), reference(padded_queries),
        share(padded_queries), row_parts((by_rows ? 1 : parts) * padded_rows * width),
        offset_parts((by_rows ? 1 : parts) * padded_rows),
        query_parts((by_rows ? parts : 1) * padded_queries * width),
        blocks(parts * SIDE * width) {}

  // Copies the queries of a panel and what belongs to them.
  void prepare(int64_t panel, const float* query_reference, const float* inverse,
               const float* scale) {
    const bool last = panel == panels.count - 1;
    for (int64_t q = panel * PANEL; q < (last ? padded_queries : (panel + 1) * PANEL); ++q) {
      float* to = &query[q * width];
      const bool real = q < panels.queries;
      if (real) std::copy_n(panels.query + q * dim, dim, to);
      std::fill(to + (real ? dim : 0), to + width, 0.0f);
      // with an infinite reference, lanes without a query have no share
      reference[q] = real ? query_reference[q] : INFINITY;
      share[q] = real ? inverse[q] * scale[q] : 0.0f;
    }
  }

  void run(int64_t part) {
    const Range r = by_rows ? range_of(padded_rows, SIDE, part, parts) : Range{0, padded_rows};
    const Range q = by_rows ? Range{0, padded_queries} : range_of(padded_queries, SIDE, part, parts);
    float* row_to = &row_parts[(by_rows ? 0 : part) * padded_rows * width];
    float* offset_to = &offset_parts[(by_rows ? 0 : part) * padded_rows];
    float* query_to = &query_parts[(by_rows ? part : 0) * padded_queries * width];
    std::fill(row_to + r.start * width, row_to + r.stop * width, 0.0f);
    std::fill(offset_to + r.start, offset_to + r.stop, 0.0f);
    std::fill(query_to + q.start * width, query_to + q.stop * width, 0.0f);
    // three matrices of queries stay in the L2 cache
    const int64_t step = std::max(SIDE, QUERY_BYTES / (8 * width) / SIDE * SIDE);
    for (int64_t first = q.start; first < q.stop; first += step)
      for (int64_t at = r.start; at < r.stop; at += SIDE)
        add_block(at, first, std::min(first + step, q.stop), &blocks[part * SIDE * width], row_to,
                  offset_to, query_to);
  }

  // Adds up the parts of row `p`.
  void row_grad(int64_t p, float* to, float* offset_to) const {
    const int64_t copies = by_rows ? 1 : parts;
    std::copy_n(&row_parts[p * width], dim, to);
    *offset_to = offset_parts[p];
    for (int64_t part = 1; part < copies; ++part) {
      const float* more = &row_parts[(part * padded_rows + p) * width];
      for (int64_t d = 0; d < dim; ++d) to[d] += more[d];
      *offset_to += offset_parts[part * padded_rows + p];
    }
  }

  void query_grad(int64_t q, float* to) const {
    const int64_t copies = by_rows ? parts : 1;
    std::copy_n(&query_parts[q * width], dim, to);
    for (int64_t part = 1; part < copies; ++part) {
      const float* more = &query_parts[(part * padded_queries + q) * width];
      for (int64_t d = 0; d < dim; ++d) to[d] += more[d];
    }
  }

 private:
  int64_t num_parts() const {
    const int64_t blocks = std::max(padded_rows, padded_queries) / SIDE;
    return std::min({tasks_for(3 * padded_rows * padded_queries * dim), MOST_PARTS,
                     std::max<int64_t>(1, blocks)});
  }

  // Adds the shares of rows at .. at + 48 in the sums of queries start .. stop.
  void add_block(int64_t at, int64_t start, int64_t stop, float* copied, float* row_to,
                 float* offset_to, float* query_to) const {
    const int64_t count = std::min(SIDE, rows.count - at);
    alignas(64) float tiles[SIDE * SIDE], offset[SIDE], mass[SIDE * LANES] = {};
    const float* block = copied;
    if (!rows.table.half && !rows.ids && dim == width && count == SIDE) {
      block = static_cast<const float*>(rows.table.rows) + at * dim;
    } else {
      std::fill_n(copied, SIDE * width, 0.0f);
      for (int64_t i = 0; i < count; ++i) rows.table.copy(rows.id(at + i), copied + i * width);
    }
    for (int64_t i = 0; i < SIDE; ++i)  // rows of padding have a score of -inf and no share
      offset[i] = i < count ? (rows.offset ? rows.offset[at + i] : 0.0f) : -INFINITY;
    for (int64_t first = start; first < stop; first += SIDE) {
      const int64_t wide = std::min(SIDE / PANEL, panels.count - first / PANEL);
      for (int64_t j = 0; j < wide; ++j) {
        const int64_t panel = first / PANEL + j;
        const float *references = &reference[panel * PANEL], *shares = &share[panel * PANEL];
        const Floats far[WIDE] = {load(references), load(references + LANES)};
        const Floats times[WIDE] = {load(shares), load(shares + LANES)};
        const Hits::Hit *hit = hits.from(panel, at), *end = hits.end(panel);
        for (int64_t t = 0; t < SIDE; t += HIGH) {
          Floats score[HIGH][WIDE];
          multiply(block + t * width, width, offset + t, panels[panel], dim, score);
          hit = mask_hits(hit, end, at + t, score);
          for (int r = 0; r < HIGH; ++r) {
            Floats sum = load(&mass[(t + r) * LANES]);
            for (int w = 0; w < WIDE; ++w) {
              const Floats part = exp2_of(score[r][w] - far[w], LOG2_E) * times[w];
              store(&tiles[(t + r) * SIDE + j * PANEL + w * LANES], part);
              sum += part;
            }
            store(&mass[(t + r) * LANES], sum);
          }
        }
      }
      for (int64_t i = 0; i < SIDE && wide < SIDE / PANEL; ++i)  // clear what was left before
        std::fill_n(&tiles[i * SIDE + wide * PANEL], SIDE - wide * PANEL, 0.0f);
      for (int64_t c = 0; c < width; c += PANEL) {
        for (int64_t i = 0; i < SIDE; i += HIGH)
          add_product(&tiles[i * SIDE], SIDE, 1, &query[first * width] + c, width, SIDE,
                      row_to + (at + i) * width + c);
        for (int64_t q = 0; q < SIDE; q += HIGH)
          add_product(&tiles[q], 1, SIDE, block + c, width, SIDE,
                      query_to + (first + q) * width + c);
      }
    }
    for (int64_t i = 0; i < count; ++i) offset_to[at + i] += sum_of(load(&mass[i * LANES]));
  }
};

}  // namespace tapas
