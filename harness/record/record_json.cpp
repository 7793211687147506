#include "harness/record/record_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/record/counters.h"
#include "harness/record/json_reading.h"

namespace harness {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& object, std::string_view key, double value) {
  if (!std::isfinite(value)) return;
  // Counts and sizes read better as integers, and 2^53 is where doubles stop being them.
  if (value == std::floor(value) && std::abs(value) < 9007199254740992.0 &&
      !(value == 0 && std::signbit(value)))
    object[std::string(key)] = static_cast<std::int64_t>(value);
  else
    object[std::string(key)] = value;
}

// Beside its kind; what a failure does not have is left out.
const std::pair<const char*, int machine::Failure::*> failure_fields[] = {
    {"rank", &machine::Failure::rank},
    {"peer", &machine::Failure::peer},
    {"sample", &machine::Failure::sample},
    {"summed_ranks", &machine::Failure::summed_ranks}};

double or_zero(double value) { return std::isfinite(value) ? value : 0; }

Ruling parse_ruling(const std::string& text) {
  for (const Ruling ruling : {Ruling::pass, Ruling::fail, Ruling::skipped})
    if (text == name(ruling)) return ruling;
  throw std::runtime_error(fmt::format("verdict \"{}\" is none of pass, fail, skipped", text));
}

Oracle parse_oracle(const std::string& text) {
  for (const Oracle oracle : all_oracles)
    if (text == name(oracle)) return oracle;
  throw std::runtime_error(fmt::format("there is no oracle \"{}\"", text));
}

Json oracles_json(const std::vector<OracleResult>& oracles) {
  Json all = Json::object();
  for (const OracleResult& result : oracles) {
    Json& one = all[std::string(name(result.oracle))];
    one["verdict"] = name(result.ruling);
    put(one, "measured", result.measured);
    put(one, "expected", result.expected);
    one["text"] = result.text;
    one["reference"] = name(result.reference);
    if (result.rank >= 0) one["rank"] = result.rank;
  }
  return all;
}

Json quantiles_json(const Quantiles& q) {
  Json all = Json::object();
  put(all, "min", q.min);
  put(all, "p5", q.p5);
  put(all, "p25", q.p25);
  put(all, "p75", q.p75);
  put(all, "p95", q.p95);
  put(all, "max", q.max);
  return all;
}

Json matrix_json(const std::vector<double>& values, int ranks) {
  Json rows = Json::array();
  for (int from = 0; from < ranks; ++from) {
    Json row = Json::array();
    for (int to = 0; to < ranks; ++to)
      row.push_back(or_zero(values[static_cast<std::size_t>(from * ranks + to)]));
    rows.push_back(std::move(row));
  }
  return rows;
}

Json link_matrix_json(const LinkMatrix& matrix) {
  Json all;
  all["hosts"] = matrix.hosts;
  all["bandwidth_GBps"] = matrix_json(matrix.bandwidth_GBps, matrix.ranks());
  all["latency_us"] = matrix_json(matrix.latency_us, matrix.ranks());
  all["crowded_hosts"] = matrix.crowded_hosts;
  all["slow_pairs"] = Json::array();
  for (const LinkMatrix::SlowPair& pair : matrix.slow_pairs) {
    Json one{{"from", pair.from}, {"to", pair.to}, {"metric", pair.metric}};
    put(one, "value", pair.value);
    put(one, "typical", pair.typical);
    put(one, "z", pair.z);
    all["slow_pairs"].push_back(std::move(one));
  }
  return all;
}

Json memory_map_json(const MemoryMap& map) {
  Json all{{"name", map.name}, {"bytes", map.bytes}, {"events", map.events}};
  if (map.asked > 0)
    all["failed"] = {{"asked", map.asked}, {"free", map.free}, {"longest", map.longest}};
  all["blocks"] = Json::array();
  for (const MemoryMap::Block& block : map.blocks)
    all["blocks"].push_back({{"category", block.category},
                             {"address", block.address},
                             {"bytes", block.bytes},
                             {"begin", block.begin},
                             {"end", block.end}});
  return all;
}

Json step_breakdown_json(const StepBreakdown& breakdown) {
  return {{"parts", breakdown.parts},
          {"seconds", breakdown.seconds},
          {"hidden_parts", breakdown.hidden_parts},
          {"hidden_s", breakdown.hidden_s},
          {"waited_s", breakdown.waited_s}};
}

StepBreakdown read_step_breakdown(const Json& json) {
  using Rows = std::vector<std::vector<double>>;
  using Names = std::vector<std::string>;
  return {json.at("parts").get<Names>(), json.at("hidden_parts").get<Names>(),
          json.at("seconds").get<Rows>(), json.at("hidden_s").get<Rows>(),
          json.at("waited_s").get<Rows>()};
}

