#include "suite/recipes/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "harness/json/json.h"

namespace suite::recipes {

namespace {

using harness::Record;

constexpr const char *tp = "tensor-model-parallel-size", *pp = "pipeline-model-parallel-size",
                     *dp = "data-parallel-size", *zero = "zero-stage";

// Eight sequences: every replica has as many as the others, and a pipeline has eight micro-batches.
Axes on_ranks(int ranks, const Axes& more) {
  Axes axes{{"ranks", std::to_string(ranks)},
            {tp, "1"},
            {pp, "1"},
            {dp, "1"},
            {zero, "0"},
            {"micro-batch-size", "1"},
            {"global-batch-size", "8"},
            {"schedule", "1f1b"},
            {"dp-algorithm", "default"}};
  for (const auto& [axis, value] : more)
    std::ranges::find(axes, axis, &Axes::value_type::first)->second = value;
  return axes;
}

Axes all_axes(const Strategy& strategy, const Axes& common) {
  Axes axes = common;
  axes.insert(axes.end(), strategy.axes.begin(), strategy.axes.end());
  return axes;
}

const Record* record_of(const std::vector<Record>& records, const Axes& axes) {
  const auto found = std::ranges::find_if(records, [&](const Record& record) {
    return record.unit == "gpt_step" && std::ranges::all_of(axes, [&](const auto& one) {
             return harness::axis(record, one.first) == one.second;
           });
  });
  return found == records.end() ? nullptr : &*found;
}

std::string megabytes(double bytes) {
  return bytes > 0 ? fmt::format("{:.2f}", bytes / 1e6) : std::string("-");
}

std::string percent(const Record& record, const std::string& counter) {
  return record.counters.contains(counter)
             ? fmt::format("{:.0f}", 100 * record.counters.at(counter))
             : std::string("-");
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all{
      {"one device", "no parallelism", on_ranks(1, {})},
      {"data parallel", "ring all-reduce: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002",
       on_ranks(4, {{dp, "4"}})},
      {"parameter server", "Li et al. 2014, OSDI",
       on_ranks(4, {{dp, "4"}, {"dp-algorithm", "all_reduce=parameter_server"}})},
      {"layer-wise", "one micro-batch: a stage works while all others wait",
       on_ranks(4, {{pp, "4"}, {"micro-batch-size", "8"}})},
      {"pipeline, GPipe", "Huang et al. 2019, arXiv:1811.06965",
       on_ranks(4, {{pp, "4"}, {"schedule", "gpipe"}})},
      {"pipeline, 1F1B", "Narayanan et al. 2021, arXiv:2104.04473", on_ranks(4, {{pp, "4"}})},
      {"tensor parallel", "Shoeybi et al. 2019, arXiv:1909.08053", on_ranks(4, {{tp, "4"}})},
      {"ZeRO-1", "Rajbhandari et al. 2020, arXiv:1910.02054",
       on_ranks(4, {{dp, "4"}, {zero, "1"}})},
      {"ZeRO-2", "the same", on_ranks(4, {{dp, "4"}, {zero, "2"}})},
      {"ZeRO-3", "the same", on_ranks(4, {{dp, "4"}, {zero, "3"}})},
      {"tensor x pipeline", "Narayanan et al. 2021, arXiv:2104.04473",
       on_ranks(4, {{tp, "2"}, {pp, "2"}})},
      {"tensor x ZeRO-1", "Megatron-LM's distributed optimizer",
       on_ranks(4, {{tp, "2"}, {dp, "2"}, {zero, "1"}})},
      {"pipeline x ZeRO-1", "DeepSpeed's pipelines",
       on_ranks(4, {{pp, "2"}, {dp, "2"}, {zero, "1"}})},
      {"tensor x ZeRO-3", "Megatron-DeepSpeed", on_ranks(4, {{tp, "2"}, {dp, "2"}, {zero, "3"}})},
  };
  return all;
}

std::string case_name(const Strategy& strategy, const Axes& common) {
  std::string name = "gpt_step";
  for (const auto& [axis, value] : all_axes(strategy, common))
    name += fmt::format("/{}:{}", axis, value);
  return name;
}

std::string strategies_json(const Axes& common) {
  harness::Json rows = harness::Json::array();
  for (const Strategy& strategy : strategies()) {
    harness::Json axes = harness::Json::object();
    for (const auto& [axis, value] : all_axes(strategy, common)) axes[axis] = value;
    rows.push_back({{"name", strategy.name}, {"source", strategy.source}, {"axes", axes}});
  }
  return harness::Json{{"schema", "shardmark-strategies/1"}, {"strategies", rows}}.dump(1) + "\n";
}

std::string strategies_table(const std::vector<Record>& records, const Axes& common) {
  std::string text =
      "                    |           memory, MB            |  sent by a rank, MB  |      |   "
      "bubble, %\n"
      "                    | values  grads states  act. peak |   tp     pp     dp   |   ms | seen "
      "formula\n";
  for (const Strategy& strategy : strategies()) {
    const Record* const record = record_of(records, all_axes(strategy, common));
    text += fmt::format("{:<19} ", strategy.name);
    if (!record || record->seconds <= 0) {
      text += record ? fmt::format("| {}: {}\n", name(record->verdict), record->reason)
                     : std::string("| not run\n");
      continue;
    }
    const auto memory = [&](std::string_view category) {
      const auto row =
          std::ranges::find(record->memory, category, &harness::CategoryBytes::category);
      return megabytes(row == record->memory.end() ? 0 : static_cast<double>(row->measured));
    };
    const auto sent = [&](const char* group) {
      return megabytes(counter(*record, std::string("wire_bytes_") + group));
    };
    text += fmt::format(
        "| {:>6} {:>6} {:>6} {:>5} {:>4} | {:>6} {:>6} {:>6} | {:>4.0f} | {:>4} {:>4}  {}\n",
        memory("parameters"), memory("gradients"), memory("optimizer"), memory("activations"),
        megabytes(counter(*record, "peak_bytes_measured")), sent("tp"), sent("pp"), sent("dp"),
        1e3 * record->seconds, percent(*record, "bubble_measured"),
        percent(*record, "bubble_expected"), name(record->verdict));
  }
  return text;
}

}  // namespace suite::recipes
