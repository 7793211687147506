// Claim: a pipeline step gives the bits of the same model on one device, moves one boundary for
// each micro-batch, neighbour and direction, keeps as many micro-batches alive as its schedule's
// paper says and runs its actions in that order (GPipe: Huang et al. 2019, arXiv:1811.06965; 1F1B:
// Narayanan et al. 2020, arXiv:2006.09503).
//
// Ranks are stages of parts y = gelu(x W). With stages i of p, peak a_i alive, m micro-batches and
// B the bytes of a boundary, a stage holds beside its weights and their gradients:
//   activations  the executor's inputs, and a_i B: z = x W of every micro-batch alive
//   buffers      the executor's, and B for the gradient of z; on the first stage 2 m B, the model's
//                inputs and their gradients; on the last 2 m B, its outputs and their gradients

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "harness/unit.h"
#include "pipeline/execute.h"
#include "suite/pipeline/gelu_stage.h"
#include "suite/pipeline/part_reference.h"

namespace suite {
namespace {

using harness::Oracle;
using harness::Profile;
using machine::Category;
using machine::Dtype;
using machine::Tensor;
using machine::Transport;
using pipeline::Action;
using pipeline::Doing;
using pipeline::Kind;

constexpr Category categories[] = {Category::parameters, Category::gradients, Category::activations,
                                   Category::buffers};

// What every stage did in one step, on one clock.
struct Step {
  std::vector<pipeline::StageTimeline> stages;  // seconds since the first began
  double makespan_s = 0;
  int peak_in_flight = 0;  // the most of any stage
};

struct PipelineStep {
  static constexpr std::string_view name = "pipeline_step";
  static constexpr std::string_view about = "forward and backward of a step over pipeline stages";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::schedule, Oracle::determinism};
  static constexpr bool repeatable = false;  // weight gradients would add up

  struct Case {
    int ranks = 2;
    std::string schedule;
    int micro_batches = 4;
    Transport transport{};
    Dtype dtype{};
    int tokens = 0, hidden = 0;
  };

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    std::vector<std::string> schedules;
    for (const pipeline::Schedule& schedule : pipeline::schedules())
      schedules.emplace_back(schedule.name);
    harness::Sweep<Case> sweep;
    sweep.axis("schedule", &Case::schedule, schedules, schedules)
        .axis("micro_batches", &Case::micro_batches, {4, 8})
        .axis("transport", &Case::transport, {Transport::shared_memory, Transport::mpi})
        .axis("dtype", &Case::dtype, {Dtype::float32, Dtype::bfloat16},
              {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
        .axis("ranks", &Case::ranks, quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8})
        .axis("tokens", &Case::tokens, {128})
        .axis("hidden", &Case::hidden, {256})
        .only([](const Case& c) {
          return c.micro_batches < 1 || c.tokens < 1 || c.hidden < 1
                     ? std::string("micro_batches, tokens and hidden must be positive")
                     : std::string();
        });
    if (!quick) return sweep;
    return std::move(sweep.sample([](const Case& c) {
      if (c.ranks == 2)
        return c.micro_batches == 4 &&
               (c.transport == Transport::mpi) == (c.dtype == Dtype::bfloat16);
      return c.micro_batches == 8 && c.transport == Transport::shared_memory &&
             c.dtype == Dtype::float32;
    }));
  }
  static std::string why_not(const Case& c, const harness::Context& context) {
    return context.world.why_not(context.group, c.transport);
  }

  PipelineStep(const Case& c, harness::Context& context)
      : case_(c),
        context_(context),
        schedule_(pipeline::find_schedule(c.schedule)),
        actions_(pipeline::all_stages(schedule_, c.ranks, c.micro_batches)),
        boundary_{{c.tokens, c.hidden}, c.dtype},
        model_{c.dtype,         c.tokens, c.hidden,
               c.micro_batches, c.ranks,  pipeline::num_chunks(actions_),
               context.seed} {
    const machine::Ledger& ledger = context.device.ledger();
    for (const Category category : categories) held_before_.push_back(ledger.current(category));
    link_ = context.world.connect(context.group, c.transport);
    executor_ = std::make_unique<pipeline::Executor>(actions_, c.micro_batches, boundary_, *link_,
                                                     context.device, context.world.host_device());
    stage_ = std::make_unique<GeluStage>(context.device, model_, rank());
    callables_ = stage_->callables();
  }

