#pragma once
// Bodies of the optimizers (kernels.h): one step for one element, and wrappers for a decay mask and
// for weights narrower than their master. Values common to all elements are computed in double and
// rounded once.

#include <cmath>
#include <cstdint>

#include "machine/device/kernels.h"
#include "machine/device/kernels/functions.h"

namespace machine::kernel {

template <class A>
struct Descend {
  A gradient_scale, learning_rate;

  Descend(double scale, double rate)
      : gradient_scale(static_cast<A>(scale)), learning_rate(static_cast<A>(rate)) {}

  SHARDMARK_BOTH void operator()(A raw, bool /*decays*/, A& master) const {
    master = master - learning_rate * (raw * gradient_scale);
  }
};

// The scaled gradient, plus the decay if it applies.
template <class A>
struct DecayedGradient {
  A scale, decay;
  SHARDMARK_BOTH A operator()(A raw, bool decays, A master) const {
    return raw * scale + (decays ? decay * master : A(0));
  }
};

template <class A>
struct MomentumStep {
  DecayedGradient<A> gradient;
  A learning_rate, momentum;

  MomentumStep(const Momentum& options, double scale)
      : gradient{static_cast<A>(scale), static_cast<A>(options.weight_decay)},
        learning_rate(static_cast<A>(options.learning_rate)),
        momentum(static_cast<A>(options.momentum)) {}

  SHARDMARK_BOTH void operator()(A raw, bool decays, A& master, A& velocity) const {
    velocity = momentum * velocity + gradient(raw, decays, master);
    master = master - learning_rate * velocity;
  }
};

template <class A>
struct RmsPropStep {
  DecayedGradient<A> gradient;
  A learning_rate, smoothing, one_minus_smoothing, epsilon;

  RmsPropStep(const RmsProp& options, double scale)
      : gradient{static_cast<A>(scale), static_cast<A>(options.weight_decay)},
        learning_rate(static_cast<A>(options.learning_rate)),
        smoothing(static_cast<A>(options.smoothing)),
        one_minus_smoothing(static_cast<A>(1 - options.smoothing)),
        epsilon(static_cast<A>(options.epsilon)) {}

  SHARDMARK_BOTH void operator()(A raw, bool decays, A& master, A& second) const {
    const A g = gradient(raw, decays, master);
    second = smoothing * second + one_minus_smoothing * (g * g);
    master = master - learning_rate * (g / (square_root(second) + epsilon));
  }
};

// Adam's direction, m^ / (sqrt(v^) + epsilon). The bias corrections are factors, because memory
// accesses would not hide two divisions.
template <class A>
struct Moments {
  A beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  A correction1, correction2;  // 1 / (1 - beta^step)

  template <class Options>
  Moments(const Options& options, std::int64_t step)
      : beta1(static_cast<A>(options.beta1)),
        one_minus_beta1(static_cast<A>(1 - options.beta1)),
        beta2(static_cast<A>(options.beta2)),
        one_minus_beta2(static_cast<A>(1 - options.beta2)),
        epsilon(static_cast<A>(options.epsilon)),
        correction1(static_cast<A>(1 / (1 - std::pow(options.beta1, static_cast<double>(step))))),
        correction2(static_cast<A>(1 / (1 - std::pow(options.beta2, static_cast<double>(step))))) {}

  SHARDMARK_BOTH A direction(A g, A& first, A& second) const {
    first = beta1 * first + one_minus_beta1 * g;
    second = beta2 * second + one_minus_beta2 * (g * g);
    return first * correction1 / (square_root(second * correction2) + epsilon);
  }
};

template <class A>
struct AdamStep {
  DecayedGradient<A> gradient;
  Moments<A> moments;
  A learning_rate;

  AdamStep(const Adam& options, double scale, std::int64_t step)
      : gradient{static_cast<A>(scale), static_cast<A>(options.weight_decay)},
        moments(options, step),
        learning_rate(static_cast<A>(options.learning_rate)) {}

  SHARDMARK_BOTH void operator()(A raw, bool decays, A& master, A& first, A& second) const {
    const A direction = moments.direction(gradient(raw, decays, master), first, second);
    master = master - learning_rate * direction;
  }
};

template <class A>
struct AdamwStep {
  Moments<A> moments;
  A gradient_scale, learning_rate, decay;

  AdamwStep(const AdamW& options, double scale, std::int64_t step)
      : moments(options, step),
        gradient_scale(static_cast<A>(scale)),
        learning_rate(static_cast<A>(options.learning_rate)),
        decay(static_cast<A>(options.weight_decay)) {}

  SHARDMARK_BOTH void operator()(A raw, bool decays, A& master, A& first, A& second) const {
    const A direction = moments.direction(raw * gradient_scale, first, second);
    const A shrink = decays ? decay * master : A(0);
    master = master - learning_rate * (direction + shrink);
  }
};

template <class A>
struct LionStep {
  A beta1, one_minus_beta1, beta2, one_minus_beta2;
  A gradient_scale, learning_rate, decay;

  LionStep(const Lion& options, double scale)
      : beta1(static_cast<A>(options.beta1)),
        one_minus_beta1(static_cast<A>(1 - options.beta1)),
        beta2(static_cast<A>(options.beta2)),
        one_minus_beta2(static_cast<A>(1 - options.beta2)),
        gradient_scale(static_cast<A>(scale)),
        learning_rate(static_cast<A>(options.learning_rate)),
        decay(static_cast<A>(options.weight_decay)) {}

  SHARDMARK_BOTH void operator()(A raw, bool decays, A& master, A& first) const {
    const A g = raw * gradient_scale;
    const A moved = beta1 * first + one_minus_beta1 * g;
    const A sign = moved > A(0) ? A(1) : moved < A(0) ? A(-1) : moved;  // of NaN: NaN
    const A shrink = decays ? decay * master : A(0);
    master = master - learning_rate * (sign + shrink);
    first = beta2 * first + one_minus_beta2 * g;
  }
};

template <class Update>
struct DecayEverywhere {
  Update update;
  template <class A, class... States>
  SHARDMARK_BOTH void operator()(A& master, A gradient, States&... states) const {
    update(gradient, true, master, states...);
  }
};

template <class Update>
struct DecayByMask {
  Update update;
  template <class A, class... States>
  SHARDMARK_BOTH void operator()(A& master, A gradient, std::uint8_t decays,
                                 States&... states) const {
    update(gradient, decays != 0, master, states...);
  }
};

template <class Step>
struct Rounded {
  Step step;
  template <class W, class A, class... Rest>
  SHARDMARK_BOTH void operator()(W& weight, A& master, Rest&... rest) const {
    step(master, rest...);
    weight = static_cast<W>(master);
  }
};

}  // namespace machine::kernel
