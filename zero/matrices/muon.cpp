#include "zero/matrices/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "collectives/placement.h"
#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/kernels.h"
#include "zero/optimizers/global_norm.h"

namespace zero {
namespace {

using Cut = MatrixRow::Cut;

const GradientRow& row_of(const GradientPlan& plan, int row) {
  return plan.rows[static_cast<std::size_t>(row)];
}

std::int64_t period_of(const MatrixRow& matrix) {
  return std::accumulate(matrix.parts.begin(), matrix.parts.end(), std::int64_t{0});
}

Range elements_of(const GradientPlan& plan, const Layout& layout, int row) {
  const std::int64_t begin = layout.offsets[static_cast<std::size_t>(row)];
  return {begin, begin + row_of(plan, row).elements};
}

// Elements of the largest memory of each kind.
struct Sizes {
  std::int64_t gathered = 0, part = 0, square_rows = 0;
};
Sizes sizes(const GradientPlan& plan, const Layout& layout, bool sharded) {
  Sizes most;
  for (const Bucket& bucket : layout.buckets) {
    if (!bucket.matrices) continue;
    if (sharded && bucket.shards > 1) most.gathered = std::max(most.gathered, bucket.range.size());
    for (const int row : bucket.rows)
      for (const MuonPart& part : muon_parts(row_of(plan, row), plan.tp)) {
        most.part = std::max(most.part, part.elements());
        most.square_rows = std::max(most.square_rows, part.square_rows());
      }
  }
  return most;
}

std::int64_t sums(int tp) { return tp > 1 ? tp : 0; }

}  // namespace

void check_muon(const Rule& rule, const MatrixLimits& limits) {
  const Muon* const muon = std::get_if<Muon>(&rule);
  if (!muon) return;
  if (!(muon->momentum >= 0) || !(muon->momentum < 1))
    machine::reject("momentum of muon is {}; expected at least 0 and below 1", muon->momentum);
  machine::check_positive("muon-num-ns-steps", muon->num_ns_steps);
  if (limits.offloads)
    machine::reject(
        "optimizer muon requires offload_optimizer and offload_param none, because it "
        "orthogonalizes whole matrices, which offload updates piece by piece");
  const Dtype wide = collectives::gradient_dtype(limits.value_dtype);
  if (limits.gradient_dtype != wide)
    machine::reject(
        "optimizer muon requires gradients of {} (got {}), because a direction takes the place of "
        "its gradient",
        machine::name(wide), machine::name(limits.gradient_dtype));
  if (!limits.compression.empty())
    machine::reject(
        "optimizer muon requires gradient-compression none (got {}), because Newton-Schulz "
        "multiplies small errors of a gradient by up to 500",
        limits.compression);
}

std::vector<MuonPart> muon_parts(const GradientRow& row, int tp) {
  const MatrixRow& matrix = row.matrix;
  const std::int64_t rows = row.elements / matrix.columns;
  const std::int64_t period = matrix.parts.empty() ? rows : period_of(matrix);
  SHARDMARK_CHECK(period > 0 && rows % period == 0, ==, true);
  const Cut cut = tp > 1 ? matrix.cut : Cut::nothing;
  std::vector<MuonPart> parts;
  std::int64_t first = 0;
  for (const std::int64_t of_period : matrix.parts.empty() ? std::vector{rows} : matrix.parts) {
    const std::int64_t all = of_period * (rows / period);
    const bool left = cut == Cut::columns || (cut == Cut::nothing && all <= matrix.columns);
    parts.push_back({first, all, matrix.columns, left});
    first += of_period;
  }
  return parts;
}

bool orthogonalizes(const GradientPlan& plan, const Layout& layout, int row, bool sharded,
                    int dp_rank) {
  const auto at = static_cast<std::size_t>(layout.bucket_of[static_cast<std::size_t>(row)]);
  return !sharded ||
         intersection(layout.shard(layout.buckets[at], dp_rank), elements_of(plan, layout, row))
                 .size() > 0;
}

MatrixBytes muon_bytes(const GradientPlan& plan, const Layout& layout, bool sharded) {
  const Dtype wide = collectives::gradient_dtype(plan.value_dtype);
  const Sizes most = sizes(plan, layout, sharded);
  MatrixBytes bytes;
  bytes.buffers = static_cast<std::size_t>(most.gathered + most.part) * size_of(wide) +
                  static_cast<std::size_t>(1 + sums(plan.tp)) * sizeof(double) +
                  NewtonSchulz::bytes(wide, most.part, most.square_rows, plan.tp);
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.frozen) continue;
    const auto elements =
        static_cast<std::size_t>(sharded ? layout.shard_elements(bucket) : bucket.range.size());
    const Rule rule = bucket.matrices ? Rule(Momentum{}) : Rule(AdamW{});
    bytes.states += elements * optimizer_bytes_per_element(rule, plan.value_dtype);
    if (!bucket.matrices) bytes.buffers += elements * mask_bytes_per_element(rule);
  }
  return bytes;
}

