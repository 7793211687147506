#include "suite/predict/software.h"

#include <algorithm>
#include <stdexcept>

#include "machine/base/names.h"

namespace suite::predict {

// The update of float32 states reads and writes master, momentum and variance (24) and reads a
// gradient (4). Mixed precision also copies gradients and values and unscales, measures and clips
// gradients: 2 + 4, 4 + 4, 4, 4 + 4 and 4 + 2 bytes.
const std::vector<Software>& all_software() {
  static const std::vector<Software> all{
      {.name = "megatron_core",
       .source = "Megatron-Core r0.8.0: distributed optimizer, --overlap-grad-reduce, "
                 "--overlap-param-gather, --tp-comm-overlap",
       .gradient_bytes = 4,
       .tp_overlap = true,
       .tp_beside_weights = true,
       .dp_overlap = true,
       .reduction_overlap = true,
       .p2p_overlap = true,
       .p2p_scattered = true,
       .fused_accumulation = true,
       .optimizer_bytes = 24 + 4 + 4 + 8 + 6},
      {.name = "megatron_2021",
       .source = "Narayanan et al. 2021, arXiv:2104.04473: scatter and gather between stages, "
                 "section 4.1; reduction after the last backward",
       .gradient_bytes = 2,
       .p2p_scattered = true,
       .optimizer_bytes = 24 + 4 + 6 + 8 + 4 + 8 + 6},
      {.name = "megatron_2022",
       .source = "Korthikanti et al. 2022, arXiv:2205.05198: sequence parallelism, section 4.2.2, "
                 "collectives of backward during the gradients of the weights",
       .gradient_bytes = 4,
       .tp_beside_weights = true,
       .p2p_scattered = true,
       .fused_accumulation = true,
       .optimizer_bytes = 24 + 4 + 8 + 4 + 8 + 6},
      {.name = "deepspeed_2021",
       .source = "Smith et al. 2022, arXiv:2201.11990: DeepSpeed's 1F1B with whole messages "
                 "between stages",
       .gradient_bytes = 2,
       .optimizer_bytes = 24 + 4 + 6 + 8 + 4 + 8 + 6},
      {.name = "deepspeed_zero3",
       .source = "DeepSpeed 0.3 stage 3, arXiv:2104.04473 section 5.2: with full recomputation, "
                 "values are gathered for forward, recomputation and backward; "
                 "gradients are reduced between the kernels of backward",
       .gradient_bytes = 2,
       .dp_overlap = true,
       .gathers = 3,
       .one_adapter = true,
       .optimizer_bytes = 24 + 4 + 6 + 8 + 4 + 8 + 6},
  };
  return all;
}

std::vector<std::string> software_names() {
  std::vector<std::string> names;
  for (const Software& one : all_software()) names.emplace_back(one.name);
  return names;
}

const Software& find_software(std::string_view name) {
  const auto found = std::ranges::find(all_software(), name, &Software::name);
  if (found == all_software().end())
    throw std::invalid_argument(machine::unknown("software", name, software_names()));
  return *found;
}

}  // namespace suite::predict
