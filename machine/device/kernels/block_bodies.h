#pragma once
// Bodies of newer transformer blocks: RMSNorm by rows (row_bodies.h) and columns
// (column_kernels.h), SwiGLU and dropout by elements (element_bodies.h), rotation by pairs. The
// merge of two attentions by rows.

#include <cmath>
#include <cstdint>
#include <limits>

#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/functions.h"
#include "machine/device/kernels/sums.h"
#include "machine/device/random.h"

namespace machine::kernel {

template <class T>
struct RmsNorm {
  const T *x, *gain;
  T* out;
  Value<T>* rstd;
  std::int64_t cols;
  Value<T> epsilon;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain;
    T* to = out + row * cols;
    const A squares =
        lanes.template sum<A>(cols, [=](std::int64_t c) { return widen(in[c]) * widen(in[c]); });
    const A r = A(1) / square_root(squares / static_cast<A>(cols) + epsilon);
    lanes.each(cols,
               [=](std::int64_t c) { to[c] = narrow<T>(widen(in[c]) * r * widen(scale[c])); });
    if (lanes.leads()) rstd[row] = r;
  }
};

// With n = x rstd and g = d_out gain: d_x = rstd (g - n mean(g n)).
template <class T>
struct RmsNormBackwardInput {
  const T *x, *gain;
  const Value<T>* rstd;
  const T* d_out;
  T* d_x;
  std::int64_t cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain, *slope = d_out + row * cols;
    T* to = d_x + row * cols;
    const A r = rstd[row];
    const A dot = lanes.template sum<A>(cols, [=](std::int64_t c) {
      return widen(slope[c]) * widen(scale[c]) * (widen(in[c]) * r);
    });
    const A mean = dot / static_cast<A>(cols);
    lanes.each(cols, [=](std::int64_t c) {
      to[c] = narrow<T>(r * (widen(slope[c]) * widen(scale[c]) - widen(in[c]) * r * mean));
    });
  }
};

template <class T>
struct RmsNormBackwardWeights {
  const T *x, *d_out;
  const Value<T>* rstd;
  std::int64_t cols;
  SHARDMARK_BOTH Sums<1, Value<T>> operator()(std::int64_t row, std::int64_t col) const {
    return {{widen(d_out[row * cols + col]) * (widen(x[row * cols + col]) * rstd[row])}};
  }
};

// Rows are (sequence, head, query). The logarithms are merged by a second kernel, because every
// lane of a row reads them.
template <class T>
struct MergeAttention {
  using A = Value<T>;
  // Distances in elements, from row to row and from matrix to matrix of the batch.
  struct Strides {
    std::int64_t row, outer, inner;
    SHARDMARK_BOTH std::int64_t at(std::int64_t sequence, std::int64_t head,
                                   std::int64_t query) const {
      return sequence * outer + head * inner + query * row;
    }
  };

  const T* block;
  const A* block_log_sum_exp;
  A* out;
  const A* log_sum_exp;
  Strides of_block, of_out;
  std::int64_t block_sums, sums;  // elements from matrix to matrix of the logarithms
  std::int64_t heads, queries, cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    constexpr A no_keys = -std::numeric_limits<A>::infinity();
    const std::int64_t matrix = row / queries, query = row % queries;
    const std::int64_t sequence = matrix / heads, head = matrix % heads;
    const A before = log_sum_exp[matrix * sums + query];
    const A added = block_log_sum_exp[matrix * block_sums + query];
    if (added == no_keys) return;
    const T* in = block + of_block.at(sequence, head, query);
    A* to = out + of_out.at(sequence, head, query);
    if (before == no_keys) {
      lanes.each(cols, [=](std::int64_t c) { to[c] = widen(in[c]); });
      return;
    }
    const A top = before < added ? added : before;
    const A kept = exponential(before - top), joined = exponential(added - top);
    const A whole = A(1) / (kept + joined);
    const A of_before = kept * whole, of_added = joined * whole;
    lanes.each(cols, [=](std::int64_t c) { to[c] = to[c] * of_before + widen(in[c]) * of_added; });
  }
};

