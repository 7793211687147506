// qwZ: the values that forward and backward see, against a second reading of the codes.

#include "zero/zero_plus_plus/quantized_weights.h"

#include <gtest/gtest.h>

#include <string>

#include "zero/testing/plain_blocks.h"
#include "zero/testing/plus_plus_model.h"

namespace zero {
namespace {

using machine::Dtype;
using testing::PlusPlusModel;
using Values = std::vector<double>;

// Rounds to bfloat16.
double narrow(double value) {
  return static_cast<double>(static_cast<float>(machine::Bfloat16(static_cast<float>(value))));
}

// In passes the values are the decoded codes, on every rank and in every use; outside they are the
// values, also where backward uses secondary shards.
TEST(QuantizedWeights, OnlyPassesSeeCodes) {
  machine::run_ranks(4, [](machine::World& world) {
    for (const int hpz : {1, 2}) {
      StepOptions options{.rule = AdamW{.learning_rate = 0.05}};
      options.plus_plus = {hpz, true, false};
      PlusPlusModel model(world, Dtype::bfloat16, options, hpz);
      for (int step = 0; step < 2; ++step) {
        const Values exact = model.values();
        const auto check_uses = [&] {
          for (const std::vector<int>& of : model.parts) {
            model.step->before_use(model.part(of));
            for (const int row : of) {
              const collectives::Parameter& p = model.parameters[static_cast<std::size_t>(row)];
              std::size_t first = 0;
              for (int before = 0; before < row; ++before)
                first += static_cast<std::size_t>(PlusPlusModel::sizes[before]);
              const auto begin = exact.begin() + static_cast<std::ptrdiff_t>(first);
              const Values own(begin, begin + p.value.size());
              Values want = own;
              if (row > 0) {  // row 0 is persistent
                want.resize((want.size() + 63) / 64 * 64);
                want = testing::coded(want, 127);
                want.resize(own.size());
                for (double& value : want) value = narrow(value);
                EXPECT_NE(want, own) << "row " << row;
              }
              EXPECT_EQ(to_doubles(p.value), want) << "hpz " << hpz << ", row " << row;
            }
            model.step->after_use(model.part(of));
          }
        };
        model.step->begin_pass({.last = true});
        check_uses();
        check_uses();
        model.step->end_pass();
        EXPECT_EQ(model.values(), exact);
        model.step->reduce();
        model.step->update();
        model.whole_step(1);
      }
    }
  });
}

}  // namespace
}  // namespace zero
