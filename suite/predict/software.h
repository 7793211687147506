#pragma once
// How a training program arranges a step, as its paper or its source states it. These are facts of
// programs and not constants of a machine: no time is fitted here.

#include <string>
#include <string_view>
#include <vector>

namespace suite::predict {

struct Software {
  std::string_view name, source;
  double gradient_bytes = 4;  // of an element when the gradients are reduced
  bool tp_overlap = false;    // products are split, and each part's collective overlaps the next
  bool tp_beside_weights = false;   // backward's collective overlaps the gradients of the weights
  bool dp_overlap = false;          // gathers overlap computing
  bool reduction_overlap = false;   // the reduction of gradients overlaps backward
  bool p2p_overlap = false;         // a message between stages does not stop its sender
  bool p2p_scattered = false;       // each rank of tp sends its own part, and the receivers gather
  bool fused_accumulation = false;  // products add to the gradients
  int gathers = 2;  // of the values in stage 3: in forward and backward; 3: and in recomputation
  bool one_adapter = false;    // flat rings of stage 3 leave a node through one adapter
  double optimizer_bytes = 0;  // read and written for each parameter by the update
};

const std::vector<Software>& all_software();
std::vector<std::string> software_names();
// Throws std::invalid_argument that names the nearest.
const Software& find_software(std::string_view name);

}  // namespace suite::predict
