// Claim: a pipeline step gives the bits of the same model on one device. It moves one boundary for
// each micro-batch, pair of neighbouring parts and direction. It keeps as many micro-batches alive
// as the paper of its schedule, and runs its actions in the paper's order (papers:
// pipeline/schedule.cpp).
//
// Ranks are stages of parts y = gelu(x W), one for each chunk. Stage i of p keeps at most a_i
// micro-batches of m alive. A boundary has B bytes. In addition to its weights and their gradients,
// a stage holds:
//   activations  the executor's inputs, and a_i B: z = x W of every micro-batch alive in a chunk
//   buffers      the executor's, and B for the gradient of z; 2 m B if a copy of the model begins
//                here, its inputs and their gradients; 2 m B if one ends here, its outputs and
//                their gradients
// With two copies of the model (dual_pipe) the gradients of a copy are those of its own
// micro-batches. The optimizer would add them up.

#include <fmt/format.h>

#include <set>

#include "suite/pipeline/gelu_stage.h"
#include "suite/pipeline/part_reference.h"
#include "suite/pipeline/pipeline_run.h"
#include "suite/reference/whole_values.h"

namespace suite {
namespace {

struct PipelineStep {
  static constexpr std::string_view name = "pipeline_step";
  static constexpr std::string_view about = "forward and backward of a step over pipeline stages";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::schedule, Oracle::determinism};
  static constexpr bool repeatable = false;  // weight gradients would accumulate

  struct Case {
    int ranks = 2;
    std::string schedule;
    int virtual_stages = 1;  // chunks per stage
    int micro_batches = 4;
    Transport transport{};
    Dtype dtype{};
    int tokens = 0, hidden = 0;
    bool p2p_overlap = false;

