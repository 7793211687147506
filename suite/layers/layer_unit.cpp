#include "suite/layers/layer_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "machine/base/clock.h"
#include "machine/device/flash_attention.h"

namespace suite {

using collectives::CollectiveCalls;
using collectives::Spread;
using machine::Traffic;
using machine::TrafficLabel;

LayerShell::LayerShell(const Case& c, Context& context, const LayerTraits& traits)
    : case_(c),
      context_(context),
      traits_(traits),
      claims_(traits.claims(c)),
      tp_(context.world, context.group, c.transport,
          c.tp_comm_overlap ? machine::LinkStream::own : machine::LinkStream::of_device),
      memory_(context.device.ledger()),
      run_(context.device, tp_, c, traits, context.seed) {
  if (c.tp_comm_overlap) tp_.set_algorithms(collectives::algorithms_by_share());
  run_.add_earlier_gradients(run_.partial_gradients(), tp_.rank(), 1);
  context.device.stream().synchronize();
  memory_.reset();
}

std::string LayerShell::why_not(const Case& c, const Context& context) {
  std::string why;
  if (c.use_flash_attn)
    why = machine::why_not_flash_attention(context.device.stream(), c.dtype, c.model().head());
  return why.empty() ? machine::why_not(context.world, context.group, c.transport) : why;
}

void LayerShell::judge(Judge& judge) {
  judge_memory(judge);  // before the judge's runs, so peaks are those of the timed runs
  for (int repeat = 0; repeat < 2; ++repeat) {
    run_.zero_gradients();
    run_.add_earlier_gradients(run_.partial_gradients(), tp_.rank(), 1);
    run_.spoil_results();
    for (const Pass pass : all_passes) {
      tp_.link().reset_traffic();
      run_.run(pass);
      context_.device.stream().synchronize();
      if (repeat > 0) continue;
      judge_volume(judge, pass);
      judge_saved(judge, pass);
    }
    judge_bits(judge);
  }
  if (traits_.judge_numerics) return traits_.judge_numerics(judge, context_, run_, case_);
  const LayerResults got = results_of(run_, &judge);
  judge_results(judge, run_, case_, traits_, claims_.longest_sum, got, shared_reference());
}

void LayerShell::judge_memory(Judge& judge) {
  collectives::CallsCost cost;
  for (const Pass pass : all_passes) add_calls(cost, pass);
  // Staged collectives hold their scratch in host memory, which this device does not count.
  const std::size_t scratch = tp_.link().stages(context_.device) ? 0 : cost.scratch();
  const auto parameters = static_cast<std::size_t>(claims_.parameters);
  const auto check = [&](Category category, std::size_t expected) {
    judge.memory(category, memory_.peak(category), expected);
  };
  check(Category::parameters, parameters * size_of(case_.dtype));
  check(Category::gradients, parameters * size_of(collectives::gradient_dtype(case_.dtype)));
  check(Category::optimizer, 0);
  check(Category::activations, claims_.saved);
  check(Category::buffers, run_.passed_bytes() + claims_.buffers + scratch);
  if (!tp_.link().is_rendezvous()) return;
  judge.shares_reference(Oracle::memory);  // the rounds of the plans
  check(Category::links, cost.staging());
}

void LayerShell::judge_saved(Judge& judge, Pass pass) const {
  const std::size_t expected = pass == Pass::forward          ? claims_.saved
                               : pass == Pass::backward_input ? claims_.saved_for_weights
                                                              : 0;
  judge.memory(fmt::format("after {}", name(pass)), Category::activations,
               memory_.current(Category::activations), expected);
}

void LayerShell::add_calls(collectives::CallsCost& cost, Pass pass) {
  for (const CollectiveCalls& calls : claims_.calls[static_cast<std::size_t>(pass)])
    cost.add(calls, tp_);
}

void LayerShell::judge_volume(Judge& judge, Pass pass) {
  collectives::CallsCost cost;
  add_calls(cost, pass);
  std::map<TrafficLabel, Traffic> expected = cost.traffic("tp");
  auto measured = tp_.link().traffic();
  for (const auto& [label, traffic] : measured)
    if (traffic != Traffic{}) expected.try_emplace(label);  // unexpected traffic fails too
  if (expected.empty()) return judge.volume(tp_.link(), {});
  for (const auto& [label, traffic] : expected)
    judge.volume(fmt::format("{}, {}", tp_.group().name, name(pass)), label, measured[label],
                 traffic);
}

// Judges the last passes. Data that only one rank has is compared with its own second run.
void LayerShell::judge_bits(Judge& judge) const {
  const auto bits = [&](bool own, std::string_view what, const Tensor& tensor) {
    judge.same_bits(own ? fmt::format("part {} of {}", tp_.rank(), what) : std::string(what),
                    hash(tensor));
  };
  const bool rows_cut = case_.sequence_parallel;
  bits((rows_cut && !traits_.gives_loss) || run_.y_is_cut(), "y", run_.y());
  if (!traits_.takes_tokens) bits(rows_cut || run_.d_x_is_cut(), "d_x", run_.d_x());
  for (const collectives::Parameter* parameter : run_.parameters())
    bits(
        parameter->placement.tp == Spread::sharded || parameter->placement.gradient_partial_over_tp,
        "gradient of " + parameter->name, parameter->gradient);
}

// The first rank computes the reference in the judged dtype, and the last one, which has another
// core, that in double. Both send theirs. The other ranks sleep until then.
LayerReference LayerShell::shared_reference() const {
  const int last = case_.ranks - 1;
  LayerReference reference;
  if (tp_.rank() == last)
    reference.exact = exact_reference(context_, case_, traits_, run_.partial_gradients());
  if (tp_.rank() == 0)
    reference.same = same_reference(context_, case_, traits_, run_.partial_gradients());
  return {context_.world.broadcast(context_.group, 0, reference.same),
          context_.world.broadcast(context_.group, last, reference.exact)};
}

// Each pass reads its inputs and writes its results; backward_weights reads x and d_y. Kept tensors
// are written once and read once. Two passes read the parameters; one pass reads and writes the
// gradients. Collectives cost as in suite/collectives/collective_unit.cpp.
Cost LayerShell::cost() const {
  const double parameters = static_cast<double>(claims_.parameters);
  const double value = static_cast<double>(size_of(case_.dtype)),
               gradient = static_cast<double>(size_of(collectives::gradient_dtype(case_.dtype)));
  const double passed = static_cast<double>(run_.passed_bytes()),
               saved = static_cast<double>(claims_.saved);
  Cost cost;
  cost.flops = claims_.flops;
  cost.flops_dtype = case_.dtype;
  cost.memory_bytes = 1.5 * passed + 2 * saved + 2 * parameters * (value + gradient);
  cost.transport = case_.transport;
  const double n = case_.ranks;
  for (const auto& calls : claims_.calls)
    for (const CollectiveCalls& one : calls) {
      const double whole =
          static_cast<double>(one.calls * one.elements) * static_cast<double>(size_of(one.dtype));
      cost.memory_bytes += one.operation == Operation::all_reduce ? 2 * whole : whole + whole / n;
      cost.wire_bytes += (one.operation == Operation::all_reduce ? 2 : 1) * whole * (n - 1) / n;
    }
  cost.working_set_bytes = passed + saved + parameters * (value + gradient);
  cost.tokens = static_cast<double>(case_.tokens());
  return cost;
}

// Measures nine more runs pass by pass and shows the median run.
void LayerShell::describe(Description& description) {
  std::array<std::array<double, 3>, 9> runs{};
  const auto sum = [](const std::array<double, 3>& one) { return one[0] + one[1] + one[2]; };
  for (auto& seconds : runs) {
    tp_.barrier();
    for (const Pass pass : all_passes) {
      const double begin = machine::steady_s();
      run_.run(pass);
      context_.device.stream().synchronize();
      seconds[static_cast<std::size_t>(pass)] = machine::steady_s() - begin;
    }
  }
  const auto median = runs.begin() + runs.size() / 2;
  std::nth_element(runs.begin(), median, runs.end(),
                   [&](const auto& a, const auto& b) { return sum(a) < sum(b); });
  for (const Pass pass : all_passes)
    description.breakdown.emplace_back(name(pass), (*median)[static_cast<std::size_t>(pass)]);
}

}  // namespace suite
