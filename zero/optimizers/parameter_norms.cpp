#include "zero/optimizers/parameter_norms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "machine/device/kernels.h"
#include "zero/optimizers/global_norm.h"

namespace zero {
namespace {

std::vector<int> trained_rows(const Layout& layout) {
  std::vector<int> rows;
  for (const Bucket& bucket : layout.buckets)
    if (!bucket.frozen) rows.insert(rows.end(), bucket.rows.begin(), bucket.rows.end());
  return rows;
}

const GradientRow& row_of(const GradientPlan& plan, int row) {
  return plan.rows[static_cast<std::size_t>(row)];
}

}  // namespace

ParameterSums parameter_sums(const GradientPlan& plan, const Layout& layout, bool sharded) {
  const std::int64_t own =
      2 * std::ssize(trained_rows(layout)) * (sharded ? 1 : std::int64_t{plan.dp});
  const int largest = std::max(plan.tp, sharded ? plan.dp : 1);
  return {own, largest > 1 ? own * largest : 0};
}

std::int64_t longest_piece(const GradientPlan& plan, const Layout& layout) {
  std::int64_t longest = 0;
  for (const Bucket& bucket : layout.buckets)
    for (const int row : bucket.rows)
      if (!bucket.frozen)
        longest =
            std::max(longest, std::min(row_of(plan, row).elements, layout.shard_elements(bucket)));
  return longest;
}

ParameterNorms::ParameterNorms(machine::Device& device, const GradientPlan& plan,
                               const Layout& layout, collectives::Communicator* tp,
                               collectives::Communicator* dp, bool sharded, std::string all_gather)
    : rows_(trained_rows(layout)),
      num_rows_(plan.rows.size()),
      tp_(tp),
      dp_(sharded ? dp : nullptr),
      all_gather_(std::move(all_gather)) {
  for (const int row : rows_) {
    const GradientRow& of = row_of(plan, row);
    const bool tied = std::ranges::find(of.reduce, Over::embedding) != of.reduce.end();
    replicas_.push_back(static_cast<double>(of.replicas / (tied ? plan.size(Over::embedding) : 1)));
  }
  const int shards = sharded ? 1 : plan.dp, first = dp_ ? dp_->rank() : 0;
  for (int shard = 0; shard < shards; ++shard)
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto row = static_cast<std::size_t>(rows_[i]);
      const Bucket& bucket = layout.buckets[static_cast<std::size_t>(layout.bucket_of[row])];
      const std::int64_t begin = layout.offsets[row];
      const Range part = intersection(layout.shard(bucket, first + shard),
                                      {begin, begin + row_of(plan, rows_[i]).elements});
      const std::int64_t sum = 2 * (shard * std::ssize(rows_) + static_cast<std::int64_t>(i));
      if (part.size() > 0) pieces_.push_back({rows_[i], part, sum});
    }
  const ParameterSums sizes = parameter_sums(plan, layout, sharded);
  sums_ = Tensor(device, Dtype::float64, {sizes.own}, Category::buffers);
  gathered_ = Tensor(device, Dtype::float64, {sizes.gathered}, Category::buffers);
}

std::vector<std::array<double, 2>> ParameterNorms::norms() {
  const std::vector<double> squares = to_doubles(sums_);
  std::vector<double> sums(squares.size(), 0);
  const std::size_t width = 2 * rows_.size();
  for (const Piece& piece : pieces_)
    for (const Of of : {values, update}) {
      const auto at = static_cast<std::size_t>(piece.sum + of);
      sums[at] = squares[at] / replicas_[at % width / 2];
    }
  for (collectives::Communicator* const group : {tp_, dp_})
    sums = sum_over_ranks(group, std::move(sums), sums_, gathered_, all_gather_);
  std::vector<std::array<double, 2>> norms(num_rows_);
  for (std::size_t at = 0; at < sums.size(); ++at)
    norms[static_cast<std::size_t>(rows_[at % width / 2])][at % 2] += sums[at];
  for (auto& both : norms)
    for (double& norm : both) norm = std::sqrt(norm);
  return norms;
}

}  // namespace zero
