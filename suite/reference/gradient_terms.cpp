#include "suite/reference/gradient_terms.h"

#include <cmath>

namespace suite {

double size_of_terms(const std::string& name, int layers,
                     const std::function<double(const std::string&)>& norm_of) {
  double size = norm_of(name);
  const auto add = [&](const std::string& other) { size = std::hypot(size, norm_of(other)); };
  for (const char* part : {"cross.q.", "cross_norm."})
    if (const auto at = name.find(part); at != std::string::npos)
      add(name.substr(0, at) + "cross.kv.weight");
  const bool encoder = name == "embedding.encoder_bias.weight",
             decoder = name == "embedding.decoder_bias.weight";
  for (int block = 0; block < layers; ++block)
    if (block < layers / 2 ? encoder : decoder)
      add("blocks." + std::to_string(block) + ".attention.qkv.weight");
  return size;
}

}  // namespace suite
