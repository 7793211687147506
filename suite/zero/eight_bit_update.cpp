#include "suite/zero/eight_bit_update.h"

#include <algorithm>
#include <cmath>

#include "suite/zero/dynamic_tree.h"
#include "suite/zero/optimizer_reference.h"

namespace suite {
namespace {

using Values = std::vector<double>;

constexpr std::size_t block = 256;
constexpr double u = 0x1p-24;

std::size_t blocks_of(std::size_t elements) { return (elements + block - 1) / block; }

const Values& numbers(bool second) {
  static const Values with_sign = dynamic_tree(true), without = dynamic_tree(false);
  return second ? without : with_sign;
}

struct Coded {
  Values scales, scale_bounds;
  double wrong = 0;  // codes
};

// moments: of the reference. scales: of this moment, as judged.
Coded expected_codes(const std::vector<Bounded>& moments, const Values& codes, const Values& scales,
                     bool second) {
  Coded coded;
  for (std::size_t at = 0; at < scales.size(); ++at) {
    const std::size_t begin = at * block, end = std::min(moments.size(), begin + block);
    double largest = 0, error = 0;
    for (std::size_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::abs(moments[i].value));
      error = std::max(error, moments[i].error);
    }
    coded.scales.push_back(largest);
    coded.scale_bounds.push_back(error);
    const double scale = scales[at];
    for (std::size_t i = begin; i < end; ++i) {
      const double x = scale > 0 ? moments[i].value / scale : 0,
                   off = scale > 0 ? moments[i].error / scale + 3 * u * std::abs(x) : 0;
      if (codes[i] < nearest_code(numbers(second), x - off) ||
          codes[i] > nearest_code(numbers(second), x + off))
        ++coded.wrong;
    }
  }
  return coded;
}

}  // namespace

EightBitStates eight_bit_states(const zero::RangeStates& states) {
  return {to_doubles(states.master), to_doubles(states.first_moment),
          to_doubles(states.second_moment), to_doubles(states.scales)};
}

EightBitStates first_elements(const EightBitStates& states, std::size_t elements) {
  EightBitStates part = states;
  if (elements >= states.master.size()) return part;
  for (Values* values : {&part.master, &part.first_codes, &part.second_codes})
    values->resize(elements);
  const auto begin = states.scales.begin(),
             second = begin + static_cast<std::ptrdiff_t>(blocks_of(states.master.size()));
  const auto count = static_cast<std::ptrdiff_t>(blocks_of(elements));
  part.scales.assign(begin, begin + count);
  part.scales.insert(part.scales.end(), second, second + count);
  return part;
}

Values decoded_moment(const EightBitStates& states, bool second) {
  const Values& codes = second ? states.second_codes : states.first_codes;
  const std::size_t first_scale = second ? blocks_of(codes.size()) : 0;
  Values moment;
  for (std::size_t i = 0; i < codes.size(); ++i)
    moment.push_back(numbers(second)[static_cast<std::size_t>(codes[i])] *
                     states.scales[first_scale + i / block]);
  return moment;
}

void judge_eight_bit_update(harness::Judge& judge, const std::string& what,
                            const EightBitUpdate& update, const EightBitStates& before,
                            const EightBitStates& after) {
  const Values first = decoded_moment(before, false), second = decoded_moment(before, true);
  const auto twice_rounded = [](double value) {
    return Bounded{value, 2.001 * u * std::abs(value)};
  };
  std::vector<OptimizerReference::Element> elements;
  for (std::size_t i = 0; i < first.size(); ++i)
    elements.push_back({{before.master[i], 0},
                        twice_rounded(first[i]),
                        twice_rounded(second[i]),
                        update.decays[i] != 0});
  OptimizerReference reference(update.rule, std::move(elements), update.step - 1, u);
  reference.step(update.gradient, update.gradient_scale);

  Values master, master_bounds;
  std::vector<Bounded> firsts, seconds;
  for (const OptimizerReference::Element& element : reference.elements()) {
    master.push_back(element.master.value);
    master_bounds.push_back(element.master.error);
    firsts.push_back(element.first);
    seconds.push_back(element.second);
  }
  judge.numerics(what + ", master", after.master, master, master_bounds);
  const auto half = after.scales.begin() + static_cast<std::ptrdiff_t>(after.scales.size() / 2);
  for (const bool is_second : {false, true}) {
    const std::string moment = what + (is_second ? ", second moment" : ", first moment");
    const Values scales(is_second ? half : after.scales.begin(),
                        is_second ? after.scales.end() : half);
    const Coded coded =
        expected_codes(is_second ? seconds : firsts,
                       is_second ? after.second_codes : after.first_codes, scales, is_second);
    judge.numerics(moment + ", scales", scales, coded.scales, coded.scale_bounds);
    judge.exact(moment + ", codes that are not the nearest", std::vector{coded.wrong},
                std::vector{0.0});
  }
}

}  // namespace suite