MuonOptimizer::MuonOptimizer(const Rule& rule, MatrixContext given,
                             const std::vector<OwnedRange>& owned)
    : OwnedOptimizer(rule),
      context_(std::move(given)),
      num_owned_(owned.size()),
      squares_(context_.device, Dtype::float64, {1}, Category::buffers),
      all_squares_(context_.device, Dtype::float64, {sums(context_.plan.tp)}, Category::buffers),
      newton_schulz_(context_.device, collectives::gradient_dtype(context_.plan.value_dtype),
                     sizes(context_.plan, context_.layout, context_.sharded).part,
                     sizes(context_.plan, context_.layout, context_.sharded).square_rows,
                     context_.plan.tp) {
  const Dtype wide = collectives::gradient_dtype(context_.plan.value_dtype);
  const Sizes most = sizes(context_.plan, context_.layout, context_.sharded);
  gathered_ = Tensor(context_.device, wide, {most.gathered}, Category::buffers);
  part_ = Tensor(context_.device, wide, {most.part}, Category::buffers);
  for (std::size_t i = 0; i < owned.size(); ++i)
    for (std::size_t at = 0; at < context_.layout.buckets.size(); ++at) {
      const Bucket& bucket = context_.layout.buckets[at];
      const Range range = intersection(owned[i].range, bucket.range);
      if (bucket.frozen || range.size() == 0) continue;
      const std::int64_t first = range.begin - owned[i].range.begin;
      const Tensor values = owned[i].values.slice(first, {range.size()});
      Run& run = runs_.emplace_back(Run{range, i, first, at, {}, {}});
      if (bucket.matrices) {
        run.states = make_states(Momentum{}, values);
      } else {
        const auto mask = owned[i].decay_mask.begin() + first;
        run.adamw.emplace(muon().adamw(), values,
                          std::vector<std::uint8_t>(mask, mask + range.size()));
        run.states = run.adamw->states();
      }
    }
}

void MuonOptimizer::direct(const Run& run, const Tensor& gradient, double gradient_scale) const {
  machine::Kernels& kernels = context_.kernels();
  const double momentum = muon().momentum;
  const Tensor& average = run.states.first_moment;
  kernels.scale(gradient, (1 - momentum) * gradient_scale, gradient);
  kernels.triad(gradient, average, momentum, average);
  if (muon().nesterov)
    kernels.triad(gradient, average, momentum, gradient);
  else
    kernels.scale(average, 1, gradient);
}

void MuonOptimizer::orthogonalize(const GradientRow& row, const Tensor& direction) {
  machine::Stream& stream = context_.device.stream();
  machine::Kernels& kernels = stream.kernels();
  const int tp = context_.plan.tp;
  const MatrixRow& matrix = row.matrix;
  const bool cut = tp > 1 && matrix.cut != Cut::nothing;
  collectives::Communicator* const group = cut ? context_.tp : nullptr;
  const std::vector<MuonPart> parts = muon_parts(row, tp);
  const std::int64_t rows = row.elements / matrix.columns,
                     period = parts.size() == 1 ? rows : period_of(matrix);
  for (const MuonPart& part : parts) {
    const std::int64_t periods = rows / period, run = part.elements() / periods;
    const Tensor x = part_.slice(0, {part.rows, part.columns});
    // Calls copy(elements of the parameter, elements of x) for the rows of each period.
    const auto each_period = [&](const auto& copy) {
      for (std::int64_t i = 0; i < periods; ++i)
        copy(direction.slice((i * period + part.first) * part.columns, {run}),
             part_.slice(i * run, {run}));
    };
    each_period([&](const Tensor& theirs, const Tensor& mine) {
      stream.copy(mine.data(), theirs.data(), mine.bytes());
    });
    kernels.sum_of_squares(x, squares_);
    const double norm = std::sqrt(
        sum_over_ranks(group, to_doubles(squares_), squares_, all_squares_, context_.all_gather)
            .front());
    newton_schulz_.run(x, norm, muon().coefficients, muon().num_ns_steps, part.from_left, group,
                       context_.all_reduce);
    const double scale =
        muon().extra_scale_factor *
        muon_scale(muon().scale, part.rows * (cut && matrix.cut == Cut::rows ? tp : 1),
                   part.columns * (cut && matrix.cut == Cut::columns ? tp : 1));
    kernels.scale(x, scale, x);
    each_period([&](const Tensor& theirs, const Tensor& mine) {
      stream.copy(theirs.data(), mine.data(), mine.bytes());
    });
  }
}