  void prepare() { stage_->clear_gradients(); }
  void run() { executor_->run(callables_); }

  void judge(harness::Judge& judge) {
    judge_memory(judge);  // peaks so far are of the timed steps
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::map<std::pair<int, int>, PartObserved> seen;  // by chunk and micro-batch
      if (repeat == 0)
        stage_->observer = [&](const Action& action, const Observed& observed) {
          PartObserved& part = seen[{action.chunk, action.micro_batch}];
          if (observed.x) part.x = to_doubles(observed.x);
          if (observed.y) part.y = to_doubles(observed.y);
          if (observed.d_y) part.d_y = to_doubles(observed.d_y);
          if (observed.d_x) part.d_x = to_doubles(observed.d_x);
        };
      prepare();
      link_->reset_traffic();
      const pipeline::Timeline timeline = executor_->run(callables_);
      stage_->observer = nullptr;
      judge.volume(*link_, {{{machine::Operation::send_receive, case_.dtype},
                             pipeline::expected_traffic(actions_, rank(), boundary_)}});
      judge_schedule(judge, timeline);
      fingerprint(judge);
      if (repeat == 0) judge_in_double(judge, seen);
    }
    judge_on_one_device(judge);
  }

  harness::Cost cost() const {
    harness::Cost cost;
    const double rows = static_cast<double>(case_.tokens) * case_.micro_batches;
    // Forward, the input's gradient and the weights' gradient: three products for each part.
    cost.flops = 3 * 2 * rows * case_.hidden * case_.hidden * model_.chunks;
    cost.flops_dtype = case_.dtype;
    cost.tokens = rows;
    return cost;
  }

  // Of several more steps the one in the middle.
  void describe(harness::Record& record) {
    std::vector<Step> steps;
    for (int i = 0; i < 5; ++i) {
      prepare();
      context_.world.barrier(context_.group);
      steps.push_back(gather(executor_->run(callables_)));
    }
    std::nth_element(steps.begin(), steps.begin() + 2, steps.end(),
                     [](const Step& a, const Step& b) { return a.makespan_s < b.makespan_s; });
    describe(record, steps[2]);
  }

 private:
  int rank() const { return context_.group.index; }

  void judge_memory(harness::Judge& judge) {
    const std::uint64_t b = boundary_.bytes(), m = static_cast<std::uint64_t>(case_.micro_batches);
    const std::uint64_t weights = static_cast<std::uint64_t>(case_.hidden) *
                                  static_cast<std::uint64_t>(case_.hidden) *
                                  static_cast<std::uint64_t>(model_.chunks);
    const std::uint64_t gradient_size = case_.dtype == Dtype::float64 ? 8 : 4;
    const auto alive = static_cast<std::uint64_t>(
        schedule_.peak_activations(rank(), case_.ranks, case_.micro_batches));
    const pipeline::ExpectedMemory executor =
        pipeline::expected_memory(actions_, rank(), boundary_);
    const std::uint64_t ends = (stage_->first() ? 2 * m : 0) + (stage_->last() ? 2 * m : 0);
    const std::uint64_t expected[] = {weights * size_of(case_.dtype), weights * gradient_size,
                                      executor.activations + alive * b,
                                      executor.buffers + (1 + ends) * b};
    for (std::size_t i = 0; i < held_before_.size(); ++i)
      judge.memory(categories[i], context_.device.ledger().peak(categories[i]) - held_before_[i],
                   expected[i]);
  }

  void judge_schedule(harness::Judge& judge, const pipeline::Timeline& timeline) {
    const std::string what = fmt::format("stage {}", rank());
    judge.schedule(what, pipeline::executed(timeline.events),
                   text(schedule_.stage(rank(), case_.ranks, case_.micro_batches)));
    judge.schedule(fmt::format("{}, micro-batches alive at once", what), timeline.peak_in_flight,
                   schedule_.peak_activations(rank(), case_.ranks, case_.micro_batches));
  }

  void fingerprint(harness::Judge& judge) {
    for (std::size_t chunk = 0; chunk < stage_->parts().size(); ++chunk)
      judge.same_bits(fmt::format("weight gradient of part {}", depth(chunk)),
                      hash(stage_->parts()[chunk].weight_gradient));
    if (stage_->last()) judge.same_bits("outputs", hash(stage_->outputs()));
    if (stage_->first()) judge.same_bits("input gradients", hash(stage_->input_gradients()));
  }