// Rows are matrices [sequence, head] of logarithms.
template <class A>
struct MergeLogSumExp {
  const A* block_log_sum_exp;
  A* log_sum_exp;
  std::int64_t block_sums, sums, queries;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t matrix, const Lanes& lanes) const {
    const A* in = block_log_sum_exp + matrix * block_sums;
    A* to = log_sum_exp + matrix * sums;
    lanes.each(queries, [=](std::int64_t query) {
      constexpr A no_keys = -std::numeric_limits<A>::infinity();
      const A before = to[query], added = in[query], top = before < added ? added : before;
      const A terms = exponential(before - top) + exponential(added - top);  // NaN without keys
      const A merged = static_cast<A>(static_cast<double>(top) + log(static_cast<double>(terms)));
      to[query] = top == no_keys ? no_keys : merged;
    });
  }
};

template <class A>
struct SwigluForward {
  SHARDMARK_BOTH void operator()(A gate, A up, A& out) const {
    out = gate / (A(1) + exponential(-gate)) * up;
  }
};

// silu'(x) = s + x s (1 - s) with s = sigmoid(x), whose complement is sigmoid(-x).
template <class A>
struct SwigluBackward {
  SHARDMARK_BOTH void operator()(A gate, A up, A d_out, A& d_gate, A& d_up) const {
    const A decay = exponential(gate < 0 ? gate : -gate);  // at most 1
    const A sum = A(1) + decay;
    const A s = (gate < 0 ? decay : A(1)) / sum;
    const A complement = (gate < 0 ? A(1) : decay) / sum;
    d_gate = d_out * up * (s + gate * (s * complement));
    d_up = d_out * (gate * s);
  }
};

template <class A>
struct Dropout {
  std::uint64_t seed, least_kept;  // compared with the 32 bits of uniform()
  A factor;
  SHARDMARK_BOTH void operator()(std::uint64_t index, A in, A& out) const {
    out = philox(seed, index)[0] >= least_kept ? in * factor : A(0);
  }
};

// The launch computes the turn of each pair of a position and applies it in every matrix of the
// batch.
template <class T>
struct Rotation {
  using A = Value<T>;
  struct Turn {
    A cosine, sine;
  };
  // One position of one head.
  struct Row {
    const T* in;
    T* out;
    std::int64_t half;
    SHARDMARK_BOTH void turn(std::int64_t pair, Turn by) const {
      const A low = widen(in[pair]), high = widen(in[pair + half]);
      out[pair] = narrow<T>(low * by.cosine - high * by.sine);
      out[pair + half] = narrow<T>(high * by.cosine + low * by.sine);
    }
  };

  const T* in;
  T* out;
  std::int64_t positions, pairs, first_position, step;
  std::int64_t outer, inner;  // of the batch
  std::int64_t in_row, in_outer, in_inner, out_row, out_outer, out_inner;
  double base, direction;

  SHARDMARK_BOTH std::int64_t matrices() const { return outer * inner; }
  SHARDMARK_BOTH double frequency(std::int64_t pair) const {
    return pow(base, -static_cast<double>(pair) / static_cast<double>(pairs));
  }
  SHARDMARK_BOTH Turn turn(std::int64_t row, double frequency) const {
    const double angle = static_cast<double>(first_position + step * row) * frequency;
    return {static_cast<A>(cos(angle)), static_cast<A>(direction * sin(angle))};
  }
  SHARDMARK_BOTH Row row(std::int64_t matrix, std::int64_t position) const {
    const std::int64_t a = matrix / inner, b = matrix % inner;
    return {in + a * in_outer + b * in_inner + position * in_row,
            out + a * out_outer + b * out_inner + position * out_row, pairs};
  }
};

}  // namespace machine::kernel
