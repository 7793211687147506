// Claim: one optimizer step over dp replicas, from the reduction of gradients to the published
// values, is right within bounds derived from its dtypes; it sends and holds what ZeRO's paper says
// and leaves all replicas with the same bits (Rajbhandari et al. 2020, arXiv:1910.02054; AdamW:
// Loshchilov and Hutter 2019, arXiv:1711.05101).
//
// A sample is one step with clipping on; its gradients are put back before it, untimed.
// `parameters` counts elements: a dozen matrices and vectors of odd sizes, one of a single element.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "collectives/cost.h"
#include "harness/unit.h"
#include "machine/device/clock.h"
#include "machine/device/random.h"
#include "suite/zero/update_reference.h"
#include "zero/cost.h"
#include "zero/step.h"

namespace suite {
namespace {

using collectives::Parameter;
using harness::Oracle;
using harness::Profile;
using machine::Category;
using machine::Dtype;
using machine::Transport;

constexpr double clip_norm = 1;  // below the norm of the gradients made here: steps clip
constexpr machine::AdamW adamw{.learning_rate = 1e-2, .weight_decay = 0.1};
constexpr zero::Sgd sgd{.learning_rate = 0.5};
constexpr Category categories[] = {Category::parameters, Category::gradients, Category::optimizer,
                                   Category::buffers};

std::vector<Parameter> declare(std::int64_t elements) {
  std::vector<Parameter> parameters;
  std::int64_t left = elements;
  const auto add = [&](std::string name, machine::Shape shape) {
    Parameter p;
    p.name = std::move(name);
    p.global_shape = shape;
    p.weight_decay = shape.rank() > 1;
    left -= shape.size();
    parameters.push_back(std::move(p));
  };
  add("scale", {1});
  add("gain", {7});
  add("shift", {13});
  for (const std::int64_t cols : {129, 65, 257, 33, 127, 31, 63, 95})
    add(fmt::format("weight.{}", cols), {std::max<std::int64_t>(1, elements / 10 / cols), cols});
  add("bias", {left});
  return parameters;
}

double random_value(std::uint64_t seed, std::int64_t index, Dtype dtype) {
  const double value = 2 * machine::uniform(seed, static_cast<std::uint64_t>(index)) - 1;
  return dtype == Dtype::float64 ? value : static_cast<double>(static_cast<float>(value));
}

// A tensor's bits on the host, to be put back.
class Bits {
 public:
  explicit Bits(const machine::Tensor& tensor) : bits_(tensor.bytes()) {
    tensor.device().stream().copy(bits_.data(), tensor.data(), tensor.bytes());
    tensor.device().stream().synchronize();
  }
  void restore(const machine::Tensor& tensor) const {
    tensor.device().stream().copy(tensor.data(), bits_.data(), bits_.size());
    tensor.device().stream().synchronize();
  }

 private:
  std::vector<std::byte> bits_;
};

struct ZeroStep {
  static constexpr std::string_view name = "zero_step";
  static constexpr std::string_view about =
      "reduce, clip, AdamW, publish: plain data parallelism and ZeRO stage 1";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr bool repeatable = false;  // a step consumes the gradients

  struct Case {
    int ranks = 2;
    Transport transport{};
    Dtype dtype{};
    int stage = 0;
    int parameters = 0;
  };

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    harness::Sweep<Case> sweep;
    sweep.axis("transport", &Case::transport, {Transport::shared_memory, Transport::mpi})
        .axis("dtype", &Case::dtype, {Dtype::float32, Dtype::bfloat16},
              {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
        .axis("stage", &Case::stage, {0, 1}, {0, 1})
        .axis("ranks", &Case::ranks, quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8})
        .axis("parameters", &Case::parameters,
              quick ? std::vector{100'003} : std::vector{100'003, 1'000'003})
        .only([](const Case& c) {
          return c.parameters < 1000 ? fmt::format("{} parameters: at least 1000", c.parameters)
                                     : std::string();
        });
    if (!quick) return sweep;
    return std::move(sweep.sample([](const Case& c) {
      return c.ranks == 2
                 ? c.transport == Transport::shared_memory
                 : c.transport == Transport::mpi && (c.stage == 1) == (c.dtype == Dtype::bfloat16);
    }));
  }
  static std::string why_not(const Case& c, const harness::Context& context) {
    return context.world.why_not(context.group, c.transport);
  }

