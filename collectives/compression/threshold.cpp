// Threshold: a rank sends plus or minus the threshold for each element whose magnitude has reached
// it, once per run, and keeps the rest (Strom 2015, "Scalable distributed DNN training using
// commodity GPU cloud computing", doi:10.21437/Interspeech.2015-354). As in that paper, a sent
// element is one word of 32 bits: its index, and its sign in the last bit.
//
// The number of sent elements depends on the values (chosen_elements.h). Values that stay above the
// threshold run after run accumulate in the residual. So the threshold must be above the value that
// a run adds to an element.

#include "collectives/compression/algorithms.h"
#include "collectives/compression/chosen_elements.h"

namespace collectives {
namespace {

using machine::Tensor;

class Threshold final : public ChosenElements {
 public:
  explicit Threshold(const CompressionSetup& setup) : ChosenElements(setup, 1) {}

 private:
  void choose(const Tensor& values) override {
    selection().choose_at_least(values, options().threshold);
  }
  void take(const Tensor& values, const Tensor& list) override {
    selection().take_signs(values, options().threshold, list);
  }
  void add(const Tensor& list, std::int64_t chosen, const Tensor& sum) override {
    selection().add_signs(list.slice(0, {chosen}), options().threshold, sum);
  }
};

}  // namespace

MadeCompression make_threshold(const CompressionSetup& setup) {
  return std::make_unique<Threshold>(setup);
}

}  // namespace collectives
