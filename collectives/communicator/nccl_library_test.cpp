// Collectives over nccl between ranks that are threads, one CUDA device each: NCCL's own, and ours.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/library.h"
#include "collectives/layout.h"
#include "machine/base/error.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Tensor;
using machine::World;

constexpr std::int64_t count = 600;  // of the whole, or of a share

// Element i of rank r.
double value(int rank, std::int64_t i) { return 1 + rank + static_cast<double>(i % 8); }

// Element i of the output of `rank`, or -1 if it has none.
double expected(Operation operation, int ranks, int root, int rank, std::int64_t i) {
  double sum = 0;
  const std::int64_t whole = operation == Operation::reduce_scatter ? rank * count + i : i;
  for (int other = 0; other < ranks; ++other) sum += value(other, whole);
  const auto other = static_cast<int>(i / count);
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      return sum;
    case Operation::reduce:
      return rank == root ? sum : -1;
    case Operation::all_gather:
      return value(other, i % count);
    case Operation::gather:
      return rank == root ? value(other, i % count) : -1;
    case Operation::broadcast:
      return value(root, i);
    case Operation::scatter:
      return value(root, rank * count + i);
    case Operation::all_to_all:
      return value(other, rank * count + i % count);
    case Operation::send_receive:
      return value((rank + ranks - 1) % ranks, i);
    default:
      return -1;
  }
}

class NcclCollectives : public testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  void SetUp() override {
    if (machine::cuda::count() < ranks())
      GTEST_SKIP() << "fewer than " << ranks() << " CUDA devices";
  }
  void run(const std::function<void(World&, Communicator&)>& body) const {
    machine::run_ranks(ranks(), [&](World& world) {
      world.use_device(machine::cuda::make_device(world.rank()));
      world.barrier(world.group());
      {
        Communicator communicator(world, world.group(), machine::Transport::nccl);
        body(world, communicator);
      }
      world.barrier(world.group());
    });
  }
};

TEST_P(NcclCollectives, EqualTheClosedForm) {
  const std::string& algorithm = std::get<1>(GetParam());
  run([&](World& world, Communicator& communicator) {
    for (const Operation operation :
         {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
          Operation::broadcast, Operation::reduce, Operation::gather, Operation::scatter,
          Operation::all_to_all, Operation::send_receive})
      for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::int32})
        for (const int root : {0, ranks() - 1}) {
          const Call call{world.rank(), ranks(), 1, root, 1, nullptr};
          const BufferElements held = buffer_elements(operation, call, count);
          const Tensor in(world.device(), dtype, {held.input}, Category::buffers);
          const Tensor out(world.device(), dtype, {held.output}, Category::buffers);
          std::vector<double> values(static_cast<std::size_t>(held.input));
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = value(world.rank(), static_cast<std::int64_t>(i));
          if (held.input > 0) from_doubles(in, values);
          communicator.run(operation, algorithm, in, out, Reduction::sum, root);
          if (held.output == 0) continue;
          const std::vector<double> got = to_doubles(out);
          for (std::size_t i = 0; i < got.size(); ++i) {
            const double right =
                expected(operation, ranks(), root, world.rank(), static_cast<std::int64_t>(i));
            ASSERT_EQ(got[i], right < 0 ? got[i] : right)
                << name(operation) << ", root " << root << ", rank " << world.rank() << ", element "
                << i;
          }
        }
    communicator.barrier(algorithm);
    world.device().stream().synchronize();
  });
}

TEST_P(NcclCollectives, ExchangeUnevenParts) {
  const std::string& algorithm = std::get<1>(GetParam());
  std::vector<std::int64_t> elements;
  for (int i = 0; i < ranks() * ranks(); ++i) elements.push_back(i * 7 % 5 * 11);
  const auto traffic = std::make_shared<const TrafficMatrix>(ranks(), elements);
  run([&](World& world, Communicator& communicator) {
    const int rank = world.rank();
    const Call call{rank, ranks(), 1, 0, 1, traffic.get()};
    const BufferElements held = buffer_elements(Operation::all_to_all_v, call, traffic->busiest());
    const Tensor in(world.device(), Dtype::float32, {held.input}, Category::buffers);
    const Tensor out(world.device(), Dtype::float32, {held.output}, Category::buffers);
    std::vector<double> values(static_cast<std::size_t>(held.input));
    for (int peer = 0; peer < ranks(); ++peer)
      for (std::int64_t i = 0; i < (*traffic)(rank, peer); ++i)
        values[static_cast<std::size_t>(traffic->input_begin(rank, peer) + i)] =
            value(10 * rank + peer, i);
    from_doubles(in, values);
    communicator.all_to_all_v(in, out, traffic, algorithm);
    const std::vector<double> got = to_doubles(out);
    for (int peer = 0; peer < ranks(); ++peer)
      for (std::int64_t i = 0; i < (*traffic)(peer, rank); ++i)
        ASSERT_EQ(got[static_cast<std::size_t>(traffic->output_begin(rank, peer) + i)],
                  value(10 * peer + rank, i))
            << "from " << peer << ", element " << i;
  });
}

INSTANTIATE_TEST_SUITE_P(, NcclCollectives,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values("", "library")),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param).empty() ? "ours" : "library");
                         });

// NCCL 2.28 has a call for each of these. The error of host memory names the call.
TEST(NcclLibrary, CallsTheCollectiveOfTheLibrary) {
  if (!machine::cuda::is_virtual()) GTEST_SKIP() << "NCCL copies host memory of a single rank";
  machine::run_ranks(1, [](World& world) {
    world.use_device(machine::cuda::make_device(0));
    for (const auto& [operation, called] : {std::pair(Operation::all_to_all, "ncclAlltoAll"),
                                            std::pair(Operation::gather, "ncclGather"),
                                            std::pair(Operation::scatter, "ncclScatter")}) {
      Communicator communicator(world, world.group(), machine::Transport::nccl);
      std::vector<float> in(4), out(4);
      std::string text;
      try {
        run_library({operation, Dtype::float32, Reduction::sum, 4}, communicator.link(),
                    world.device().stream().kernels(), in.data(), out.data());
      } catch (const machine::MachineError& error) {
        text = error.what();
      }
      EXPECT_NE(text.find(std::string(called) + " of rank 0"), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace collectives
