// Claim: over a link of a set speed, tp-comm-overlap hides the communication of a perceptron behind
// its products. Products take a set time, too: link and products sleep, and a sleep needs no core.
//
// t ranks, sequence parallelism. The product of one rank's rows takes c, a share of them on the
// link x = communication_ratio * c. Each of the six products of a pass takes t c, each of its five
// collectives (t - 1) x. The link then adds
//
//                          without overlap    with overlap
//   forward                2 (t - 1) x        2 (t - 1) max(0, x - c)
//   backward, all of it    3 (t - 1) x        (t - 1) max(0, x - c) + 2 max(0, (t - 1) x - t c)
//
// In the split forms only the first share of a gather, or the last one of a scatter, has a product
// of its own to hide behind, and of the others the longer of x and c counts: c + (t - 1) max(c, x).
// A bulk form takes the longer of product and collective. Judged with a slack of a fifth of the
// first column, in which one of the collectives counts a third or half: with overlap not more, and
// without overlap not less, so the link has that speed. A late core only prolongs a pass, so a time
// is the minimum over rounds of the maximum over ranks, and rounds end when the bounds hold.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "layers/mlp.h"
#include "machine/base/clock.h"
#include "machine/device/faults.h"
#include "machine/link/connect.h"
#include "machine/link/faulty_link.h"
#include "suite/layers/layer_run.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

constexpr int fewest_rounds = 3, most_rounds = 20;
constexpr double slack = 0.2;
constexpr int hidden_size = 48, rows_of_rank = 16;

// Seconds of the two timed parts.
struct Seconds {
  double forward = 0, backward = 0;
  static auto members(auto& self) { return std::tie(self.forward, self.backward); }
};