    pipeline::Receives receives() const {
      return p2p_overlap ? pipeline::Receives::ahead : pipeline::Receives::when_needed;
    }
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    using enum Dtype;
    const std::vector<std::string> schedules = pipeline::schedule_names();
    Sweep<Case> sweep;
    sweep.axis("schedule", &Case::schedule, "1f1b", schedules)
        .axis("virtual_stages", &Case::virtual_stages, 1)
        .axis("micro_batches", &Case::micro_batches, 8)
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
        .axis("ranks", &Case::ranks, 4)
        .axis("tokens", &Case::tokens, 128)
        .axis("hidden", &Case::hidden, 256)
        .axis("p2p_overlap", &Case::p2p_overlap, false)
        .only([](const Case& c) {
          if (c.tokens < 1 || c.hidden < 1)
            return std::string("tokens and hidden must be positive");
          if (c.p2p_overlap && c.ranks < 2)
            return std::string("p2p_overlap requires ranks above 1; one stage receives no message");
          if (c.p2p_overlap && c.transport == Transport::nccl)
            return std::string(
                "p2p_overlap is on; over nccl messages move in groups between actions, so use "
                "cuda_ipc");
          return why_no_schedule(c);
        });
    // Schedules change their shape if the number of micro-batches is near p or 2 p. Other
    // transports and dtypes run with 2 p.
    for (const int p : {1, 2, 3, 4, 8}) {
      std::set<int> around{1, p, 2 * p, 2 * p + 1, 2 * p + 2};
      if (p > 2) around.insert(p - 1);
      for (const int m : around) {
        std::vector<std::string> names = schedules;
        if (m == 1) std::erase(names, "gpipe");                            // same as 1f1b
        if (p == 1 || m <= 2) std::erase(names, "zb_h2");                  // same as zb_h1
        using Of = std::pair<std::vector<std::string>, std::vector<int>>;  // schedules, chunks
        std::vector<Of> pairs{{names, {1, 2, 3}}};
        if (p == 1 || (p == 2 && m == 2)) {  // interleaved with one chunk is 1f1b
          std::erase(pairs.front().first, "interleaved_1f1b");
          pairs.push_back({{"interleaved_1f1b"}, {2, 3}});
        }
        for (const auto& [of, chunks] : pairs) {
          const auto add = [&](const std::vector<Profile>& profiles, const char* name,
                               const std::vector<harness::Variation>& more) {
            std::vector all{vary(&Case::schedule, of), vary(&Case::virtual_stages, chunks),
                            vary(&Case::micro_batches, {m}), vary(&Case::ranks, {p})};
            all.insert(all.end(), more.begin(), more.end());
            sweep.slice(profiles, name, all);
          };
          add({acceptance, paper}, "shapes", {});
          if (m == 2 * p) {
            std::vector transports{Transport::shared_memory};
            if (p > 1) transports.push_back(Transport::mpi);
            add({acceptance, paper}, "matrix",
                {vary(&Case::transport, transports), vary(&Case::dtype, {float32, bfloat16})});
          }
          if (p > 2) add({smoke}, "smoke", {vary(&Case::tokens, {8}), vary(&Case::hidden, {16})});
        }
      }
    }
    const auto one_or_two_chunks = vary(&Case::virtual_stages, {1, 2});
    const auto three_ranks = vary(&Case::ranks, {3});
    const auto odd_tokens = vary(&Case::tokens, {17}), odd_hidden = vary(&Case::hidden, {33});
    // Each schedule with its default number of chunks.
    return sweep.slice({quick}, "schedules", {vary(&Case::schedule, {"1f1b", "zb_h2"})})
        .slice({quick}, "schedules",
               {vary(&Case::schedule, {"interleaved_1f1b", "zb_v", "dual_pipe"}),
                vary(&Case::virtual_stages, {2})})
        .slice({quick}, "transports",
               {vary(&Case::micro_batches, {4}), vary(&Case::transport, {Transport::mpi}),
                vary(&Case::dtype, {bfloat16}), vary(&Case::ranks, {2})})
        .slice({quick}, "overlap",
               {vary(&Case::schedule, {"1f1b"}), vary(&Case::micro_batches, {7}), three_ranks,
                vary(&Case::p2p_overlap, {true})})
        // Covers fewer micro-batches than stages, and a number that the stages do not divide.
        .slice({quick}, "edges",
               {vary(&Case::schedule, {"gpipe", "zb_h1"}), vary(&Case::micro_batches, {2}),
                three_ranks, odd_tokens, odd_hidden})
        .slice({quick}, "edges",
               {vary(&Case::schedule, {"1f1b", "zb_h2", "zb_v"}), one_or_two_chunks,
                vary(&Case::micro_batches, {7}), three_ranks, odd_tokens, odd_hidden})
        .slice({acceptance, paper}, "overlap",
               {vary(&Case::schedule, {"gpipe", "1f1b", "zb_h2"}),
                vary(&Case::transport, {Transport::shared_memory, Transport::mpi}),
                vary(&Case::dtype, {float32, bfloat16}), vary(&Case::ranks, {2, 4}),
                vary(&Case::p2p_overlap, {true})})
        .slice({smoke}, "overlap",
               {vary(&Case::micro_batches, {4}), vary(&Case::ranks, {2}),
                vary(&Case::dtype, {bfloat16}), vary(&Case::tokens, {16}),
                vary(&Case::hidden, {64}), vary(&Case::p2p_overlap, {true})})
        .slice(
            {smoke}, "smoke",
            {vary(&Case::schedule, schedules), one_or_two_chunks, vary(&Case::micro_batches, {4}),
             vary(&Case::ranks, {2}), vary(&Case::dtype, {bfloat16}), vary(&Case::tokens, {16}),
             vary(&Case::hidden, {64})});
  }

  PipelineStep(const Case& c, Context& context)
      : case_(c),
        memory_(context.device.ledger()),
        run_(c, context, {{c.tokens, c.hidden}, c.dtype}, c.receives()),
        model_{c.dtype, c.tokens, c.hidden, c.micro_batches, run_.actions.placement, context.seed},
        stage_(context.device, model_, run_.stage),
        callables_(stage_.callables()) {}

