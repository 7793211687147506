#include "zero/matrices/adafactor.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "collectives/placement.h"
#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"

namespace zero {
namespace {

constexpr double epsilon = 1e-15;

const GradientRow& row_of(const GradientPlan& plan, int row) {
  return plan.rows[static_cast<std::size_t>(row)];
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Elements of the largest memory of each kind.
struct Sizes {
  std::int64_t squares = 0, scratch = 0, extent = 0;
};
Sizes sizes(const GradientPlan& plan, const Layout& layout, const Factors& factors) {
  Sizes most{0, longest_piece(plan, layout), 0};
  for (const FactoredRow& of : factors.matrices) {
    const auto at = static_cast<std::size_t>(layout.bucket_of[static_cast<std::size_t>(of.row)]);
    // A piece may begin and end inside a row.
    const std::int64_t longest =
        std::min(of.rows * of.columns,
                 round_up(layout.shard_elements(layout.buckets[at]), of.columns) + of.columns);
    most.squares = std::max(most.squares, longest);
    most.extent = std::max({most.extent, of.rows, of.columns});
  }
  return most;
}

// Returns the ranks of tp that hold parts of a parameter.
int parts_over_tp(const GradientPlan& plan, const GradientRow& row) {
  const bool tied = std::ranges::find(row.reduce, Over::embedding) != row.reduce.end();
  return plan.tp / (row.replicas / (tied ? plan.size(Over::embedding) : 1));
}

machine::Matrix column(const Tensor& tensor) { return matrix(tensor.reshape({tensor.size(), 1})); }
machine::Matrix line(const Tensor& tensor) { return matrix(tensor.reshape({1, tensor.size()})); }

}  // namespace

void check_adafactor(const Rule& given, const MatrixLimits& limits) {
  const Adafactor* const rule = std::get_if<Adafactor>(&given);
  if (!rule) return;
  if (!(rule->decay_rate > 0) || !(rule->clip_threshold > 0))
    machine::reject("decay_rate is {} and clip_threshold is {}; expected positive numbers",
                    rule->decay_rate, rule->clip_threshold);
  if (limits.offloads)
    machine::reject(
        "optimizer adafactor requires offload_optimizer and offload_param none, because a mean "
        "needs a parameter's whole gradient, which offload updates piece by piece");
  const Dtype wide = collectives::gradient_dtype(limits.value_dtype);
  if (limits.gradient_dtype != wide)
    machine::reject(
        "optimizer adafactor requires gradients of {} (got {}), because an update takes the place "
        "of its gradient",
        machine::name(wide), machine::name(limits.gradient_dtype));
  if (limits.ep > 1)
    machine::reject(
        "optimizer adafactor requires expert-model-parallel-size 1 (got {}), because means are "
        "summed over dp, which holds different experts",
        limits.ep);
}

Factors factors(const GradientPlan& plan, const Layout& layout) {
  using Cut = MatrixRow::Cut;
  Factors result;
  for (const Bucket& bucket : layout.buckets)
    for (const int at : bucket.rows) {
      const GradientRow& row = row_of(plan, at);
      if (!bucket.matrices) continue;
      const std::int64_t columns = row.matrix.columns, rows = row.elements / columns;
      const Cut cut = plan.tp > 1 ? row.matrix.cut : Cut::nothing;
      result.matrices.push_back({at, rows, columns, rows * (cut == Cut::rows ? plan.tp : 1),
                                 columns * (cut == Cut::columns ? plan.tp : 1)});
    }
  std::int64_t end = 0;
  for (const bool summed : {true, false}) {
    for (FactoredRow& of : result.matrices) {
      const Cut cut = plan.tp > 1 ? row_of(plan, of.row).matrix.cut : Cut::nothing;
      const auto place = [&](std::int64_t& at, std::int64_t size, bool over_tp) {
        if (over_tp != summed) return;
        at = end;
        end += size;
      };
      place(of.of_rows, of.rows, cut == Cut::columns);
      place(of.of_columns, of.columns, cut == Cut::rows);
      place(of.of_all, 1, cut != Cut::nothing);
    }
    end = round_up(end, alignment * (summed ? plan.tp : 1));
    if (summed) result.summed_over_tp = end;
  }
  result.elements = round_up(end, alignment * plan.dp);
  return result;
}

MatrixBytes adafactor_bytes(const GradientPlan& plan, const Layout& layout, bool sharded) {
  const Dtype wide = collectives::gradient_dtype(plan.value_dtype);
  const Factors all = factors(plan, layout);
  const Sizes most = sizes(plan, layout, all);
  const ParameterSums sums = parameter_sums(plan, layout, sharded);
  MatrixBytes bytes;
  bytes.states = static_cast<std::size_t>(all.elements) * size_of(wide);
  bytes.buffers =
      static_cast<std::size_t>(all.elements + most.squares + most.scratch + 2 * most.extent) *
          size_of(wide) +
      static_cast<std::size_t>(sums.own + sums.gathered) * sizeof(double);
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.frozen) continue;
    const auto elements =
        static_cast<std::size_t>(sharded ? layout.shard_elements(bucket) : bucket.range.size());
    const Rule rule = bucket.matrices ? Rule(Sgd{}) : Rule(RmsProp{});
    bytes.states += elements * optimizer_bytes_per_element(rule, plan.value_dtype);
  }
  return bytes;
}

