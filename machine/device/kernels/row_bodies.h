#pragma once
// Bodies of the row-wise kernels: functors (row, lanes). The lanes of a row share its columns:
//   lanes.each(n, f)            f(col) for every col < n
//   lanes.template sum<A>(n, f) the sum of f(col), known to every lane, in an order fixed by n
//   lanes.template max<A>(n, f) the maximum of f(col), likewise; minus infinity if n is 0
//   lanes.template remember<A>(n, f, use)   use(f), or use of the stored f(col) for every col < n
//   lanes.sums_before(n, f, put) put(col, the sum of f over the columns before it), in int32;
//                               returns the sum of all
//   lanes.list(n, is, put)      put(j, col) for the j-th col for which is(col)
//   lanes.leads()               true in the one lane that writes per-row results
// A value that one `each` writes may be read only by the same column of a later `each`.

#include <cstdint>

#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/functions.h"

namespace machine::kernel {

template <class T>
struct AddBias {
  const T *x, *bias;
  T* out;
  std::int64_t cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    const T *in = x + row * cols, *shift = bias;
    T* to = out + row * cols;
    lanes.each(cols, [=](std::int64_t c) { to[c] = narrow<T>(widen(in[c]) + widen(shift[c])); });
  }
};

// Ba, Kiros, Hinton 2016, arXiv:1607.06450. Computes the variance from the deviations, not from
// E[x^2].
template <class T>
struct LayerNorm {
  const T *x, *gain, *bias;
  T* out;
  Value<T>*mean, *rstd;
  std::int64_t cols;
  Value<T> epsilon;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain, *shift = bias;
    T* to = out + row * cols;
    const A mu = lanes.template sum<A>(cols, [=](std::int64_t c) { return widen(in[c]); }) /
                 static_cast<A>(cols);
    const A squares = lanes.template sum<A>(cols, [=](std::int64_t c) {
      const A deviation = widen(in[c]) - mu;
      return deviation * deviation;
    });
    const A r = A(1) / square_root(squares / static_cast<A>(cols) + epsilon);
    lanes.each(cols, [=](std::int64_t c) {
      to[c] = narrow<T>((widen(in[c]) - mu) * r * widen(scale[c]) + widen(shift[c]));
    });
    if (lanes.leads()) {
      mean[row] = mu;
      rstd[row] = r;
    }
  }
};

// With n = (x - mean) rstd and g = d_out gain: d_x = rstd (g - mean(g) - n mean(g n)).
template <class T>
struct LayerNormBackwardInput {
  const T *x, *gain;
  const Value<T>*mean, *rstd;
  const T* d_out;
  T* d_x;
  std::int64_t cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain, *slope = d_out + row * cols;
    T* to = d_x + row * cols;
    const A mu = mean[row], r = rstd[row];
    const A sum = lanes.template sum<A>(
        cols, [=](std::int64_t c) { return widen(slope[c]) * widen(scale[c]); });
    const A dot = lanes.template sum<A>(cols, [=](std::int64_t c) {
      return widen(slope[c]) * widen(scale[c]) * ((widen(in[c]) - mu) * r);
    });
    const A mean_g = sum / static_cast<A>(cols), mean_gn = dot / static_cast<A>(cols);
    lanes.each(cols, [=](std::int64_t c) {
      const A n = (widen(in[c]) - mu) * r;
      to[c] = narrow<T>(r * ((widen(slope[c]) * widen(scale[c]) - mean_g) - n * mean_gn));
    });
  }
};

// The number of keys that each row of scores [matrices, queries, keys] sees.
struct SeenKeys {
  SoftmaxMask mask;
  std::int64_t queries, keys;
  SeenKeys(const SoftmaxMask& mask, std::int64_t queries, std::int64_t keys)
      : mask(mask), queries(queries), keys(keys) {}
  SHARDMARK_BOTH std::int64_t of_row(std::int64_t row) const {
    const std::int64_t sequence = row / queries / mask.matrices % mask.sequences;
    const std::int64_t length = keys_of(mask.lengths, sequence, keys), query = row % queries;
    return mask.causal && query + 1 < length ? query + 1 : length;
  }
};

