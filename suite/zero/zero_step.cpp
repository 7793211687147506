// Claim: one optimizer step over dp replicas, from the gradients of its micro-batches to the
// published values, is right within bounds derived from its dtypes. It sends and holds the bytes of
// ZeRO's paper and leaves all replicas with the same bits, with and without overlap, at any ZeRO
// stage (Rajbhandari et al. 2020, arXiv:1910.02054; AdamW: Loshchilov and Hutter 2019,
// arXiv:1711.05101). With the optimizer's states in host memory or in a file, values and states
// have the same bits as on the device, also after an overflow. With delayed_update the values are
// those of the previous step (Ren et al. 2021, arXiv:2101.06840; Rajbhandari et al. 2021,
// arXiv:2104.07857). The same holds for ZeRO stage 3 with offloaded values.
//
// A sample is one step with clipping on. Every micro-batch uses all parts forward and backward, and
// adds known gradients to their gradients. No gradient is computed from values. `parameters` counts
// elements: a dozen matrices and vectors of odd sizes (zero_step_model.h). sub_group_size: the
// elements that an offloaded optimizer updates at once, also on the host, and the buffer_size of
// values in a file. nvme_path `temporary` is $TMPDIR, or /tmp.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>

#include "collectives/cost.h"
#include "machine/base/clock.h"
#include "suite/reference/shared_counters.h"
#include "suite/reference/unit.h"
#include "suite/reference/whole_values.h"
#include "suite/zero/file_bound.h"
#include "suite/zero/quantized_reference.h"
#include "suite/zero/update_reference.h"
#include "suite/zero/zero_step_case.h"
#include "suite/zero/zero_step_cost.h"
#include "suite/zero/zero_step_groups.h"
#include "suite/zero/zero_step_model.h"
#include "zero/cost/cost.h"
#include "zero/stages/step.h"

namespace suite {
namespace {

using collectives::Parameter;

constexpr double clip_norm = 1;  // below the norm of the gradients here, so steps clip
constexpr machine::AdamW adamw{.learning_rate = 1e-2, .weight_decay = 0.1};
constexpr zero::Sgd sgd{.learning_rate = 0.5};
constexpr int steps_judged = 4, overflowing_step = 3;

struct ZeroStep : ZeroStepCases {
  static constexpr std::string_view name = "zero_step";
  static constexpr std::string_view about =
      "reduce, clip, AdamW, publish: plain data parallelism and ZeRO stages 1 to 3";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr auto& counters = zero_step_counters;
  static constexpr bool repeatable = false;  // each step changes the values and states