MemoryMap read_memory_map(const Json& json) {
  MemoryMap map;
  map.name = json.at("name").get<std::string>();
  map.bytes = json.at("bytes").get<std::uint64_t>();
  map.events = json.at("events").get<std::int64_t>();
  if (const auto failed = json.find("failed"); failed != json.end()) {
    map.asked = failed->at("asked").get<std::uint64_t>();
    map.free = failed->at("free").get<std::uint64_t>();
    map.longest = failed->at("longest").get<std::uint64_t>();
  }
  for (const auto& one : json.at("blocks"))
    map.blocks.push_back({one.at("category").get<std::string>(),
                          one.at("address").get<std::uint64_t>(),
                          one.at("bytes").get<std::uint64_t>(), one.at("begin").get<std::int64_t>(),
                          one.at("end").get<std::int64_t>()});
  return map;
}

std::vector<double> read_matrix(const Json& rows, std::size_t ranks) {
  std::vector<double> values;
  for (const auto& row : rows)
    for (const auto& value : row) values.push_back(value.get<double>());
  if (values.size() != ranks * ranks)
    throw std::runtime_error(fmt::format("a link_matrix of {} hosts has {} numbers, not {}", ranks,
                                         values.size(), ranks * ranks));
  return values;
}

LinkMatrix read_link_matrix(const Json& json) {
  LinkMatrix matrix;
  matrix.hosts = json.at("hosts").get<std::vector<std::string>>();
  matrix.bandwidth_GBps = read_matrix(json.at("bandwidth_GBps"), matrix.hosts.size());
  matrix.latency_us = read_matrix(json.at("latency_us"), matrix.hosts.size());
  matrix.crowded_hosts = json.at("crowded_hosts").get<std::vector<std::string>>();
  for (const auto& one : json.value("slow_pairs", Json::array())) {
    const LinkMatrix::SlowPair pair{one.at("from").get<int>(),           one.at("to").get<int>(),
                                    one.at("metric").get<std::string>(), one.value("value", 0.0),
                                    one.value("typical", 0.0),           one.value("z", 0.0)};
    for (const int rank : {pair.from, pair.to})
      if (rank < 0 || rank >= matrix.ranks())
        throw std::runtime_error(
            fmt::format("a slow pair has rank {} of {}", rank, matrix.ranks()));
    matrix.slow_pairs.push_back(pair);
  }
  return matrix;
}

}  // namespace