  void prepare() { stage_.clear_gradients(); }
  void run() { run_.run(callables_); }

  void judge(Judge& judge) {
    judge_memory(judge);  // first, so that peaks are those of the timed steps
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::map<GeluStage::Key, PartObserved> seen;
      stage_.observed = repeat == 0 ? &seen : nullptr;
      prepare();
      run_.judge(judge, callables_);
      stage_.observed = nullptr;
      fingerprint(judge);
      if (repeat == 0) judge_in_double(judge, seen);
    }
    judge_on_one_device(judge);
  }

  Cost cost() const {
    const double rows = static_cast<double>(case_.tokens) * case_.micro_batches;
    // Counts three products per part: forward, the input's gradient, the weights' gradient.
    return {.flops = 3 * 2 * rows * case_.hidden * case_.hidden * placement().parts() / case_.ranks,
            .flops_dtype = case_.dtype,
            .tokens = rows};
  }

  void describe(Description& description) {
    run_.describe(description, callables_, [&] { prepare(); }, 2, {});
  }

 private:
  std::size_t matrix_elements() const {
    return static_cast<std::size_t>(case_.hidden) * static_cast<std::size_t>(case_.hidden);
  }
  const pipeline::Placement& placement() const { return model_.placement; }
  int copy(int chunk) const { return placement().copy(run_.stage, chunk); }
  int part(int chunk) const { return placement().part(run_.stage, chunk); }
  std::string part_name(int chunk) const {
    return fmt::format("part {}", part(chunk)) +
           (placement().copies() > 1 ? fmt::format(" of copy {}", copy(chunk)) : "");
  }
  std::vector<int> micro_batches_of(int copy) const {
    std::vector<int> mine;
    for (int m = 0; m < case_.micro_batches; ++m)
      if (placement().copy_of(m, case_.micro_batches) == copy) mine.push_back(m);
    return mine;
  }

  void judge_memory(Judge& judge) {
    judge.shares_reference(Oracle::memory);  // the reference counts slots with the executor's code
    const std::uint64_t b = run_.boundary.bytes();
    const auto m = static_cast<std::uint64_t>(case_.micro_batches);
    const std::uint64_t weights =
        matrix_elements() * static_cast<std::uint64_t>(placement().chunks());
    const std::uint64_t gradient_size = case_.dtype == Dtype::float64 ? 8 : 4;
    const auto alive = static_cast<std::uint64_t>(run_.schedule.peak(run_.stage, run_.size));
    const pipeline::ExpectedMemory executor =
        pipeline::expected_memory(run_.actions, run_.stage, run_.boundary, case_.receives());
    std::uint64_t ends = 0;
    for (int chunk = 0; chunk < placement().chunks(); ++chunk)
      ends += (stage_.begins(chunk) ? 2 * m : 0) + (stage_.ends(chunk) ? 2 * m : 0);
    using enum Category;
    for (const auto& [category, expected] : {std::pair(parameters, weights * size_of(case_.dtype)),
                                             {gradients, weights * gradient_size},
                                             {activations, executor.activations + alive * b},
                                             {buffers, executor.buffers + (1 + ends) * b}})
      judge.memory(category, memory_.peak(category), expected);
  }

  void fingerprint(Judge& judge) {
    for (int chunk = 0; chunk < placement().chunks(); ++chunk) {
      judge.same_bits("weight gradient of " + part_name(chunk),
                      hash(stage_.part(chunk).weight_gradient));
      if (stage_.ends(chunk))
        judge.same_bits("outputs of " + part_name(chunk), hash(rows_of(stage_.outputs(), chunk)));
      if (stage_.begins(chunk))
        judge.same_bits("input gradients of " + part_name(chunk),
                        hash(rows_of(stage_.input_gradients(), chunk)));
    }
  }