  void judge_in_double(harness::Judge& judge,
                       const std::map<std::pair<int, int>, PartObserved>& seen) {
    for (std::size_t chunk = 0; chunk < stage_->parts().size(); ++chunk) {
      std::vector<PartObserved> micro_batches;
      for (int m = 0; m < case_.micro_batches; ++m)
        micro_batches.push_back(seen.at({static_cast<int>(chunk), m}));
      const GeluPart& part = stage_->parts()[chunk];
      judge_part(judge, fmt::format("part {}", depth(chunk)), case_.dtype, case_.tokens,
                 case_.hidden, to_doubles(part.weight), to_doubles(part.weight_gradient),
                 micro_batches);
    }
  }

  // The first rank runs the whole model alone, micro-batch by micro-batch, without executor, link
  // or schedule; every rank compares what it has. Gradients add up in the order of the
  // micro-batches, as in every listed schedule.
  void judge_on_one_device(harness::Judge& judge) {
    const std::string bytes =
        context_.world.broadcast(context_.group, 0, rank() == 0 ? on_one_device() : std::string());
    std::vector<double> all(bytes.size() / sizeof(double));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    const std::size_t rows = static_cast<std::size_t>(boundary_.shape.size()) *
                             static_cast<std::size_t>(case_.micro_batches);
    const std::size_t weights =
        static_cast<std::size_t>(case_.hidden) * static_cast<std::size_t>(case_.hidden);
    const std::span<const double> expected(all);
    if (stage_->last())
      judge.exact("outputs on one device", to_doubles(stage_->outputs()),
                  expected.subspan(0, rows));
    if (stage_->first())
      judge.exact("input gradients on one device", to_doubles(stage_->input_gradients()),
                  expected.subspan(rows, rows));
    for (std::size_t chunk = 0; chunk < stage_->parts().size(); ++chunk) {
      const auto part = static_cast<std::size_t>(depth(chunk));
      judge.exact(fmt::format("weight gradient of part {} on one device", part),
                  to_doubles(stage_->parts()[chunk].weight_gradient),
                  expected.subspan(2 * rows + part * weights, weights));
    }
  }

