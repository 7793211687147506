#include "zero/zero_plus_plus/options.h"

#include "machine/base/reject.h"

namespace zero {

void check(const PlusPlusOptions& options, const PlusPlusCase& of) {
  const int size = options.hpz_partition_size;
  if (size < 0)
    machine::reject("zero_hpz_partition_size is {}; expected 1 (off) or more ranks", size);
  if (!options.has_secondary()) return;
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

}  // namespace zero