AdafactorOptimizer::AdafactorOptimizer(const Rule& rule, MatrixContext given,
                                       const std::vector<OwnedRange>& owned)
    : OwnedOptimizer(rule),
      context_(std::move(given)),
      factors_(zero::factors(context_.plan, context_.layout)),
      norms_(context_.device, context_.plan, context_.layout, context_.tp, context_.dp,
             context_.sharded, context_.all_gather) {
  const Dtype wide = collectives::gradient_dtype(context_.plan.value_dtype);
  const Sizes most = sizes(context_.plan, context_.layout, factors_);
  const auto make = [&](std::int64_t elements, Category category) {
    return Tensor(context_.device, wide, {elements}, category);
  };
  means_ = make(factors_.elements, Category::optimizer);
  sums_ = make(factors_.elements, Category::buffers);
  squares_ = make(most.squares, Category::buffers);
  scratch_ = make(most.scratch, Category::buffers);
  weights_ = make(most.extent, Category::buffers);
  ratio_ = make(most.extent, Category::buffers);
  context_.kernels().fill(means_, 0);
  for (std::size_t i = 0; i < owned.size(); ++i)
    for (const Bucket& bucket : context_.layout.buckets) {
      const Range range = intersection(owned[i].range, bucket.range);
      if (bucket.frozen || range.size() == 0) continue;
      const std::int64_t first = range.begin - owned[i].range.begin;
      const Owned& mine = owned_.emplace_back(
          Owned{range, make_states(bucket.matrices ? Rule(Sgd{}) : Rule(RmsProp{}),
                                   owned[i].values.slice(first, {range.size()}))});
      for (std::size_t at = 0; at < norms_.pieces().size(); ++at) {
        const ParameterNorms::Piece& norm = norms_.pieces()[at];
        if (intersection(range, norm.range).size() == 0) continue;
        const auto part = [&](const Tensor& tensor) {
          return tensor ? tensor.slice(norm.range.begin - range.begin, {norm.range.size()})
                        : Tensor();
        };
        const auto factored = std::ranges::find(factors_.matrices, norm.row, &FactoredRow::row);
        pieces_.push_back(
            {i, at, norm.range.begin - owned[i].range.begin,
             factored == factors_.matrices.end() ? nullptr : &*factored,
             norm.range.begin - context_.layout.offsets[static_cast<std::size_t>(norm.row)],
             part(mine.states.master), part(mine.states.second_moment)});
      }
    }
}

AdafactorOptimizer::Touched AdafactorOptimizer::touched(const Piece& piece, std::int64_t size) {
  const std::int64_t columns = piece.factored->columns, first = piece.in_row / columns;
  return {first, (piece.in_row + size - 1) / columns + 1 - first, piece.in_row - first * columns};
}

Tensor AdafactorOptimizer::quotient(const Tensor& gradient, double gradient_scale, double decay,
                                    const Tensor& second_moment) {
  const Tensor update = scratch_.slice(0, {gradient.size()});
  // A step from zero with rate -1 is the quotient.
  context_.kernels().fill(update, 0);
  context_.kernels().rmsprop(gradient, gradient_scale, {-1, decay, epsilon, 0}, nullptr, update,
                             second_moment, update);
  return update;
}

void AdafactorOptimizer::add_squares(const Piece& piece, const Tensor& gradient,
                                     double gradient_scale) {
  machine::Stream& stream = context_.device.stream();
  machine::Kernels& kernels = stream.kernels();
  const FactoredRow& of = *piece.factored;
  const auto [first, rows, skipped] = touched(piece, gradient.size());
  const Tensor squares = squares_.slice(0, {rows, of.columns});
  kernels.fill(squares, 0);
  quotient(gradient, gradient_scale, 0, squares_.slice(skipped, {gradient.size()}));
  const Tensor of_rows = sums_.slice(of.of_rows + first, {rows}),
               of_columns = sums_.slice(of.of_columns, {of.columns});
  Tensor weights = weights_.slice(0, {of.columns});
  kernels.fill(weights, 1.0 / static_cast<double>(of.all_columns));
  gemm(stream, matrix(squares), column(weights), column(of_rows), 1, 1);
  weights = weights_.slice(0, {rows});
  kernels.fill(weights, 1.0 / static_cast<double>(of.all_rows));
  gemm(stream, line(weights), matrix(squares), line(of_columns), 1, 1);
}

