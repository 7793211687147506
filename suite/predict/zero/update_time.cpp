#include "suite/predict/zero/update_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>

#include "machine/device/dynamic_codes/adamw_8bit.h"
#include "suite/predict/kernel_time.h"
#include "zero/matrices/muon.h"
#include "zero/stages/step.h"

namespace suite::predict {
namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

// Calls call(part) for each matrix that the rank orthogonalizes.
template <class Call>
void each_matrix(const ZeroCalls& zero, bool sharded, const Call& call) {
  const auto& [schedules, plan, parts, layout, selected, passes] = zero.declared;
  for (const zero::Bucket& bucket : layout.buckets) {
    if (!bucket.matrices) continue;
    for (const int row : bucket.rows)
      if (zero::orthogonalizes(plan, layout, row, sharded, zero.dp_rank))
        for (const zero::MuonPart& part :
             zero::muon_parts(plan.rows[static_cast<std::size_t>(row)], plan.tp))
          call(part);
  }
}

// Returns the products of a step of Newton-Schulz: A = X Xᵀ, A A, and (b A + c A A) X.
std::array<Gemm, 3> products(const zero::MuonPart& part) {
  const double n = as_double(part.square_rows()), other = as_double(part.elements()) / n;
  return {Gemm{n, n, other}, Gemm{n, n, n}, Gemm{n, other, n}};
}

// Copies to and from the direction and to x, the sum of squares, the scales before and after; and
// in each step the scale that begins the sum.
double muon_seconds(const Gpu& gpu, const ZeroCalls& zero, const zero::Muon& muon, bool sharded) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<double, zero::MuonPart>> kinds;
  each_matrix(zero, sharded, [&](const zero::MuonPart& part) {
    auto& [count, example] = kinds[{part.square_rows(), part.elements()}];
    count += 1;
    example = part;
  });
  double seconds = 0;
  for (const auto& [size, kind] : kinds) {
    const auto& [count, part] = kind;
    double one = 0;
    for (const Gemm& product : products(part)) one += gemm_s(gpu, product, machine::Dtype::float32);
    one += streaming_s(gpu,
                       8 * (as_double(part.elements()) +
                            as_double(part.square_rows()) * as_double(part.square_rows())),
                       2);
    seconds += count * (muon.num_ns_steps * one +
                        streaming_s(gpu, (8 + 4 + 8 + 8 + 8) * as_double(part.elements()), 5));
  }
  return seconds;
}

}  // namespace

double state_bytes(const TrainingConfig::Optimizer& optimizer) {
  const std::string& rule = optimizer.type;
  const double decay = optimizer.weight_decay > 0 ? 8 : 0;  // the values are scaled first
  if (rule == "sgd") return optimizer.momentum > 0 ? 16 : 8;
  if (rule == "lion" || rule == "rmsprop") return 16;
  // The direction: filled, read and written with the moments; the values added to it, in place of
  // the gradient; two sums of squares; the step.
  if (rule == "lamb") return 4 + 24 + 12 + 8 + 12;
  // Squares: two fills, RMSprop's kernel, and two products that read them. The update: a product
  // that writes their estimate, a fill, the kernel, a copy, a sum of squares. The step.
  if (rule == "adafactor") return 8 + 24 + 8 + 4 + 4 + 24 + 8 + 4 + 12 + decay;
  // The momentum and the direction (muon_seconds has the rest), and the step.
  if (rule == "muon") return 4 + 12 + (optimizer.muon.nesterov ? 12 : 8) + 12 + decay;
  // After freezing: the momentum is formed, then RMSprop's kernel steps.
  if (rule == "one_bit_adam") return 8 + 4 + 20 + decay;
  // Two codes in place of the moments, and the scales of a block.
  if (rule == "adamw_8bit") return 8 + 4 + 16.0 / static_cast<double>(machine::moment_block);
  // The same with the fresh variance, a direction, and its sum of squares.
  if (rule == "one_bit_lamb") return 8 + 4 + 4 + 20 + 12 + 16 + 12 + decay;
  return 24;
}

