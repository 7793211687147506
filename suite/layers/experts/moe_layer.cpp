// Claim: a mixture of experts whose experts are on different ranks gives the output and the
// gradients of a dense loop over all tokens (Lepikhin et al. 2020, arXiv:2006.16668). Each pass
// sends the rows that the routing specifies: by alltoall the rows of the traffic matrix, by
// allgather all tokens (layers/experts/moe_cost.h). Experts' gradients are added up over the
// replicas of an expert only, the router's over all ranks. Experts may be split over etp ranks and
// tokens may be dropped.
//
// numerics: logits, decisions, weights, losses, output and every gradient, compared with
// suite/reference/moe_reference.h. volume: of each pass and of the reduction of gradients. memory:
// peaks, and what each pass keeps. determinism: replicas of gradients, and a second run.
//
// grouped_gemm_over_gemm: grouped_gemm_rate.h, of the first product of a rank's experts.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "collectives/communicator/calls.h"
#include "harness/judge/numerics.h"
#include "layers/experts/moe_cost.h"
#include "layers/experts/moe_layer.h"
#include "machine/link/connect.h"
#include "suite/layers/experts/grouped_gemm_rate.h"
#include "suite/layers/experts/moe_case.h"
#include "suite/reference/whole_values.h"

namespace suite {
namespace {

using collectives::CallsCost, collectives::CollectiveCalls, collectives::Communicator;
using collectives::Parameter;

constexpr double loss_factor = 0.75;  // not 1, which a forgotten factor would be

struct MoeUnit {
  using Case = MoeUnitCase;
  static constexpr std::string_view name = "moe_layer";
  static constexpr std::string_view about =
      "a mixture of experts over expert-parallel ranks: router, dispatch, experts, combine";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static constexpr Counter counters[] = {
      load_counters[0],
      load_counters[1],
      {"grouped_gemm_over_gemm", "", Better::higher, Nature::measured,
       "rate of the experts' products over that of one equal product"}};

  static Sweep<Case> sweep();
  MoeUnit(const Case& c, Context& context);
  static std::string why_not(const Case& c, const Context& context) {
    return machine::why_not(context.world, context.group, c.transport);
  }
  void prepare() {}  // gradients grow from run to run, as over micro-batches
  void run() {
    forward();
    backward_input();
    backward_weights();
  }
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description);

 private:
  struct Whole {
    MoeValues values;
    std::vector<std::pair<std::string, std::vector<double>>> parameters;  // by name
  };
  void forward() { layer_.forward(x_, y_, saved_, Category::activations); }
  void backward_input() {
    layer_.backward_input(d_y_, d_x_, saved_, loss_factor, Category::buffers);
  }
  void backward_weights() { layer_.backward_weights(saved_); }
  void zero_gradients();
  layers::Parameters parameters() {
    return layers::joined({layer_.expert_parameters(), layer_.replicated_parameters()});
  }

  std::vector<double> draw(std::uint64_t key, machine::Shape shape, double stddev) const;
  Tensor own_rows(const std::vector<double>& whole) const;
  Whole whole_values() const;
  std::vector<double> of_all_ranks(const std::vector<double>& mine) const;
  template <class T>
  std::vector<double> own(const std::vector<T>& whole) const {
    const std::vector<T> part = part_of_rank(whole, context_.group.index, case_.ranks);
    return {part.begin(), part.end()};
  }
  std::size_t passed_bytes() const;
  CallsCost calls_of(const std::vector<CollectiveCalls>& calls) const;
  void judge_pass(Judge& judge, const layers::MoePass& pass, std::string_view when,
                  std::size_t kept);
  void judge_memory(Judge& judge);
  void judge_reduction(Judge& judge);
  void judge_decisions(Judge& judge, const std::vector<double>& logits,
                       const layers::Routing& routing);
  void judge_results(Judge& judge);
  double bound(double longest) const {
    return harness::norm_bound(case_.dtype, 1, longest) +
           harness::norm_bound(Dtype::float64, 1, longest);
  }