// Rows are (matrix, query).
template <class T>
struct MaskedSoftmax {
  const T* scores;
  T* probabilities;
  SeenKeys mask;
  Value<T> scale;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const std::int64_t keys = mask.keys, seen = mask.of_row(row);
    const T* in = scores + row * keys;
    T* to = probabilities + row * keys;
    const A factor = scale;
    const A top =
        lanes.template max<A>(seen, [=](std::int64_t c) { return widen(in[c]) * factor; });
    lanes.template remember<A>(
        seen, [=](std::int64_t c) { return exponential(widen(in[c]) * factor - top); },
        [&](const auto& weight) {
          const A share = A(1) / lanes.template sum<A>(seen, weight);
          lanes.each(seen, [=](std::int64_t c) { to[c] = narrow<T>(weight(c) * share); });
        });
    lanes.each(keys - seen, [=](std::int64_t c) { to[seen + c] = T(A(0)); });
  }
};

template <class T>
struct MaskedSoftmaxBackward {
  const T *probabilities, *d_probabilities;
  T* d_scores;
  SeenKeys mask;
  Value<T> scale;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const std::int64_t keys = mask.keys, seen = mask.of_row(row);
    const T *p = probabilities + row * keys, *slope = d_probabilities + row * keys;
    T* to = d_scores + row * keys;
    const A factor = scale;
    const A dot =
        lanes.template sum<A>(seen, [=](std::int64_t c) { return widen(slope[c]) * widen(p[c]); });
    lanes.each(seen, [=](std::int64_t c) {
      to[c] = narrow<T>(factor * (widen(p[c]) * (widen(slope[c]) - dot)));
    });
    lanes.each(keys - seen, [=](std::int64_t c) { to[seen + c] = T(A(0)); });
  }
};

template <class T>
struct Embedding {
  const std::int32_t* tokens;
  const T* table;
  T* out;
  std::int64_t first_row, table_rows, cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    T* to = out + row * cols;
    const std::int64_t entry = tokens[row] - first_row;
    if (entry < 0 || entry >= table_rows) {
      lanes.each(cols, [=](std::int64_t c) { to[c] = T(Value<T>(0)); });
    } else {
      const T* from = table + entry * cols;
      lanes.each(cols, [=](std::int64_t c) { to[c] = from[c]; });
    }
  }
};

// In RowMax, ExpSums and CrossEntropyBackward, the columns from real_cols on are padding.
template <class T>
struct RowMax {
  const T* in;
  Value<T>* out;
  std::int64_t cols, real_cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    const T* from = in + row * cols;
    const auto top =
        lanes.template max<Value<T>>(real_cols, [=](std::int64_t c) { return widen(from[c]); });
    if (lanes.leads()) out[row] = top;
  }
};

template <class T>
struct ExpSums {
  const T* logits;
  const Value<T>* max;
  const std::int32_t* targets;
  std::int64_t first_col, cols, real_cols;
  Value<T>*sum_exp, *target;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T* in = logits + row * cols;
    const A top = max[row];
    const A sum = lanes.template sum<A>(
        real_cols, [=](std::int64_t c) { return exponential(widen(in[c]) - top); });
    if (lanes.leads()) {
      const std::int64_t col = targets[row] - first_col;
      sum_exp[row] = sum;
      target[row] = col >= 0 && col < real_cols ? widen(in[col]) - top : A(0);
    }
  }
};

template <class T>
struct CrossEntropyBackward {
  const T* logits;
  const Value<T>*max, *sum_exp;
  const std::int32_t* targets;
  T* d_logits;
  std::int64_t first_col, cols, real_cols;
  Value<T> factor;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T* in = logits + row * cols;
    T* to = d_logits + row * cols;
    if (targets[row] < 0) {  // the gradient is zero even if logits are NaN
      lanes.each(cols, [=](std::int64_t c) { to[c] = T(A(0)); });
      return;
    }
    const A top = max[row], share = A(1) / sum_exp[row], f = factor;
    const std::int64_t col = targets[row] - first_col;
    const std::int64_t real = real_cols;
    lanes.each(real, [=](std::int64_t c) {
      const A probability = exponential(widen(in[c]) - top) * share;
      to[c] = narrow<T>(f * (c == col ? probability - A(1) : probability));
    });
    lanes.each(cols - real, [=](std::int64_t c) { to[real + c] = T(A(0)); });
  }
};

}  // namespace machine::kernel
