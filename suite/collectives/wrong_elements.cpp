#include "suite/collectives/wrong_elements.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "collectives/layout.h"

namespace suite {

using machine::Tensor;

Writer last_writer(const collectives::Algorithm& algorithm, const collectives::Call& call,
                   std::int64_t count, std::int64_t index) {
  const collectives::Plan plan = algorithm.plan(call);
  const collectives::Layout layout(algorithm.operation, plan, call, count);
  Writer writer;
  for (const collectives::Step& step : plan.steps) {
    using enum collectives::Verb;
    if (step.verb == send || step.verb == post) continue;
    if (step.target.buffer != collectives::Buffer::output) continue;
    const collectives::ChunkRange range = layout.elements(step.target);
    if (index < range.begin || index >= range.end) continue;
    const bool comes = step.verb == receive || step.verb == receive_reduce;
    writer = {comes ? step.peer : -1, step.verb == receive_reduce};
  }
  return writer;
}

WrongElements wrong_elements(const Tensor& actual, const Tensor& wanted) {
  const std::size_t size = machine::size_of(actual.dtype());
  const auto bytes = [](const Tensor& tensor) {
    std::vector<unsigned char> all(tensor.bytes());
    machine::Stream& stream = tensor.device().stream();
    stream.copy(all.data(), tensor.data(), tensor.bytes());
    stream.synchronize();
    return all;
  };
  const std::vector<unsigned char> got = bytes(actual), right = bytes(wanted);
  WrongElements wrong;
  for (std::size_t i = 0; i < got.size() / size; ++i) {
    if (std::memcmp(&got[i * size], &right[i * size], size) == 0) continue;
    if (wrong.count++ == 0) wrong.first = static_cast<std::int64_t>(i);
    wrong.last = static_cast<std::int64_t>(i);
  }
  if (wrong.count == 0) return wrong;
  const auto bits = [&](const std::vector<unsigned char>& all) {
    std::string text = "0x";
    const std::size_t at = static_cast<std::size_t>(wrong.first) * size;
    for (std::size_t byte = size; byte-- > 0;) text += fmt::format("{:02x}", all[at + byte]);
    return text;
  };
  const auto value = [&](const Tensor& tensor) {
    return machine::to_doubles(tensor.slice(wrong.first, {1})).front();
  };
  wrong.text = fmt::format(
      "{} of {} elements wrong, from {} to {}; the first is {} ({}), not {} ({})", wrong.count,
      actual.size(), wrong.first, wrong.last, bits(got), value(actual), bits(right), value(wanted));
  return wrong;
}

}  // namespace suite
