#pragma once
// A unit's description of its case, after judging. The harness copies it into the record. It holds
// no verdict, oracle or time, so a unit cannot change them.
//
//   void describe(harness::Description& description) {
//     description.set("gflops", cost().flops / description.seconds / 1e9);
//     description.breakdown = {{"forward", 0.3}, {"backward", 0.6}};
//   }

#include <map>
#include <string>
#include <string_view>

#include "harness/record/record.h"

namespace harness {

class Description : public Described {
 public:
  // The medians that the harness measured; 0: not timed. Valid on rank 0 only.
  explicit Description(double seconds = 0, double yardstick_s = 0)
      : seconds(seconds), yardstick_s(yardstick_s) {}

  const double seconds, yardstick_s;

  // Throws std::logic_error for a counter that no unit declares (counters.h) or that the harness
  // writes itself.
  void set(std::string_view counter, double value);
  const std::map<std::string, double>& counters() const { return counters_; }

 private:
  std::map<std::string, double> counters_;
};

}  // namespace harness