  ZeroStep(const Case& c, harness::Context& context)
      : case_(c), context_(context), parameters_(declare(c.parameters)) {
    const machine::Ledger& ledger = context.device.ledger();
    for (std::size_t i = 0; i < held_before_.size(); ++i)
      held_before_[i] = ledger.current(categories[i]);
    dp_ = std::make_unique<collectives::Communicator>(context.world, context.group, c.transport);
    std::vector<Parameter*> all;
    for (Parameter& p : parameters_) all.push_back(&p);
    const machine::Grid grid({.dp = c.ranks}, context.group.index);
    // As if every rank had seen 7 tokens: a divisor that is no power of two.
    plan_ = zero::gradient_plan(all, c.dtype, grid, 7 * c.ranks);
    states_ = std::make_unique<zero::FlatStates>(context.device, plan_, all);

    std::int64_t offset = 0;
    for (const Parameter& p : parameters_) {
      std::vector<double> values, gradients;
      for (std::int64_t i = 0; i < p.value.size(); ++i) {
        values.push_back(random_value(context.seed, offset + i, c.dtype));
        gradients.push_back(contribution(context.group.index, offset + i));
        decays_.push_back(p.weight_decay);
      }
      from_doubles(p.value, values);
      from_doubles(p.gradient, gradients);
      values = to_doubles(p.value);  // as the dtype rounds them
      initial_.insert(initial_.end(), values.begin(), values.end());
      offset += p.value.size();
    }
    initial_bits_ = std::make_unique<Bits>(states_->values());
    gradient_bits_ = std::make_unique<Bits>(states_->gradients());
    start(c.stage, adamw);
  }

  void prepare() { gradient_bits_->restore(states_->gradients()); }

  void run() {
    const double start_s = machine::steady_s();
    step_->reduce();
    const double reduced_s = machine::steady_s();
    step_->update();
    times_.push_back({reduced_s - start_s, machine::steady_s() - reduced_s});
  }

  void judge(harness::Judge& judge) {
    judge_memory(judge);
    const UpdateReference reference(
        {case_.ranks, case_.parameters, case_.dtype, plan_.gradient_dtype, plan_.divisor,
         clip_norm},
        [&](int rank, std::int64_t index) { return contribution(rank, index); });

    start(case_.stage, adamw);
    step_->reduce();
    step_->gather_gradients();
    compare(judge, "summed gradient", &Parameter::gradient, reference.gradients());
    const zero::StepResult result = step_->update();
    judge.numerics("gradient norm", std::abs(result.gradient_norm - reference.norm()),
                   reference.norm_bound());
    judge.numerics("clip factor", std::abs(result.clip_factor - reference.clip_factor()),
                   reference.clip_bound());
    compare(judge, "after AdamW", &Parameter::value,
            reference.after_adamw(adamw, initial_, decays_));
    fingerprint(judge, "after AdamW");

    start(case_.stage, adamw);
    dp_->link().reset_traffic();
    step_->step();
    judge_volume(judge);
    fingerprint(judge, "after AdamW");

    start(case_.stage, sgd);
    step_->step();
    compare(judge, "after SGD", &Parameter::value,
            reference.after_sgd(sgd.learning_rate, initial_));

    // Where the collectives sum in the same order, sharding the states changes no bit. SGD, as
    // Adam's first step hides the last bits of a gradient.
    if (case_.stage == 0) return;
    for (int stage = 0; stage < zero::num_stages; ++stage) {
      start(stage, sgd, "direct");
      step_->step();
      fingerprint(judge, "any stage");
    }
  }

  harness::Cost cost() const {
    const double d = case_.ranks, elements = static_cast<double>(states_->layout().elements);
    const double gradient = static_cast<double>(size_of(plan_.gradient_dtype)),
                 value = static_cast<double>(size_of(plan_.value_dtype));
    const bool sharded = case_.stage > 0 && case_.ranks > 1;
    const double owned = sharded ? elements / d : elements;
    harness::Cost cost;
    // Collectives, read plus written: each rank's share of all inputs is read and its sum written,
    // then the others' sums (or values) are read and written.
    const double others = (d - 1) / d * elements;
    if (case_.ranks > 1)
      cost.memory_bytes =
          (elements + elements / d) * gradient + 2 * others * (sharded ? value : gradient);
    // The norm reads the owned gradients once. The update reads them again, reads and writes the
    // master and both moments, reads the mask, and writes the values where they are not the master.
    const double update =
        gradient + 6 * gradient + 1 + (plan_.value_dtype == plan_.gradient_dtype ? 0 : value);
    cost.memory_bytes += owned * (gradient + update) + elements * gradient;  // cleared at the end
    cost.working_set_bytes =
        elements * (gradient + value) +
        owned * static_cast<double>(zero::optimizer_bytes_per_element(adamw, plan_.value_dtype));
    return cost;
  }

