#include "zero/zero_plus_plus/options.h"

#include <string_view>

#include "machine/base/reject.h"

namespace zero {
namespace {

void check_secondary(int size, const PlusPlusCase& of) {
  if (of.stage != 3)
    machine::reject("zero_hpz_partition_size {} requires ZeRO stage 3 (got {})", size, of.stage);
  if (of.dp % size != 0)
    machine::reject("zero_hpz_partition_size is {}; expected a divisor of the {} ranks of dp", size,
                    of.dp);
  if (of.ep > 1)
    machine::reject(
        "zero_hpz_partition_size {} requires ep 1 (got {}), because only some ranks of a secondary "
        "group hold an expert",
        size, of.ep);
  if (of.offloads_values)
    machine::reject(
        "zero_hpz_partition_size {} requires no offload_param, because the device holds the "
        "secondary shards",
        size);
}

void check_quantized(std::string_view key, machine::Dtype coded, std::string_view what,
                     const PlusPlusCase& of) {
  if (of.stage != 3) machine::reject("{} requires ZeRO stage 3 (got {})", key, of.stage);
  if (coded == machine::Dtype::float64)
    machine::reject("{} requires {} of float, bfloat16 or half (got double)", key, what);
  if (of.ep > 1)
    machine::reject("{} requires ep 1 (got {}), because experts have groups of their own", key,
                    of.ep);
}

}  // namespace

int first_hop(const PlusPlusOptions& options, int dp) {
  const int near = options.near_ranks > 0 ? options.near_ranks : options.hpz_partition_size;
  return near > 1 && dp % near == 0 ? near : dp;
}

void check(const PlusPlusOptions& options, const PlusPlusCase& of) {
  const int size = options.hpz_partition_size;
  if (size < 0)
    machine::reject("zero_hpz_partition_size is {}; expected 1 (off) or more ranks", size);
  if (options.has_secondary()) check_secondary(size, of);
  if (options.quantized_weights) check_quantized("zero_quantized_weights", of.values, "values", of);
  if (!options.quantized_gradients) return;
  check_quantized("zero_quantized_gradients", of.gradients, "gradients", of);
  if (of.wire.value_or(of.gradients) != of.gradients)
    machine::reject(
        "zero_quantized_gradients requires no other communication_data_type (got {}), because "
        "codes are on the wire",
        machine::name(*of.wire));
  if (of.predivision != 1)
    machine::reject(
        "zero_quantized_gradients requires prescale_gradients false and gradient_predivide_factor "
        "1, because a scale follows the gradients");
}

}  // namespace zero
