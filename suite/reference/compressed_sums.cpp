#include "suite/reference/compressed_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/judge/numerics.h"
#include "suite/reference/compression_reference.h"

namespace suite {

namespace {

constexpr double u = 0x1p-24;

// Returns a + b, rounded to float as the judged code rounds it.
std::vector<double> float_sum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    sum[i] = static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  return sum;
}

}  // namespace

CompressedSums::CompressedSums(harness::Judge& judge, machine::World& world, machine::Group dp,
                               zero::GradientCompression compression)
    : judge_(judge), world_(world), dp_(std::move(dp)), compression_(std::move(compression)) {}

void CompressedSums::before(std::size_t, const machine::Tensor& gradients) {
  gradient_ = to_doubles(gradients);
}

void CompressedSums::after(std::size_t index, const machine::Tensor& sums,
                           const collectives::CompressedAllReduce& sum) {
  const std::vector<OfRank> after = world_.all_gather(
      dp_, OfRank{std::move(gradient_), to_doubles(sum.residual()), sum.held_back()});
  Segment& segment = segments_[index];
  const std::size_t size = after.front().gradient.size();
  if (segment.before.empty())
    segment.before.assign(after.size(), {{}, std::vector<double>(size), std::vector<double>(size)});
  segment.exact.assign(size, 0);
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    segment.before[rank].gradient = after[rank].gradient;
    for (std::size_t i = 0; i < size; ++i) segment.exact[i] += after[rank].gradient[i];
  }
  const std::string what = fmt::format("step {}, segment {}", ++segment.step, index);
  const bool sparse = compression_.algorithm == "top_k" || compression_.algorithm == "deviation";
  if (sparse)
    judge_sparse(what, segment, after, to_doubles(sums), sum.selected().last);
  else
    judge_code(what, segment, after, to_doubles(sums));
  segment.before = after;
}

void CompressedSums::judge_sparse(const std::string& what, const Segment& segment,
                                  const std::vector<OfRank>& after, const std::vector<double>& sums,
                                  std::int64_t selected) {
  const auto size = static_cast<std::int64_t>(sums.size());
  std::vector<float> expected(sums.size());
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    const OfRank& before = segment.before[rank];
    const std::vector<double> values = float_sum(before.residual, before.gradient);
    const std::vector<double> kept =
        compression_.algorithm == "top_k"
            ? kept_by_top_k(values, std::max<std::int64_t>(
                                        1, static_cast<std::int64_t>(compression_.density *
                                                                     static_cast<double>(size))))
            : kept_by_deviation(values, compression_.deviations);
    if (static_cast<int>(rank) == dp_.index)
      judge_.exact(what + ", residual", after[rank].residual, kept);
    std::int64_t sent = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kept[i]) continue;
      expected[i] += static_cast<float>(values[i]);
      ++sent;
    }
    most = std::max(most, sent);
  }
  judge_.exact(what + ", compressed sum", sums,
               std::vector<double>(expected.begin(), expected.end()));
  if (compression_.algorithm == "deviation")
    judge_.exact(what + ", elements of the fullest rank",
                 std::vector{static_cast<double>(selected)},
                 std::vector{static_cast<double>(most)});
}

void CompressedSums::judge_code(const std::string& what, const Segment& segment,
                                const std::vector<OfRank>& after, const std::vector<double>& sums) {
  const std::size_t size = sums.size();
  const auto ranks = static_cast<std::int64_t>(after.size());
  const bool scatters = compression_.algorithm != "int8_block";
  const double rounding = harness::gamma(static_cast<int>(ranks) + 8, u);
  const auto at_most = [&](const std::string& name, std::vector<double> values,
                           const std::vector<double>& bound) {
    for (double& value : values) value = std::abs(value);
    judge_.numerics(what + name, values, std::vector<double>(values.size()), bound);
  };

  std::vector<double> sent(size), magnitudes(size), came(size), went(size);
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    const OfRank &before = segment.before[rank], &now = after[rank];
    const std::vector<double> values = float_sum(before.residual, before.gradient);
    for (std::size_t i = 0; i < size; ++i) {
      sent[i] += values[i] - now.residual[i];
      came[i] += now.held[i];
      went[i] += before.gradient[i] + before.held[i];
      magnitudes[i] += std::abs(before.gradient[i]) + std::abs(before.held[i]) +
                       std::abs(before.residual[i]) + std::abs(now.held[i]) +
                       std::abs(now.residual[i]);
    }
    if (static_cast<int>(rank) != dp_.index) continue;
    std::vector<double> absolute = values, bound(size);
    for (double& value : absolute) value = std::abs(value);
    add_code_errors(compression_.algorithm, scatters ? ranks : 1, absolute, bound);
    // The subtraction of the sent value rounds once.
    for (std::size_t i = 0; i < size; ++i) bound[i] += rounding * absolute[i];
    at_most(", residual of the code", now.residual, bound);
  }
  if (scatters) {
    const OfRank &before = segment.before[static_cast<std::size_t>(dp_.index)],
                 &now = after[static_cast<std::size_t>(dp_.index)];
    std::vector<double> summed(size), kept(size), bound(size);
    const std::size_t share = (size + after.size() - 1) / after.size();
    for (std::size_t i = 0; i < size; ++i) {
      kept[i] = now.held[i] - now.residual[i];
      const bool own = i / share == static_cast<std::size_t>(dp_.index);
      if (own)
        summed[i] =
            std::abs(sent[i] + before.held[i] - before.residual[i]) + rounding * magnitudes[i];
    }
    add_code_errors(compression_.algorithm, ranks, summed, bound);
    for (std::size_t i = 0; i < size; ++i)
      bound[i] = i / share == static_cast<std::size_t>(dp_.index)
                     ? bound[i] + rounding * (summed[i] + magnitudes[i])
                     : 0;
    at_most(", residual of the sum", kept, bound);
  }
  std::vector<double> bound(size);
  for (std::size_t i = 0; i < size; ++i) {
    came[i] += sums[i];
    bound[i] = rounding * (magnitudes[i] + std::abs(sums[i]));
  }
  judge_.numerics(what + ", sum plus residuals", came, went, bound);
}

}  // namespace suite
