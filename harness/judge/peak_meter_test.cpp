#include "harness/judge/peak_meter.h"

#include <gtest/gtest.h>

namespace harness {
namespace {

using machine::Category;

TEST(PeakMeter, ExcludesEarlierAllocations) {
  machine::Ledger ledger;
  ledger.add(Category::buffers, 100);
  PeakMeter memory(ledger);
  ledger.add(Category::buffers, 40);
  ledger.remove(Category::buffers, 30);
  ledger.add(Category::gradients, 5);
  EXPECT_EQ(memory.peak(Category::buffers), 40u);
  EXPECT_EQ(memory.current(Category::buffers), 10u);
  EXPECT_EQ(memory.peak(Category::gradients), 5u);
  EXPECT_EQ(memory.peak(Category::optimizer), 0u);
  memory.reset();
  EXPECT_EQ(memory.peak(Category::buffers), 10u);
}

}  // namespace
}  // namespace harness
