#include "suite/collectives/expected.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "collectives/plan.h"
#include "harness/judge/numerics.h"

namespace suite {

using collectives::reduces;
using machine::Dtype;
using machine::Operation;
using machine::Reduction;

namespace {

bool has_sign(Dtype dtype) {
  return dtype != Dtype::uint8 && dtype != Dtype::uint32 && dtype != Dtype::uint64;
}

bool is_float8(Dtype dtype) { return dtype == Dtype::float8_e4m3 || dtype == Dtype::float8_e5m2; }

// Returns the nearest value of the dtype; integers modulo 2^bits.
double in_dtype(Dtype dtype, double value) {
  return machine::visit_every(dtype, [value](auto zero) {
    using T = decltype(zero);
    if constexpr (machine::is_narrow<T>)
      return static_cast<double>(static_cast<float>(T(static_cast<float>(value))));
    else if constexpr (std::is_integral_v<T>)
      return static_cast<double>(static_cast<T>(static_cast<std::int64_t>(value)));
    else
      return static_cast<double>(static_cast<T>(value));
  });
}

// Joins two values; avg adds.
double join(Reduction reduction, double a, double b) {
  switch (reduction) {
    case Reduction::prod:
      return a * b;
    case Reduction::max:
      return std::max(a, b);
    case Reduction::min:
      return std::min(a, b);
    default:
      return a + b;
  }
}

double reduced(const Question& question, std::int64_t index) {
  double result = pattern(question, 0, index);
  for (int rank = 1; rank < question.ranks; ++rank)
    result = join(question.reduction, result, pattern(question, rank, index));
  result = in_dtype(question.dtype, result);
  if (question.reduction != Reduction::avg) return result;
  result /= question.ranks;
  return machine::is_floating(question.dtype) ? in_dtype(question.dtype, result)
                                              : std::trunc(result) + 0.0;  // no -0
}

}  // namespace

double pattern(const Question& question, int rank, std::int64_t index) {
  const auto mixed =
      static_cast<std::uint64_t>(index * 131 + rank * 7919 + 1) * 0x9e3779b97f4a7c15u;
  const auto random = static_cast<double>((mixed >> 40) % 7);
  if (reduces(question.operation) && question.reduction == Reduction::prod) {
    // One factor is 3, one is 2, the others are 1 or -1. So a missing or doubled factor shows.
    const std::int64_t turn = index % question.ranks;
    if (turn == rank) return 3;
    if ((turn + 1) % question.ranks == rank) return 2;
    return has_sign(question.dtype) && random < 3 ? -1 : 1;
  }
  // 8 bits hold integers up to 16 or 8, so only two ranks add to an element.
  const bool adds = question.reduction == Reduction::sum || question.reduction == Reduction::avg;
  if (reduces(question.operation) && adds && question.ranks > 2 && is_float8(question.dtype) &&
      (index + question.ranks - rank) % question.ranks > 1)
    return 0;
  return has_sign(question.dtype) ? random - 3 : random;
}

std::int64_t source_index(const Question& question, int rank, std::int64_t index) {
  return question.operation == Operation::reduce_scatter ? rank * question.count + index : index;
}

std::vector<double> expected(const Question& question, int rank) {
  const int ranks = question.ranks;
  const std::int64_t count = question.count;
  std::vector<double> values;
  const auto part = [&](int of, std::int64_t from, std::int64_t elements) {
    for (std::int64_t i = from; i < from + elements; ++i)
      values.push_back(pattern(question, of, i));
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
      for (std::int64_t i = 0; i < count; ++i)
        values.push_back(reduced(question, source_index(question, rank, i)));
      break;
  }
  return values;
}

Bounded reduce_exactly(const Question& question, const std::vector<double>& values) {
  Bounded result{values.front(), 0};
  double magnitude = std::abs(values.front()), growth = std::max(1.0, magnitude);
  for (std::size_t i = 1; i < values.size(); ++i) {
    result.value = join(question.reduction, result.value, values[i]);
    magnitude = join(question.reduction, magnitude, std::abs(values[i]));
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

WrongElements wrong_elements(const machine::Tensor& actual, const machine::Tensor& wanted) {
  const std::size_t size = machine::size_of(actual.dtype());
  const auto bytes = [](const machine::Tensor& tensor) {
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
  const auto value = [&](const machine::Tensor& tensor) {
    return machine::to_doubles(tensor.slice(wrong.first, {1})).front();
  };
  wrong.text = fmt::format(
      "{} of {} elements wrong, from {} to {}; the first is {} ({}), not {} ({})", wrong.count,
      actual.size(), wrong.first, wrong.last, bits(got), value(actual), bits(right), value(wanted));
  return wrong;
}

}  // namespace suite
