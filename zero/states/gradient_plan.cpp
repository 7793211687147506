#include "zero/states/gradient_plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace zero {
using collectives::Spread;
using machine::Axis;

std::string_view name(Over over) {
  constexpr std::string_view names[] = {"embedding", "tp", "dp", "edp"};
  return names[static_cast<std::size_t>(over)];
}

GradientPlan gradient_plan(const std::vector<Parameter*>& parameters, Dtype value_dtype,
                           const machine::Grid& grid, double divisor,
                           const std::vector<std::string>& frozen,
                           std::optional<Dtype> gradient_dtype, const Experts& experts) {
  const Dtype wide = collectives::gradient_dtype(value_dtype), sums = gradient_dtype.value_or(wide);
  if (sums != wide && sums != value_dtype)
    machine::reject("gradient plan: gradients of {} values require {} or {} (got {})",
                    machine::name(value_dtype), machine::name(wide), machine::name(value_dtype),
                    machine::name(sums));
  if (!(divisor > 0) || !std::isfinite(divisor))
    machine::reject(
        "gradient plan: divisor is {}; expected the tokens of a step, a positive number", divisor);
  if (grid.size(Axis::ep) > 1)
    machine::reject("gradient plan: ep {}, but gradients are reduced over tp, pp, cp and dp",
                    grid.size(Axis::ep));
  GradientPlan plan{divisor,
                    value_dtype,
                    sums,
                    grid.size(Axis::tp),
                    grid.size(Axis::pp),
                    grid.size(Axis::dp) * grid.size(Axis::cp),
                    {},
                    experts.ep,
                    experts.etp,
                    grid.coordinate(Axis::tp)};
  if (plan.expert_ranks() < 1 || plan.tp * plan.dp % plan.expert_ranks() != 0)
    machine::reject("gradient plan: ep {} x etp {} is {}; expected a divisor of tp {} x dp {}",
                    plan.ep, plan.etp > 0 ? plan.etp : plan.tp, plan.expert_ranks(), plan.tp,
                    plan.dp);
  std::set<std::string> seen;
  for (const Parameter* parameter : parameters) {
    if (!seen.insert(parameter->name).second)
      machine::reject("gradient plan: parameter {} appears twice", parameter->name);
    const collectives::Placement& placement = parameter->placement;
    if (placement.tied_over_pp && plan.pp > 1 && grid.opposite_group().size() == 1)
      machine::reject(
          "gradient plan: parameter {} is tied over two opposite stages, but stage {} of "
          "{} has no opposite",
          parameter->name, grid.coordinate(Axis::pp), plan.pp);
    GradientRow row;
    row.parameter = parameter->name;
    row.elements =
        Parameter::local_shape(parameter->name, parameter->global_shape, placement, plan.tp).size();
    row.dtype = plan.gradient_dtype;
    row.weight_decay = parameter->weight_decay;
    row.frozen = std::find(frozen.begin(), frozen.end(), row.parameter) != frozen.end();
    row.expert = plan.experts_apart() && placement.is_of_expert();
    const bool wanted[] = {placement.tied_over_pp, placement.gradient_partial_over_tp, !row.expert,
                           row.expert};
    for (const Over over : all_overs) {
      if (row.frozen || !wanted[static_cast<std::size_t>(over)] || plan.size(over) == 1) continue;
      row.reduce.push_back(over);
    }
    if (placement.block)
      row.replicas *= placement.block->copies;
    else if (placement.tp == Spread::replicated)
      row.replicas *= placement.parts(plan.tp);
    if (placement.tied_over_pp) row.replicas *= plan.size(Over::embedding);
    plan.rows.push_back(std::move(row));
  }
  for (const std::string& name : frozen) {
    if (!seen.contains(name)) {
      throw std::invalid_argument(
          "gradient plan: frozen: " +
          machine::unknown("parameter", name, std::vector<std::string>(seen.begin(), seen.end())));
    }
  }
  return plan;
}

}  // namespace zero