  // Outputs, input gradients and the weight gradients of all parts, as doubles.
  std::string on_one_device() {
    machine::Device& device = context_.device;
    const auto boundary = [&] {
      return Tensor(device, case_.dtype, boundary_.shape, Category::buffers);
    };
    std::vector<GeluPart> parts;
    std::vector<Tensor> zs, ys;
    for (int i = 0; i < model_.parts(); ++i) {
      parts.emplace_back(device, model_, i);
      zs.push_back(boundary());
      ys.push_back(boundary());
    }
    const Tensor inputs = model_.all_rows(device), loss_gradients = model_.all_rows(device);
    model_.fill_inputs(inputs);
    model_.fill_loss_gradients(loss_gradients);
    std::vector<double> outputs, d_inputs;
    const auto append = [](std::vector<double>& to, const Tensor& tensor) {
      const std::vector<double> values = to_doubles(tensor);
      to.insert(to.end(), values.begin(), values.end());
    };
    for (int m = 0; m < case_.micro_batches; ++m) {
      const auto x = [&](std::size_t i) { return i == 0 ? model_.rows(inputs, m) : ys[i - 1]; };
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i].forward(x(i), zs[i], ys[i]);
      append(outputs, ys.back());
      Tensor d_y = model_.rows(loss_gradients, m);
      for (std::size_t i = parts.size(); i-- > 0;) {
        const Tensor d_z = boundary(), d_x = boundary();
        parts[i].backward_gelu(zs[i], d_y, d_z);
        parts[i].backward_input(d_z, d_x);
        parts[i].backward_weights(x(i), d_z);
        d_y = d_x;
      }
      append(d_inputs, d_y);
    }
    outputs.insert(outputs.end(), d_inputs.begin(), d_inputs.end());
    for (const GeluPart& part : parts) append(outputs, part.weight_gradient);
    return {reinterpret_cast<const char*>(outputs.data()), outputs.size() * sizeof(double)};
  }

  // Ranks of one host share the steady clock; elsewhere each starts its own at zero.
  Step gather(const pipeline::Timeline& mine) const {
    static_assert(std::is_trivially_copyable_v<pipeline::Event>);
    struct Header {
      double origin_s;
      int peak;
    };
    const Header header{mine.origin_s, mine.peak_in_flight};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(reinterpret_cast<const char*>(mine.events.data()),
                 mine.events.size() * sizeof(pipeline::Event));
    Step step;
    std::vector<double> origins;
    for (const std::string& theirs : context_.world.all_gather(context_.group, bytes)) {
      Header read;
      std::memcpy(&read, theirs.data(), sizeof read);
      origins.push_back(read.origin_s);
      step.peak_in_flight = std::max(step.peak_in_flight, read.peak);
      step.stages.emplace_back((theirs.size() - sizeof read) / sizeof(pipeline::Event));
      std::memcpy(step.stages.back().data(), theirs.data() + sizeof read,
                  theirs.size() - sizeof read);
    }
    const bool one_clock = context_.world.on_one_host(context_.group);
    const double begin = *std::min_element(origins.begin(), origins.end());
    for (std::size_t i = 0; i < step.stages.size(); ++i) {
      for (pipeline::Event& event : step.stages[i]) {
        const double shift = one_clock ? origins[i] - begin : 0;
        event.start_s += shift;
        event.end_s += shift;
        step.makespan_s = std::max(step.makespan_s, event.end_s);
      }
    }
    return step;
  }

  void describe(harness::Record& record, const Step& step) const {
    double busy = 0;
    for (std::size_t i = 0; i < step.stages.size(); ++i) {
      busy += pipeline::busy_s(step.stages[i]);
      for (const pipeline::Event& event : step.stages[i]) {
        harness::Span span;
        span.rank = context_.group.members[i];
        const bool computes = event.doing == Doing::compute;
        span.lane = computes ? "compute" : "wait";
        span.name = computes
                        ? text(event.action)
                        : fmt::format("{} {}", event.doing == Doing::receive ? "receive" : "outbox",
                                      text(event.action));
        span.start_s = event.start_s;
        span.end_s = event.end_s;
        record.timeline.push_back(std::move(span));
      }
    }
    // Of rank 0: what it computed, and the rest of the step.
    const std::pair<Kind, std::string_view> kinds[] = {
        {Kind::forward, "forward"},
        {Kind::backward, "backward"},
        {Kind::backward_input, "backward, inputs"},
        {Kind::backward_weights, "backward, weights"}};
    for (const auto& [kind, label] : kinds) {
      double seconds = 0;
      for (const pipeline::Event& event : step.stages[0])
        if (event.doing == Doing::compute && event.action.kind == kind) seconds += event.seconds();
      if (seconds > 0) record.breakdown.emplace_back(label, seconds);
    }
    record.breakdown.emplace_back("waiting", step.makespan_s - pipeline::busy_s(step.stages[0]));

    // Idle over total, of all stages together; expected with all stages alike and costs F = I = W,
    // which leaves (p-1)/(m+p-1) for the schedules whose bubble is (p-1)(F+B).
    const double p = static_cast<double>(case_.ranks);
    const pipeline::Costs costs;
    double ideal = 0;
    for (const Action& action : actions_[0]) ideal += costs.of(action.kind);
    record.counters["bubble_measured"] = pipeline::bubble(p * step.makespan_s, busy).of_total;
    record.counters["bubble_expected"] =
        pipeline::bubble(schedule_.makespan(case_.ranks, case_.micro_batches, costs), ideal)
            .of_total;
    record.counters["in_flight_peak"] = step.peak_in_flight;
  }

  int depth(std::size_t chunk) const { return static_cast<int>(chunk) * case_.ranks + rank(); }

  Case case_;
  harness::Context& context_;
  const pipeline::Schedule& schedule_;
  pipeline::StageSchedules actions_;
  pipeline::Boundary boundary_;
  GeluModel model_;
  std::vector<std::size_t> held_before_;  // by category, not this unit's
  std::unique_ptr<machine::Link> link_;
  std::unique_ptr<pipeline::Executor> executor_;
  std::unique_ptr<GeluStage> stage_;
  pipeline::Stage callables_;
};

const bool registered = harness::add<PipelineStep>();

}  // namespace
}  // namespace suite