void AdafactorOptimizer::sum_squares(double decay) {
  for (const FactoredRow& of : factors_.matrices) {
    const Tensor weights = weights_.slice(0, {of.columns});
    context_.kernels().fill(weights, 1.0 / static_cast<double>(of.all_columns));
    gemm(context_.device.stream(), line(sums_.slice(of.of_columns, {of.columns})), column(weights),
         column(sums_.slice(of.of_all, {1})));
  }
  const std::string& algorithm = context_.all_reduce;
  if (context_.tp && context_.tp->size() > 1 && factors_.summed_over_tp > 0) {
    const Tensor summed = sums_.slice(0, {factors_.summed_over_tp});
    context_.tp->all_reduce(summed, summed, algorithm);
  }
  if (context_.sharded && sums_.size() > 0) context_.dp->all_reduce(sums_, sums_, algorithm);
  machine::Kernels& kernels = context_.kernels();
  kernels.scale(means_, decay, means_);
  kernels.triad(means_, sums_, 1 - decay, means_);
}

void AdafactorOptimizer::direct(const Piece& piece, const Tensor& gradient, double gradient_scale,
                                double decay) {
  machine::Stream& stream = context_.device.stream();
  machine::Kernels& kernels = stream.kernels();
  Tensor update;
  if (piece.factored) {
    const FactoredRow& of = *piece.factored;
    const auto [first, rows, skipped] = touched(piece, gradient.size());
    const double mean = to_doubles(means_.slice(of.of_all, {1})).front();
    const Tensor ratio = ratio_.slice(0, {rows});
    kernels.scale(means_.slice(of.of_rows + first, {rows}), mean > 0 ? 1 / mean : 0, ratio);
    gemm(stream, column(ratio), line(means_.slice(of.of_columns, {of.columns})),
         matrix(squares_.slice(0, {rows, of.columns})));
    update = quotient(gradient, gradient_scale, 1, squares_.slice(skipped, {gradient.size()}));
  } else {
    update = quotient(gradient, gradient_scale, decay, piece.second_moment);
  }
  kernels.scale(update, 1, gradient);
  const ParameterNorms::Piece& norm = norms_.pieces()[piece.norm];
  kernels.fill(norms_.squares(norm, ParameterNorms::values), 0);
  kernels.sum_of_squares(gradient, norms_.squares(norm, ParameterNorms::update));
}

// The last range first, because backward of the next step needs its values last.
void AdafactorOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                                const Updated& updated) {
  ++steps_;
  const Adafactor& rule = std::get<Adafactor>(rule_);
  machine::Kernels& kernels = context_.kernels();
  const auto of = [&](const Piece& piece) {
    return gradients[piece.owned].slice(piece.first, {piece.master.size()});
  };
  const double decay = 1 - std::pow(static_cast<double>(steps_), -rule.decay_rate);
  kernels.fill(sums_, 0);
  for (const Piece& piece : pieces_)
    if (piece.factored) add_squares(piece, of(piece), gradient_scale);
  sum_squares(decay);
  for (const Piece& piece : pieces_) direct(piece, of(piece), gradient_scale, decay);
  const auto norms = norms_.norms();
  for (const Piece& piece : pieces_) {
    const int at = norms_.pieces()[piece.norm].row;
    const GradientRow& row = row_of(context_.plan, at);
    const double elements = static_cast<double>(row.elements) * parts_over_tp(context_.plan, row);
    const double rms =
        norms[static_cast<std::size_t>(at)][ParameterNorms::update] / std::sqrt(elements);
    if (row.weight_decay && rule.weight_decay != 0)
      kernels.scale(piece.master, 1 - rule.learning_rate * rule.weight_decay, piece.master);
    kernels.triad(piece.master, of(piece),
                  -rule.learning_rate / std::max(1.0, rms / rule.clip_threshold), piece.master);
  }
  for (const Owned& owned : owned_)
    if (owned.states.master.data() != owned.states.values.data())
      kernels.cast(owned.states.master, owned.states.values);
  for (std::size_t i = gradients.size(); i-- > 0;) updated(i);
}

void AdafactorOptimizer::values_changed() {
  for (const Owned& owned : owned_)
    if (owned.states.master.data() != owned.states.values.data())
      context_.kernels().cast(owned.states.values, owned.states.master);
}

void AdafactorOptimizer::visit(bool /*writes*/, const Visit& call) {
  for (const Owned& owned : owned_) call(owned.range, owned.states);
}

}  // namespace zero
