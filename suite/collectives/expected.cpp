#include "suite/collectives/expected.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "collectives/plan.h"
#include "harness/judge/numerics.h"

namespace suite {

using collectives::reduces;
using machine::Dtype;
using machine::Operation;
using machine::PatternPart;
using machine::Reduction;

machine::Pattern pattern_of(const Question& question) {
  return {question.dtype, reduces(question.operation), question.reduction, question.ranks};
}

double pattern(const Question& question, int rank, std::int64_t index) {
  return machine::pattern_value(pattern_of(question), rank, index);
}

std::int64_t source_index(const Question& question, int rank, std::int64_t index) {
  return question.operation == Operation::reduce_scatter ? rank * question.count + index : index;
}

std::vector<PatternPart> parts_of(const Question& question, int rank) {
  const int ranks = question.ranks;
  const std::int64_t count = question.count;
  std::vector<PatternPart> parts;
  std::int64_t begin = 0;
  const auto part = [&](int of, std::int64_t from, std::int64_t elements) {
    if (elements > 0) parts.push_back({of, from, begin, elements});
    begin += elements;
  };
  switch (question.operation) {
    case Operation::all_gather:
    case Operation::gather:
      for (int peer = 0; peer < ranks; ++peer) part(peer, 0, count);
      break;
    case Operation::all_to_all:
      for (int peer = 0; peer < ranks; ++peer) part(peer, rank * count, count);
      break;
    case Operation::all_to_all_v:
      for (int peer = 0; peer < ranks; ++peer)
        part(peer, question.traffic->input_begin(peer, rank), (*question.traffic)(peer, rank));
      break;
    case Operation::broadcast:
      part(question.root, 0, count);
      break;
    case Operation::scatter:
      part(question.root, rank * count, count);
      break;
    case Operation::send_receive:
      part((rank + ranks - 1) % ranks, 0, count);
      break;
    default:
      part(PatternPart::all_ranks, source_index(question, rank, 0), count);
      break;
  }
  return parts;
}

std::vector<double> expected(const Question& question, int rank) {
  const machine::Pattern inputs = pattern_of(question);
  std::vector<double> values;
  machine::visit_every(question.dtype, [&]<class T>(T) {
    for (const PatternPart& part : parts_of(question, rank))
      for (std::int64_t i = 0; i < part.count; ++i)
        values.push_back(machine::right_value<T>(inputs, part, i));
  });
  return values;
}

Bounded reduce_exactly(const Question& question, const std::vector<double>& values) {
  Bounded result{values.front(), 0};
  double magnitude = std::abs(values.front()), growth = std::max(1.0, magnitude);
  for (std::size_t i = 1; i < values.size(); ++i) {
    result.value = machine::join_exactly(question.reduction, result.value, values[i]);
    magnitude = machine::join_exactly(question.reduction, magnitude, std::abs(values[i]));
    growth *= std::max(1.0, std::abs(values[i]));
  }
  if (question.reduction == Reduction::max || question.reduction == Reduction::min) return result;
  double roundings = static_cast<double>(values.size()) - 1;
  if (question.reduction == Reduction::avg) {
    roundings += 1;
    result.value /= static_cast<double>(values.size());
    magnitude /= static_cast<double>(values.size());
  }
  // (1 + u)^k - 1 is finite even if its bound gamma_k is not (8 bits, 8 ranks). The values in
  // double have the same number of roundings.
  const double u = unit_roundoff(question.dtype);
  result.error =
      (std::expm1(roundings * std::log1p(u)) + harness::gamma(roundings, 0x1p-53)) * magnitude;
  // A quotient or product below the smallest normal number loses up to half of the smallest
  // subnormal number, and later factors enlarge the loss. For other dtypes it is negligible.
  const double half_smallest = question.dtype == Dtype::float16       ? 0x1p-25
                               : question.dtype == Dtype::float8_e4m3 ? 0x1p-10
                               : question.dtype == Dtype::float8_e5m2 ? 0x1p-17
                                                                      : 0;
  if (question.reduction == Reduction::prod) result.error += roundings * growth * half_smallest;
  if (question.reduction == Reduction::avg) result.error += half_smallest;
  return result;
}

namespace {

// "0x4040 (3)"
std::string shown(Dtype dtype, const unsigned char* bytes) {
  std::string bits = "0x";
  for (std::size_t byte = size_of(dtype); byte-- > 0;) bits += fmt::format("{:02x}", bytes[byte]);
  return machine::visit_every(dtype, [&]<class T>(T) {
    T element;
    std::memcpy(static_cast<void*>(&element), bytes, sizeof element);
    const auto value = static_cast<machine::Accumulator<T>>(element);
    return fmt::format("{} ({})", bits, static_cast<double>(value));
  });
}

std::string shown_right(const Question& question, int rank, std::int64_t index) {
  return machine::visit_every(question.dtype, [&]<class T>(T) {
    for (const PatternPart& part : parts_of(question, rank)) {
      if (index < part.begin || index >= part.begin + part.count) continue;
      const double value = machine::right_value<T>(pattern_of(question), part, index - part.begin);
      const T element = T(machine::convert<machine::Accumulator<T>>(value));
      unsigned char bytes[sizeof(T)];
      std::memcpy(bytes, &element, sizeof element);
      return shown(question.dtype, bytes);
    }
    return std::string("nothing");
  });
}

}  // namespace

machine::Tensor error_words(machine::Device& device) {
  return {device, Dtype::uint64, {machine::pattern_error_words}, machine::Category::buffers};
}

WrongElements wrong_elements(const machine::Tensor& output, const Question& question, int rank,
                             const machine::Tensor& errors, double bound) {
  machine::Stream& stream = output.device().stream();
  stream.kernels().fill(errors, 0);
  for (const PatternPart& part : parts_of(question, rank))
    stream.kernels().check_pattern(output, pattern_of(question), part, bound, errors);
  machine::PatternErrors found{};
  stream.copy(&found, errors.data(), sizeof found);
  stream.synchronize();
  WrongElements wrong;
  if (found.count == 0) return wrong;
  wrong.count = static_cast<std::int64_t>(found.count);
  wrong.first = found.first();
  wrong.last = static_cast<std::int64_t>(found.last);
  wrong.largest = found.largest;
  unsigned char first[sizeof(std::uint64_t)];
  stream.copy(first, output.slice(wrong.first, {1}).data(), size_of(output.dtype()));
  stream.synchronize();
  wrong.text = fmt::format("{} of {} elements wrong, from {} to {}; the first is {}, not {}",
                           wrong.count, output.size(), wrong.first, wrong.last,
                           shown(output.dtype(), first), shown_right(question, rank, wrong.first));
  return wrong;
}

}  // namespace suite
