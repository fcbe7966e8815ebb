// The update formulas of optim/row_updates.py, for one row at a time.
#pragma once

#include <cmath>

#include "draws.h"
#include "tiles.h"

namespace tapas {

// Whether all ids are in 0 .. bound - 1.
static inline bool all_below(const int64_t* ids, int64_t count, int64_t bound) {
  bool below = true;
  for (int64_t i = 0; i < count; ++i) below &= static_cast<uint64_t>(ids[i]) < static_cast<uint64_t>(bound);
  return below;
}

// The sum of squares, in double precision: the square of a large float overflows.
static inline double square_sum(const float* x, int64_t count) {
  double sum[LANES] = {}, rest = 0.0;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int j = 0; j < LANES; ++j) sum[j] += static_cast<double>(x[i + j]) * x[i + j];
  for (; i < count; ++i) rest += static_cast<double>(x[i]) * x[i];
  for (int j = 0; j < LANES; ++j) rest += sum[j];
  return rest;
}

// Groups equal ids of a list, without negative ones.
class Groups {
 public:
  Groups(const int64_t* ids, int64_t count, int64_t bound) {
    sorted_.reserve(count);
    bool ascending = true;
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0) continue;
      ascending &= sorted_.empty() || ids[i] > sorted_.back().id;
      sorted_.push_back({ids[i], i});
    }
    if (!ascending) sort_by_id(sorted_, bound);  // stable: equal ids keep their order
    const int64_t found = sorted_.size();
    start_.reserve(found + 1);
    for (int64_t i = 0; i < found; ++i)
      if (i == 0 || sorted_[i].id != sorted_[i - 1].id) start_.push_back(i);
    start_.push_back(found);
  }

  int64_t count() const { return start_.size() - 1; }
  int64_t id(int64_t group) const { return sorted_[start_[group]].id; }
  // The positions in the list of the group's ids: begin .. end - 1 with `position`.
  int64_t begin(int64_t group) const { return start_[group]; }
  int64_t end(int64_t group) const { return start_[group + 1]; }
  int64_t position(int64_t at) const { return sorted_[at].number; }

  void sum(int64_t group, const float* grad, int64_t dim, float* to) const {
    std::copy_n(grad + sorted_[start_[group]].number * dim, dim, to);
    for (int64_t i = start_[group] + 1; i < start_[group + 1]; ++i) {
      const float* more = grad + sorted_[i].number * dim;
      for (int64_t d = 0; d < dim; ++d) to[d] += more[d];
    }
  }

 private:
  std::vector<Numbered> sorted_;  // id, and its position in the list
  std::vector<int64_t> start_;
};

enum Rule { SGD = 0, ADAGRAD = 1, ROWWISE_ADAGRAD = 2, LAZY_ADAM = 3 };

// Rows (num_rows, dim), gradients of some of them (count, dim), and the state of all rows.
struct RowsToMove {
  int64_t dim;
  float* rows;
  const float* grad;
  float *first_state, *second_state;

  void prefetch(int rule, int64_t id) const {
    touch(rows, id, dim);
    if (first_state) touch(first_state, id, rule == ROWWISE_ADAGRAD ? 1 : dim);
    if (second_state) touch(second_state, id, dim);
  }

 private:
  static void touch(const float* rows, int64_t id, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(rows + id * dim + d, 1);
  }
};

// numbers: learning rate, weight decay, then
//   Adagrad, row-wise Adagrad: eps
//   lazy Adam:                 eps, 1 - beta1, beta2, 1 - beta2, correction of the learning rate
static inline void move_row(int rule, const float* numbers, float decay, int64_t id, float* grad,
                            const RowsToMove& what) {
  const int64_t dim = what.dim;
  float *row = what.rows + id * dim, *first_state = what.first_state;
  const float lr = numbers[0];
  if (decay != 0.0f)
    for (int64_t d = 0; d < dim; ++d) grad[d] += decay * row[d];
  if (rule == SGD) {
    for (int64_t d = 0; d < dim; ++d) row[d] -= lr * grad[d];
  } else if (rule == ADAGRAD) {
    float* sum = first_state + id * dim;
    for (int64_t d = 0; d < dim; ++d) {
      sum[d] += grad[d] * grad[d];
      row[d] -= lr * grad[d] / (std::sqrt(sum[d]) + numbers[2]);
    }
  } else if (rule == ROWWISE_ADAGRAD) {
    float square = 0.0f;
    for (int64_t d = 0; d < dim; ++d) square += grad[d] * grad[d];
    first_state[id] += square / dim;
    const float step = lr / (std::sqrt(first_state[id]) + numbers[2]);
    for (int64_t d = 0; d < dim; ++d) row[d] -= step * grad[d];
  } else {
    float *mean = first_state + id * dim, *variance = what.second_state + id * dim;
    const float eps = numbers[2], step = lr * numbers[6];
    for (int64_t d = 0; d < dim; ++d) {
      mean[d] += numbers[3] * (grad[d] - mean[d]);
      variance[d] = numbers[4] * variance[d] + numbers[5] * grad[d] * grad[d];
      row[d] -= step * mean[d] / (std::sqrt(variance[d]) + eps);
    }
  }
}

}  // namespace tapas
