#include "collectives/communicator/group_algorithms.h"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <utility>

#include "collectives/plan.h"
#include "machine/base/names.h"

namespace collectives {
namespace {

using machine::Operation;

std::vector<std::string> names_of(std::span<const Operation> operations) {
  std::vector<std::string> names{std::string(library), std::string(our_own)};
  for (const Algorithm& algorithm : algorithms())
    if (std::ranges::find(operations, algorithm.operation) != operations.end() &&
        std::ranges::none_of(names, [&](const auto& known) { return known == algorithm.name; }))
      names.emplace_back(algorithm.name);
  return names;
}

bool has(Operation operation, std::string_view name) {
  return name == library || name == our_own ||
         std::ranges::any_of(algorithms(), [&](const Algorithm& algorithm) {
           return algorithm.operation == operation && algorithm.name == name;
         });
}

Operation operation_of(std::string_view text, std::span<const Operation> operations) {
  std::vector<std::string> names;
  for (const Operation operation : operations) {
    if (machine::name(operation) == text) return operation;
    names.emplace_back(machine::name(operation));
  }
  throw std::invalid_argument(machine::unknown("operation", text, names));
}

std::vector<std::string> at_commas(std::string_view list) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(list, ',')) parts.emplace_back(part.begin(), part.end());
  if (parts.empty()) parts.emplace_back();
  return parts;
}

bool is_pair(std::string_view text) { return text.find('=') != std::string_view::npos; }

}  // namespace

std::string_view GroupAlgorithms::of(Operation operation) const {
  const auto found = names_.find(operation);
  return found == names_.end() ? std::string_view() : found->second;
}

void GroupAlgorithms::set(Operation operation, std::string_view name) {
  if (name.empty() || name == our_own)
    names_.erase(operation);
  else
    names_[operation] = name;
}

GroupAlgorithms algorithms_by_share(GroupAlgorithms others) {
  for (const machine::Operation operation :
       {machine::Operation::all_gather, machine::Operation::reduce_scatter})
    others.set(operation, "ring");
  return others;
}

GroupAlgorithms read_algorithms(std::string_view text, std::span<const Operation> operations,
                                GroupAlgorithms others) {
  GroupAlgorithms all = std::move(others);
  if (!is_pair(text)) {
    bool known = false;
    for (const Operation operation : operations) {
      if (!has(operation, text)) continue;
      all.set(operation, text);
      known = true;
    }
    if (!known)
      throw std::invalid_argument(machine::unknown("algorithm", text, names_of(operations)));
    return all;
  }
  for (const std::string& part : at_commas(text)) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const Operation operation = operation_of(part.substr(0, equals), operations);
    const std::string name = part.substr(std::min(equals + 1, part.size()));
    if (!has(operation, name))
      throw std::invalid_argument(
          machine::unknown(std::string(machine::name(operation)) + " algorithm", name,
                           names_of(std::span(&operation, 1))));
    all.set(operation, name);
  }
  return all;
}

std::vector<std::string> divide_algorithm_texts(std::string_view list) {
  std::vector<std::string> texts;
  for (const std::string& part : at_commas(list)) {
    if (!texts.empty() && is_pair(texts.back()) && is_pair(part))
      texts.back() += "," + part;
    else
      texts.push_back(part);
  }
  return texts;
}

}  // namespace collectives
