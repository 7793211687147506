#pragma once
// The body of adamw_8bit.h for CUDA, and the launch of both: a block of moments is a row of the
// launch. A row computes each moment three times: for both scales, and for the update.

#include <cstdint>
#include <stdexcept>

#include "machine/device/dynamic_codes/adamw_8bit.h"
#include "machine/device/dynamic_codes/dynamic_map.h"
#include "machine/device/int_blocks/block_bodies.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/optimizer_bodies.h"

namespace machine::kernel {

// G: of gradients, W: of weights.
template <class G, class W>
struct AdamwOfBlock {
  AdamwStep<float> step;
  std::int64_t elements, blocks;
  const G* gradients;
  const std::uint8_t* decays;  // null: all elements decay
  float* master;
  W* weights;  // null: the master
  std::uint8_t *first, *second;
  float* scales;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const AdamwOfBlock self = *this;
    const std::int64_t begin = block * moment_block, left = elements - begin,
                       count = left < moment_block ? left : moment_block;
    // Read before any lane writes: a maximum joins all lanes.
    const float old_first = scales[block], old_second = scales[blocks + block];
    struct Pair {
      float first, second;
    };
    const auto decoded = [=](std::int64_t i) {
      return Pair{DynamicMap<true>::value(self.first[begin + i]) * old_first,
                  DynamicMap<false>::value(self.second[begin + i]) * old_second};
    };
    const auto fresh = [=](std::int64_t i) {
      Pair pair = decoded(i);
      self.step.moments.direction(widen(self.gradients[begin + i]) * self.step.gradient_scale,
                                  pair.first, pair.second);
      return pair;
    };
    const float new_first = scale_of_bits(lanes.template max<std::int32_t>(
        count, [=](std::int64_t i) { return magnitude_bits(fresh(i).first); }));
    const float new_second = scale_of_bits(lanes.template max<std::int32_t>(
        count, [=](std::int64_t i) { return magnitude_bits(fresh(i).second); }));
    lanes.each(count, [=](std::int64_t i) {
      const std::int64_t at = begin + i;
      Pair pair = decoded(i);
      float value = self.master[at];
      const bool decayed = !self.decays || self.decays[at] != 0;
      self.step(widen(self.gradients[at]), decayed, value, pair.first, pair.second);
      self.master[at] = value;
      if (self.weights) self.weights[at] = narrow<W>(value);
      self.first[at] = DynamicMap<true>::code(new_first == 0.0f ? 0.0f : pair.first / new_first);
      self.second[at] =
          DynamicMap<false>::code(new_second == 0.0f ? 0.0f : pair.second / new_second);
    });
    if (lanes.leads()) {
      scales[block] = new_first;
      scales[blocks + block] = new_second;
    }
  }

  SHARDMARK_BOTH static float scale_of_bits(std::int32_t bits) {
    return detail::bits_as<float>(static_cast<std::uint32_t>(bits));
  }
};

// Implements the function of adamw_8bit.h. The arguments are checked. Body: AdamwOfBlock or its
// host's form.
template <template <class, class> class Body, class Launch>
void run_adamw_8bit(const Launch& launch, const Tensor& gradient, const AdamwStep<float>& step,
                    const std::uint8_t* decay_mask, const Tensor& master,
                    const Moments8Bit& moments, const Tensor& weight) {
  const std::int64_t elements = master.size(), blocks = moment_blocks(elements);
  const auto run = [&]<class G, class W>(G, W) {
    launch.rows(blocks, moment_block,
                Body<G, W>{step, elements, blocks, gradient.as<G>(), decay_mask, master.as<float>(),
                           weight.data() == master.data() ? nullptr : weight.as<W>(),
                           moments.first.as<std::uint8_t>(), moments.second.as<std::uint8_t>(),
                           moments.scales.as<float>()});
  };
  const bool wide = gradient.dtype() == Dtype::float32;
  visit_coded(weight.dtype(), [&]<class W>(W) { wide ? run(float{}, W{}) : run(W{}, W{}); });
}

}  // namespace machine::kernel
