#include "machine/device/memory.h"

#include <algorithm>

#include "machine/base/error.h"
#include "machine/device/device.h"

namespace machine {

std::string_view name(Category category) {
  constexpr std::string_view names[] = {"parameters", "gradients",   "optimizer", "activations",
                                        "buffers",    "compression", "links"};
  return names[static_cast<std::size_t>(category)];
}

void Ledger::add(Category category, std::size_t bytes) {
  const std::size_t i = index(category);
  current_[i] += bytes;
  total_ += bytes;
  peak_[i] = std::max(peak_[i], current_[i]);
  peak_total_ = std::max(peak_total_, total_);
}

void Ledger::remove(Category category, std::size_t bytes) {
  SHARDMARK_CHECK(bytes, <=, current(category));
  current_[index(category)] -= bytes;
  total_ -= bytes;
}

void Ledger::reset_peaks() {
  peak_ = current_;
  peak_total_ = total_;
}

Memory::~Memory() {
  if (!data_) return;
  device_->ledger_.remove(category_, bytes_);
  device_->take_back(data_, bytes_);
}

}  // namespace machine
