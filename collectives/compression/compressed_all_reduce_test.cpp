#include "collectives/compression/compressed_all_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/compression/volume.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using machine::World;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const int rank_counts[] = {1, 3, 4};
#else
const int rank_counts[] = {1, 2, 3, 4, 7, 8};
#endif
const std::int64_t counts[] = {0, 1, 7, 256, 1009, 20'011};
constexpr double u = 0x1p-24;
constexpr float threshold = 1.5f;
constexpr double deviations = 1.4;

float value(int rank, int run, std::int64_t index) {
  const auto mixed = static_cast<std::uint64_t>(index * 131 + rank * 7919 + run * 104'729 + 1) *
                     0x9e3779b97f4a7c15u;
  return static_cast<float>(mixed >> 40) * 0x1p-22f - 2;  // in [-2, 2)
}

Tensor tensor(World& world, std::int64_t count) {
  return Tensor(world.host_device(), Dtype::float32, {count}, Category::buffers);
}

void fill(const Tensor& in, int rank, int run) {
  for (std::int64_t i = 0; i < in.size(); ++i) in.as<float>()[i] = value(rank, run, i);
}

// Returns the number of elements that the fullest rank sends in its first run.
std::int64_t most_selected(std::string_view compression, int ranks, std::int64_t count) {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i) squares += std::pow(value(rank, 0, i), 2.0);
    const double least = compression == "deviation"
                             ? deviations * std::sqrt(squares / static_cast<double>(count))
                             : threshold;
    std::int64_t above = 0;
    for (std::int64_t i = 0; i < count; ++i) above += std::abs(value(rank, 0, i)) >= least;
    most = std::max(most, above);
  }
  return most;
}

template <class Body>
void with_every(const Body& body) {
  for (const int ranks : rank_counts)
    machine::run_ranks(ranks, [&](World& world) {
      Communicator group(world, world.group(), machine::Transport::shared_memory);
      for (const Compression& compression : compressions())
        for (const std::int64_t count : counts) {
          SCOPED_TRACE(std::string(compression.name) + " of " + std::to_string(count) + " among " +
                       std::to_string(world.size()));
          body(world, group, compression, count);
        }
    });
}

// Over several runs, the inputs equal the outputs plus the errors that all ranks hold back.
TEST(CompressedAllReduce, LosesNothing) {
  with_every(
      [](World& world, Communicator& group, const Compression& compression, std::int64_t count) {
        const auto compressed = compression.make(
            {world.host_device(), group, count, {.k = count / 10 + 1, .threshold = threshold}});
        const Tensor in = tensor(world, count), out = tensor(world, count);
        const Tensor held = Tensor(world.host_device(), Dtype::float64, {count}, Category::buffers);
        std::vector<double> given(static_cast<std::size_t>(count)), came(given), rounded(given);
        constexpr int runs = 4;
        for (int run = 0; run < runs; ++run) {
          fill(in, world.rank(), run);
          compressed->run(in, out);
          machine::from_doubles(held, compressed->held_back());
          group.all_reduce(held);
          for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            for (int rank = 0; rank < world.size(); ++rank) given[at] += value(rank, run, i);
            came[at] += out.as<float>()[i];
            // Per run, each rank rounds twice: in + residual, and the new residual. The sum takes
            // N - 1 additions and four more roundings. Inputs are below 2, residuals below 2 per
            // run so far.
            rounded[at] += world.size() * (world.size() + 8) * u * 2 * 2 * (run + 1);
            ASSERT_LE(std::abs(given[at] - came[at] - held.as<double>()[i]), rounded[at]) << i;
          }
        }
      });
}

TEST(CompressedAllReduce, SendsItsFormulasVolume) {
  with_every([](World& world, Communicator& group, const Compression& compression,
                std::int64_t count) {
    const CompressionOptions options{
        .k = count / 10 + 1, .threshold = threshold, .deviations = deviations};
    const auto compressed = compression.make({world.host_device(), group, count, options});
    const Tensor data = tensor(world, count);
    fill(data, world.rank(), 0);
    group.link().reset_traffic();
    compressed->run(data, data);
    std::map<machine::TrafficLabel, std::uint64_t> sent;
    for (const auto& [label, traffic] : group.link().traffic())
      if (traffic.bytes_sent > 0) sent[label] = traffic.bytes_sent;
    EXPECT_EQ(sent,
              bytes_sent(compression.name,
                         {world.size(), count, options.k,
                          most_selected(compression.name, world.size(), count), group.inner()}));
  });
}

