// Claim: gradient descent over a compressed all-reduce with error feedback reaches the optimum of
// the uncompressed descent, as near as the residual allows (collectives/compression/quadratic.h).
// Top-k without feedback leaves elements at their start.
//
// The timed work is one descent of 16 elements: quadratic::steps times the latency of the
// algorithm.

#include "collectives/compression/quadratic.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

struct ErrorFeedback {
  static constexpr std::string_view name = "error_feedback";
  static constexpr std::string_view about = "descent on a quadratic over a compressed all-reduce";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"distance_at_start", "", Better::neither, Nature::exact,
       "distance from the minimum before the descent"},
      {"distance_with_feedback", "", Better::lower, Nature::exact,
       "distance from the minimum after the descent"},
      {"distance_without_feedback", "", Better::neither, Nature::exact,
       "distance from the minimum after a descent without error feedback"},
      {"distance_bound", "", Better::neither, Nature::exact, "bound of `distance_with_feedback`"}};

  struct Case {
    int ranks = 2;
    Transport transport{};
    std::string algorithm;
  };

  static Sweep<Case> sweep() {
    const std::vector<std::string> names = collectives::compression_names();
    using enum Profile;
    Sweep<Case> sweep;
    sweep.axis("algorithm", &Case::algorithm, names.front(), names)
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("ranks", &Case::ranks, 2)
        .slice({quick}, "edges", {vary(&Case::algorithm, names), vary(&Case::ranks, {3})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::algorithm, names), vary(&Case::ranks, {1, 2, 3, 4, 8})})
        .slice({smoke}, "smoke", {vary(&Case::algorithm, names), vary(&Case::ranks, {1, 3})});
    return sweep;
  }

  ErrorFeedback(const Case& c, Context& context)
      : case_(c),
        context_(context),
        communicator_(context.world, context.group, c.transport),
        compressed_(make(true)) {}

  void prepare() {}
  void run() { with_ = collectives::descend(device(), communicator_, *compressed_); }

  void judge(Judge& judge) {
    run();
    judge.numerics("distance from the optimum", with_.error, with_.bound);
    judge.numerics("bound of the distance, relative to the start", with_.bound, 0.05 * with_.start);
    for (int repeat = 0; repeat < 2; ++repeat) {
      judge.same_bits("distances", std::hash<std::string_view>()(machine::bytes_of(with_.errors)));
      if (repeat == 0) run();
    }
    const auto without_feedback = make(false);
    without_ = collectives::descend(device(), communicator_, *without_feedback);
    if (case_.algorithm == "top_k" && case_.ranks > 1)
      judge.numerics("distance of the elements that top-k without feedback never sends",
                     without_.unmoved, without_.error);
  }

  Cost cost() const { return {}; }

  void describe(Description& description) const {
    description.set("distance_at_start", with_.start);
    description.set("distance_with_feedback", with_.error);
    description.set("distance_without_feedback", without_.error);
    description.set("distance_bound", with_.bound);
  }

 private:
  machine::Device& device() {
    return machine::between_devices(case_.transport) ? context_.device
                                                     : context_.world.host_device();
  }
  std::unique_ptr<collectives::CompressedAllReduce> make(bool feedback) {
    namespace quadratic = collectives::quadratic;
    return collectives::make_compression(case_.algorithm, device(), communicator_, quadratic::size,
                                         quadratic::options(case_.ranks, feedback));
  }

  Case case_;
  Context& context_;
  collectives::Communicator communicator_;
  std::unique_ptr<collectives::CompressedAllReduce> compressed_;
  collectives::Descent with_, without_;
};

const bool registered = harness::add<ErrorFeedback>();

}  // namespace
}  // namespace suite
