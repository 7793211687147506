#include "zero/stages/lamb.h"

#include <algorithm>
#include <variant>

#include "collectives/placement.h"
#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/kernels.h"

namespace zero {
namespace {

// Returns the elements of a piece in a tensor of the range that has them.
Tensor part(const Tensor& tensor, Range range, Range piece) {
  return tensor.slice(piece.begin - range.begin, {piece.size()});
}

}  // namespace

void check_lamb(const StepOptions& options, Dtype value_dtype, Dtype gradient_dtype, int ep) {
  const Lamb* const lamb = std::get_if<Lamb>(&options.rule);
  if (!lamb) return;
  if (!(lamb->min_coeff > 0) || !(lamb->max_coeff >= lamb->min_coeff))
    machine::reject("min_coeff is {} and max_coeff is {}; expected 0 < min_coeff <= max_coeff",
                    lamb->min_coeff, lamb->max_coeff);
  if (options.offload_optimizer.device != OffloadDevice::none || options.offload_param.offloads())
    machine::reject(
        "optimizer lamb requires offload_optimizer and offload_param none, because a norm needs a "
        "parameter's whole update, which offload computes piece by piece");
  const Dtype wide = collectives::gradient_dtype(value_dtype);
  if (gradient_dtype != wide)
    machine::reject(
        "optimizer lamb requires gradients of {} (got {}), because an update takes the place of "
        "its gradient",
        machine::name(wide), machine::name(gradient_dtype));
  if (ep > 1)
    machine::reject(
        "optimizer lamb requires expert-model-parallel-size 1 (got {}), because norms of "
        "parameters are summed over dp, which holds different experts",
        ep);
}

std::size_t lamb_buffers(const GradientPlan& plan, const Layout& layout, bool sharded) {
  const ParameterSums sums = parameter_sums(plan, layout, sharded);
  return static_cast<std::size_t>(sums.own + sums.gathered) * sizeof(double) +
         static_cast<std::size_t>(longest_piece(plan, layout)) *
             size_of(collectives::gradient_dtype(plan.value_dtype));
}

double trust_ratio(const Lamb& limits, double norm, double norm_of_update) {
  if (norm == 0 || norm_of_update == 0) return 1;
  return std::clamp(norm / norm_of_update, limits.min_coeff, limits.max_coeff);
}

LambOptimizer::LambOptimizer(const StepContext& context, const std::vector<OwnedRange>& owned)
    : OwnedOptimizer(context.options.rule),
      context_(context),
      norms_(context.device(), context.plan, context.layout(), context.communicators.tp,
             context.communicators.dp, context.sharded, context.options.all_gather),
      scratch_(context.device(), collectives::gradient_dtype(context.plan.value_dtype),
               {longest_piece(context.plan, context.layout())}, Category::buffers) {
  for (const OwnedRange& range : owned) {
    Owned& mine = owned_.emplace_back(Owned{range.range, make_states(rule_, range.values), {}});
    for (std::size_t i = 0; i < norms_.pieces().size(); ++i)
      if (intersection(mine.range, norms_.pieces()[i].range).size() > 0) mine.pieces.push_back(i);
  }
}

void LambOptimizer::direct(const Owned& owned, const ParameterNorms::Piece& piece,
                           const Tensor& gradient, double gradient_scale) {
  const Lamb& lamb = std::get<Lamb>(rule_);
  machine::Stream& stream = context_.device().stream();
  machine::Kernels& kernels = stream.kernels();
  const auto of = [&](const Tensor& tensor) { return part(tensor, owned.range, piece.range); };
  const Tensor values = of(owned.states.master), mine = of(gradient),
               direction = scratch_.slice(0, {piece.range.size()});
  // A step from zero with rate 1 and without decay is minus the direction.
  kernels.fill(direction, 0);
  kernels.adamw(mine, gradient_scale, {1, lamb.beta1, lamb.beta2, lamb.epsilon, 0}, steps_, nullptr,
                direction, of(owned.states.first_moment), of(owned.states.second_moment),
                direction);
  const bool decays = context_.plan.rows[static_cast<std::size_t>(piece.row)].weight_decay;
  kernels.triad(direction, values, decays ? -lamb.weight_decay : 0, mine);
  kernels.sum_of_squares(values, norms_.squares(piece, ParameterNorms::values));
  kernels.sum_of_squares(mine, norms_.squares(piece, ParameterNorms::update));
}

// The last range first, because backward of the next step needs its values last.
void LambOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                           const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  ++steps_;
  machine::Kernels& kernels = context_.kernels();
  for (std::size_t i = 0; i < owned_.size(); ++i)
    for (const std::size_t piece : owned_[i].pieces)
      direct(owned_[i], norms_.pieces()[piece], gradients[i], gradient_scale);
  const auto norms = norms_.norms();
  const Lamb& lamb = std::get<Lamb>(rule_);
  for (std::size_t i = owned_.size(); i-- > 0;) {
    const Owned& owned = owned_[i];
    for (const std::size_t at : owned.pieces) {
      const ParameterNorms::Piece& piece = norms_.pieces()[at];
      const auto [values, update] = norms[static_cast<std::size_t>(piece.row)];
      const Tensor master = part(owned.states.master, owned.range, piece.range);
      kernels.triad(master, part(gradients[i], owned.range, piece.range),
                    lamb.learning_rate * trust_ratio(lamb, values, update), master);
    }
    if (owned.states.master.data() != owned.states.values.data())
      kernels.cast(owned.states.master, owned.states.values);
    updated(i);
  }
}

void LambOptimizer::values_changed() {
  for (const Owned& owned : owned_)
    if (owned.states.master.data() != owned.states.values.data())
      context_.kernels().cast(owned.states.values, owned.states.master);
}

void LambOptimizer::visit(bool /*writes*/, const Visit& call) {
  for (const Owned& owned : owned_) call(owned.range, owned.states);
}

}  // namespace zero
