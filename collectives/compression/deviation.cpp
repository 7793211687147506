// Threshold by standard deviation: a rank sends the elements whose magnitude reaches a multiple of
// the standard deviation of its values about zero, and all ranks gather them as pairs of index and
// value. Gradients are nearly normal, so their deviation replaces the selection of top-k (Shi et
// al. 2019, "Understanding Top-k Sparsification in Distributed Deep Learning", arXiv:1911.08772).
// The sent value is exact: kept plus sent is in + residual, bit for bit.
//
// The number of sent elements depends on the values (chosen_elements.h). The deviation is the root
// of the mean of squares, in double. If the threshold exceeds float, the sum is NaN, as for values
// that are not finite. If it rounds to zero, nothing is sent.

#include "collectives/compression/algorithms.h"
#include "collectives/compression/chosen_elements.h"

namespace collectives {
namespace {

using machine::Tensor;

class Deviation final : public ChosenElements {
 public:
  explicit Deviation(const CompressionSetup& setup) : ChosenElements(setup, 2) {}

 private:
  void choose(const Tensor& values) override {
    selection().choose_deviations(values, options().deviations);
  }
  // A list has all indices, then all values.
  void take(const Tensor& values, const Tensor& list) override {
    const std::int64_t most = list.size() / 2;
    selection().take(values, list.slice(0, {most}), list.slice(most, {most}));
  }
  void add(const Tensor& list, std::int64_t chosen, const Tensor& sum) override {
    const std::int64_t most = list.size() / 2;
    selection().add(list.slice(0, {chosen}), list.slice(most, {chosen}), sum);
  }
};

}  // namespace

MadeCompression make_deviation(const CompressionSetup& setup) {
  return std::make_unique<Deviation>(setup);
}

}  // namespace collectives
