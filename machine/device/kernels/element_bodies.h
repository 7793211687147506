#pragma once
// Bodies of the elementwise kernels: functors over values (fields.h), the outputs by reference.

#include <cmath>
#include <cstdint>

#include "machine/device/kernels.h"
#include "machine/device/kernels/functions.h"
#include "machine/device/random.h"

namespace machine::kernel {

template <class A>
struct Fill {
  A value;
  SHARDMARK_BOTH void operator()(A& out) const { out = value; }
};

struct Convert {
  template <class From, class To>
  SHARDMARK_BOTH void operator()(From in, To& out) const {
    out = static_cast<To>(in);
  }
};

template <class A>
struct Add {
  SHARDMARK_BOTH void operator()(A a, A b, A& out) const { out = a + b; }
};

template <class A>
struct Max {
  SHARDMARK_BOTH void operator()(A a, A b, A& out) const { out = a < b ? b : a; }
};

template <class A>
struct Scale {
  A factor;
  SHARDMARK_BOTH void operator()(A in, A& out) const { out = in * factor; }
};

template <class A>
struct Accumulate {
  SHARDMARK_BOTH void operator()(A in, A& out) const { out = out + in; }
};

template <class A>
struct Triad {
  A factor;
  SHARDMARK_BOTH void operator()(A a, A b, A& out) const { out = a + factor * b; }
};

// Where element i of a shard lies in its global matrix.
struct GlobalIndex {
  std::int64_t cols;
  Region region;
  SHARDMARK_BOTH std::uint64_t operator()(std::int64_t i) const {
    const std::int64_t row = region.row + i / cols, col = region.col + i % cols;
    return static_cast<std::uint64_t>(row * region.global_cols + col);
  }
};

// Box and Muller (1958), in double whatever the tensor's type.
template <class A>
struct FillNormal {
  std::uint64_t seed;
  GlobalIndex index;
  double mean, stddev;
  SHARDMARK_BOTH void operator()(std::int64_t i, A& out) const {
    const auto words = philox(seed, index(i));
    const double first = (words[0] + 1.0) * 0x1p-32;  // in (0, 1], for the logarithm
    const double second = words[1] * 0x1p-32;
    const double normal = sqrt(-2.0 * log(first)) * cos(6.283185307179586 * second);
    out = static_cast<A>(mean + stddev * normal);
  }
};

template <class A>
struct FillUniform {
  std::uint64_t seed;
  GlobalIndex index;
  double low, high;
  SHARDMARK_BOTH void operator()(std::int64_t i, A& out) const {
    out = static_cast<A>(low + (high - low) * uniform(seed, index(i)));
  }
};

template <class A>
struct GeluForward {
  SHARDMARK_BOTH void operator()(A x, A& out) const { out = Gelu<A>::value(x); }
};

template <class A>
struct GeluBackward {
  SHARDMARK_BOTH void operator()(A x, A d_out, A& d_x) const {
    d_x = d_out * Gelu<A>::derivative(x);
  }
};

template <class A>
struct CrossEntropy {
  SHARDMARK_BOTH void operator()(A sum_exp, A target, A& loss) const {
    loss = static_cast<A>(log(static_cast<double>(sum_exp)) - static_cast<double>(target));
  }
};

template <class A>
struct SgdStep {
  A gradient_scale, learning_rate;
  template <class W>
  SHARDMARK_BOTH void operator()(A gradient, A& master, W& weight) const {
    master = master - learning_rate * (gradient * gradient_scale);
    weight = static_cast<W>(master);
  }
};

// Adam with decoupled weight decay: Loshchilov and Hutter 2019, arXiv:1711.05101.
template <class A>
struct AdamwStep {
  A gradient_scale, learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, decay;
  A correction1, correction2;  // 1 - beta^step

  AdamwStep(const AdamW& options, double scale, std::int64_t step)
      : gradient_scale(static_cast<A>(scale)),
        learning_rate(static_cast<A>(options.learning_rate)),
        beta1(static_cast<A>(options.beta1)),
        one_minus_beta1(static_cast<A>(1 - options.beta1)),
        beta2(static_cast<A>(options.beta2)),
        one_minus_beta2(static_cast<A>(1 - options.beta2)),
        epsilon(static_cast<A>(options.epsilon)),
        decay(static_cast<A>(options.weight_decay)),
        correction1(static_cast<A>(1 - std::pow(options.beta1, static_cast<double>(step)))),
        correction2(static_cast<A>(1 - std::pow(options.beta2, static_cast<double>(step)))) {}

  template <class W>
  SHARDMARK_BOTH void operator()(A raw, std::uint8_t decays, A& master, A& first, A& second,
                                 W& weight) const {
    const A gradient = raw * gradient_scale;
    first = beta1 * first + one_minus_beta1 * gradient;
    second = beta2 * second + one_minus_beta2 * (gradient * gradient);
    const A direction = (first / correction1) / (square_root(second / correction2) + epsilon);
    const A shrink = decays != 0 ? decay * master : A(0);
    master = master - learning_rate * (direction + shrink);
    weight = static_cast<W>(master);
  }
};

}  // namespace machine::kernel
