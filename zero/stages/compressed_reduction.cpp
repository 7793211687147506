#include "zero/stages/compressed_reduction.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace zero {

std::vector<std::string> gradient_compressions() {
  std::vector<std::string> names = collectives::compression_names();
  std::erase_if(names, [](const std::string& name) {
    return name == "threshold" || name == "one_bit" || name.starts_with("two_hop");
  });
  return names;
}

void check_compression(int stage, const StepOptions& options, int dp, Dtype gradient_dtype) {
  const GradientCompression& compression = options.gradient_compression;
  if (compression.algorithm.empty()) return;
  const std::vector<std::string> names = gradient_compressions();
  if (std::ranges::find(names, compression.algorithm) == names.end())
    throw std::invalid_argument(
        machine::unknown("gradient-compression", compression.algorithm, names));
  if (!(compression.density > 0 && compression.density <= 1))
    machine::reject("compression-density is {}; expected a number above 0, up to 1",
                    compression.density);
  if (!(compression.deviations > 0) || std::isinf(compression.deviations))
    machine::reject("compression-deviations is {}; expected a number above 0",
                    compression.deviations);
  if (dp == 1) return;
  if (stage >= 2)
    machine::reject(
        "gradient-compression requires ZeRO stage 0 or 1 (got {}), because its residual is as long "
        "as the gradients that stages 2 and 3 shard",
        stage);
  if (gradient_dtype != Dtype::float32)
    machine::reject("gradient-compression requires gradients of float (got {})",
                    machine::name(gradient_dtype));
  if (options.communication_data_type.value_or(gradient_dtype) != gradient_dtype)
    machine::reject("gradient-compression requires no other communication_data_type (got {})",
                    machine::name(*options.communication_data_type));
  if (predivision(options, dp) != 1)
    machine::reject(
        "gradient-compression requires prescale_gradients false and gradient_predivide_factor 1");
  if (options.overlap_comm) machine::reject("gradient-compression requires overlap_comm false");
}

std::int64_t selected_if_normal(const GradientCompression& compression, std::int64_t count) {
  if (compression.algorithm != "deviation") return 0;
  const double fraction = std::erfc(compression.deviations / std::sqrt(2.0));
  return static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(count)));
}

collectives::CompressedCall compressed_call(const GradientCompression& compression, int dp,
                                            std::int64_t count, std::int64_t selected) {
  const auto k = static_cast<std::int64_t>(compression.density * static_cast<double>(count));
  return {dp, count, std::max<std::int64_t>(1, k), selected, dp};
}

CompressedReduction::CompressedReduction(const StepContext& context)
    : context_(context), place_(context.device(), context.communicators.dp->link().transport()) {
  const GradientCompression& compression = context.options.gradient_compression;
  for (const Segment& segment : context.layout().segments) {
    const std::int64_t count = segment.range.size();
    sums_.push_back(collectives::make_compression(
        compression.algorithm, place_.device(), *context.communicators.dp, count,
        {.k = compressed_call(compression, context.plan.dp, count, 0).k,
         .deviations = compression.deviations},
        place_.pages()));
  }
}

void CompressedReduction::sum(const Bucket& bucket, const Tensor& gradients) {
  CompressionWatch* const watch = context_.options.gradient_compression.watch;
  for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
    const Range range = context_.layout().segments[i].range;
    const Tensor part = gradients.slice(range.begin - bucket.range.begin, {range.size()});
    if (watch) watch->before(i, part);
    sums_[i]->run(part, part);
    if (watch) watch->after(i, part, *sums_[i]);
  }
}

std::vector<collectives::CompressedAllReduce::Selected> CompressedReduction::selected() const {
  std::vector<collectives::CompressedAllReduce::Selected> all;
  for (const auto& sum : sums_) all.push_back(sum->selected());
  return all;
}

}  // namespace zero
