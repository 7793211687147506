#pragma once
// Bytes that a unit allocates on a device, without earlier allocations.
//
//   PeakMeter memory(device.ledger());  // before the unit allocates
//   memory.reset();                     // peaks count from here
//   judge.memory(category, memory.peak(category), expected);

#include <array>
#include <cstdint>

#include "machine/device/memory.h"

namespace harness {

class PeakMeter {
 public:
  // The ledger must outlive the meter.
  explicit PeakMeter(machine::Ledger& ledger) : ledger_(&ledger) {
    for (const machine::Category category : machine::all_categories)
      before_[index(category)] = ledger.current(category);
  }

  void reset() { ledger_->reset_peaks(); }
  std::uint64_t peak(machine::Category category) const {
    return ledger_->peak(category) - before_[index(category)];
  }
  std::uint64_t current(machine::Category category) const {
    return ledger_->current(category) - before_[index(category)];
  }

 private:
  static std::size_t index(machine::Category category) {
    return static_cast<std::size_t>(category);
  }
  machine::Ledger* ledger_;
  std::array<std::uint64_t, machine::num_categories> before_{};
};

}  // namespace harness