double orthogonalization_flops(const ZeroCalls& zero, const zero::Muon& muon, bool sharded) {
  double flops = 0;
  each_matrix(zero, sharded, [&](const zero::MuonPart& part) {
    for (const Gemm& product : products(part)) flops += muon.num_ns_steps * product.flops();
  });
  return flops;
}

double updated_elements(const TrainingConfig& config, const std::vector<Replicated>& parts,
                        const DataParallel& dp) {
  if (!dp.declared) return updated_elements(config, parts);
  const zero::Layout& layout = dp.declared->declared.layout;
  return as_double(config.zero.stage > 0 ? layout.own_elements : layout.elements);
}

double update_seconds(const TrainingConfig& config, const Cluster& cluster,
                      const Software& software, const std::vector<Replicated>& parts,
                      const DataParallel& dp) {
  const double copies = software.optimizer_bytes - 24;
  const auto time = [&](double elements, double states) {
    return streaming_s(cluster.gpu, elements * (copies + states), 10);
  };
  const zero::StateOptions& offload = config.zero.options.offload_optimizer;
  const double kept = offload.device == zero::OffloadDevice::none  ? 1
                      : offload.device == zero::OffloadDevice::cpu ? 1 - offload.cpu.ratio
                                                                   : 0;
  if (kept == 0) return 0;
  const double states = state_bytes(config.optimizer);
  const double elements = kept * updated_elements(config, parts, dp);
  const std::string& rule = config.optimizer.type;
  if (!dp.declared || (rule != "muon" && rule != "adafactor")) return time(elements, states);
  const bool sharded = zero::is_sharded(config.zero.stage, dp.declared->declared.plan);
  const zero::Layout& layout = dp.declared->declared.layout;
  double of_matrices = 0;
  for (const zero::Bucket& bucket : layout.buckets)
    if (bucket.matrices)
      of_matrices += as_double(sharded ? layout.shard_elements(bucket) : bucket.range.size());
  const double others = elements - of_matrices;
  // Adafactor keeps the second moment of vectors: RMSprop's kernel, the copy, the sum, the step.
  if (rule == "adafactor") return time(of_matrices, states) + time(others, 4 + 20 + 8 + 4 + 12);
  const auto& muon = std::get<zero::Muon>(dp.declared->options.rule);
  return time(of_matrices, states) + time(others, 24) +
         muon_seconds(cluster.gpu, *dp.declared, muon, sharded);
}

double offload_seconds(const TrainingConfig& config, const Cluster& cluster, double elements,
                       double computing) {
  const zero::StepOptions& options = config.zero.options;
  const auto node = static_cast<double>(cluster.gpus_per_node);
  const auto E = static_cast<double>(machine::size_of(config.precision.dtype));
  const zero::OffloadDevice states = options.offload_optimizer.device,
                            values = options.offload_param.device;
  const bool files = states == zero::OffloadDevice::nvme || values == zero::OffloadDevice::nvme;
  if (files && (cluster.nvme_read <= 0 || cluster.nvme_write <= 0))
    throw std::invalid_argument(fmt::format(
        "offload to nvme requires nvme.read_gb_s and nvme.write_gb_s of cluster {} (got 0)",
        cluster.name));
  double seconds = 0;
  if (states != zero::OffloadDevice::none) {
    const double part =
        states == zero::OffloadDevice::cpu ? options.offload_optimizer.cpu.ratio : 1;
    seconds += 2 * E * part * elements / cluster.pcie;
    // CPU Adam
    seconds +=
        part * elements * (state_bytes(config.optimizer) + 4 + E) * node / cluster.host_bandwidth;
    if (options.offload_optimizer.cpu.delayed_update && states == zero::OffloadDevice::cpu)
      seconds = std::max(0.0, seconds - computing);
  }
  if (states == zero::OffloadDevice::nvme)
    seconds += state_bytes(config.optimizer) / 2 * elements * node *
               (1 / cluster.nvme_read + 1 / cluster.nvme_write);
  if (values != zero::OffloadDevice::none)
    seconds += 2.0 * config.micro_batches() * E * elements / cluster.pcie;
  if (values == zero::OffloadDevice::nvme)
    seconds += E * elements * node *
               (2.0 * config.micro_batches() / cluster.nvme_read + 1 / cluster.nvme_write);
  return seconds;
}

}  // namespace suite::predict
