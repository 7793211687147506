#include "suite/expectation/record_values.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "collectives/communicator/choose.h"
#include "collectives/communicator/library.h"
#include "suite/options/options.h"

namespace suite {

using harness::axis;
using harness::Record;
using machine::Dtype;
using machine::Operation;

int ranks_of(const Record& record) { return number_of<int>(axis(record, "ranks")).value_or(0); }

std::optional<Dtype> dtype_of(const Record& record) {
  const std::string text = axis(record, "dtype");
  const auto found = std::ranges::find(machine::every_dtype, text,
                                       [](Dtype dtype) { return machine::name(dtype); });
  return found == std::end(machine::every_dtype) ? std::optional<Dtype>() : *found;
}

std::optional<predict::Gemm> gemm_of(const Record& record) {
  std::array<double, 3> extents{};
  std::string text = axis(record, "shape") + "x";
  for (double& extent : extents) {
    const std::size_t end = text.find('x');
    const std::optional<int> number = number_of<int>(text.substr(0, end));
    if (!number || *number < 1) return {};
    extent = *number;
    text.erase(0, end + 1);
  }
  return predict::Gemm{.m = extents[0], .n = extents[1], .k = extents[2]};
}

std::optional<Operation> operation_of(std::string_view unit) {
  for (const Operation one :
       {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
        Operation::all_to_all, Operation::broadcast})
    if (machine::name(one) == unit) return one;
  return {};
}

std::vector<predict::Charge> charges_of(const Record& record) {
  const std::optional<Operation> operation = operation_of(record.unit);
  const int ranks = ranks_of(record);
  if (!operation || ranks < 2) return {};
  std::vector<std::string_view> names = predict::usual_algorithms(*operation, ranks);
  const std::string algorithm = axis(record, "algorithm");
  if (algorithm != collectives::library && algorithm != collectives::automatic) {
    if (std::ranges::find(names, algorithm) == names.end()) return {};
    names = {algorithm};
  }
  std::vector<predict::Charge> charges;
  for (const std::string_view name : names)
    charges.push_back(predict::charge(*operation, name, ranks));
  return charges;
}

}  // namespace suite