std::string json_text(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

nlohmann::ordered_json failure_json(const machine::Failure& failure) {
  Json json{{"kind", name(failure.kind)}};
  for (const auto& [key, field] : failure_fields)
    if (failure.*field != machine::Failure{}.*field) json[key] = failure.*field;
  return json;
}

machine::Failure read_failure(const nlohmann::ordered_json& json) {
  machine::Failure failure;
  failure.kind = machine::parse_failure_kind(json.at("kind").get<std::string>());
  for (const auto& [key, field] : failure_fields) failure.*field = json.value(key, failure.*field);
  return failure;
}

std::string record_json(const Record& record, const Place& place) {
  Json json;
  json["name"] = record.name;
  json["family_index"] = place.family;
  json["per_family_instance_index"] = place.instance;
  json["run_name"] = record.name;
  json["run_type"] = "iteration";
  json["repetitions"] = place.repetitions;
  json["repetition_index"] = record.repetition;
  json["threads"] = 1;
  if (record.verdict != Ruling::pass) {
    json["error_occurred"] = true;
    json["error_message"] = record.reason;
  }
  const auto sampled = record.counters.find("samples");
  json["iterations"] = record.samples.iterations() > 0 || sampled == record.counters.end()
                           ? record.samples.iterations()
                           : static_cast<int>(sampled->second);
  // These two every consumer asks for, also where nothing was timed.
  json["real_time"] = or_zero(record.seconds * 1e9);
  json["cpu_time"] = or_zero(record.cpu_seconds * 1e9);
  json["time_unit"] = "ns";
  for (const auto& [key, value] : record.counters) {
    if (is_record_key(key))
      throw std::logic_error(fmt::format("counter '{}' is a key of run.json", key));
    put(json, key, value);
  }

  json["unit"] = record.unit;
  json["case"] = Json::object();
  for (const auto& [axis, value] : record.axes) json["case"][axis] = value;
  if (!record.slice.empty()) json["slice"] = record.slice;
  if (record.traits)
    json["traits"] = {{"equal_work", record.traits->equal_work},
                      {"limit_applies", record.traits->limit_applies},
                      {"uses_disk", record.traits->uses_disk}};
  json["verdict"] = name(record.verdict);
  json["reason"] = record.reason;
  if (record.failure) json["failure"] = failure_json(*record.failure);
  json["oracles"] = oracles_json(record.oracles);
  if (!record.note.empty()) json["note"] = record.note;
  if (!record.fingerprint.empty()) json["fingerprint"] = record.fingerprint;
  if (record.samples.iterations() > 0) {
    json["quantiles_s"] = quantiles_json(record.quantiles);
    json["samples"] = record.samples.iterations();
    json["samples_ranks"] = record.samples.ranks;
    json["samples_offset"] = place.samples_offset;
  }
  if (!record.timing.empty()) json["timing"] = record.timing;
  if (!record.stop.empty()) json["stop"] = record.stop;
  if (record.oversubscribed) json["oversubscribed"] = true;
  for (const CategoryBytes& row : record.memory)
    json["memory"].push_back(
        {{"category", row.category}, {"measured", row.measured}, {"expected", row.expected}});
  for (const auto& [part, seconds] : record.breakdown) {
    Json one{{"name", part}};
    put(one, "seconds", seconds);
    json["breakdown_s"].push_back(std::move(one));
  }
  if (record.step_breakdown.ranks() > 0)
    json["step_breakdown"] = step_breakdown_json(record.step_breakdown);
  for (const Span& span : record.timeline) {
    Json one{{"rank", span.rank}, {"lane", span.lane}, {"name", span.name}};
    put(one, "start_s", span.start_s);
    put(one, "end_s", span.end_s);
    json["timeline"].push_back(std::move(one));
  }
  // A loss that is not a number ends the list: the steps before it keep their places.
  for (const double loss : record.losses) {
    if (!std::isfinite(loss)) break;
    json["losses"].push_back(loss);
  }
  if (record.link_matrix.ranks() > 0) json["link_matrix"] = link_matrix_json(record.link_matrix);
  for (const MemoryMap& map : record.memory_maps)
    json["memory_maps"].push_back(memory_map_json(map));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Record read_record(const nlohmann::ordered_json& json) {
  Record record;
  record.name = json.at("name").get<std::string>();
  record.unit = json.at("unit").get<std::string>();
  for (const auto& [axis, value] : json.at("case").items())
    record.axes.emplace_back(axis, value.get<std::string>());
  record.slice = json.value("slice", "");
  if (const auto traits = json.find("traits"); traits != json.end())
    record.traits = {traits->at("equal_work").get<bool>(), traits->at("limit_applies").get<bool>(),
                     traits->at("uses_disk").get<bool>()};
  record.repetition = json.value("repetition_index", 0);
  record.verdict = parse_ruling(json.at("verdict").get<std::string>());
  record.reason = json.value("reason", "");
  if (const auto failure = json.find("failure"); failure != json.end())
    record.failure = read_failure(*failure);
  if (const std::string unit = json.value("time_unit", "ns"); unit != "ns")
    throw std::runtime_error(fmt::format("time_unit \"{}\" where ns was expected", unit));
  record.seconds = json.at("real_time").get<double>() * 1e-9;
  record.cpu_seconds = json.at("cpu_time").get<double>() * 1e-9;
  record.note = json.value("note", "");
  record.fingerprint = json.value("fingerprint", "");
  record.timing = json.value("timing", "");
  record.stop = json.value("stop", "");
  record.oversubscribed = json.value("oversubscribed", false);
  for (const auto& [key, value] : json.items())
    if (value.is_number() && !is_record_key(key)) record.counters[key] = value.get<double>();

  const Json oracles = json.value("oracles", Json::object());
  for (const auto& [key, one] : oracles.items())
    record.oracles.push_back(
        {parse_oracle(key), parse_ruling(one.at("verdict").get<std::string>()),
         one.value("measured", 0.0), one.value("expected", 0.0), one.value("text", ""),
         one.value("reference", "") == name(Reference::shared) ? Reference::shared
                                                               : Reference::independent,
         one.value("rank", -1)});
  if (const auto q = json.find("quantiles_s"); q != json.end())
    record.quantiles = {q->value("min", 0.0), q->value("p5", 0.0),  q->value("p25", 0.0),
                        record.seconds,       q->value("p75", 0.0), q->value("p95", 0.0),
                        q->value("max", 0.0)};
  for (const auto& one : json.value("memory", Json::array()))
    record.memory.push_back({one.at("category").get<std::string>(),
                             one.at("measured").get<std::uint64_t>(),
                             one.at("expected").get<std::uint64_t>()});
  for (const auto& one : json.value("breakdown_s", Json::array()))
    record.breakdown.emplace_back(one.at("name").get<std::string>(), one.value("seconds", 0.0));
  if (const auto breakdown = json.find("step_breakdown"); breakdown != json.end())
    record.step_breakdown = read_step_breakdown(*breakdown);
  for (const auto& one : json.value("timeline", Json::array()))
    record.timeline.push_back({one.at("rank").get<int>(), one.at("lane").get<std::string>(),
                               one.at("name").get<std::string>(), one.value("start_s", 0.0),
                               one.value("end_s", 0.0)});
  for (const auto& loss : json.value("losses", Json::array()))
    record.losses.push_back(loss.get<double>());
  if (const auto matrix = json.find("link_matrix"); matrix != json.end())
    record.link_matrix = read_link_matrix(*matrix);
  for (const auto& one : json.value("memory_maps", Json::array()))
    record.memory_maps.push_back(read_memory_map(one));
  return record;
}

}  // namespace harness
