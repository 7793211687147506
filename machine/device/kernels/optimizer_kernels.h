#pragma once
// The optimizers of Kernels, each one pass over its tensors, over a Launch that runs a body on a
// device (element_kernels.h).

#include "machine/device/kernels/block_kernels.h"
#include "machine/device/kernels/optimizer_bodies.h"

namespace machine::kernel {

template <class Launch>
class OptimizerKernels : public BlockKernels<Launch> {
 public:
  using BlockKernels<Launch>::BlockKernels;

  void sgd(const Tensor& gradient, double gradient_scale, double learning_rate,
           const Tensor& master, const Tensor& weight) override;
  void momentum(const Tensor& gradient, double gradient_scale, const Momentum& options,
                const std::uint8_t* decay_mask, const Tensor& master, const Tensor& velocity,
                const Tensor& weight) override;
  void rmsprop(const Tensor& gradient, double gradient_scale, const RmsProp& options,
               const std::uint8_t* decay_mask, const Tensor& master, const Tensor& second_moment,
               const Tensor& weight) override;
  void adam(const Tensor& gradient, double gradient_scale, const Adam& options, std::int64_t step,
            const std::uint8_t* decay_mask, const Tensor& master, const Tensor& first_moment,
            const Tensor& second_moment, const Tensor& weight) override;
  void adamw(const Tensor& gradient, double gradient_scale, const AdamW& options, std::int64_t step,
             const std::uint8_t* decay_mask, const Tensor& master, const Tensor& first_moment,
             const Tensor& second_moment, const Tensor& weight) override;
  void lion(const Tensor& gradient, double gradient_scale, const Lion& options,
            const std::uint8_t* decay_mask, const Tensor& master, const Tensor& first_moment,
            const Tensor& weight) override;

 private:
  struct Call {
    const char* name;
    const Tensor& gradient;
    const std::uint8_t* decay_mask;
    const Tensor &master, &weight;
  };

  // make(A{}) returns the body for float or double. Separate weights of the master's dtype need
  // another pass, because no training has both.
  template <class Make, class... States>
  void update(const Call& call, const Make& make, const States&... states) {
    this->check_alike(call.master, {&states...});
    this->check({&call.gradient, &call.weight});
    check_sizes(call.master.size(), {&call.gradient, &call.weight});
    this->visit_wide(call.name, call.master.dtype(), [&]<class A>(A) {
      const auto body = make(A{});
      using Body = std::decay_t<decltype(body)>;
      // `weight`: the weights, if they are narrower. `rounding`: rounds the master to them.
      const auto run = [&]<class G>(In<G> gradient, const auto& rounding, const auto&... weight) {
        const std::int64_t count = call.master.size();
        const InOut<A> master(call.master);
        if constexpr (sizeof...(states) > 0) {  // plain SGD has no decay
          if (call.decay_mask)
            return this->launch_.update(count, rounding(DecayByMask<Body>{body}), weight..., master,
                                        gradient, In<std::uint8_t>(call.decay_mask),
                                        InOut<A>(states)...);
        }
        this->launch_.update(count, rounding(DecayEverywhere<Body>{body}), weight..., master,
                             gradient, InOut<A>(states)...);
      };
      const auto rounded = [](const auto& step) {
        return Rounded<std::decay_t<decltype(step)>>{step};
      };
      const bool is_wide = call.gradient.dtype() == call.master.dtype();
      if (call.weight.dtype() == call.master.dtype() && is_wide) {
        run(In<A>(call.gradient), [](const auto& step) { return step; });
        if (call.weight.data() != call.master.data()) this->cast(call.master, call.weight);
        return;
      }
      const auto narrow = [&]<class T>(T) {
        const Out<T> weight(call.weight);
        if (is_wide)
          run(In<A>(call.gradient), rounded, weight);
        else
          run(In<T>(call.gradient), rounded, weight);
      };
      const bool fits = is_wide || call.gradient.dtype() == call.weight.dtype();
      if constexpr (std::is_same_v<A, float>) {
        if (fits && call.weight.dtype() == Dtype::bfloat16) return narrow(Bfloat16{});
        if (fits && call.weight.dtype() == Dtype::float16) return narrow(Half{});
      }
      refuse_dtypes(call.name, call.gradient.dtype(), call.weight.dtype());
    });
  }
};

// Outside of the class: only then does a file that declares an instantiation extern compile none of
// it.

template <class Launch>
void OptimizerKernels<Launch>::sgd(const Tensor& gradient, double gradient_scale,
                                   double learning_rate, const Tensor& master,
                                   const Tensor& weight) {
  update({"sgd", gradient, nullptr, master, weight},
         [&]<class A>(A) { return Descend<A>(gradient_scale, learning_rate); });
}

template <class Launch>
void OptimizerKernels<Launch>::momentum(const Tensor& gradient, double gradient_scale,
                                        const Momentum& options, const std::uint8_t* decay_mask,
                                        const Tensor& master, const Tensor& velocity,
                                        const Tensor& weight) {
  update(
      {"momentum", gradient, decay_mask, master, weight},
      [&]<class A>(A) { return MomentumStep<A>(options, gradient_scale); }, velocity);
}

template <class Launch>
void OptimizerKernels<Launch>::rmsprop(const Tensor& gradient, double gradient_scale,
                                       const RmsProp& options, const std::uint8_t* decay_mask,
                                       const Tensor& master, const Tensor& second_moment,
                                       const Tensor& weight) {
  update(
      {"rmsprop", gradient, decay_mask, master, weight},
      [&]<class A>(A) { return RmsPropStep<A>(options, gradient_scale); }, second_moment);
}

template <class Launch>
void OptimizerKernels<Launch>::adam(const Tensor& gradient, double gradient_scale,
                                    const Adam& options, std::int64_t step,
                                    const std::uint8_t* decay_mask, const Tensor& master,
                                    const Tensor& first_moment, const Tensor& second_moment,
                                    const Tensor& weight) {
  update(
      {"adam", gradient, decay_mask, master, weight},
      [&]<class A>(A) { return AdamStep<A>(options, gradient_scale, step); }, first_moment,
      second_moment);
}

template <class Launch>
void OptimizerKernels<Launch>::adamw(const Tensor& gradient, double gradient_scale,
                                     const AdamW& options, std::int64_t step,
                                     const std::uint8_t* decay_mask, const Tensor& master,
                                     const Tensor& first_moment, const Tensor& second_moment,
                                     const Tensor& weight) {
  update(
      {"adamw", gradient, decay_mask, master, weight},
      [&]<class A>(A) { return AdamwStep<A>(options, gradient_scale, step); }, first_moment,
      second_moment);
}

template <class Launch>
void OptimizerKernels<Launch>::lion(const Tensor& gradient, double gradient_scale,
                                    const Lion& options, const std::uint8_t* decay_mask,
                                    const Tensor& master, const Tensor& first_moment,
                                    const Tensor& weight) {
  update(
      {"lion", gradient, decay_mask, master, weight},
      [&]<class A>(A) { return LionStep<A>(options, gradient_scale); }, first_moment);
}

}  // namespace machine::kernel