  void describe(harness::Record& record) {
    record.counters["bytes_per_parameter"] =
        static_cast<double>(state_bytes_) / static_cast<double>(case_.parameters);
    if (times_.empty()) return;
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::nth_element(times_.begin(), middle, times_.end(), [](const Times& a, const Times& b) {
      return a.reduce_s + a.update_s < b.reduce_s + b.update_s;
    });
    record.breakdown = {{"reduce", middle->reduce_s}, {"norm, update, publish", middle->update_s}};
  }

 private:
  struct Times {
    double reduce_s, update_s;
  };

  double contribution(int rank, std::int64_t index) const {
    return random_value(context_.seed + 1 + static_cast<std::uint64_t>(rank), index, case_.dtype);
  }

  zero::StepOptions options(const zero::Rule& rule, const std::string& algorithm = {}) const {
    return {rule, clip_norm, algorithm, algorithm, algorithm};
  }

  // Initial values, gradients as backward would leave them, zero moments.
  void start(int stage, const zero::Rule& rule, const std::string& algorithm = {}) {
    step_.reset();
    initial_bits_->restore(states_->values());
    gradient_bits_->restore(states_->gradients());
    step_ = zero::make_step(stage, *states_, plan_, {.dp = dp_.get()}, options(rule, algorithm));
  }

  // Peaks so far are of the timed steps.
  void judge_memory(harness::Judge& judge) {
    const zero::ExpectedMemory formula =
        zero::expected_memory(case_.stage, plan_, states_->layout(), adamw);
    // Beside what a step holds: what the plan of the reduction over dp keeps.
    std::size_t scratch = 0;
    if (case_.ranks > 1 && context_.device.readable_by_host()) {
      const auto operation =
          case_.stage == 0 ? machine::Operation::all_reduce : machine::Operation::reduce_scatter;
      const machine::Tensor& gradients = states_->gradients();
      scratch = collectives::scratch_bytes(
          collectives::find_algorithm(
              operation, collectives::default_algorithm(operation, case_.transport,
                                                        gradients.bytes(), case_.ranks)),
          {context_.group.index, case_.ranks},
          case_.stage == 0 ? gradients.size() : gradients.size() / case_.ranks, gradients.dtype());
    }
    const std::size_t expected[] = {formula.parameters, formula.gradients, formula.optimizer,
                                    formula.buffers + scratch};
    for (std::size_t i = 0; i < held_before_.size(); ++i) {
      const std::size_t held = context_.device.ledger().peak(categories[i]) - held_before_[i];
      judge.memory(categories[i], held, expected[i]);
      if (categories[i] != Category::buffers) state_bytes_ += held;
    }
  }

  void judge_volume(harness::Judge& judge) {
    std::map<machine::TrafficLabel, std::uint64_t> expected;
    for (const zero::TrafficRow& row : zero::expected_traffic(
             case_.stage, plan_, states_->layout(), zero::as_run(options(adamw), case_.transport)))
      expected[row.label] += row.bytes_sent;
    for (const auto& [label, traffic] : dp_->link().traffic())
      if (traffic.bytes_sent > 0) expected.try_emplace(label, 0);  // what nobody expects fails too
    if (expected.empty()) judge.volume(dp_->link(), {});
    for (const auto& [label, bytes] : expected) {
      const auto measured = dp_->link().traffic().find(label);
      judge.volume("dp", label,
                   measured == dp_->link().traffic().end() ? 0 : measured->second.bytes_sent,
                   bytes);
    }
  }

  void compare(harness::Judge& judge, std::string_view when, machine::Tensor Parameter::*what,
               const Expected& expected) const {
    std::size_t offset = 0;
    for (const Parameter& p : parameters_) {
      const std::vector<double> got = to_doubles(p.*what);
      judge.numerics(fmt::format("{} {}", p.name, when), got,
                     std::span(expected.values).subspan(offset, got.size()),
                     std::span(expected.bounds).subspan(offset, got.size()));
      offset += got.size();
    }
  }

  void fingerprint(harness::Judge& judge, std::string_view when) const {
    for (const Parameter& p : parameters_)
      judge.same_bits(fmt::format("{} {}", p.name, when), hash(p.value));
  }

  Case case_;
  harness::Context& context_;
  std::array<std::size_t, std::size(categories)> held_before_{};  // not this unit's
  std::unique_ptr<collectives::Communicator> dp_;
  std::vector<Parameter> parameters_;
  zero::GradientPlan plan_;
  std::unique_ptr<zero::FlatStates> states_;
  std::unique_ptr<Bits> initial_bits_, gradient_bits_;
  std::vector<double> initial_;
  std::vector<bool> decays_;
  std::unique_ptr<zero::Step> step_;
  std::vector<Times> times_;
  std::uint64_t state_bytes_ = 0;
};

const bool registered = harness::add<ZeroStep>();

}  // namespace
}  // namespace suite
