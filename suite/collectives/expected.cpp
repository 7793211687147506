#include "suite/collectives/expected.h"

#include <algorithm>
#include <cmath>
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

// The nearest value there is in the dtype; integers modulo 2^bits.
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

double join(const Question& question, std::int64_t index) {
  double result = pattern(question, 0, index);
  for (int rank = 1; rank < question.ranks; ++rank) {
    const double value = pattern(question, rank, index);
    switch (question.reduction) {
      case Reduction::sum:
      case Reduction::avg:
        result += value;
        break;
      case Reduction::prod:
        result *= value;
        break;
      case Reduction::max:
        result = std::max(result, value);
        break;
      case Reduction::min:
        result = std::min(result, value);
        break;
    }
  }
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
    // One factor 3, one 2, else signs: a factor that is missing or taken twice shows.
    const std::int64_t turn = index % question.ranks;
    if (turn == rank) return 3;
    if ((turn + 1) % question.ranks == rank) return 2;
    return has_sign(question.dtype) && random < 3 ? -1 : 1;
  }
  // 8 bits hold integers to 16, or 8: only two ranks add to an element.
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
  const auto part = [&](int whose, std::int64_t from) {
    for (std::int64_t i = from; i < from + count; ++i)
      values.push_back(pattern(question, whose, i));
  };
  switch (question.operation) {
    case Operation::all_gather:
    case Operation::gather:
      for (int peer = 0; peer < ranks; ++peer) part(peer, 0);
      break;
    case Operation::all_to_all:
      for (int peer = 0; peer < ranks; ++peer) part(peer, rank * count);
      break;
    case Operation::all_to_all_v:
      for (int peer = 0; peer < ranks; ++peer) {
        std::int64_t before = 0;  // what peer's input holds for lower ranks
        for (int lower = 0; lower < rank; ++lower) before += (*question.traffic)(peer, lower);
        for (std::int64_t i = 0; i < (*question.traffic)(peer, rank); ++i)
          values.push_back(pattern(question, peer, before + i));
      }
      break;
    case Operation::broadcast:
      part(question.root, 0);
      break;
    case Operation::scatter:
      part(question.root, rank * count);
      break;
    case Operation::send_receive:
      part((rank + ranks - 1) % ranks, 0);
      break;
    default:
      for (std::int64_t i = 0; i < count; ++i)
        values.push_back(join(question, source_index(question, rank, i)));
      break;
  }
  return values;
}

Bounded reduce_exactly(const Question& question, const std::vector<double>& values) {
  Bounded result{values.front(), 0};
  double magnitude = std::abs(values.front()), growth = std::max(1.0, magnitude);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double value = values[i];
    switch (question.reduction) {
      case Reduction::sum:
      case Reduction::avg:
        result.value += value;
        magnitude += std::abs(value);
        break;
      case Reduction::prod:
        result.value *= value;
        magnitude *= std::abs(value);
        growth *= std::max(1.0, std::abs(value));
        break;
      case Reduction::max:
        result.value = std::max(result.value, value);
        break;
      case Reduction::min:
        result.value = std::min(result.value, value);
        break;
    }
  }
  if (question.reduction == Reduction::max || question.reduction == Reduction::min) return result;
  double roundings = static_cast<double>(values.size()) - 1;
  if (question.reduction == Reduction::avg) {
    roundings += 1;
    result.value /= static_cast<double>(values.size());
    magnitude /= static_cast<double>(values.size());
  }
  // (1 + u)^k - 1, which is finite where gamma_k, its bound, is not: 8 bits, 8 ranks. The values in
  // double round as often.
  const double u = unit_roundoff(question.dtype);
  result.error =
      (std::expm1(roundings * std::log1p(u)) + harness::gamma(roundings, 0x1p-53)) * magnitude;
  // A quotient or product below the smallest normal number loses up to half of the smallest
  // subnormal one, which later factors enlarge. Of other dtypes it is too small to meet.
  const double half_smallest = question.dtype == Dtype::float16       ? 0x1p-25
                               : question.dtype == Dtype::float8_e4m3 ? 0x1p-10
                               : question.dtype == Dtype::float8_e5m2 ? 0x1p-17
                                                                      : 0;
  if (question.reduction == Reduction::prod) result.error += roundings * growth * half_smallest;
  if (question.reduction == Reduction::avg) result.error += half_smallest;
  return result;
}

}  // namespace suite