  // Returns the rows of the micro-batches of the chunk's copy.
  Tensor rows_of(const Tensor& all, int chunk) const {
    const std::vector<int> mine = micro_batches_of(copy(chunk));
    return all.row_range(mine.front() * case_.tokens,
                         static_cast<std::int64_t>(mine.size()) * case_.tokens);
  }

  void judge_in_double(Judge& judge, const std::map<GeluStage::Key, PartObserved>& seen) {
    for (int chunk = 0; chunk < placement().chunks(); ++chunk) {
      std::vector<PartObserved> micro_batches;
      for (const int m : micro_batches_of(copy(chunk)))
        micro_batches.push_back(seen.at({chunk, m}));
      const GeluPart& mine = stage_.part(chunk);
      const std::vector<double> weight = to_doubles(mine.weight);
      PartReference(case_.dtype, case_.tokens, case_.hidden, weight)
          .judge(judge, part_name(chunk), to_doubles(mine.weight_gradient), micro_batches);
    }
  }

  // Runs the whole model on the first rank, micro-batch by micro-batch, without executor, link or
  // schedule. Every rank compares its own part. Gradients accumulate in the order of the
  // micro-batches, as in every listed schedule.
  void judge_on_one_device(Judge& judge) {
    const std::vector<double> all = run_.context.world.broadcast(
        run_.context.group, 0, run_.stage == 0 ? on_one_device() : std::vector<double>());
    const auto boundary = static_cast<std::size_t>(run_.boundary.shape.size());
    const std::size_t rows = boundary * static_cast<std::size_t>(case_.micro_batches);
    const std::span<const double> expected(all);
    for (int chunk = 0; chunk < placement().chunks(); ++chunk) {
      const std::vector<int> mine = micro_batches_of(copy(chunk));
      const std::size_t first = boundary * static_cast<std::size_t>(mine.front()),
                        count = boundary * mine.size();
      if (stage_.ends(chunk))
        judge.exact("outputs on one device", to_doubles(rows_of(stage_.outputs(), chunk)),
                    expected.subspan(first, count));
      if (stage_.begins(chunk))
        judge.exact("input gradients on one device",
                    to_doubles(rows_of(stage_.input_gradients(), chunk)),
                    expected.subspan(rows + first, count));
      const auto index = static_cast<std::size_t>(copy(chunk) * placement().parts() + part(chunk));
      judge.exact(fmt::format("weight gradient of {} on one device", part_name(chunk)),
                  to_doubles(stage_.part(chunk).weight_gradient),
                  expected.subspan(2 * rows + index * matrix_elements(), matrix_elements()));
    }
  }

  // Returns outputs, input gradients and the weight gradients of all parts of all copies, as
  // doubles.
  std::vector<double> on_one_device() {
    machine::Device& device = run_.context.device;
    const auto boundary = [&] {
      return Tensor(device, case_.dtype, run_.boundary.shape, Category::buffers);
    };
    std::vector<std::vector<GeluPart>> copies(static_cast<std::size_t>(placement().copies()));
    std::vector<Tensor> zs, ys;
    for (int i = 0; i < placement().parts(); ++i) {
      for (std::vector<GeluPart>& parts : copies) parts.emplace_back(device, model_, i);
      zs.push_back(boundary());
      ys.push_back(boundary());
    }
    const Tensor inputs = model_.inputs(device), loss_gradients = model_.loss_gradients(device);
    std::vector<double> outputs, d_inputs;
    for (int m = 0; m < case_.micro_batches; ++m) {
      const std::vector<GeluPart>& parts =
          copies[static_cast<std::size_t>(placement().copy_of(m, case_.micro_batches))];
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
    for (const std::vector<GeluPart>& parts : copies)
      for (const GeluPart& part : parts) append(outputs, part.weight_gradient);
    return outputs;
  }

  Case case_;
  harness::PeakMeter memory_;
  PipelineRun run_;
  GeluModel model_;
  GeluStage stage_;
  pipeline::Stage callables_;
};

const bool registered = harness::add<PipelineStep>();

}  // namespace
}  // namespace suite
