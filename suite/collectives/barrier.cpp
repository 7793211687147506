// Claim: nobody leaves a barrier before all have come, whoever is late, in as many messages as the
// paper says.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

using collectives::Communicator;
using harness::vary;
using machine::Operation;
using machine::Transport;

class Barrier {
 public:
  static constexpr std::string_view name = "barrier";
  static constexpr std::string_view about = "nobody leaves before all have come";
  static constexpr harness::Oracle oracles[] = {harness::Oracle::schedule, harness::Oracle::volume};

  struct Case {
    int ranks = 2;
    Transport transport{};
    std::string algorithm;
  };
  static harness::Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum harness::Profile;
    std::vector<std::string> names;
    for (const auto& algorithm : collectives::algorithms())
      if (algorithm.operation == Operation::barrier) names.emplace_back(algorithm.name);
    const std::vector<std::string> own = names;
    names.emplace_back(collectives::library);
    const std::vector<Transport> transports = harness::usual_transports(request.device);
    harness::Sweep<Case> sweep;
    sweep.axis("algorithm", &Case::algorithm, names.front(), names)
        .axis("transport", &Case::transport, transports.front(),
              {std::begin(machine::all_transports), std::end(machine::all_transports)})
        .axis("ranks", &Case::ranks, 4)
        .only([](const Case& c) {
          const bool has_library = c.transport == Transport::mpi || c.transport == Transport::nccl;
          return c.algorithm == collectives::library && !has_library
                     ? std::string("algorithm library runs over transport mpi or nccl only")
                     : std::string();
        })
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::algorithm, names), vary(&Case::transport, transports),
                vary(&Case::ranks, {2, 3, 4, 8})})
        .slice({acceptance, paper}, "one rank", {vary(&Case::ranks, {1})})
        .slice({acceptance, paper}, "one rank",
               {vary(&Case::algorithm, {std::string(collectives::library)}),
                vary(&Case::transport, transports), vary(&Case::ranks, {1})})
        .slice({quick}, "transports",
               {vary(&Case::algorithm, names), vary(&Case::transport, transports)})
        .slice({quick}, "library",
               {vary(&Case::algorithm, {std::string(collectives::library)}),
                vary(&Case::transport, transports), vary(&Case::ranks, {2})})
        .slice({quick}, "edges", {vary(&Case::ranks, {2, 3})})
        .slice({smoke}, "smoke",
               {vary(&Case::algorithm, own), vary(&Case::ranks, {1, 2, 3, 4, 8})});
    return sweep;
  }
  static std::string why_not(const Case& c, const harness::Context& context) {
    std::string reason = collective_why_not(as_collective(c), context);
    if (reason.empty() && c.algorithm == collectives::library &&
        !context.world.on_one_host(context.group))
      reason =
          "nothing judges it on several hosts: their clocks differ, and the library does not count "
          "what it sends";
    return reason;
  }

  Barrier(const Case& c, harness::Context& context)
      : case_(c),
        context_(context),
        communicator_(context.world, context.group, c.transport),
        library_(library_beside(as_collective(c), context)) {}

  void prepare() {}
  void run() { communicator_.barrier(case_.algorithm); }
  bool only_queues() const { return communicator_.link().stream() != nullptr; }
  bool has_yardstick() const { return library_ != nullptr; }
  void yardstick() { library_->barrier(collectives::library); }
  harness::Cost cost() const { return {}; }

  // Each rank in turn is late; on one host all read the same clock.
  void judge(harness::Judge& judge) {
    for (int late = 0; late < case_.ranks; ++late) {
      run_to_end();
      if (context_.group.index == late) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      const std::int64_t entered = now_ns();
      run_to_end();
      const std::int64_t left = now_ns();
      std::int64_t last_entered = entered, first_left = left;
      for (const auto& [their_entered, their_left] :
           context_.world.all_gather(context_.group, std::array{entered, left})) {
        last_entered = std::max(last_entered, their_entered);
        first_left = std::min(first_left, their_left);
      }
      if (!context_.world.on_one_host(context_.group)) continue;
      judge.schedule(fmt::format("ranks that left before rank {} had come", late),
                     first_left < last_entered ? 1 : 0, 0);
    }
    if (!context_.world.on_one_host(context_.group))
      judge.not_applicable(harness::Oracle::schedule, "the hosts' clocks differ");
    judge_volume(judge);
  }

 private:
  static CollectiveCase as_collective(const Case& c) {
    CollectiveCase collective;
    collective.ranks = c.ranks;
    collective.transport = c.transport;
    collective.algorithm = c.algorithm;
    return collective;
  }
  // What is only queued holds nobody back yet.
  void run_to_end() {
    run();
    communicator_.device().stream().synchronize();
  }
  static std::int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }

  void judge_volume(harness::Judge& judge) {
    if (case_.algorithm == collectives::library)
      return judge.not_applicable(harness::Oracle::volume,
                                  "the library does not count what it sends");
    communicator_.link().reset_traffic();
    run_to_end();
    judge.volume(communicator_.link(),
                 {{{Operation::barrier, machine::Dtype::float32},
                   collectives::expected_traffic(
                       collectives::find_algorithm(Operation::barrier, case_.algorithm),
                       {context_.group.index, case_.ranks}, 0, machine::Dtype::float32)}});
  }

  Case case_;
  harness::Context& context_;
  Communicator communicator_;
  std::unique_ptr<Communicator> library_;
};

const bool registered = harness::add<Barrier>();

}  // namespace
}  // namespace suite
