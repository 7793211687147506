// Compares the sampler with a plain loop of the same exchange between two ranks, which are threads.
// Both take turns in one process, so that the speed of the machine, which changes between launches,
// changes both.
//
//   sampler_benchmark [ROUNDS]
//
// The loop is that of nccl-tests: a barrier, as many exchanges as take 20 us, and the time of the
// slower rank over their number; the median of such times is compared with the sampler's. loop over
// loop, of a round and the next, shows the noise.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "harness/measure/sampler.h"
#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/device/tensor.h"
#include "machine/link/connect.h"
#include "machine/world/world.h"

namespace harness {
namespace {

constexpr double turn_s = 0.05, sample_s = 20e-6;

class Exchange final : public Instance {
 public:
  Exchange(machine::World& world, std::size_t bytes)
      : link_(machine::connect(world, world.group(), machine::Transport::shared_memory)),
        from_(world.host_device(), machine::Dtype::uint8, {static_cast<std::int64_t>(bytes)},
              machine::Category::buffers),
        to_(world.host_device(), machine::Dtype::uint8, {static_cast<std::int64_t>(bytes)},
            machine::Category::buffers) {}
  void prepare() override {}
  void run() override {
    const int peer = 1 - link_->rank();
    const std::uint64_t sent = link_->send(peer, from_.data(), from_.bytes());
    link_->receive(peer, to_.data(), to_.bytes());
    link_->wait_sent(peer, sent);
  }
  bool repeatable() const override { return true; }
  int least_samples() const override { return 0; }
  bool only_queues() const override { return false; }
  bool has_yardstick() const override { return false; }
  void yardstick() override {}
  bool has_check() const override { return false; }
  void rehearse(Runner) override {}
  std::optional<machine::Failure> check(Runner) override { return {}; }
  void judge(Judge&) override {}
  Cost cost() const override { return {}; }
  void describe(Description&) override {}

 private:
  std::unique_ptr<machine::Link> link_;
  machine::Tensor from_, to_;
};

// Returns the median time of one exchange on every rank.
double by_loop(machine::World& world, machine::Link* link, Exchange& exchange) {
  const auto seconds_of = [&](int calls) {
    barrier(link);
    const double begin = machine::steady_s();
    for (int i = 0; i < calls; ++i) exchange.run();
    return (machine::steady_s() - begin) / calls;
  };
  const auto slower = [&](double seconds) {
    return std::ranges::max(world.all_gather(world.group(), seconds));
  };
  seconds_of(10);
  const double about_s = slower(seconds_of(10));
  const int calls = std::max(1, static_cast<int>(std::ceil(sample_s / about_s)));
  const int count = std::max(5, static_cast<int>(turn_s / (about_s * calls)));
  std::vector<double> mine;
  for (int i = 0; i < count; ++i) mine.push_back(seconds_of(calls));
  std::vector<double> worst(mine.size());
  for (const std::vector<double>& theirs : world.all_gather(world.group(), mine))
    for (std::size_t i = 0; i < worst.size(); ++i) worst[i] = std::max(worst[i], theirs[i]);
  return median(worst);
}

void compare(machine::World& world, int rounds) {
  const auto link = machine::connect(world, world.group(), machine::Transport::shared_memory);
  if (world.rank() == 0)
    fmt::print("{:>10} {:>10} {:>10}   {:>22}   {:>22}\n", "bytes", "loop, us", "ours, us",
               "ours over loop", "loop over loop");
  for (std::size_t bytes = 4096; bytes <= std::size_t{64} << 20; bytes *= 4) {
    Exchange exchange(world, bytes);
    std::vector<double> loops, ours, ratios, noise;
    for (int round = 0; round < rounds; ++round) {
      loops.push_back(by_loop(world, link.get(), exchange));
      Sampler sampler(world.device(), link.get(), {.seconds = turn_s});
      const Sampled sampled = sampler.sample(exchange);
      if (world.rank() != 0) continue;
      ours.push_back(median(sampled.unit.worst));
      ratios.push_back(ours.back() / loops.back());
      if (round > 0) noise.push_back(loops[loops.size() - 1] / loops[loops.size() - 2]);
    }
    if (world.rank() != 0) continue;
    const auto quartiles = [](std::vector<double> values) {
      std::ranges::sort(values);
      return fmt::format("{:.3f} ({:.2f} .. {:.2f})", median(values), values[values.size() / 4],
                         values[3 * values.size() / 4]);
    };
    fmt::print("{:>10} {:>10.2f} {:>10.2f}   {:>22}   {:>22}\n", bytes, 1e6 * median(loops),
               1e6 * median(ours), quartiles(ratios), quartiles(noise));
  }
}

}  // namespace
}  // namespace harness

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(2, std::atoi(argv[1])) : 25;
  machine::run_ranks(2, [&](machine::World& world) { harness::compare(world, rounds); });
  return 0;
}
