#include "harness/measure/limit.h"

#include <gtest/gtest.h>

#include "harness/unit/unit.h"

namespace harness {
namespace {

using machine::Dtype;
using machine::Transport;

// With local copies at 1 GB/s, a copy of 2 GB takes 4 s. Received at 0.4 GB/s, it takes 5 s.
TEST(Limit, UsesTheCopyRateForLocalBytesAndTheLinkRateForOthers) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  rates.set_link({2, Transport::shared_memory, false}, 1000, 0.4e9);
  rates.set_link({2, Transport::shared_memory, true}, 1000, 0.25e9);
  Cost cost{.memory_bytes = 4e9, .working_set_bytes = 1000};
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 4);
  cost.wire_bytes = 2e9;  // all 4 GB are a copy from the peer: 2 / 0.4
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 5);
  cost.flops = 7e9;
  rates.set_flops(2, Dtype::float32, 1e9);
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 7);
  EXPECT_EQ(limit_of(cost, rates, 3).seconds, 0);  // not measured
}

TEST(Limit, IsNotBelowACopyIfALinkIsFaster) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  rates.set_link({2, Transport::shared_memory, false}, 1000, 0.6e9);
  const Cost cost{.memory_bytes = 4e9, .working_set_bytes = 1000, .wire_bytes = 2e9};
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 4);
}

// If another engine may move the bytes, the slower of memory and wire limits a rank.
TEST(Limit, OverOtherTransportsIsTheLargerOfMemoryAndWire) {
  for (const Transport transport : {Transport::mpi, Transport::cuda_ipc, Transport::nccl}) {
    Rates rates;
    rates.set_memory(2, 1000, 1e9);
    rates.set_link({2, transport, false}, 1000, 0.5e9);
    Cost cost{
        .memory_bytes = 3e9, .working_set_bytes = 1000, .wire_bytes = 1e9, .transport = transport};
    EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 3);
    cost.wire_bytes = 2e9;
    EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 4);
    EXPECT_EQ(limit_of(cost, rates, 2).rate,
              (RateKey{RateKey::Kind::link, 2, Dtype::float32, transport, 1000}));
  }
}

// A copy reads the lines of its target, too, so updates in place have their own rate.
TEST(Limit, OfUpdatesInPlaceIsNotThatOfCopies) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  Cost cost{.memory_bytes = 4e9, .working_set_bytes = 1000, .updates_in_place = true};
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 4);  // only copies were measured
  rates.set_update(2, 1000, 2e9);
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 2);
  EXPECT_EQ(text_of(limit_of(cost, rates, 2).rate), "the rate of updates in place");
  rates.set_update(2, 1000, 0.5e9);
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 4);
  cost.updates_in_place = false;
  EXPECT_DOUBLE_EQ(limit_of(cost, rates, 2).seconds, 4);
  EXPECT_EQ(text_of(limit_of(cost, rates, 2).rate), "the copy rate");
}

TEST(Limit, NamesTheRateThatDeterminesIt) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  rates.set_flops(2, Dtype::bfloat16, 1e9);
  Cost cost{.flops_dtype = Dtype::bfloat16, .memory_bytes = 1e9, .working_set_bytes = 1000};
  EXPECT_EQ(text_of(limit_of(cost, rates, 2).rate), "the copy rate");
  cost.flops = 2e9;
  EXPECT_EQ(text_of(limit_of(cost, rates, 2).rate), "the matrix rate of bfloat16");
  cost.flops = 0;
  cost.wire_bytes = 1e9;
  rates.set_link({2, Transport::shared_memory, false}, 1000, 0.1e9);
  EXPECT_EQ(text_of(limit_of(cost, rates, 2).rate), "the rate of shared_memory");
  EXPECT_EQ(limit_of(cost, rates, 3).rate, RateKey{});  // not measured
}

TEST(Limit, IsStaleIfACaseIsFaster) {
  const Limit limit{2, {}};
  EXPECT_FALSE(is_stale(limit, 2));
  EXPECT_TRUE(is_stale(limit, 1.9));
  EXPECT_FALSE(is_stale(limit, 0)) << "not timed";
  EXPECT_FALSE(is_stale({}, 1)) << "no limit";
}

}  // namespace
}  // namespace harness
