#include "layers/fp8/options.h"

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace layers {

std::string_view name(Fp8Format format) {
  constexpr std::string_view names[] = {"none", "hybrid", "e4m3"};
  return names[static_cast<std::size_t>(format)];
}

std::string_view name(Fp8Recipe recipe) {
  constexpr std::string_view names[] = {"delayed", "tensorwise", "blockwise", "mxfp8"};
  return names[static_cast<std::size_t>(recipe)];
}

std::string_view name(AmaxAlgorithm algorithm) {
  return algorithm == AmaxAlgorithm::most_recent ? "most_recent" : "max";
}

Fp8Format fp8_format(std::string_view text) {
  using enum Fp8Format;
  return machine::named("fp8-format", text, {none, hybrid, e4m3});
}

Fp8Recipe fp8_recipe(std::string_view text) {
  using enum Fp8Recipe;
  return machine::named("fp8-recipe", text, {delayed, tensorwise, blockwise, mxfp8});
}

AmaxAlgorithm amax_algorithm(std::string_view text) {
  return machine::named("fp8-amax-compute-algo", text,
                        {AmaxAlgorithm::most_recent, AmaxAlgorithm::max});
}

void Fp8Options::validate() const {
  constexpr int most_margin = 100, most_history = 1 << 20;
  if (margin < -most_margin || margin > most_margin)
    machine::reject("fp8-margin is {}; expected {} to {}", margin, -most_margin, most_margin);
  if (amax_history_len < 1 || amax_history_len > most_history)
    machine::reject("fp8-amax-history-len is {}; expected 1 to {}", amax_history_len, most_history);
  if (!on() || recipe == Fp8Recipe::delayed) return;
  const auto requires_delayed = [this](bool asked, std::string_view key) {
    if (asked) machine::reject("{} requires fp8-recipe delayed (got {})", key, name(recipe));
  };
  requires_delayed(margin != 0, "fp8-margin");
  requires_delayed(amax_history_len != 1, "fp8-amax-history-len");
  requires_delayed(algorithm != AmaxAlgorithm::most_recent, "fp8-amax-compute-algo max");
}

}  // namespace layers