  ZeroStep(const Case& c, Context& context)
      : case_(c),
        context_(context),
        host_(machine::make_host_device_beside(context.device)),
        model_(c.parameters, c.dtype, context.seed, context.group.index, c.ranks, c.micro_batches,
               Case::dtype_of(c.sums)),
        groups_(c, context),
        dp_(groups_.dp()),
        memory_(context.device.ledger()),
        plan_(model_.plan()) {
    host_->set_threads(std::max(1, context.device.threads() - 1));  // leaves a core to the copies
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

  void judge(Judge& judge) {
    judge_memory(judge);
    const auto contribution = [&](int index, std::int64_t element) {
      return model_.contribution(index, element);
    };
    const bool alone = case_.ranks == 1;
    UpdateCase update{case_.ranks * case_.micro_batches,
                      case_.parameters,
                      case_.dtype,
                      plan_.gradient_dtype,
                      plan_.divisor,
                      clip_norm,
                      alone ? plan_.gradient_dtype
                            : options(sgd).communication_data_type.value_or(plan_.gradient_dtype),
                      zero::predivision(options(sgd), case_.ranks)};
    if (case_.quantized_gradients && !alone)
      update.quantization =
          quantization_bounds({case_.ranks, groups_.near_ranks(), case_.micro_batches,
                               case_.parameters, model_.blocks(elements_of_block)},
                              contribution);
    const UpdateReference reference(update, contribution);

    start(case_.stage, options(adamw));
    const ZeroStepModel::OnUse check_use = [&](const Parameter& p, std::int64_t first) {
      is_coded(p) ? compare_coded(judge, p, first)
                  : compare_initial(judge, "when it is used", p, first);
    };
    sum_up(check_use);
    step_->gather_gradients();
    compare_gradients(judge, "summed gradient", reference.gradients());
    const zero::StepResult result = step_->update();
    step_->drain();
    compare_norm(judge, "", result, reference);
    compare_values(judge, "after AdamW", reference.after_adamw(adamw, rounded_, model_.decays()));
    fingerprint(judge, "after AdamW");
    sum_up();  // the second step's gradients must not contain the first's
    step_->gather_gradients();
    compare_gradients(judge, "summed gradient of step 2", reference.gradients());
    compare_norm(judge, " of step 2", step_->update(), reference);
    if (case_.offloads()) judge_beside_memory(judge);

    // Repeats the step with late reductions on the other thread, and with freed memory overwritten.
    zero::StepOptions late = options(adamw);
    late.overlap_comm =
        !case_.overlap &&
        (between_devices(case_.transport) ||
         (case_.transport == Transport::shared_memory && context_.device.readable_by_host()));
    late.contiguous_gradients = !case_.contiguous;
    late.poison_freed = true;
    late.before_transfer = [this, count = 0](std::size_t) mutable {
      std::this_thread::sleep_for(
          std::chrono::microseconds((context_.group.index * 37 + count++ * 13) % 5 * 40));
    };
    take_step(late, {}, check_use);
    fingerprint(judge, "after AdamW");
    // The next step uses values while they arrive.
    start(case_.stage, late);
    whole_step();
    if (case_.delayed) step_->drain();
    passes([&](const Parameter& p, std::int64_t) {
      judge.same_bits(fmt::format("{} after AdamW{}", p.name, is_coded(p) ? ", coded" : ""),
                      hash(p.value));
    });
    step_->reduce();

    start(case_.stage, options(adamw));
    if (case_.max_reuse > 0) {  // the first pass keeps nothing
      whole_step();
      step_->drain();
    }
    groups_.reset_traffic();
    moved_before_ = step_->moved();
    whole_step();
    step_->wait_for_values();
    judge_volume(judge);
    step_->drain();
    if (case_.offloads()) judge_offload_volume(judge);
    if (case_.max_reuse == 0) fingerprint(judge, "after AdamW");
    judge_volume_ratio(judge);

    take_step(options(sgd));
    compare_values(judge, "after SGD", reference.after_sgd(sgd.learning_rate, rounded_));

    // If the collectives sum in the same order, sharding the states does not change a bit. This
    // check uses SGD, because Adam's first step hides the last bits of a gradient. ZeRO stages 0
    // and 1 sum over micro-batches first, ZeRO stages 2 and 3 over ranks. Only codes of gradients
    // change them.
    if (case_.stage == 0 || case_.quantized_gradients) return;
    for (int stage = 0; stage < zero::num_stages; ++stage) {
      zero::StepOptions direct = options(sgd, "direct");
      if (stage < 3) direct.offload_param = {}, direct.plus_plus = {};
      take_step(direct, stage);
      fingerprint(judge, case_.micro_batches == 1 ? "any stage"
                         : stage < 2              ? "stages 0 and 1"
                                                  : "stages 2 and 3");
    }
  }

  Cost cost() const {
    Cost cost = memory_cost(case_, plan_, states_->layout(),
                            zero::optimizer_bytes_per_element(adamw, plan_.value_dtype));
    // Copies read and write. States in a file pass memory once each way.
    const zero::OffloadTraffic moved = expected_offload_traffic();
    cost.memory_bytes += 2 * static_cast<double>(moved.down + moved.up) + file_bytes(moved);
    return cost;
  }

  void describe(Description& description) {
    description.set("bytes_per_parameter",
                    static_cast<double>(state_bytes_) / static_cast<double>(case_.parameters));
    if (case_.offloads()) {
      const zero::OffloadTraffic moved = expected_offload_traffic();
      description.set("host_bytes_per_parameter",
                      static_cast<double>(host_bytes_) / static_cast<double>(case_.parameters));
      description.set("offload_bytes_per_step",
                      static_cast<double>(moved.down + moved.up) + file_bytes(moved));
      description.note = note_;
    }
    if (case_.offload == "nvme" && case_.offload_param == "none") {
      start(case_.stage, options(adamw));
      describe_file_bound(description, context_, *step_, [this] { sum_up(); });
    }
    if (volume_ratio_) description.set("volume_ratio", *volume_ratio_);
    if (times_.empty()) return;
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::ranges::nth_element(times_, middle, {}, &Times::all_s);
    description.breakdown = {{"micro-batches", middle->passes_s},
                             {"reduce", middle->reduce_s},
                             {"norm, update, publish", middle->update_s}};
  }

 private:
  struct Times {
    double passes_s, reduce_s, update_s;
    double all_s() const { return passes_s + reduce_s + update_s; }
  };

  zero::StepOptions options(const zero::Rule& rule, const std::string& algorithm = {}) const {
    zero::StepOptions options = case_.step_options(clip_norm, context_.group.index);
    options.rule = rule;
    options.all_reduce = options.reduce_scatter = options.all_gather = algorithm;
    options.offload_optimizer.host = host_.get();
    groups_.place(options.plus_plus);
    return options;
  }

  // Starts from initial values and zero moments. Overwrites the previous values and moments with
  // NaN.
  void start(int stage, const zero::StepOptions& options) {
    step_.reset();
    if (states_)
      for (const Tensor& left : {states_->values(), states_->gradients()})
        if (left)
          context_.device.stream().kernels().fill(left, std::numeric_limits<double>::quiet_NaN());
    context_.device.stream().synchronize();
    states_.reset();
    states_ = model_.states(context_.device, case_.reduce_bucket, case_.persistence_threshold);
    if (rounded_.empty())
      model_.for_each([&](const Parameter& p, std::int64_t) { append(rounded_, p.value); });
    step_ = zero::make_step(stage, *states_, plan_, groups_.communicators(), options);
  }

  void passes(const ZeroStepModel::OnUse& on_use = {}) {
    for (int i = 0; i < case_.micro_batches; ++i) model_.run(*step_, i, on_use);
  }

  void sum_up(const ZeroStepModel::OnUse& on_use = {}) {
    passes(on_use);
    step_->reduce();
  }

  zero::StepResult whole_step(const ZeroStepModel::OnUse& on_use = {}) {
    passes(on_use);
    return step_->step();
  }

  // Takes the first step from the start and applies its update to the values.
  void take_step(const zero::StepOptions& options, std::optional<int> stage = {},
                 const ZeroStepModel::OnUse& on_use = {}) {
    start(stage.value_or(case_.stage), options);
    whole_step(on_use);
    step_->drain();
  }

  // Judges a step after the first: collectives hold their scratch, and stage 3 prefetches.
  void judge_memory(Judge& judge) {
    judge.shares_reference(Oracle::memory);  // reads the layout's buckets
    judge.memory(
        "one gradient", Category::gradients, size_of(plan_.gradient_dtype),
        size_of(Case::dtype_of(case_.sums)
                    .value_or(case_.dtype == Dtype::float64 ? case_.dtype : Dtype::float32)));
    whole_step();
    memory_.reset();
    host_->ledger().reset_peaks();
    whole_step();
    const zero::ExpectedMemory formula = zero::expected_memory(
        case_.stage, plan_, states_->layout(), adamw, options(adamw), model_.usage());
    // The bytes in addition to the states: scratch and staging of the collectives' plans, which
    // staged collectives hold in host memory.
    const collectives::CallsCost calls = cost_of_calls();
    const std::size_t scratch = dp_.link().stages(context_.device) ? 0 : calls.scratch();
    if (dp_.link().is_rendezvous())
      judge.memory(Category::links, memory_.peak(Category::links), calls.staging());
    for (const auto& [category, expected] : {std::pair(Category::parameters, formula.parameters),
                                             {Category::gradients, formula.gradients},
                                             {Category::optimizer, formula.optimizer},
                                             {Category::buffers, formula.buffers + scratch}}) {
      const std::uint64_t peak = memory_.peak(category);
      judge.memory(category, peak, expected);
      if (category != Category::buffers) state_bytes_ += peak;
    }
    if (!case_.offloads()) return;
    const machine::Ledger& host = host_->ledger();
    for (const auto& [category, bytes] : {std::pair(Category::optimizer, formula.host_optimizer),
                                          {Category::buffers, formula.host_buffers},
                                          {Category::parameters, formula.host_parameters}})
      judge.memory("by the host", category, host.peak(category), bytes);
    host_bytes_ = host.peak();
  }

  zero::OffloadTraffic expected_offload_traffic() const {
    return zero::expected_offload_traffic(case_.stage, plan_, states_->layout(), adamw,
                                          options(adamw), model_.usage());
  }

  // Judges the volume of the last step.
  void judge_offload_volume(Judge& judge) {
    const zero::OffloadTraffic measured = step_->moved() - moved_before_,
                               expected = expected_offload_traffic();
    const machine::TrafficLabel gradients{Operation::none, plan_.gradient_dtype},
        values{Operation::none, plan_.value_dtype};
    note_ = step_->offload_note();
    judge.volume("device to host", gradients, measured.down, expected.down);
    judge.volume("host to device", values, measured.up, expected.up);
    judge.volume("file to host", gradients, measured.nvme_read, expected.nvme_read);
    judge.volume("host to file", gradients, measured.nvme_written, expected.nvme_written);
  }

  // The results of several steps. Their gradients change sign, and one step overflows on the last
  // rank.
  struct Trajectory {
    std::vector<std::vector<double>> values;  // after each step
    std::vector<double> drained,
        states;  // drained: values after drain; states: of this rank's elements
  };
  Trajectory train(Judge& judge, const zero::StepOptions& options) {
    start(case_.stage, options);
    Trajectory seen;
    for (int step = 1; step <= steps_judged; ++step) {
      const bool overflows = step == overflowing_step;
      model_.negate_gradients();
      double kept = 0;
      const bool here = overflows && context_.group.index + 1 == case_.ranks;
      if (here) kept = model_.replace_gradient(std::numeric_limits<double>::infinity());
      const bool updated = whole_step().updated;
      if (here) model_.replace_gradient(kept);
      judge.exact(fmt::format("whether step {} updates", step), std::vector{updated ? 1.0 : 0.0},
                  std::vector{overflows ? 0.0 : 1.0});
      seen.values.push_back(model_.values(*step_));
    }
    step_->drain();
    seen.drained = model_.values(*step_);
    using States = zero::RangeStates;
    for (const auto state : {&States::master, &States::first_moment, &States::second_moment})
      step_->optimizer().visit(
          false, [&](zero::Range, const States& of) { append(seen.states, of.*state); });
    return seen;
  }

  // A delayed step that updates writes the values of the previous step. A skipped step writes no
  // values.
  void judge_beside_memory(Judge& judge) {
    zero::StepOptions beside = options(adamw);
    beside.offload_optimizer = {};
    beside.offload_param = {};
    const Trajectory reference = train(judge, beside), offloaded = train(judge, options(adamw));
    std::vector<double> stale = rounded_;
    for (int step = 1; step <= steps_judged; ++step) {
      const auto at = static_cast<std::size_t>(step - 1);
      if (case_.delayed && step != overflowing_step && step > 1) stale = reference.values[at - 1];
      judge.exact(fmt::format("values after step {}{}", step,
                              case_.delayed ? ", those of the previous step" : ""),
                  offloaded.values[at], case_.delayed ? stale : reference.values[at]);
    }
    judge.exact("values after all steps", offloaded.drained, reference.drained);
    judge.exact("master and moments after all steps", offloaded.states, reference.states);
  }

  collectives::CallsCost cost_of_calls() {
    collectives::CallsCost cost;
    const zero::StepOptions step_options = options(adamw);
    for (const collectives::CollectiveCalls& calls :
         zero::expected_calls(case_.stage, plan_, states_->layout(), step_options, model_.usage()))
      cost.add(calls, groups_.named(calls.group), zero::asked_algorithm(calls, step_options));
    return cost;
  }

  void judge_volume(Judge& judge) {
    judge.shares_reference(Oracle::volume);  // reads the layout's buckets
    groups_.each([&, cost = cost_of_calls()](const std::string& name, auto& group) {
      judge.volume(group.link(), cost.traffic(name));
    });
  }

  // Returns the bytes of gradients and values that this rank sends in a step over dp, and to other
  // hosts.
  double sent_in_step(int stage) {
    zero::StepOptions optimal = options(sgd, "direct");
    if (stage < 3) optimal.offload_param = {}, optimal.plus_plus = {};
    if (stage < 1) optimal.offload_optimizer = {};
    start(stage, optimal);
    groups_.reset_traffic();
    whole_step();
    step_->wait_for_values();
    const collectives::Communicator& far = groups_.named("qgz_far");
    return sent_without_norm(dp_.link()) + (&far == &dp_ ? 0 : sent_without_norm(far.link()));
  }

  void judge_volume_ratio(Judge& judge) {
    if (!has_paper_ratio(case_)) return;
    const double mine = sent_in_step(case_.stage);
    const double of_paper =
        paper_ratio(case_, states_->layout(), ZeroStepModel::shared(), groups_.near_ranks());
    volume_ratio_ = mine / sent_in_step(0);
    judge.numerics("bytes sent over dp over those of stage 0, and the paper's ratio",
                   std::abs(*volume_ratio_ - of_paper), 0x1p-50);
  }

  static void compare_norm(Judge& judge, std::string_view when, const zero::StepResult& result,
                           const UpdateReference& reference) {
    judge.numerics(fmt::format("gradient norm{}", when),
                   std::abs(result.gradient_norm - reference.norm()), reference.norm_bound());
    judge.numerics(fmt::format("clip factor{}", when),
                   std::abs(result.clip_factor - reference.clip_factor()), reference.clip_bound());
  }

  void compare_values(Judge& judge, std::string_view when, const Expected& expected) {
    model_.with_values(*step_, [&](const Parameter& p, std::int64_t first) {
      if (model_.trained(p))
        compare(judge, when, p, p.value, first, expected);
      else
        compare_initial(judge, when, p, first);
    });
  }
  void compare_gradients(Judge& judge, std::string_view when, const Expected& expected) const {
    model_.for_each([&](const Parameter& p, std::int64_t first) {
      if (model_.trained(p)) compare(judge, when, p, p.gradient, first, expected);
    });
  }
  static void compare(Judge& judge, std::string_view when, const Parameter& p, const Tensor& got,
                      std::int64_t first, const Expected& expected) {
    const auto part = [&](const std::vector<double>& all) { return part_of(all, p, first); };
    judge.numerics(fmt::format("{} {}", p.name, when), to_doubles(got), part(expected.values),
                   part(expected.bounds));
  }
  void compare_initial(Judge& judge, std::string_view when, const Parameter& p,
                       std::int64_t first) const {
    judge.exact(fmt::format("{} {}", p.name, when), to_doubles(p.value),
                part_of(rounded_, p, first));
  }
  // Returns whether uses in passes see the codes of a parameter (qwZ).
  bool is_coded(const Parameter& p) const {
    if (!case_.quantized_weights || case_.ranks == 1) return false;
    const zero::Layout& layout = states_->layout();
    const int bucket = layout.bucket_of[static_cast<std::size_t>(states_->row(&p))];
    return !layout.buckets[static_cast<std::size_t>(bucket)].persistent;
  }
  void compare_coded(Judge& judge, const Parameter& p, std::int64_t first) const {
    const auto initial = part_of(rounded_, p, first);
    const std::vector<double> exact(initial.begin(), initial.end());
    judge.numerics(p.name + " when it is used", to_doubles(p.value), exact,
                   code_bounds(exact, case_.dtype));
  }
  static std::span<const double> part_of(const std::vector<double>& all, const Parameter& p,
                                         std::int64_t first) {
    return std::span(all).subspan(static_cast<std::size_t>(first),
                                  static_cast<std::size_t>(p.global_shape.size()));
  }

  void fingerprint(Judge& judge, std::string_view when) {
    model_.with_values(*step_, [&](const Parameter& p, std::int64_t) {
      judge.same_bits(fmt::format("{} {}", p.name, when), hash(p.value));
    });
  }

  Case case_;
  Context& context_;
  std::unique_ptr<machine::Device> host_;  // stores offloaded states
  ZeroStepModel model_;
  ZeroStepGroups groups_;
  collectives::Communicator& dp_;
  harness::PeakMeter memory_;  // without the memory of the link itself
  zero::GradientPlan plan_;
  std::unique_ptr<zero::FlatStates> states_;
  std::vector<double> rounded_;  // initial values rounded to the dtype
  std::unique_ptr<zero::Step> step_;
  std::vector<Times> times_;
  std::uint64_t state_bytes_ = 0, host_bytes_ = 0;
  zero::OffloadTraffic moved_before_;  // before the step whose volume is judged
  std::string note_;                   // note on the file
  std::optional<double> volume_ratio_;
};

// The other options are a separate unit, because the product of all axes would have too many cases.
struct ZeroOptions : ZeroStep {
  using ZeroStep::ZeroStep;
  static constexpr std::string_view name = "zero_options";
  static constexpr std::string_view about =
      "zero_step with other buckets, wire dtypes and prefetching, one at a time";
  static Sweep<Case> sweep() { return zero_options_sweep(); }
};

const bool registered = harness::add<ZeroStep>() && harness::add<ZeroOptions>();

}  // namespace
}  // namespace suite
