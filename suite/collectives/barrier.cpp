// Claim: no rank leaves a barrier before all ranks have entered, whichever rank is late. The number
// of messages is the paper's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "machine/base/clock.h"
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

using collectives::Communicator;

class Barrier {
 public:
  static constexpr std::string_view name = "barrier";
  static constexpr std::string_view about = "no rank leaves before all ranks have entered";
  static constexpr Oracle oracles[] = {Oracle::schedule, Oracle::volume};

  using Case = CollectiveCase;
  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    const std::vector<std::string> own = algorithm_names(Operation::barrier);
    const std::vector<std::string> library{std::string(collectives::library)};
    std::vector<std::string> names = own;
    names.push_back(library.front());
    const std::vector<Transport> transports = harness::usual_transports(request.device);
    Sweep<Case> sweep;
    sweep.axis("algorithm", &Case::algorithm, names.front(), names)
        .axis("transport", &Case::transport, transports.front(),
              {std::begin(machine::all_transports), std::end(machine::all_transports)})
        .axis("ranks", &Case::ranks, 4)
        .only(why_not_library)
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::algorithm, names), vary(&Case::transport, transports),
                vary(&Case::ranks, {2, 3, 4, 8})})
        .slice({acceptance, paper}, "one rank", {vary(&Case::ranks, {1})})
        .slice({acceptance, paper}, "one rank",
               {vary(&Case::algorithm, library), vary(&Case::transport, transports),
                vary(&Case::ranks, {1})})
        .slice({quick}, "transports",
               {vary(&Case::algorithm, names), vary(&Case::transport, transports)})
        .slice({quick}, "library",
               {vary(&Case::algorithm, library), vary(&Case::transport, transports),
                vary(&Case::ranks, {2})})
        .launch_slice(request, {quick, acceptance, paper},
                      {vary(&Case::algorithm, names), vary(&Case::transport, transports)})
        .slice({quick}, "edges", {vary(&Case::ranks, {2, 3})})
        .slice({smoke}, "smoke",
               {vary(&Case::algorithm, own), vary(&Case::ranks, {1, 2, 3, 4, 8})});
    return sweep;
  }
  static std::string why_not(const Case& c, const Context& context) {
    std::string reason = collective_why_not(Operation::barrier, c, context);
    if (reason.empty() && c.algorithm == collectives::library &&
        !context.world.on_one_host(context.group))
      reason =
          "no oracle judges it on several hosts, because their clocks differ and the library does "
          "not count the bytes that it sends";
    return reason;
  }

  Barrier(const Case& c, Context& context)
      : case_(c),
        context_(context),
        communicator_(context.world, context.group, c.transport),
        library_(library_beside(Operation::barrier, c, context)) {}

  void prepare() {}
  void run() { communicator_.barrier(case_.algorithm); }
  bool only_queues() const { return communicator_.link().stream() != nullptr; }
  bool has_yardstick() const { return library_ != nullptr; }
  void yardstick() { library_->barrier(collectives::library); }
  Cost cost() const { return {}; }

  // Each rank in turn is late. On one host all ranks read the same clock.
  void judge(Judge& judge) {
    for (int late = 0; late < case_.ranks; ++late) {
      run_to_end();
      if (context_.group.index == late) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      const double entered = machine::steady_s();
      run_to_end();
      const double left = machine::steady_s();
      const double last_entered =
          std::ranges::max(context_.world.all_gather(context_.group, entered));
      const double first_left = std::ranges::min(context_.world.all_gather(context_.group, left));
      if (!context_.world.on_one_host(context_.group)) continue;
      judge.schedule(fmt::format("ranks that left before rank {} entered", late),
                     first_left < last_entered ? 1 : 0, 0);
    }
    if (!context_.world.on_one_host(context_.group))
      judge.not_applicable(Oracle::schedule, "the hosts' clocks differ");
    judge_volume(judge);
  }

 private:
  // A queued barrier does not stop a rank yet.
  void run_to_end() {
    run();
    communicator_.device().stream().synchronize();
  }
  void judge_volume(Judge& judge) {
    if (case_.algorithm == collectives::library)
      return judge.not_applicable(Oracle::volume,
                                  "the library does not count the bytes that it sends");
    communicator_.link().reset_traffic();
    run_to_end();
    judge.volume(communicator_.link(),
                 {{{Operation::barrier, Dtype::float32},
                   collectives::expected_traffic(
                       collectives::find_algorithm(Operation::barrier, case_.algorithm),
                       {context_.group.index, case_.ranks}, 0, Dtype::float32)}});
  }

  Case case_;
  Context& context_;
  Communicator communicator_;
  std::unique_ptr<Communicator> library_;
};

const bool registered = harness::add<Barrier>();

}  // namespace
}  // namespace suite
