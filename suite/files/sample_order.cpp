#include "suite/files/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

namespace suite {
namespace {

constexpr double share_of_last_epoch = 0.80;

// Returns a number from 0 to `most`, as numpy's legacy random_interval does: masked bits until one
// is not above it.
std::uint32_t below_or_equal(std::mt19937& random, std::uint32_t most) {
  const std::uint32_t mask = most == 0 ? 0 : ~std::uint32_t{0} >> std::countl_zero(most);
  std::uint32_t value = 0;
  do value = static_cast<std::uint32_t>(random()) & mask;
  while (value > most);
  return value;
}

// Shuffles as numpy's RandomState does (Fisher and Yates, from the end).
template <class T>
void shuffle(std::span<T> values, std::mt19937& random) {
  for (std::size_t i = values.size(); i-- > 1;)
    std::swap(values[i], values[below_or_equal(random, static_cast<std::uint32_t>(i))]);
}

void add_documents(std::vector<std::int32_t>& all, std::span<const std::int32_t> documents,
                   std::int64_t epochs, std::mt19937& random) {
  const std::size_t first = all.size();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    all.insert(all.end(), documents.begin(), documents.end());
  shuffle(std::span(all).subspan(first), random);
}

std::vector<SampleOrder::Start> starts(std::span<const std::int32_t> sizes,
                                       std::span<const std::int32_t> documents, std::int64_t length,
                                       std::int64_t samples) {
  std::vector<SampleOrder::Start> all{{}};
  SampleOrder::Start at;
  const auto size_at = [&](std::int64_t place) {
    return std::int64_t{
        sizes[static_cast<std::size_t>(documents[static_cast<std::size_t>(place)])]};
  };
  while (std::ssize(all) <= samples) {
    // A sample's last token is the first token of the next sample.
    for (std::int64_t left = length + 1; left > 0;) {
      const std::int64_t here = size_at(at.place) - at.offset;
      if (here >= left) {
        at.offset += left - 1;
        left = 0;
      } else {
        left -= here;
        at = {at.place + 1, 0};
      }
    }
    all.push_back(at);
  }
  return all;
}

}  // namespace

SampleOrder sample_order(std::span<const std::int32_t> sizes,
                         std::span<const std::int32_t> documents, std::int64_t length,
                         std::int64_t samples, std::uint32_t seed) {
  std::int64_t tokens = 0;
  for (const std::int32_t document : documents) tokens += sizes[static_cast<std::size_t>(document)];
  if (length < 1 || tokens < length + 1)
    throw std::invalid_argument(
        fmt::format("{} documents have {} tokens; one sequence and its targets need {}",
                    documents.size(), tokens, length + 1));
  SampleOrder order;
  const std::int64_t requested = samples * length + 1;
  order.epochs = samples == 0 ? 1 : std::max<std::int64_t>(1, (requested + tokens - 1) / tokens);
  const std::int64_t all = (order.epochs * tokens - 1) / length;
  const std::int64_t before_last = ((order.epochs - 1) * tokens - 1) / length,
                     of_an_epoch = (tokens - 1) / length;
  const bool separate =
      order.epochs > 1 &&
      samples - before_last <
          static_cast<std::int64_t>(share_of_last_epoch * static_cast<double>(of_an_epoch));
  std::mt19937 random(seed);
  order.documents.reserve(documents.size() * static_cast<std::size_t>(order.epochs));
  add_documents(order.documents, documents, order.epochs - (separate ? 1 : 0), random);
  if (separate) add_documents(order.documents, documents, 1, random);
  order.samples = starts(sizes, order.documents, length, all);
  order.shuffled.resize(static_cast<std::size_t>(all));
  std::iota(order.shuffled.begin(), order.shuffled.end(), std::int64_t{0});
  const std::span<std::int64_t> positions(order.shuffled);
  const auto first = static_cast<std::size_t>(separate ? before_last : all);
  shuffle(positions.first(first), random);
  shuffle(positions.subspan(first), random);
  return order;
}

std::vector<Blended> blend(std::span<const double> weights, std::int64_t size) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> taken(weights.size());
  std::vector<Blended> all;
  for (std::int64_t i = 0; i < size; ++i) {
    const double target = static_cast<double>(std::max<std::int64_t>(i, 1));
    std::size_t chosen = 0;
    double farthest = 0;
    for (std::size_t set = 0; set < weights.size(); ++set) {
      const double missing = weights[set] / sum * target - static_cast<double>(taken[set]);
      if (set > 0 && missing <= farthest) continue;
      farthest = missing;
      chosen = set;
    }
    all.push_back({static_cast<std::int32_t>(chosen), taken[chosen]++});
  }
  return all;
}

std::int64_t samples_of_set(double weight, std::int64_t size) {
  constexpr double surplus = 0.005;
  return static_cast<std::int64_t>(
      std::ceil(std::ceil(static_cast<double>(size) * weight) * (1 + surplus)));
}

std::pair<std::int64_t, std::int64_t> split_range(std::string_view text, int split,
                                                  std::int64_t documents) {
  std::vector<double> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(",/", begin), text.size());
    double value = 0;
    const auto [stopped, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc() || stopped != text.data() + end || !(value >= 0) || value > 1e9)
      throw std::invalid_argument(
          fmt::format("split is '{}'; expected one to three numbers (example: 949,50,1)", text));
    parts.push_back(value);
    begin = end + 1;
  }
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  if (parts.size() > 3 || sum <= 0)
    throw std::invalid_argument(
        fmt::format("split is '{}'; expected one to three numbers (example: 949,50,1)", text));
  parts.resize(3);
  double before = 0;
  for (int i = 0; i < split; ++i) before += parts[static_cast<std::size_t>(i)] / sum;
  const double after = before + parts[static_cast<std::size_t>(split)] / sum;
  // Half a document goes to the even number, as in Python.
  const auto rounded = [&](double share) {
    return static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(documents)));
  };
  return {rounded(before), std::max(rounded(before), rounded(after))};
}

}  // namespace suite