void MuonOptimizer::orthogonalize(const Run& run, const Tensor& direction) {
  const Bucket& bucket = context_.layout.buckets[run.bucket];
  const bool gathers = context_.sharded && bucket.shards > 1;
  const Tensor whole = gathers ? gathered_.slice(0, {bucket.range.size()}) : direction;
  if (gathers)
    (bucket.over == Over::edp ? context_.edp : context_.dp)
        ->all_gather(direction, whole, context_.all_gather);
  machine::Stream& stream = context_.device.stream();
  for (const int row : bucket.rows) {
    if (!orthogonalizes(context_.plan, context_.layout, row, context_.sharded, context_.dp_rank()))
      continue;
    const Range all = elements_of(context_.plan, context_.layout, row);
    const Tensor of_row = whole.slice(all.begin - bucket.range.begin, {all.size()});
    orthogonalize(row_of(context_.plan, row), of_row);
    if (!gathers) continue;
    const Range mine = intersection(run.range, all);
    const Tensor from = of_row.slice(mine.begin - all.begin, {mine.size()}),
                 to = direction.slice(mine.begin - run.range.begin, {mine.size()});
    stream.copy(to.data(), from.data(), to.bytes());
  }
}

void MuonOptimizer::move(const Run& run, const Tensor& step) const {
  machine::Kernels& kernels = context_.kernels();
  for (const int row : context_.layout.buckets[run.bucket].rows) {
    const Range mine = intersection(run.range, elements_of(context_.plan, context_.layout, row));
    if (mine.size() == 0) continue;
    const auto of = [&](const Tensor& tensor) {
      return tensor.slice(mine.begin - run.range.begin, {mine.size()});
    };
    const Tensor master = of(run.states.master);
    const double decay = row_of(context_.plan, row).weight_decay ? muon().weight_decay : 0;
    if (decay != 0) kernels.scale(master, 1 - muon().learning_rate * decay, master);
    kernels.triad(master, of(step), -muon().learning_rate, master);
  }
  if (run.states.master.data() != run.states.values.data())
    kernels.cast(run.states.master, run.states.values);
}

// The last range first, because backward of the next step needs its values last.
void MuonOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                           const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, num_owned_);
  ++steps_;
  const auto of = [&](const Run& run) {
    return gradients[run.owned].slice(run.first, {run.range.size()});
  };
  for (const Run& run : runs_) {
    if (run.adamw) continue;
    direct(run, of(run), gradient_scale);
    orthogonalize(run, of(run));
  }
  std::size_t at = runs_.size();
  for (std::size_t i = num_owned_; i-- > 0;) {
    for (; at > 0 && runs_[at - 1].owned == i; --at) {
      Run& run = runs_[at - 1];
      if (!run.adamw) {
        move(run, of(run));
        continue;
      }
      run.adamw->rule() = muon().adamw();
      run.adamw->update(of(run), gradient_scale);
    }
    updated(i);
  }
}

void MuonOptimizer::values_changed() {
  for (const Run& run : runs_)
    if (run.states.master.data() != run.states.values.data())
      context_.kernels().cast(run.states.values, run.states.master);
}

void MuonOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  for (Run& run : runs_)
    if (run.adamw) run.adamw->set_steps(steps);
}

void MuonOptimizer::visit(bool /*writes*/, const Visit& call) {
  for (const Run& run : runs_) call(run.range, run.states);
}

}  // namespace zero
