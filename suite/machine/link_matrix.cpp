// Claim: between every pair of ranks, in both directions, what arrives is what was sent, in as many
// messages as counted by hand. Which pairs are much slower than the others is named.
//
// A pass is a round-robin tournament. `together`: all pairs of a round at once, as the steps of a
// collective use the links. `alone`: one pair at a time, the others asleep. `bytes` is a message of
// the bandwidth; the latency is that of 8 bytes (pair_meter.h). The time of the case is the whole
// pass.
//
// Slow pairs are reported, not failed: what a link should reach is not known here.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "harness/statistics.h"
#include "harness/unit.h"
#include "suite/machine/pair_meter.h"
#include "suite/machine/slow_pairs.h"
#include "suite/machine/tournament.h"

namespace suite {
namespace {

using harness::Bytes;
using harness::Oracle;
using harness::Profile;
using machine::Transport;

class LinkMatrix {
 public:
  static constexpr std::string_view name = "link_matrix";
  static constexpr std::string_view about = "bandwidth and latency between every pair of ranks";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume};

  struct Case {
    int ranks = 2;
    Transport transport{};
    std::string mode;
    Bytes bytes;
  };

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    harness::Sweep<Case> sweep;
    sweep.axis("transport", &Case::transport, {Transport::shared_memory, Transport::mpi})
        .axis("mode", &Case::mode, {"together", "alone"}, {"together", "alone"})
        .axis("ranks", &Case::ranks, quick ? std::vector{2, 4} : std::vector{2, 3, 4, 8})
        .axis("bytes", &Case::bytes, {{1 << 20}})
        .only([](const Case& c) {
          return c.bytes.value > 0 ? std::string() : std::string("a message needs a byte");
        });
    if (!quick) return sweep;
    // Two ranks are one pair, together or alone.
    return std::move(
        sweep.sample([](const Case& c) { return c.ranks > 2 || c.mode == "together"; }));
  }
  static std::string why_not(const Case& c, const harness::Context& context) {
    return context.world.why_not(context.group, c.transport);
  }

  LinkMatrix(const Case& c, harness::Context& context)
      : context_(context),
        rounds_(tournament(c.ranks)),
        link_(context.world.connect(context.group, c.transport)),
        meter_(*link_, context.world.host_device(), c.bytes.value, context.seed) {
    if (c.mode == "alone") rounds_ = one_at_a_time(rounds_);
    link_->count_as(label);
  }

  void prepare() {}
  void run() { pass(false); }

  void judge(harness::Judge& judge) {
    link_->reset_traffic();
    pass(true);
    judge.volume(*link_, {{label, meter_.expected_traffic()}});
    if (link_->size() == 1) return judge.not_applicable(Oracle::numerics, "one rank is in no pair");
    for (int peer = 0; peer < link_->size(); ++peer)
      if (peer != link_->rank())
        judge.numerics(fmt::format("wrong bytes and words from rank {}", peer),
                       static_cast<double>(meter_.wrong(peer)), 0);
  }

  harness::Cost cost() const { return {}; }

  void describe(harness::Record& record) {
    if (link_->size() == 1) return;
    record.link_matrix = gathered();
    record.link_matrix.slow_pairs = slow_pairs(record.link_matrix);
    record.counters["slow_pairs"] = static_cast<double>(record.link_matrix.slow_pairs.size());
    record.counters["pair_GBps"] = median_of_pairs(record.link_matrix.bandwidth_GBps);
    record.counters["pair_latency_us"] = median_of_pairs(record.link_matrix.latency_us);
  }

 private:
  static constexpr machine::TrafficLabel label{machine::Operation::send_receive,
                                               machine::Dtype::uint8};

  // Barriers keep the rounds apart, and within a round the small messages from the large ones.
  void pass(bool checked) {
    const int rank = link_->rank();
    for (const Round& round : rounds_) {
      const int peer = peer_in(round, rank);
      const int low = std::min(rank, peer), high = std::max(rank, peer);
      context_.world.barrier(context_.group);
      if (peer >= 0) {
        meter_.latency(low, high);
        meter_.latency(high, low);
      }
      context_.world.barrier(context_.group);
      if (peer >= 0) {
        meter_.bandwidth(low, high, checked);
        meter_.bandwidth(high, low, checked);
      }
    }
  }

  harness::LinkMatrix gathered() {
    const auto ranks = static_cast<std::size_t>(link_->size());
    harness::LinkMatrix matrix;
    for (const int member : context_.group.members)
      matrix.hosts.push_back(context_.world.host(member));
    matrix.crowded_hosts = crowded_hosts(matrix.hosts, cores_of_ranks());
    // Where ranks wait for their cores, the pass that waited least says most of the link.
    const bool fastest = !matrix.crowded_hosts.empty();
    std::vector<double> mine(2 * ranks);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      mine[peer] = fastest ? meter_.fastest_GBps(static_cast<int>(peer))
                           : meter_.bandwidth_GBps(static_cast<int>(peer));
      mine[ranks + peer] = 1e6 * meter_.latency_s(static_cast<int>(peer));
    }
    const std::string_view bytes(reinterpret_cast<const char*>(mine.data()),
                                 mine.size() * sizeof(double));
    for (const std::string& row : context_.world.all_gather(context_.group, bytes)) {
      std::vector<double> theirs(2 * ranks);
      std::memcpy(theirs.data(), row.data(), row.size());
      const auto middle = theirs.begin() + static_cast<std::ptrdiff_t>(ranks);
      matrix.bandwidth_GBps.insert(matrix.bandwidth_GBps.end(), theirs.begin(), middle);
      matrix.latency_us.insert(matrix.latency_us.end(), middle, theirs.end());
    }
    return matrix;
  }

  std::vector<std::vector<int>> cores_of_ranks() {
    const std::vector<int>& mine = context_.world.cores();
    const std::string_view bytes(reinterpret_cast<const char*>(mine.data()),
                                 mine.size() * sizeof(int));
    std::vector<std::vector<int>> all;
    for (const std::string& row : context_.world.all_gather(context_.group, bytes)) {
      all.emplace_back(row.size() / sizeof(int));
      std::memcpy(all.back().data(), row.data(), row.size());
    }
    return all;
  }

  static double median_of_pairs(const std::vector<double>& matrix) {
    std::vector<double> values;
    std::ranges::copy_if(matrix, std::back_inserter(values),
                         [](double value) { return value > 0; });
    return values.empty() ? 0 : harness::median(values);
  }

  harness::Context& context_;
  std::vector<Round> rounds_;
  std::unique_ptr<machine::Link> link_;
  PairMeter meter_;
};

const bool registered = harness::add<LinkMatrix>();

}  // namespace
}  // namespace suite