TEST(CompressedAllReduce, HoldsItsFormulasBytes) {
  for (const int ranks : rank_counts)
    machine::run_ranks(ranks, [&](World& world) {
      Communicator group(world, world.group(), machine::Transport::shared_memory);
      for (const Compression& compression : compressions())
        for (const std::int64_t count : counts) {
          if (compression.name.starts_with("two_hop")) continue;
          SCOPED_TRACE(std::string(compression.name) + " of " + std::to_string(count));
          const auto host = machine::make_host_device();
          const CompressionOptions options{
              .k = count / 10 + 1, .threshold = threshold, .deviations = deviations};
          const auto compressed = compression.make({*host, group, count, options});
          const Tensor data = tensor(world, count);
          for (const int run : {0, 1}) {
            fill(data, world.rank(), run);
            compressed->run(data, data);
          }
          const CompressedCall call{ranks, count, options.k, compressed->selected().largest};
          EXPECT_EQ(host->ledger().peak(), bytes_held(compression.name, call));
        }
    });
}

TEST(CompressedAllReduce, AllRanksHoldTheSameBitsInEveryRun) {
  with_every(
      [](World& world, Communicator& group, const Compression& compression, std::int64_t count) {
        const auto compressed = compression.make(
            {world.host_device(), group, count, {.k = count / 10 + 1, .threshold = threshold}});
        const Tensor in = tensor(world, count), out = tensor(world, count);
        std::vector<std::uint64_t> hashes[2];
        for (auto& hashes_of_one : hashes) {
          compressed->reset();
          for (int run = 0; run < 3; ++run) {
            fill(in, world.rank(), run);
            compressed->run(in, out);
            hashes_of_one.push_back(machine::hash(out));
            for (const std::string& theirs :
                 world.all_gather(world.group(), std::to_string(machine::hash(out))))
              EXPECT_EQ(theirs, std::to_string(machine::hash(out)));
          }
        }
        EXPECT_EQ(hashes[0], hashes[1]);
      });
}

// A NaN or infinity of one rank appears on all ranks. The next run is clean.
TEST(CompressedAllReduce, NeverHidesNonFiniteValues) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    machine::run_ranks(3, [&](World& world) {
      Communicator group(world, world.group(), machine::Transport::shared_memory);
      constexpr std::int64_t count = 1000;
      for (const Compression& compression : compressions()) {
        SCOPED_TRACE(compression.name);
        const auto compressed =
            compression.make({world.host_device(), group, count, {.k = 5, .threshold = 9}});
        const Tensor data = tensor(world, count);
        fill(data, world.rank(), 0);
        if (world.rank() == 1) data.as<float>()[617] = bad;
        compressed->run(data, data);
        EXPECT_FALSE(std::isfinite(data.as<float>()[617]));
        fill(data, world.rank(), 1);
        compressed->run(data, data);
        for (std::int64_t i = 0; i < count; ++i)
          ASSERT_TRUE(std::isfinite(data.as<float>()[i])) << i;
        for (const double held : compressed->held_back()) ASSERT_TRUE(std::isfinite(held));
      }
    });
}

TEST(CompressedAllReduce, WithAllElementsTopKIsExact) {
  machine::run_ranks(3, [](World& world) {
    Communicator group(world, world.group(), machine::Transport::shared_memory);
    const auto compressed = make_compression("top_k", world.host_device(), group, 100, {.k = 1000});
    const Tensor data = tensor(world, 100);
    fill(data, world.rank(), 0);
    compressed->run(data, data);
    for (std::int64_t i = 0; i < 100; ++i)
      EXPECT_EQ(data.as<float>()[i], value(0, 0, i) + value(1, 0, i) + value(2, 0, i));
    for (const double held : compressed->held_back()) EXPECT_EQ(held, 0);
  });
}

TEST(CompressedAllReduce, RejectsMismatchedArguments) {
  machine::run_ranks(1, [](World& world) {
    Communicator group(world, world.group(), machine::Transport::shared_memory);
    const auto make = [&](std::string_view name, const CompressionOptions& options) {
      return make_compression(name, world.host_device(), group, 10, options);
    };
    EXPECT_THROW(make("top_kk", {}), std::invalid_argument);
    EXPECT_THROW(make("top_k", {.k = 0}), std::invalid_argument);
    EXPECT_THROW(make("threshold", {.threshold = 0}), std::invalid_argument);
    EXPECT_THROW(make("threshold", {.threshold = NAN}), std::invalid_argument);
    EXPECT_THROW(make("deviation", {.deviations = 0}), std::invalid_argument);
    EXPECT_THROW(make("deviation", {.deviations = INFINITY}), std::invalid_argument);
    const auto top_k = make("top_k", {});
    const Tensor ten = tensor(world, 10), nine = tensor(world, 9);
    const Tensor doubles(world.host_device(), Dtype::float64, {10}, Category::buffers);
    EXPECT_THROW(top_k->run(nine, nine), std::invalid_argument);
    EXPECT_THROW(top_k->run(ten, nine), std::invalid_argument);
    EXPECT_THROW(top_k->run(doubles, doubles), std::invalid_argument);
  });
}

}  // namespace
}  // namespace collectives