  Case case_;
  Context& context_;
  harness::PeakMeter memory_;
  layers::ExpertGroups groups_;
  Communicator experts_, edp_, all_, alone_;
  layers::MoeLayer layer_;
  layers::MoeLayer::Saved saved_;
  Whole whole_;
  Tensor x_, y_, d_y_, d_x_;
  MoeReference reference_;
  layers::MoeCost expected_;
};

Sweep<MoeUnitCase> MoeUnit::sweep() {
  using enum Profile;
  Sweep<Case> sweep = moe_axes();
  sweep.axis("moe-router-pre-softmax", &Case::pre_softmax, true)
      .axis("moe-router-load-balancing-type", &Case::load_balancing, "aux_loss",
            {"none", "aux_loss", "sinkhorn"})
      .axis("architecture", &Case::architecture, "gpt2", {"gpt2", "llama"})
      .axis("moe-ffn-hidden-size", &Case::ffn_hidden_size, 128)
      .axis("moe-shared-expert-intermediate-size", &Case::shared_size, 0);
  const auto dispatchers = vary(&Case::dispatcher, {"alltoall", "allgather"}),
             mpi = vary(&Case::transport, {Transport::mpi}),
             dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
             bfloat16 = vary(&Case::dtype, {Dtype::bfloat16}),
             llama = vary(&Case::architecture, {"llama"}), one = vary(&Case::ep, {1}),
             two = vary(&Case::ep, {2}), shared = vary(&Case::shared_size, {96}),
             drops = vary(&Case::capacity_factor, {"1"}),
             policies = vary(&Case::drop_policy, {"probs", "position"}),
             after = vary(&Case::pre_softmax, {false});
  const auto ranks = [](std::vector<int> all) { return vary(&Case::ranks, std::move(all)); };
  const auto small = [](std::vector<harness::Variation> more) {
    more.insert(more.end(), {vary(&Case::seq_length, {13}), vary(&Case::hidden_size, {16}),
                             vary(&Case::ffn_hidden_size, {24})});
    return more;
  };
  return sweep.slice({quick}, "usual", {dispatchers})
      .slice({quick}, "edges", {dispatchers, bfloat16, two, drops, llama, shared, after})
      .slice({quick}, "edges",
             {mpi, ranks({3}), vary(&Case::ep, {3}), vary(&Case::num_experts, {6})})
      .slice({quick}, "edges", {two, vary(&Case::etp, {2}), vary(&Case::topk, {1})})
      .slice({acceptance, paper}, "matrix",
             {dtypes, ranks({1, 2, 4, 8}), vary(&Case::ep, {1, 2, 4, 8}), dispatchers,
              vary(&Case::topk, {1, 2})})
      .slice({acceptance, paper}, "capacity",
             {dispatchers, drops, policies, vary(&Case::pads, {false, true}),
              vary(&Case::topk, {1, 2})})
      .slice({acceptance, paper}, "experts split",
             {dispatchers, dtypes, ranks({4, 8}), two, vary(&Case::etp, {2}),
              vary(&Case::architecture, {"gpt2", "llama"})})
      .slice({acceptance, paper}, "routers",
             {vary(&Case::load_balancing, {"none", "aux_loss", "sinkhorn"}),
              vary(&Case::topk, {1, 2, 4}), vary(&Case::pre_softmax, {true, false}), shared})
      .slice({acceptance, paper}, "transports", {mpi, dispatchers, ranks({4, 8})})
      .slice(
          {smoke}, "smoke",
          small({dispatchers, ranks({1, 4}), vary(&Case::ep, {1, 2}), vary(&Case::topk, {1, 2})}))
      .slice({smoke}, "smoke",
             small({dispatchers, two, vary(&Case::etp, {2}), after, llama, shared}))
      .slice({smoke}, "smoke",
             small({dispatchers, two, drops, policies, bfloat16, vary(&Case::pads, {false, true})}))
      .slice({smoke}, "smoke",
             small({one, vary(&Case::load_balancing, {"none", "sinkhorn"}),
                    vary(&Case::topk, {1, 2})}));
}

MoeUnit::MoeUnit(const Case& c, Context& context)
    : case_(c),
      context_(context),
      memory_(context.device.ledger()),
      groups_(layers::expert_groups(context.group, c.degrees())),
      experts_(context.world, groups_.experts, c.transport),
      edp_(context.world, groups_.edp, c.transport),
      all_(context.world, context.group, c.transport),
      alone_(context.world, machine::Group{"alone", {context.world.rank()}, 0},
             Transport::shared_memory),
      layer_({context.device, alone_, c.dtype}, {experts_, c.etp}, "moe", c.config()),
      whole_(whole_values()) {
  x_ = own_rows(whole_.values.x);
  d_y_ = own_rows(whole_.values.d_y);
  y_ = layer_.own_context().tensor(x_.shape(), Category::buffers);
  d_x_ = layer_.own_context().tensor(x_.shape(), Category::buffers);
  const double stddev = 1 / std::sqrt(c.hidden_size);
  const layers::Initializer initializer{context.seed, stddev, 1 / std::sqrt(c.ffn_hidden_size), 0.5,
                                        0};
  initializer.fill(layer_.own_context(), layer_.parameters());
  zero_gradients();
  forward();  // makes the routing, which the costs follow from
  context_.device.stream().synchronize();
  whole_.values.logits = of_all_ranks(to_doubles(saved_.router.logits));
  reference_ = moe_decisions(case_.reference(), whole_.values.logits);
  const int block = c.degrees().ranks();
  expected_ = layers::moe_cost(
      {c.config(), c.degrees(), experts_.rank(), c.dtype, c.seq_length,
       rows_of_group(
           c, part_of_rank(reference_.choices, context_.group.index / block, c.ranks / block))});
  saved_ = {};
  memory_.reset();
}

// Returns values that are rounded to the dtype, the same on every rank.
std::vector<double> MoeUnit::draw(std::uint64_t key, machine::Shape shape, double stddev) const {
  const Tensor tensor(context_.device, case_.dtype, shape, Category::buffers);
  context_.device.stream().kernels().fill_normal(tensor, key, {}, 0, stddev);
  context_.device.stream().synchronize();
  return to_doubles(tensor);
}

Tensor MoeUnit::own_rows(const std::vector<double>& whole) const {
  Tensor rows =
      layer_.own_context().tensor({case_.seq_length, case_.hidden_size}, Category::buffers);
  from_doubles(rows, own(whole));
  return rows;
}

MoeUnit::Whole MoeUnit::whole_values() const {
  const MoeSizes z = case_.reference();
  const machine::Shape tokens{z.ranks * z.tokens, z.hidden};
  Whole whole;
  whole.values.x = draw(context_.seed + 1, tokens, 1);
  whole.values.d_y = draw(context_.seed + 2, tokens, 1);
  const double of_hidden = 1 / std::sqrt(static_cast<double>(z.hidden)),
               of_ffn = 1 / std::sqrt(static_cast<double>(z.ffn));
  const auto parameter = [&](const std::string& name, machine::Shape shape, double stddev) {
    whole.parameters.emplace_back(name,
                                  draw(machine::random_key(context_.seed, name), shape, stddev));
    return whole.parameters.back().second;
  };
  whole.values.router = parameter("moe.router.weight", {z.experts, z.hidden}, of_hidden);
  const auto perceptron = [&](const std::string& name, std::int64_t ffn) {
    const std::int64_t inner = (z.swiglu ? 2 : 1) * ffn;
    MoePerceptron p;
    p.weight1 = parameter(name + ".fc1.weight", {inner, z.hidden}, of_hidden);
    p.weight2 = parameter(name + ".fc2.weight", {z.hidden, ffn}, of_ffn);
    if (!z.bias) return p;
    p.bias1 = parameter(name + ".fc1.bias", {inner}, 0.5);
    p.bias2 = parameter(name + ".fc2.bias", {z.hidden}, 0.5);
    return p;
  };
  for (int expert = 0; expert < z.experts; ++expert)
    whole.values.experts.push_back(perceptron(fmt::format("moe.experts.{}", expert), z.ffn));
  if (z.shared > 0) whole.values.shared = perceptron("moe.shared_experts", z.shared);
  return whole;
}

std::vector<double> MoeUnit::of_all_ranks(const std::vector<double>& mine) const {
  std::vector<double> all;
  for (const std::vector<double>& theirs : context_.world.all_gather(context_.group, mine))
    all.insert(all.end(), theirs.begin(), theirs.end());
  return all;
}

void MoeUnit::zero_gradients() {
  for (Parameter* parameter : layer_.parameters())
    layers::zero_gradient(layer_.own_context(), *parameter);
}

std::size_t MoeUnit::passed_bytes() const {
  return x_.bytes() + y_.bytes() + d_y_.bytes() + d_x_.bytes();
}

CallsCost MoeUnit::calls_of(const std::vector<CollectiveCalls>& calls) const {
  CallsCost cost;
  for (const CollectiveCalls& one : calls)
    cost.add(one, collectives::usual_algorithm(one, case_.transport), experts_.rank());
  return cost;
}

void MoeUnit::judge_pass(Judge& judge, const layers::MoePass& pass, std::string_view when,
                         std::size_t kept) {
  context_.device.stream().synchronize();
  auto traffic = calls_of(pass.calls).traffic("ep");
  for (const auto& [label, messages] : pass.messages) traffic[label] += messages;
  judge.volume(experts_.link(), traffic);
  judge.memory(fmt::format("after {}", when), Category::activations,
               memory_.current(Category::activations), kept);
  experts_.link().reset_traffic();
}

void MoeUnit::judge_memory(Judge& judge) {
  std::vector<CollectiveCalls> calls = expected_.forward.calls;
  calls.insert(calls.end(), expected_.backward_input.calls.begin(),
               expected_.backward_input.calls.end());
  // Staged collectives hold their scratch in host memory, which this device does not count.
  const std::size_t scratch =
      experts_.link().stages(context_.device) ? 0 : calls_of(calls).scratch();
  const layers::MoeParameters own = layers::moe_parameters(case_.config(), case_.degrees());
  const auto parameters = static_cast<std::size_t>(own.of_experts + own.replicated);
  const auto check = [&](Category category, std::size_t expected) {
    judge.memory(category, memory_.peak(category), expected);
  };
  check(Category::parameters, parameters * size_of(case_.dtype));
  check(Category::gradients, parameters * size_of(collectives::gradient_dtype(case_.dtype)));
  check(Category::activations, expected_.kept);
  check(Category::buffers,
        passed_bytes() + scratch +
            std::max(expected_.forward.buffers, expected_.backward_input.buffers));
}

// Adds up the gradients, each over its group, and judges the bytes of both groups.
void MoeUnit::judge_reduction(Judge& judge) {
  CallsCost cost;
  const auto expect = [&](const char* group, const layers::Parameters& all, Communicator& over) {
    for (const Parameter* parameter : all) {
      const CollectiveCalls call{group, Operation::all_reduce, parameter->gradient.dtype(),
                                 over.size(), parameter->gradient.size()};
      cost.add(call, collectives::usual_algorithm(call, case_.transport), over.rank());
    }
  };
  expect("edp", layer_.expert_parameters(), edp_);
  expect("all", layer_.replicated_parameters(), all_);
  for (Communicator* group : {&edp_, &all_}) group->link().reset_traffic();
  layer_.reduce_gradients(edp_, all_);
  context_.device.stream().synchronize();
  judge.volume(edp_.link(), cost.traffic("edp"));
  judge.volume(all_.link(), cost.traffic("all"));
}

void MoeUnit::judge(Judge& judge) {
  judge_memory(judge);  // before the judge's runs, so peaks are those of the timed runs
  for (int repeat = 0; repeat < 2; ++repeat) {
    zero_gradients();
    for (const Tensor& result : {y_, d_x_})  // a pass that writes nothing shows
      context_.device.stream().kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
    experts_.link().reset_traffic();
    forward();
    judge_pass(judge, expected_.forward, "forward", expected_.kept);
    if (repeat == 0)
      judge_decisions(judge, to_doubles(saved_.router.logits), saved_.router.routing);
    backward_input();
    judge_pass(judge, expected_.backward_input, "backward_input", expected_.kept_for_weights);
    backward_weights();
    judge_pass(judge, {}, "backward_weights", 0);
    judge_reduction(judge);
    const int rank = context_.group.index;
    for (const auto& [what, tensor] : {std::pair("y", y_), {"d_x", d_x_}})
      judge.same_bits(fmt::format("{} of rank {}", what, rank), hash(tensor));
    for (const Parameter* parameter : layer_.expert_parameters())
      judge.same_bits(fmt::format("{} of part {}", parameter->name, groups_.etp.index),
                      hash(parameter->gradient));
    for (const Parameter* parameter : layer_.replicated_parameters())
      judge.same_bits(parameter->name, hash(parameter->gradient));
  }
  judge_results(judge);
}

// Both sides decide in double from the same logits, so choices are equal. A weight is a quotient of
// sums of at most num_experts exponentials; an exponential is wrong by at most 2 units, and so is
// its argument, a difference of order 10: 50 roundings in all.
void MoeUnit::judge_decisions(Judge& judge, const std::vector<double>& logits,
                              const layers::Routing& routing) {
  const MoeSizes z = case_.reference();
  if (context_.group.index == 0) {
    MoeSizes sizes = z;
    sizes.loss_factor = loss_factor;
    reference_ = moe_reference(sizes, whole_.values);
    context_.world.board().mine().progress.fetch_add(1);  // this rank does not hang
  }
  reference_ = context_.world.broadcast(context_.group, 0, reference_);
  const auto doubles = [](const auto& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  const Dtype sums = case_.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  std::vector<double> bounds = own(reference_.logit_sizes);
  const double product =
      harness::gamma(static_cast<double>(z.hidden), machine::unit_roundoff(sums)) +
      harness::gamma(static_cast<double>(z.hidden), machine::unit_roundoff(Dtype::float64));
  for (double& size : bounds) size *= product;
  judge.numerics("logits", logits, own(reference_.logits), bounds);
  judge.exact("chosen experts", doubles(routing.chosen), own(reference_.chosen));
  judge.exact("kept choices", doubles(routing.choices), own(reference_.choices));
  const double decided = harness::gamma(50.0 + 3.0 * static_cast<double>(z.experts),
                                        machine::unit_roundoff(Dtype::float64));
  bounds = own(reference_.weights);
  for (double& weight : bounds) weight *= decided;
  judge.numerics("weights of choices", routing.weights, own(reference_.weights), bounds);
  // The weights of a token sum to 1 over all experts, or over the chosen ones.
  if (!case_.pre_softmax && case_.load_balancing != "sinkhorn")
    for (std::int64_t t = 0; t < z.tokens && case_.capacity_factor == "none"; ++t) {
      double sum = 0;
      for (int k = 0; k < case_.topk; ++k)
        sum += routing.weights[static_cast<std::size_t>(t * z.topk + k)];
      judge.numerics("sum of a token's weights", std::abs(sum - 1), decided);
    }
  // Sums over tokens and experts of positive terms; the logarithm is squared.
  const double loss = harness::gamma(static_cast<double>(100 + 2 * z.tokens * z.experts),
                                     machine::unit_roundoff(Dtype::float64));
  for (const auto& [what, got, all] :
       {std::tuple("auxiliary loss", routing.aux_loss, &reference_.aux_loss),
        {"z loss", routing.z_loss, &reference_.z_loss}}) {
    const double want = own(*all)[0];
    judge.numerics(what, std::abs(got - want), loss * want);
  }
  // Every kept choice reaches each rank that holds a part of its expert, once.
  std::int64_t arrived = 0;
  for (const std::int64_t rows : saved_.tokens.rows) arrived += rows;
  judge.exact("rows of this rank's experts", {{static_cast<double>(arrived)}},
              {{static_cast<double>(expected_.rows)}});
}

// The bound is that of one layer (harness/judge/numerics.h). What passes through the logits
// cancels, so its error is relative to the sizes of the terms.
void MoeUnit::judge_results(Judge& judge) {
  const MoeSizes z = case_.reference();
  const double longest = static_cast<double>(std::max(
      {2 * z.ffn, 2 * z.shared, z.hidden, z.ranks * z.tokens * std::max<std::int64_t>(z.topk, 1)}));
  const auto compare = [&](const std::string& what, const std::vector<double>& got,
                           const std::vector<double>& want, const std::vector<double>& sizes) {
    judge.numerics(fmt::format("{} against a loop over tokens in double", what),
                   distance(got, want), bound(longest) * (norm(want) + norm(sizes)));
  };
  compare("y", to_doubles(y_), own(reference_.y), {});
  compare("d_x", to_doubles(d_x_), own(reference_.d_x), own(reference_.d_x_sizes));
  const auto gradient_of = [&](const std::string& name) -> const std::vector<double>& {
    if (name == "moe.router.weight") return reference_.d_router;
    const bool shared = name.starts_with("moe.shared_experts.");
    const MoePerceptron& p = shared ? reference_.d_shared
                                    : reference_.d_experts[static_cast<std::size_t>(std::stoi(
                                          name.substr(std::string("moe.experts.").size())))];
    if (name.ends_with("fc1.weight")) return p.weight1;
    if (name.ends_with("fc1.bias")) return p.bias1;
    return name.ends_with("fc2.weight") ? p.weight2 : p.bias2;
  };
  std::size_t seen = 0;
  for (const auto& [name, value] : whole_.parameters)
    for (const Parameter* parameter : parameters()) {
      if (parameter->name != name) continue;
      ++seen;
      const int part = name.starts_with("moe.experts.") ? groups_.etp.index : 0;
      judge.exact(name, to_doubles(parameter->value), shard(value, *parameter, part));
      compare("gradient of " + name, to_doubles(parameter->gradient),
              shard(gradient_of(name), *parameter, part),
              name == "moe.router.weight" ? reference_.d_router_sizes : std::vector<double>());
    }
  judge.exact("number of parameters", {{static_cast<double>(seen)}},
              {{static_cast<double>(parameters().size())}});
}

// Each pass reads its inputs and writes its results; kept tensors are written once and read once.
// Two passes read the parameters; one reads and writes the gradients.
Cost MoeUnit::cost() const {
  const layers::MoeParameters own = layers::moe_parameters(case_.config(), case_.degrees());
  const double parameters = static_cast<double>(own.of_experts + own.replicated);
  const double value = static_cast<double>(size_of(case_.dtype)),
               gradient = static_cast<double>(size_of(collectives::gradient_dtype(case_.dtype)));
  Cost cost;
  cost.flops = layers::moe_flops(case_.config(), case_.degrees(), expected_.rows, case_.seq_length);
  cost.flops_dtype = case_.dtype;
  cost.memory_bytes = 1.5 * static_cast<double>(passed_bytes()) +
                      2 * static_cast<double>(expected_.kept) + 2 * parameters * (value + gradient);
  cost.working_set_bytes =
      static_cast<double>(passed_bytes() + expected_.kept) + parameters * (value + gradient);
  cost.transport = case_.transport;
  for (const layers::MoePass* pass : {&expected_.forward, &expected_.backward_input}) {
    for (const auto& [label, traffic] : pass->messages)
      cost.wire_bytes += static_cast<double>(traffic.bytes_received);
    for (const auto& [label, traffic] : calls_of(pass->calls).traffic("ep"))
      cost.wire_bytes += static_cast<double>(traffic.bytes_received);
  }
  cost.tokens = static_cast<double>(case_.ranks) * case_.seq_length;
  return cost;
}

void MoeUnit::describe(Description& description) {
  const MoeLoad load = moe_load(case_, reference_);
  description.set("expert_load_max_over_mean", load.largest_over_mean);
  description.set("dropped_share", load.dropped_share);
  forward();
  const std::vector<std::int64_t> rows = saved_.tokens.rows;
  const Tensor x = saved_.experts.x;
  saved_ = {};
  if (context_.group.index > 0 || x.rows() == 0) return;  // the first rank's numbers are kept
  const std::int64_t columns = case_.config().inner() / case_.etp;
  std::vector<machine::Matrix> weights;
  for (const Parameter* parameter : layer_.expert_parameters())
    if (parameter->name.ends_with("fc1.weight"))
      weights.push_back(
          matrix(parameter->value.reshape({columns, case_.hidden_size})).transposed());
  description.set("grouped_gemm_over_gemm", grouped_gemm_over_gemm(x, rows, weights));
}

const bool registered = harness::add<MoeUnit>();

}  // namespace
}  // namespace suite