class TpOverlap {
 public:
  static constexpr std::string_view name = "tp_overlap";
  static constexpr std::string_view about =
      "the time of a slow link that tp-comm-overlap hides behind matrix products";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"tp_exposed_without_s", "s", Better::lower, Nature::measured,
       "time that a slow link adds to both passes without tp-comm-overlap"},
      {"tp_exposed_with_s", "s", Better::lower, Nature::measured,
       "time that a slow link adds to both passes with tp-comm-overlap"},
      {"tp_hidden_fraction", "", Better::higher, Nature::measured,
       "1 - `tp_exposed_with_s` / `tp_exposed_without_s`"}};

  struct Case {
    int ranks = 2, share_ms = 0;
    std::string communication_ratio;

    double product_s() const { return share_ms * 1e-3; }  // of one rank's rows: c
    double transfer_s() const { return std::stod(communication_ratio) * product_s(); }  // x
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const auto ratios = vary(&Case::communication_ratio, {"0.5", "1", "1.5"});
    return Sweep<Case>()
        .axis("ranks", &Case::ranks, 2)
        .axis("share_ms", &Case::share_ms, 20)
        .axis("communication_ratio", &Case::communication_ratio, "0.5",
              {"0.25", "0.5", "0.75", "1", "1.5", "2"})
        .only([](const Case& c) -> std::string {
          if (c.ranks < 2) return "ranks must be at least 2, because one rank does not communicate";
          if (4 * hidden_size % c.ranks != 0)
            return fmt::format("ranks is {}; expected a divisor of {}", c.ranks, 4 * hidden_size);
          if (c.share_ms < 1) return "share_ms must be at least 1";
          return "";
        })
        .slice({quick}, "two ranks", {vary(&Case::share_ms, {10})})
        .slice({acceptance, paper}, "matrix", {vary(&Case::ranks, {2, 4}), ratios})
        .slice({smoke}, "smoke", {vary(&Case::share_ms, {10})});
  }

  static std::string why_not(const Case&, const Context& context) {
    if (!context.device.readable_by_host())
      return "the host's sleeps do not slow the streams of a GPU";
    return machine::why_not(context.world, context.group, Transport::shared_memory);
  }

  TpOverlap(const Case& c, Context& context)
      : case_(c),
        context_(context),
        runs_{{*this, false, false},
              {*this, false, true},
              {*this, true, false},
              {*this, true, true}} {}

  void prepare() {}
  void run() { runs_[overlapped_slow].pass(); }

  void judge(Judge& judge) {
    best_.fill({.forward = std::numeric_limits<double>::infinity(),
                .backward = std::numeric_limits<double>::infinity()});
    for (int round = 0; round < fewest_rounds || (round < most_rounds && !within()); ++round)
      for (std::size_t i = 0; i < num_runs; ++i) {
        const Seconds slowest = max_over_ranks(runs_[i].pass());
        best_[i].forward = std::min(best_[i].forward, slowest.forward);
        best_[i].backward = std::min(best_[i].backward, slowest.backward);
        runs_[i].judge_bits(judge);
      }
    const Seconds serial = without_overlap();
    for (const auto& [what, part] :
         {std::pair("forward", &Seconds::forward), {"backward", &Seconds::backward}}) {
      judge.times(fmt::format("{}: missing part of the link's time without overlap", what),
                  serial.*part - added(slow, fast).*part, slack * serial.*part);
      judge.times(fmt::format("{}: time of the link with overlap", what),
                  added(overlapped_slow, overlapped_fast).*part,
                  with_overlap().*part + slack * serial.*part);
    }
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    const auto total = [](const Seconds& one) { return one.forward + one.backward; };
    const double without = total(added(slow, fast)),
                 with = total(added(overlapped_slow, overlapped_fast));
    description.set("tp_exposed_without_s", without);
    description.set("tp_exposed_with_s", with);
    if (without <= 0) return;
    description.set("tp_hidden_fraction", 1 - with / without);
    description.note = fmt::format(
        "{:.1f} ms of transfers: {:.1f} ms exposed without tp-comm-overlap, {:.1f} ms with it "
        "(formula: {:.1f} ms)",
        1e3 * total(without_overlap()), 1e3 * without, 1e3 * with, 1e3 * total(with_overlap()));
  }

 private:
  enum : std::size_t { fast, slow, overlapped_fast, overlapped_slow, num_runs };

  // The formulas of the claim.
  Seconds without_overlap() const {
    const double collective = (case_.ranks - 1) * case_.transfer_s();
    return {2 * collective, 3 * collective};
  }
  Seconds with_overlap() const {
    const double c = case_.product_s(), x = case_.transfer_s(), t = case_.ranks;
    const double split = (t - 1) * std::max(0.0, x - c), bulk = std::max(0.0, (t - 1) * x - t * c);
    return {2 * split, split + 2 * bulk};
  }
  Seconds added(std::size_t with_link, std::size_t without_link) const {
    return {best_[with_link].forward - best_[without_link].forward,
            best_[with_link].backward - best_[without_link].backward};
  }
  bool within() const {
    const Seconds serial = without_overlap(), most = with_overlap(), with_link = added(slow, fast),
                  exposed = added(overlapped_slow, overlapped_fast);
    const auto holds = [&](double Seconds::*part) {
      return exposed.*part <= most.*part + slack * serial.*part &&
             with_link.*part >= (1 - slack) * serial.*part;
    };
    return holds(&Seconds::forward) && holds(&Seconds::backward);
  }
  Seconds max_over_ranks(const Seconds& mine) {
    Seconds slowest;
    for (const Seconds& one : context_.world.all_gather(context_.group, mine)) {
      slowest.forward = std::max(slowest.forward, one.forward);
      slowest.backward = std::max(slowest.backward, one.backward);
    }
    return slowest;
  }

  // A perceptron whose products take a set time, over a link with or without a set speed.
  class Run {
   public:
    Run(TpOverlap& unit, bool overlap, bool slow)
        : unit_(unit),
          overlap_(overlap),
          slow_(slow),
          tp_(unit.context_.world, link()),
          context_{.device = unit.context_.device,
                   .tp = tp_,
                   .sequence_parallel = true,
                   .overlap = {.enabled = overlap}},
          mlp_(context_, "mlp", {.hidden = hidden_size}) {
      tp_.set_algorithms(collectives::algorithms_by_share());
      for (Tensor* tensor : {&x_, &d_y_, &y_, &d_x_})
        *tensor = context_.tensor({rows_of_rank, hidden_size}, Category::buffers);
      const std::int64_t first = context_.first_row(rows_of_rank);
      for (const auto& [tensor, seed] : {std::pair(&x_, seed_x), {&d_y_, seed_d_y}})
        context_.kernels().fill_normal(*tensor, unit.context_.seed + seed, {first, 0, hidden_size},
                                       0, 1);
      layers::Initializer{unit.context_.seed}.fill(context_, mlp_.parameters());
      pass();  // scratch and threads are there from the second pass on
    }

    Seconds pass() {
      for (collectives::Parameter* parameter : mlp_.parameters())
        zero_gradient(context_, *parameter);
      machine::GemmLog log;
      machine::Faults product;
      const double flops_of_share =
          2.0 * rows_of_rank * hidden_size * 4 * hidden_size / unit_.case_.ranks;
      product.after_gemm = [&](machine::Stream&, const machine::Matrix&) {
        std::this_thread::sleep_for(std::chrono::duration<double>(
            unit_.case_.product_s() * log.products().back().flops() / flops_of_share));
      };
      const Slowed slowed(context_.device, product);
      layers::Mlp::Saved saved;
      const double forward = timed([&] { mlp_.forward(x_, y_, saved, Category::activations); });
      const double backward = timed([&] {
        mlp_.backward_input(d_y_, d_x_, saved, Category::buffers);
        mlp_.backward_weights(saved);
      });
      return {forward, backward};
    }
    void judge_bits(Judge& judge) {
      const std::string of =
          fmt::format("part {} {} overlap: ", tp_.rank(), overlap_ ? "with" : "without");
      judge.same_bits(of + "y", hash(y_));
      judge.same_bits(of + "d_x", hash(d_x_));
      for (const collectives::Parameter* parameter : mlp_.parameters())
        judge.same_bits(of + parameter->name, hash(parameter->gradient));
    }

   private:
    // The device has these faults while this exists.
    class Slowed {
     public:
      Slowed(machine::Device& device, machine::Faults& faults)
          : device_(device), before_(device.faults()) {
        device_.set_faults(&faults);
      }
      ~Slowed() { device_.set_faults(before_); }
      Slowed(const Slowed&) = delete;
      Slowed& operator=(const Slowed&) = delete;

     private:
      machine::Device& device_;
      machine::Faults* const before_;
    };

    std::unique_ptr<machine::Link> link() const {
      const Context& on = unit_.context_;
      auto link = machine::connect(on.world, on.group, Transport::shared_memory);
      if (!slow_) return link;
      machine::Faults faults;
      const double bytes = rows_of_rank * hidden_size * sizeof(float);
      for (const int first : on.group.members)
        for (const int second : on.group.members)
          if (first < second)
            faults.slow_links.push_back({first, second, bytes / unit_.case_.transfer_s()});
      return machine::with_faults(std::move(link), faults);
    }
    double timed(const auto& work) {
      unit_.context_.world.barrier(unit_.context_.group);
      const double begin = machine::steady_s();
      work();
      return machine::steady_s() - begin;
    }

    TpOverlap& unit_;
    const bool overlap_, slow_;
    collectives::Communicator tp_;
    layers::Context context_;
    layers::Mlp mlp_;
    Tensor x_, y_, d_y_, d_x_;
  };

  Case case_;
  Context& context_;
  std::array<Seconds, num_runs> best_{};
  Run runs_[num_runs];  // last: runs use the members above
};

const bool registered = harness::add<TpOverlap>();

}  // namespace
}  // namespace suite
