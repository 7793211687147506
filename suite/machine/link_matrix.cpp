// Claim: between every pair of ranks, in both directions, messages arrive unchanged, and their
// number equals a hand count. The unit reports pairs that are much slower than the others.
//
// A pass is a round-robin tournament. `together`: all pairs of a round run at once, like the steps
// of a collective. `alone`: one pair runs at a time, while the other ranks sleep. `bytes` is the
// size of a bandwidth message. The latency is that of 8 bytes (pair_meter.h). The time of the case
// is the time of a whole pass.
//
// Slow pairs are reported, not failed, because the specification of a link is not known here.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "harness/measure/core_delay.h"
#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/link/connect.h"
#include "suite/machine/pair_meter.h"
#include "suite/machine/slow_pairs.h"
#include "suite/machine/tournament.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

using harness::Bytes;

class LinkMatrix {
 public:
  static constexpr std::string_view name = "link_matrix";
  static constexpr std::string_view about = "bandwidth and latency between every pair of ranks";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume};
  static constexpr Counter counters[] = {
      {"slow_pairs", "", Better::lower, Nature::measured,
       "ordered pairs of ranks whose link is slow (`link_matrix`)"},
      {"pair_GBps", "GB/s", Better::higher, Nature::measured,
       "median bandwidth over ordered pairs of ranks"},
      {"pair_latency_us", "us", Better::lower, Nature::measured,
       "median latency over ordered pairs of ranks"}};

  struct Case {
    int ranks = 2;
    Transport transport{};
    std::string mode;
    Bytes bytes;
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    const std::vector<std::string> modes{"together", "alone"};
    const auto transports = vary(&Case::transport, {Transport::shared_memory, Transport::mpi});
    return Sweep<Case>()
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("mode", &Case::mode, "together", modes)
        .axis("ranks", &Case::ranks, 2)
        .axis("bytes", &Case::bytes, {1 << 20})
        .only([](const Case& c) { return c.bytes.value > 0 ? "" : "bytes must be at least 1"; })
        .slice({quick}, "together", {transports, vary(&Case::ranks, {2, 4})})
        .slice({quick}, "alone", {vary(&Case::mode, {"alone"}), vary(&Case::ranks, {4})})
        .launch_slice(request, {quick, acceptance, paper}, {transports})
        // With three ranks, one has no peer in each round.
        .slice({quick}, "edges", {vary(&Case::ranks, {3}), vary(&Case::bytes, {{1048583}})})
        .slice({acceptance, paper}, "matrix",
               {transports, vary(&Case::mode, modes), vary(&Case::ranks, {3, 4, 8})})
        // With one pair, together is the same as alone.
        .slice({acceptance, paper}, "two ranks", {transports})
        .slice({smoke}, "smoke",
               {vary(&Case::mode, modes), vary(&Case::ranks, {2, 3}),
                vary(&Case::bytes, {{1}, {4099}})});
  }

  LinkMatrix(const Case& c, Context& context)
      : context_(context),
        rounds_(tournament(c.ranks)),
        link_(machine::connect(context.world, context.group, c.transport)),
        meter_(*link_, link_->stream() ? context.device : context.world.host_device(),
               c.bytes.value, context.seed) {
    if (c.mode == "alone") rounds_ = one_at_a_time(rounds_);
    link_->count_as(label);
  }

  void prepare() {}
  void run() { pass(false); }

  void judge(Judge& judge) {
    link_->reset_traffic();
    pass(true);
    judge.volume(*link_, {{label, meter_.expected_traffic()}});
    if (link_->size() == 1) return judge.not_applicable(Oracle::numerics, "one rank has no pair");
    for (int peer = 0; peer < link_->size(); ++peer)
      if (peer != link_->rank())
        judge.numerics(fmt::format("wrong bytes and words from rank {}", peer),
                       static_cast<double>(meter_.wrong(peer)), 0);
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    if (link_->size() == 1) return;
    description.link_matrix = gathered();
    description.set("slow_pairs", static_cast<double>(description.link_matrix.slow_pairs.size()));
    description.set("pair_GBps", median_of_pairs(description.link_matrix.bandwidth_GBps));
    description.set("pair_latency_us", median_of_pairs(description.link_matrix.latency_us));
  }

 private:
  static constexpr machine::TrafficLabel label{Operation::send_receive, Dtype::uint8};

  // Barriers separate the rounds, and in each round the small messages from the large ones.
  void pass(bool checked) {
    const int rank = link_->rank();
    for (const Round& round : rounds_) {
      const int peer = peer_in(round, rank);
      const int low = std::min(rank, peer), high = std::max(rank, peer);
      meets(peer, [&] {
        meter_.latency(low, high);
        meter_.latency(high, low);
      });
      meets(peer, [&] {
        meter_.bandwidth(low, high, checked);
        meter_.bandwidth(high, low, checked);
      });
    }
  }

  void meets(int peer, const auto& messages) {
    context_.world.barrier(context_.group);
    if (peer < 0) return;
    const double begin = machine::steady_s(), delayed = harness::core_delay_s();
    messages();
    delayed_s_ += harness::core_delay_s() - delayed;
    met_s_ += machine::steady_s() - begin;
  }

  harness::LinkMatrix gathered() {
    harness::LinkMatrix matrix;
    for (const int member : context_.group.members)
      matrix.hosts.push_back(context_.world.host(member));
    const auto of_ranks = [&](const auto& mine) {
      return context_.world.all_gather(context_.group, mine);
    };
    const auto matrix_of = [&](const auto& value) {
      std::vector<double> mine, all;
      for (int peer = 0; peer < link_->size(); ++peer) mine.push_back(value(peer));
      for (const std::vector<double>& row : of_ranks(mine))
        all.insert(all.end(), row.begin(), row.end());
      return all;
    };
    matrix.bandwidth_GBps = matrix_of([&](int peer) { return meter_.bandwidth_GBps(peer).median; });
    matrix.latency_us = matrix_of([&](int peer) { return 1e6 * meter_.latency_s(peer).median; });
    const FastestPass fastest{
        matrix_of([&](int peer) { return meter_.bandwidth_GBps(peer).fastest; }),
        matrix_of([&](int peer) { return 1e6 * meter_.latency_s(peer).fastest; })};
    const std::vector<double> delayed = of_ranks(delayed_s_ / std::max(met_s_, 1e-9));
    matrix.crowded_hosts = crowded_hosts(matrix.hosts, of_ranks(context_.world.cores()), delayed);
    // If ranks wait for their cores, the fastest pass is the best measure of the link.
    if (!matrix.crowded_hosts.empty()) matrix.bandwidth_GBps = fastest.bandwidth_GBps;
    matrix.slow_pairs = slow_pairs(matrix, fastest);
    return matrix;
  }

  static double median_of_pairs(const std::vector<double>& matrix) {
    std::vector<double> values = matrix;
    std::erase_if(values, [](double value) { return !(value > 0); });
    return values.empty() ? 0 : harness::median(values);
  }

  Context& context_;
  std::vector<Round> rounds_;
  std::unique_ptr<machine::Link> link_;
  PairMeter meter_;
  // Seconds of this rank's rounds with a peer, and the seconds of them in which its core ran other
  // work.
  double met_s_ = 0, delayed_s_ = 0;
};

const bool registered = harness::add<LinkMatrix>();

}  // namespace
}  // namespace suite
