#include "layers/tensor_grids/grid_matmul.h"

#include <algorithm>

namespace layers {

using machine::Category, machine::Operation, machine::Reduction, machine::Tensor;
using Action = GridStep::Action;

namespace {

bool is_of(const GridPlan& plan, GridOperand operand, std::initializer_list<Action> actions) {
  return std::ranges::any_of(plan, [&](const GridStep& step) {
    return step.action != Action::multiply && step.operand == operand &&
           std::ranges::find(actions, step.action) != actions.end();
  });
}

// One operand of a product: the rank's own block, the tensor that is multiplied now, and buffers.
struct Slot {
  Tensor own, now, next;
};

}  // namespace

bool GridMatmul::send_back(GridAxis axis, int distance, const Tensor& from, const Tensor& to) {
  collectives::Communicator& ranks = group(axis);
  const int n = ranks.size();
  distance = (distance % n + n) % n;
  if (distance == 0) return false;
  auto& traffic = skews_[{axis, distance, from.size()}];
  if (!traffic) {
    std::vector<std::int64_t> elements(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
    for (int sender = 0; sender < n; ++sender)
      elements[static_cast<std::size_t>(sender * n + (sender - distance + n) % n)] = from.size();
    traffic = std::make_shared<const collectives::TrafficMatrix>(n, elements);
  }
  ranks.all_to_all_v(from, to, traffic);
  return true;
}

void GridMatmul::run(GridProduct product, GridOperands& operands) {
  const GridPlan plan = grid_plan(context_.grid(), layer_, product, context_.method);
  const GridPlace place = context_.groups.place();
  const auto like = [&](const Tensor& own, std::int64_t times) {
    return Tensor(context_.device, own.dtype(), {times * own.rows(), own.cols()},
                  Category::buffers);
  };
  // A sum that is communicated is not yet the rank's gradient, so it is added at the end.
  const bool communicates = is_of(
      plan, GridOperand::result,
      {Action::reduce, Action::reduce_scatter, Action::all_reduce, Action::shift, Action::skew});
  const bool apart = operands.adds && communicates;
  const Tensor target = apart ? like(operands.result, 1) : operands.result;
  Slot slots[3] = {{operands.left, operands.left, {}},
                   {operands.right, operands.right, {}},
                   {target, target, {}}};
  const auto slot = [&](GridOperand operand) -> Slot& {
    return slots[static_cast<std::size_t>(operand)];
  };
  // Buffers: a second and, for moving blocks, a third tensor of an operand.
  for (const GridOperand operand : {GridOperand::left, GridOperand::right, GridOperand::result}) {
    Slot& one = slot(operand);
    if (is_of(plan, operand, {Action::shift, Action::skew})) {
      one.now = like(one.own, 1);
      one.next = like(one.own, 1);
    } else if (is_of(plan, operand, {Action::broadcast})) {
      one.next = like(one.own, 1);
    } else if (is_of(plan, operand, {Action::reduce})) {
      one.now = like(one.own, 1);
    } else if (is_of(plan, operand, {Action::reduce_scatter})) {
      one.now = like(one.own, context_.grid().columns);  // as long as each group of a 3d grid
    }
  }
  Tensor whole_right = operands.whole_right;

  for (const GridStep& step : plan) {
    Slot& of = slot(step.operand);
    switch (step.action) {
      case Action::multiply: {
        const Tensor &left = slots[0].now, &right = slots[1].now, &sum = slots[2].now;
        const bool adds = step.adds || (operands.adds && !apart);
        gemm(context_.stream(),
             product == GridProduct::atb ? matrix(left).transposed() : matrix(left),
             product == GridProduct::abt ? matrix(right).transposed() : matrix(right), matrix(sum),
             1, adds ? 1.0f : 0.0f);
        break;
      }
      case Action::broadcast:
        of.now = place.along(step.along) == step.root ? of.own : of.next;
        group(step.along).run(Operation::broadcast, {}, of.now, of.now, Reduction::sum, step.root);
        break;
      case Action::reduce:
        group(step.along)
            .run(Operation::reduce, {}, of.now,
                 place.along(step.along) == step.root ? of.own : of.now, Reduction::sum, step.root);
        break;
      case Action::all_gather: {
        Tensor& whole = step.operand == GridOperand::left ? operands.whole_left : whole_right;
        if (!whole) {
          whole =
              Tensor(context_.device, of.own.dtype(),
                     {group(step.along).size() * of.own.rows(), of.own.cols()},
                     step.operand == GridOperand::left ? operands.kept_left : Category::buffers);
          group(step.along).all_gather(of.own, whole);
        }
        of.now = whole;
        break;
      }
      case Action::reduce_scatter:
        group(step.along).reduce_scatter(of.now, of.own);
        break;
      case Action::all_reduce:
        group(step.along).all_reduce(of.own);
        break;
      case Action::skew: {
        const bool starts = step.operand != GridOperand::result;
        const Tensor from = starts ? of.own : of.now, to = starts ? of.now : of.own;
        if (!send_back(step.along, step.distance(place), from, to))
          context_.stream().copy(to.data(), from.data(), from.bytes());
        break;
      }
      case Action::shift:
        group(step.along).run(Operation::send_receive, {}, of.now, of.next);
        std::swap(of.now, of.next);
        break;
    }
  }
  if (apart) context_.kernels().accumulate(target, operands.result);
}

}  // namespace layers
