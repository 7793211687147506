#pragma once
// Bytes that a unit allocates on a device, without earlier allocations.
//
//   PeakMeter memory(device.ledger());  // before the unit allocates
//   memory.reset();                     // peaks count from here
//   judge.memory(category, memory.peak(category), expected);

#include <cstdint>
#include <map>

#include "machine/device/memory.h"

namespace harness {

class PeakMeter {
 public:
  // The ledger must outlive the meter.
  explicit PeakMeter(machine::Ledger& ledger) : ledger_(&ledger) {
    for (const machine::Category category : machine::all_categories)
      before_[category] = ledger.current(category);
  }

  void reset() { ledger_->reset_peaks(); }
  std::uint64_t peak(machine::Category category) const {
    return ledger_->peak(category) - before_.at(category);
  }
  std::uint64_t current(machine::Category category) const {
    return ledger_->current(category) - before_.at(category);
  }

 private:
  machine::Ledger* ledger_;
  std::map<machine::Category, std::uint64_t> before_;
};

}  // namespace harness
