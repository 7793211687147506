#include "machine/device/cuda/launch.cuh"
#include "machine/device/selection/selection_bodies.h"

namespace machine::cuda {
namespace {

using kernel::BlockCounts;
using kernel::ChoiceState;

constexpr int bits_of_pass = 2, tries = (1 << bits_of_pass) - 1;  // a count of each block for each

// The tries of a pass: the bound with each value of its next two bits, except zero.
SHARDMARK_BOTH inline std::uint32_t tried(std::int32_t bound, int number, int shift) {
  return static_cast<std::uint32_t>(bound) | static_cast<std::uint32_t>(number) << shift;
}
SHARDMARK_BOTH inline std::int32_t* counts_of(const BlockCounts& counts, int number) {
  return number == 1 ? counts.above : number == 2 ? counts.equal : counts.not_finite;
}

struct CountTries {
  const float* values;
  std::int64_t count;
  const ChoiceState* state;
  int shift;
  BlockCounts counts;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const float* const from = values + block * kernel::selection_block;
    const std::int64_t size = kernel::size_of_part(count, block);
    for (int number = 1; number <= tries; ++number) {
      const std::uint32_t least = tried(state->bound, number, shift);
      const std::int32_t reach = lanes.template sum<std::int32_t>(size, [=](std::int64_t i) {
        return static_cast<std::uint32_t>(kernel::magnitude_bits(from[i])) >= least ? 1 : 0;
      });
      if (lanes.leads()) counts_of(counts, number)[block] = reach;
    }
  }
};

// The bound becomes the largest try that k elements reach.
struct PickTry {
  BlockCounts counts;
  std::int64_t blocks;
  int shift;
  ChoiceState* state;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t /*row*/, const Lanes& lanes) const {
    int picked = 0;
    for (int number = 1; number <= tries; ++number) {
      const std::int32_t* const of = counts_of(counts, number);
      const std::int32_t reach =
          lanes.template sum<std::int32_t>(blocks, [=](std::int64_t i) { return of[i]; });
      if (reach >= state->k) picked = number;
    }
    if (lanes.leads()) state->bound = static_cast<std::int32_t>(tried(state->bound, picked, shift));
  }
};

class CudaSelection final : public kernel::SelectionKernels<CudaLaunch> {
 public:
  CudaSelection(Device& device, std::int64_t count, Choice choice, Category category)
      : SelectionKernels(device, count, choice, category, CudaLaunch(device.stream())) {}

 private:
  void find_bound(const Tensor& values, std::int64_t /*k*/) override {
    for (int shift = 32 - bits_of_pass; shift >= 0; shift -= bits_of_pass) {
      by_block(count(), CountTries{values.as<float>(), count(), state(), shift, counts()});
      launch().rows(1, blocks(), PickTry{counts(), blocks(), shift, state()});
    }
  }
};

}  // namespace

std::unique_ptr<Selection> make_selection(Device& device, std::int64_t count, Choice choice,
                                          Category category) {
  return std::make_unique<CudaSelection>(device, count, choice, category);
}

}  // namespace machine::cuda
