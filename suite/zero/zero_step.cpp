// Claim: one optimizer step over dp replicas, from the gradients of its micro-batches to the
// published values, is right within bounds derived from its dtypes; it sends and holds what ZeRO's
// paper says and leaves all replicas with the same bits, with and without overlap, at any stage
// (Rajbhandari et al. 2020, arXiv:1910.02054; AdamW: Loshchilov and Hutter 2019, arXiv:1711.05101).
//
// A sample is one step with clipping on: in every micro-batch all parts are used forward and
// backward, where known gradients are added to theirs; nothing is computed from values.
// `parameters` counts elements: a dozen matrices and vectors of odd sizes (zero_step_model.h). The
// axes have the names and units that DeepSpeed's configuration gives them.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "collectives/cost.h"
#include "harness/unit.h"
#include "machine/device/clock.h"
#include "suite/zero/update_reference.h"
#include "suite/zero/zero_step_model.h"
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
constexpr int whole = 500'000'000;  // a bucket of everything

struct ZeroStep {
  static constexpr std::string_view name = "zero_step";
  static constexpr std::string_view about =
      "reduce, clip, AdamW, publish: plain data parallelism and ZeRO stages 1 to 3";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr bool repeatable = false;  // as long as a step's first and last bits differ

  struct Case {
    int ranks = 2;
    Transport transport{};
    Dtype dtype{};
    int stage = 0;
    int parameters = 0;
    int micro_batches = 1;
    bool overlap = false, contiguous = true;
    int reduce_bucket = whole, all_gather_bucket = whole;
    std::string wire;
    int prefetch_bucket = 0, persistence_threshold = 0, max_live = 0;
  };

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    harness::Sweep<Case> sweep;
    sweep.axis("transport", &Case::transport, {Transport::shared_memory, Transport::mpi})
        .axis("dtype", &Case::dtype,
              quick ? std::vector{Dtype::float32, Dtype::bfloat16}
                    : std::vector{Dtype::float32, Dtype::bfloat16, Dtype::float16},
              {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
        .axis("stage", &Case::stage, {0, 1, 2, 3}, {0, 1, 2, 3})
        .axis("ranks", &Case::ranks, quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8})
        .axis("parameters", &Case::parameters,
              quick ? std::vector{100'003} : std::vector{100'003, 1'000'003})
        .axis("gradient_accumulation_steps", &Case::micro_batches,
              quick ? std::vector{1, 3} : std::vector{1, 2, 3})
        .axis("overlap_comm", &Case::overlap, {false, true})
        .axis("contiguous_gradients", &Case::contiguous, {true, false})
        .axis("reduce_bucket_size", &Case::reduce_bucket, {whole, 20'000})
        .axis("allgather_bucket_size", &Case::all_gather_bucket, {whole, 10'000})
        .axis("communication_data_type", &Case::wire, {"default", "bfloat16", "half"},
              {"default", "bfloat16", "half"})
        .axis("stage3_prefetch_bucket_size", &Case::prefetch_bucket, {50'000'000, 0, 30'000})
        .axis("stage3_param_persistence_threshold", &Case::persistence_threshold, {100, 100'000})
        .axis("stage3_max_live_parameters", &Case::max_live, {1'000'000'000, 50'000})
        .usual("gradient_accumulation_steps", "1")
        .usual("overlap_comm", "off")
        .usual("contiguous_gradients", "on")
        .usual("reduce_bucket_size", std::to_string(whole))
        .usual("allgather_bucket_size", std::to_string(whole))
        .usual("communication_data_type", "default")
        .usual("stage3_prefetch_bucket_size", "50000000")
        .usual("stage3_param_persistence_threshold", "100")
        .usual("stage3_max_live_parameters", "1000000000")
        .only(why_no_case);
    return std::move(sweep.sample(quick ? in_quick : in_acceptance));
  }

  static std::string why_no_case(const Case& c) {
    if (c.parameters < 1000) return fmt::format("{} parameters: at least 1000", c.parameters);
    if (c.micro_batches < 1) return fmt::format("{} micro-batches: at least 1", c.micro_batches);
    if (c.reduce_bucket < 1 || c.all_gather_bucket < 1 || c.max_live < 1 || c.prefetch_bucket < 0)
      return "a bucket has one element at least";
    if (c.overlap && c.transport != Transport::shared_memory)
      return "overlap_comm needs shared_memory: one thread alone may use the others";
    if (c.wire != "default" && c.dtype == Dtype::float64)
      return "communication_data_type narrows gradients of float, not of double";
    return "";
  }

  // How many of a case's axes are not what they usually are.
  static int unusual(const Case& c) {
    return (c.micro_batches != 1) + c.overlap + !c.contiguous + (c.reduce_bucket != whole) +
           (c.all_gather_bucket != whole) + (c.wire != "default") +
           (c.prefetch_bucket != 50'000'000) + (c.persistence_threshold != 100) +
           (c.max_live != 1'000'000'000);
  }
  // Without overlap, one after the other, in one bucket: each stage in both dtypes. Then buckets,
  // micro-batches and overlap together.
  static bool in_quick(const Case& c) {
    if (unusual(c) == 0)
      return c.ranks == 2 ? c.transport == Transport::shared_memory &&
                                (c.stage < 2 || (c.stage == 3) == (c.dtype == Dtype::bfloat16))
                          : c.transport == Transport::mpi &&
                                (c.stage % 2 == 1) == (c.dtype == Dtype::bfloat16);
    if (c.ranks != 4 || c.reduce_bucket == whole || !c.overlap || c.micro_batches != 3)
      return false;
    if (unusual(c) == 3) return c.stage > 0 && (c.stage == 3) == (c.dtype == Dtype::bfloat16);
    return c.stage == 2 && c.dtype == Dtype::float32 && c.wire == "half" && !c.contiguous &&
           unusual(c) == 5;
  }
  // Everything as usual over both transports; the matrix of stages, ranks, micro-batches, dtypes
  // and overlap in small buckets; then what else there is, one at a time.
  static bool in_acceptance(const Case& c) {
    const int count = unusual(c);
    if (count == 0) return c.parameters <= 100'003 || c.dtype != Dtype::float16;
    if (c.parameters > 100'003 || c.transport != Transport::shared_memory) return false;
    if (c.reduce_bucket == whole) return false;
    if (count == 1 + c.overlap + (c.micro_batches != 1)) return true;
    return c.ranks == 3 && c.micro_batches == 2 && c.overlap && count == 4;
  }

  static std::string why_not(const Case& c, const harness::Context& context) {
    if (c.overlap && !context.device.readable_by_host())
      return "overlap_comm needs tensors in host memory";
    return context.world.why_not(context.group, c.transport);
  }

  ZeroStep(const Case& c, harness::Context& context)
      : case_(c),
        context_(context),
        model_(c.parameters, c.dtype, context.seed, context.group.index, c.ranks, c.micro_batches) {
    const machine::Ledger& ledger = context.device.ledger();
    for (std::size_t i = 0; i < held_before_.size(); ++i)
      held_before_[i] = ledger.current(categories[i]);
    dp_ = std::make_unique<collectives::Communicator>(context.world, context.group, c.transport);
    const machine::Grid grid({.dp = c.ranks}, context.group.index);
    // As if every micro-batch had 7 tokens: a divisor that is no power of two.
    plan_ = zero::gradient_plan(model_.list(), c.dtype, grid, 7 * c.ranks * c.micro_batches,
                                zero_frozen());
    layout_options_ = {c.reduce_bucket, model_.part_of_rows(), c.persistence_threshold};
    model_.make_gradients(context.device, plan_.gradient_dtype);
    start(c.stage, options(adamw));
  }

  void prepare() {}

  void run() {
    const double start_s = machine::steady_s();
    passes();
    const double passed_s = machine::steady_s();
    step_->reduce();
    const double reduced_s = machine::steady_s();
    step_->update();
    times_.push_back({passed_s - start_s, reduced_s - passed_s, machine::steady_s() - reduced_s});
  }

  void judge(harness::Judge& judge) {
    judge_memory(judge);
    const UpdateReference reference(
        {case_.ranks * case_.micro_batches, case_.parameters, case_.dtype, plan_.gradient_dtype,
         plan_.divisor, clip_norm,
         case_.ranks > 1 ? options(sgd).communication_data_type.value_or(plan_.gradient_dtype)
                         : plan_.gradient_dtype},
        [&](int index, std::int64_t element) { return model_.contribution(index, element); });

    start(case_.stage, options(adamw));
    passes([&](const Parameter& p, std::int64_t first) {
      judge.exact(fmt::format("{} when it is used", p.name), to_doubles(p.value),
                  std::span(rounded_).subspan(static_cast<std::size_t>(first),
                                              static_cast<std::size_t>(p.value.size())));
    });
    step_->reduce();
    step_->gather_gradients();
    compare_gradients(judge, "summed gradient", reference);
    const zero::StepResult result = step_->update();
    judge.numerics("gradient norm", std::abs(result.gradient_norm - reference.norm()),
                   reference.norm_bound());
    judge.numerics("clip factor", std::abs(result.clip_factor - reference.clip_factor()),
                   reference.clip_bound());
    compare_values(judge, "after AdamW", reference.after_adamw(adamw, rounded_, model_.decays()));
    fingerprint(judge, "after AdamW");
    passes();  // nothing of the first step is left in the second's gradients
    step_->reduce();
    step_->gather_gradients();
    compare_gradients(judge, "summed gradient of step 2", reference);
    step_->update();

    // Again, on another thread or on this one, late, and with what is freed made useless.
    zero::StepOptions late = options(adamw);
    late.overlap_comm = !case_.overlap && case_.transport == Transport::shared_memory &&
                        context_.device.readable_by_host();
    late.contiguous_gradients = !case_.contiguous;
    late.poison_freed = true;
    late.before_transfer = [this, count = 0]() mutable {
      std::this_thread::sleep_for(
          std::chrono::microseconds((context_.group.index * 37 + count++ * 13) % 5 * 40));
    };
    start(case_.stage, late);
    passes();
    step_->step();
    fingerprint(judge, "after AdamW");

    start(case_.stage, options(adamw));
    dp_->link().reset_traffic();
    passes();
    step_->step();
    judge_volume(judge);
    fingerprint(judge, "after AdamW");

    start(case_.stage, options(sgd));
    passes();
    step_->step();
    compare_values(judge, "after SGD", reference.after_sgd(sgd.learning_rate, rounded_));

    // Where the collectives sum in the same order, sharding the states changes no bit. SGD, as
    // Adam's first step hides the last bits of a gradient. Stages 0 and 1 add up micro-batches
    // first, 2 and 3 ranks.
    if (case_.stage == 0) return;
    for (int stage = 0; stage < zero::num_stages; ++stage) {
      start(stage, options(sgd, "direct"));
      passes();
      step_->step();
      fingerprint(judge, case_.micro_batches == 1 ? "any stage"
                         : stage < 2              ? "stages 0 and 1"
                                                  : "stages 2 and 3");
    }
  }

  harness::Cost cost() const {
    const double d = case_.ranks, elements = static_cast<double>(states_->layout().elements);
    const double gradient = static_cast<double>(size_of(plan_.gradient_dtype)),
                 value = static_cast<double>(size_of(plan_.value_dtype));
    const bool sharded = case_.stage > 0 && case_.ranks > 1;
    const double owned = sharded ? elements / d : elements;
    harness::Cost cost;
    // Backward reads what it adds, reads and writes gradients.
    cost.memory_bytes = case_.micro_batches * 3 * elements * gradient;
    // Collectives, read plus written: each rank's share of all inputs is read and its sum written,
    // then the others' sums (or values) are read and written.
    const double others = (d - 1) / d * elements;
    const double reductions = case_.stage >= 2 ? case_.micro_batches : 1,
                 gathers = case_.stage == 3 ? 2 * case_.micro_batches : 1;
    if (case_.ranks > 1)
      cost.memory_bytes += reductions * (elements + elements / d) * gradient +
                           2 * others * (sharded ? gathers * value : gradient);
    // The norm reads the owned gradients once. The update reads them again, reads and writes the
    // master and both moments, reads the mask, and writes the values where they are not the master.
    const double update =
        gradient + 6 * gradient + 1 + (plan_.value_dtype == plan_.gradient_dtype ? 0 : value);
    cost.memory_bytes += owned * (gradient + update) +
                         (case_.stage >= 2 ? owned : elements) * gradient;  // cleared at the end
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
      return a.passes_s + a.reduce_s + a.update_s < b.passes_s + b.reduce_s + b.update_s;
    });
    record.breakdown = {{"micro-batches", middle->passes_s},
                        {"reduce", middle->reduce_s},
                        {"norm, update, publish", middle->update_s}};
  }

 private:
  struct Times {
    double passes_s, reduce_s, update_s;
  };

  static std::vector<std::string> zero_frozen() { return ZeroStepModel::frozen(); }

  zero::StepOptions options(const zero::Rule& rule, const std::string& algorithm = {}) const {
    zero::StepOptions options{rule, clip_norm, algorithm, algorithm, algorithm};
    options.allgather_bucket_size = case_.all_gather_bucket;
    if (case_.wire == "bfloat16") options.communication_data_type = Dtype::bfloat16;
    if (case_.wire == "half") options.communication_data_type = Dtype::float16;
    options.overlap_comm = case_.overlap;
    options.contiguous_gradients = case_.contiguous;
    options.stage3_prefetch_bucket_size = case_.prefetch_bucket;
    options.stage3_max_live_parameters = case_.max_live;
    return options;
  }

  // Initial values, zero moments.
  void start(int stage, const zero::StepOptions& options) {
    step_.reset();
    states_.reset();
    model_.forget();
    states_ =
        std::make_unique<zero::FlatStates>(context_.device, plan_, model_.list(), layout_options_);
    model_.set_values();
    if (rounded_.empty()) {
      for (const Parameter& p : model_.parameters()) {
        const std::vector<double> values = to_doubles(p.value);
        rounded_.insert(rounded_.end(), values.begin(), values.end());
      }
    }
    step_ = zero::make_step(stage, *states_, plan_, {.dp = dp_.get()}, options);
  }

  void passes(const ZeroStepModel::OnUse& on_use = {}) {
    for (int i = 0; i < case_.micro_batches; ++i) model_.run(*step_, i, on_use);
  }

  // Of a step when collectives hold their scratch and stage 3 knows its way.
  void judge_memory(harness::Judge& judge) {
    passes();
    step_->step();
    context_.device.ledger().reset_peaks();
    passes();
    step_->step();
    std::array<std::size_t, std::size(categories)> peaks{};
    for (std::size_t i = 0; i < peaks.size(); ++i)
      peaks[i] = context_.device.ledger().peak(categories[i]) - held_before_[i];

    const zero::ExpectedMemory formula = zero::expected_memory(
        case_.stage, plan_, states_->layout(), adamw, options(adamw), model_.usage());
    // Beside what a step holds: what the plans of its collectives keep.
    std::size_t scratch = 0;
    if (context_.device.readable_by_host()) {
      std::map<std::tuple<machine::Operation, Dtype, std::int64_t>, std::size_t> kept;
      for (const zero::CollectiveCalls& calls : expected_calls())
        kept[{calls.operation, calls.dtype, calls.count}] = collectives::scratch_bytes(
            algorithm(calls), {context_.group.index, case_.ranks}, calls.count, calls.dtype);
      for (const auto& [call, bytes] : kept) scratch += bytes;
    }
    const std::size_t expected[] = {formula.parameters, formula.gradients, formula.optimizer,
                                    formula.buffers + scratch};
    for (std::size_t i = 0; i < peaks.size(); ++i) {
      judge.memory(categories[i], peaks[i], expected[i]);
      if (categories[i] != Category::buffers) state_bytes_ += peaks[i];
    }
  }

  std::vector<zero::CollectiveCalls> expected_calls() const {
    return zero::expected_calls(case_.stage, plan_, states_->layout(), options(adamw),
                                model_.usage());
  }
  const collectives::Algorithm& algorithm(const zero::CollectiveCalls& calls) const {
    return collectives::find_algorithm(calls.operation,
                                       zero::algorithm_of(calls, options(adamw), case_.transport));
  }

  void judge_volume(harness::Judge& judge) {
    std::map<machine::TrafficLabel, machine::Traffic> expected;
    for (const zero::CollectiveCalls& calls : expected_calls()) {
      const machine::Traffic one = collectives::expected_traffic(
          algorithm(calls), {context_.group.index, case_.ranks}, calls.count, calls.dtype);
      machine::Traffic& sum = expected[{calls.operation, calls.dtype}];
      for (std::int64_t i = 0; i < calls.calls; ++i) sum += one;
    }
    judge.volume(dp_->link(), expected);
  }

  void compare_gradients(harness::Judge& judge, std::string_view when,
                         const UpdateReference& reference) {
    compare(judge, when, &Parameter::gradient, reference.gradients());
  }

  void compare_values(harness::Judge& judge, std::string_view when, const Expected& expected) {
    const std::vector<Parameter*> all = model_.list();
    step_->before_use(all);
    compare(judge, when, &Parameter::value, expected);
    std::size_t offset = 0;
    for (const Parameter* p : all) {
      const std::vector<double> got = to_doubles(p->value);
      if (!model_.trained(*p))
        judge.exact(fmt::format("{} {}", p->name, when), got,
                    std::span(rounded_).subspan(offset, got.size()));
      offset += got.size();
    }
    step_->after_use(all);
  }

  void compare(harness::Judge& judge, std::string_view when, machine::Tensor Parameter::*what,
               const Expected& expected) const {
    std::size_t offset = 0;
    for (const Parameter& p : model_.parameters()) {
      const auto size = static_cast<std::size_t>(p.global_shape.size());
      if (model_.trained(p))
        judge.numerics(fmt::format("{} {}", p.name, when), to_doubles(p.*what),
                       std::span(expected.values).subspan(offset, size),
                       std::span(expected.bounds).subspan(offset, size));
      offset += size;
    }
  }

  void fingerprint(harness::Judge& judge, std::string_view when) {
    const std::vector<Parameter*> all = model_.list();
    step_->before_use(all);
    for (const Parameter* p : all)
      judge.same_bits(fmt::format("{} {}", p->name, when), hash(p->value));
    step_->after_use(all);
  }

  Case case_;
  harness::Context& context_;
  ZeroStepModel model_;
  std::array<std::size_t, std::size(categories)> held_before_{};  // not this unit's
  std::unique_ptr<collectives::Communicator> dp_;
  zero::GradientPlan plan_;
  zero::LayoutOptions layout_options_;
  std::unique_ptr<zero::FlatStates> states_;
  std::vector<double> rounded_;  // initial values as the dtype has them
  std::unique_ptr<zero::Step> step_;
  std::vector<Times> times_;
  std::uint64_t state_bytes_ = 0;
};

const bool registered = harness::add<ZeroStep>();

}  // namespace
}  // namespace suite
