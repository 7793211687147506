// Compares an all_reduce of two ranks, out of place, with a bare exchange of the same bytes.
//
//   exchange_benchmark [TURNS] [ALGORITHM] [BYTES ...]
//
// Both take turns in one process of two threads, which need a core each. In a bare exchange each
// rank writes its values to lines that the other rank reads, then a number to a line that the other
// rank looks at, and adds the values that it gets to its own: the work of an all_reduce, without
// calls, plans, counts and timeouts.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/base/clock.h"
#include "machine/device/host/fetch.h"
#include "machine/world/world.h"

namespace collectives {
namespace {

constexpr std::size_t most_bytes = 8192, messages = 8, in_line = 32;
constexpr int ranks = 2, calls = 2000;

// The messages to one rank. A peer may be one message ahead.
struct Mailbox {
  struct alignas(64) Line {
    std::atomic<std::uint32_t> number{0};
    std::byte data[in_line];
  };
  Line lines[messages];
  alignas(64) std::byte data[messages][most_bytes];
};

class Exchange {
 public:
  Exchange(Mailbox& mine, Mailbox& theirs) : mine_(mine), theirs_(theirs) {}

  void run(const float* in, float* out, std::size_t bytes) {
    const std::size_t place = ++number_ % messages;
    Mailbox::Line& to = theirs_.lines[place];
    std::byte* const there = bytes <= in_line ? to.data : theirs_.data[place];
    if (bytes > in_line) machine::host::fetch_to_write(there, bytes);
    std::memcpy(there, in, bytes);
    to.number.store(number_, std::memory_order_release);
    if (bytes > in_line) machine::host::fetch_to_write(theirs_.data[(place + 1) % messages], bytes);
    Mailbox::Line& from = mine_.lines[place];
    while (from.number.load(std::memory_order_acquire) != number_) __builtin_ia32_pause();
    const auto* got =
        reinterpret_cast<const float*>(bytes <= in_line ? from.data : mine_.data[place]);
    for (std::size_t i = 0; i < bytes / sizeof(float); ++i) out[i] = in[i] + got[i];
  }

 private:
  Mailbox &mine_, &theirs_;
  std::uint32_t number_ = 0;
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

void compare(machine::World& world, std::vector<Mailbox>& boxes, int turns,
             const std::string& algorithm, const std::vector<std::size_t>& sizes) {
  Communicator communicator(world, world.group(), machine::Transport::shared_memory);
  Exchange exchange(boxes[world.rank()], boxes[1 - world.rank()]);
  if (world.rank() == 0)
    fmt::print("{:>6} {:>9} {:>15} {:>6}\n", "bytes", "bare, us", "all_reduce, us", "ratio");
  for (const std::size_t bytes : sizes) {
    const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
    const machine::Tensor in(world.host_device(), machine::Dtype::float32, {elements},
                             machine::Category::buffers);
    const machine::Tensor out(world.host_device(), machine::Dtype::float32, {elements},
                              machine::Category::buffers);
    world.host_device().stream().kernels().fill(in, 1);
    world.host_device().stream().kernels().fill(out, 0);
    const auto seconds_of = [&](const auto& call) {
      communicator.barrier();
      const double begin_s = machine::steady_s();
      for (int i = 0; i < calls; ++i) call();
      return (machine::steady_s() - begin_s) / calls;
    };
    std::vector<double> bare, own, ratios;
    for (int turn = 0; turn < turns; ++turn) {
      bare.push_back(seconds_of([&] { exchange.run(in.as<float>(), out.as<float>(), bytes); }));
      own.push_back(seconds_of([&] { communicator.all_reduce(in, out, algorithm); }));
      ratios.push_back(own.back() / bare.back());
    }
    if (world.rank() == 0)
      fmt::print("{:>6} {:>9.3f} {:>15.3f} {:>6.2f}\n", bytes, 1e6 * median(bare),
                 1e6 * median(own), median(ratios));
  }
}

}  // namespace
}  // namespace collectives

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::max(1, std::atoi(argv[1])) : 50;
  const std::string algorithm = argc > 2 ? argv[2] : "recursive_doubling";
  std::vector<std::size_t> sizes;
  for (int i = 3; i < argc; ++i)
    sizes.push_back(std::clamp<std::size_t>(std::strtoul(argv[i], nullptr, 10), sizeof(float),
                                            collectives::most_bytes));
  if (sizes.empty()) sizes = {8, 32, 128, 512, 2048, 8192};
  std::vector<collectives::Mailbox> boxes(collectives::ranks);
  try {
    machine::run_ranks(collectives::ranks, [&](machine::World& world) {
      collectives::compare(world, boxes, turns, algorithm, sizes);
    });
  } catch (const std::exception& error) {  // an unknown algorithm
    fmt::print(stderr, "exchange_benchmark: {}\n", error.what());
    return 2;
  }
  return 0;
}
