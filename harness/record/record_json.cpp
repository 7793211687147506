#include "harness/record/record_json.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "harness/json/json.h"
#include "harness/record/counters.h"

namespace harness {
namespace {
void put(Json& object, std::string_view key, double value) {
  if (!std::isfinite(value)) return;
  // Writes counts and sizes as integers. Above 2^53 doubles are not exact.
  if (value == std::floor(value) && std::abs(value) < 9007199254740992.0 &&
      !(value == 0 && std::signbit(value)))
    object[key] = static_cast<std::int64_t>(value);
  else
    object[key] = value;
}

template <class T>
void put(Json& object, std::string_view key, const T& value) {
  object[key] = value;
}

template <class T>
void take(const Json& object, const char* key, T& value) {
  object.at(key).get_to(value);
}
// put omits numbers that are not finite.
void take(const Json& object, const char* key, double& value) { value = object.value(key, 0.0); }

// Returns a struct as an object, by pairs of key and member.
template <class T, class Fields>
Json write(const T& value, const Fields& fields) {
  Json object = Json::object();
  std::apply([&](const auto&... field) { (put(object, field.first, value.*field.second), ...); },
             fields);
  return object;
}
template <class T, class Fields>
void read(const Json& object, const Fields& fields, T& value) {
  std::apply([&](const auto&... field) { (take(object, field.first, value.*field.second), ...); },
             fields);
}
template <class T, class Fields>
Json write_list(const std::vector<T>& values, const Fields& fields) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(write(value, fields));
  return list;
}
template <class T, class Fields>
void read_list(const Json& object, const char* key, const Fields& fields, std::vector<T>& values) {
  for (const Json& one : object.value(key, Json::array())) read(one, fields, values.emplace_back());
}

using std::pair;
constexpr std::tuple traits_fields{pair{"equal_work", &Traits::equal_work},
                                   pair{"limit_applies", &Traits::limit_applies},
                                   pair{"uses_disk", &Traits::uses_disk}};
constexpr std::tuple quantile_fields{pair{"min", &Quantiles::min}, pair{"p5", &Quantiles::p5},
                                     pair{"p25", &Quantiles::p25}, pair{"p75", &Quantiles::p75},
                                     pair{"p95", &Quantiles::p95}, pair{"max", &Quantiles::max}};
constexpr std::tuple category_fields{pair{"category", &CategoryBytes::category},
                                     pair{"measured", &CategoryBytes::measured},
                                     pair{"expected", &CategoryBytes::expected}};
using Part = pair<std::string, double>;
constexpr std::tuple part_fields{pair{"name", &Part::first}, pair{"seconds", &Part::second}};
constexpr std::tuple step_fields{
    pair{"parts", &StepBreakdown::parts}, pair{"seconds", &StepBreakdown::seconds},
    pair{"hidden_parts", &StepBreakdown::hidden_parts}, pair{"hidden_s", &StepBreakdown::hidden_s},
    pair{"waited_s", &StepBreakdown::waited_s}};
constexpr std::tuple span_fields{pair{"rank", &Span::rank}, pair{"lane", &Span::lane},
                                 pair{"name", &Span::name}, pair{"start_s", &Span::start_s},
                                 pair{"end_s", &Span::end_s}};
using SlowPair = LinkMatrix::SlowPair;
constexpr std::tuple pair_fields{
    pair{"from", &SlowPair::from},       pair{"to", &SlowPair::to},
    pair{"metric", &SlowPair::metric},   pair{"value", &SlowPair::value},
    pair{"typical", &SlowPair::typical}, pair{"z", &SlowPair::z}};
constexpr std::tuple map_fields{pair{"name", &MemoryMap::name}, pair{"bytes", &MemoryMap::bytes},
                                pair{"events", &MemoryMap::events}};
constexpr std::tuple failed_fields{pair{"asked", &MemoryMap::asked}, pair{"free", &MemoryMap::free},
                                   pair{"longest", &MemoryMap::longest}};
using Block = MemoryMap::Block;
constexpr std::tuple block_fields{pair{"category", &Block::category},
                                  pair{"address", &Block::address}, pair{"bytes", &Block::bytes},
                                  pair{"begin", &Block::begin}, pair{"end", &Block::end}};

// The fields of a failure in addition to its kind. Unknown values are left out.
const std::pair<const char*, int machine::Failure::*> failure_fields[] = {
    {"rank", &machine::Failure::rank},
    {"peer", &machine::Failure::peer},
    {"sample", &machine::Failure::sample},
    {"summed_ranks", &machine::Failure::summed_ranks}};

double or_zero(double value) { return std::isfinite(value) ? value : 0; }

Ruling parse_ruling(const std::string& text) {
  for (const Ruling ruling : {Ruling::pass, Ruling::fail, Ruling::skipped})
    if (text == name(ruling)) return ruling;
  throw std::runtime_error(fmt::format("verdict is \"{}\"; expected pass, fail or skipped", text));
}

Oracle parse_oracle(const std::string& text) {
  for (const Oracle oracle : all_oracles)
    if (text == name(oracle)) return oracle;
  throw std::runtime_error(fmt::format("unknown oracle \"{}\"", text));
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
  all["slow_pairs"] = write_list(matrix.slow_pairs, pair_fields);
  return all;
}

Json memory_map_json(const MemoryMap& map) {
  Json all = write(map, map_fields);
  if (map.asked > 0) all["failed"] = write(map, failed_fields);
  all["blocks"] = write_list(map.blocks, block_fields);
  return all;
}

MemoryMap read_memory_map(const Json& json) {
  MemoryMap map;
  read(json, map_fields, map);
  if (const Json* const failed = json.find("failed")) read(*failed, failed_fields, map);
  read_list(json, "blocks", block_fields, map.blocks);
  return map;
}

std::vector<double> read_matrix(const Json& rows, std::size_t ranks) {
  std::vector<double> values;
  for (const auto& row : rows)
    for (const auto& value : row) values.push_back(value.get<double>());
  if (values.size() != ranks * ranks)
    throw std::runtime_error(fmt::format("a link_matrix of {} hosts has {} numbers; expected {}",
                                         ranks, values.size(), ranks * ranks));
  return values;
}

LinkMatrix read_link_matrix(const Json& json) {
  LinkMatrix matrix;
  matrix.hosts = json.at("hosts").get<std::vector<std::string>>();
  matrix.bandwidth_GBps = read_matrix(json.at("bandwidth_GBps"), matrix.hosts.size());
  matrix.latency_us = read_matrix(json.at("latency_us"), matrix.hosts.size());
  matrix.crowded_hosts = json.at("crowded_hosts").get<std::vector<std::string>>();
  read_list(json, "slow_pairs", pair_fields, matrix.slow_pairs);
  for (const SlowPair& pair : matrix.slow_pairs)
    for (const int rank : {pair.from, pair.to})
      if (rank < 0 || rank >= matrix.ranks())
        throw std::runtime_error(
            fmt::format("a slow pair has rank {} of {}", rank, matrix.ranks()));
  return matrix;
}

}  // namespace

Json failure_json(const machine::Failure& failure) {
  Json json{{"kind", name(failure.kind)}};
  for (const auto& [key, field] : failure_fields)
    if (failure.*field != machine::Failure{}.*field) json[key] = failure.*field;
  return json;
}

machine::Failure read_failure(const Json& json) {
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
  // Every consumer reads these two, also for cases without a time.
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
  if (record.traits) json["traits"] = write(*record.traits, traits_fields);
  json["verdict"] = name(record.verdict);
  json["reason"] = record.reason;
  if (record.failure) json["failure"] = failure_json(*record.failure);
  json["oracles"] = oracles_json(record.oracles);
  if (!record.note.empty()) json["note"] = record.note;
  if (!record.fingerprint.empty()) json["fingerprint"] = record.fingerprint;
  if (record.samples.iterations() > 0) {
    json["quantiles_s"] = write(record.quantiles, quantile_fields);
    json["samples"] = record.samples.iterations();
    json["samples_ranks"] = record.samples.ranks;
    json["samples_offset"] = place.samples_offset;
  }
  if (!record.timing.empty()) json["timing"] = record.timing;
  if (!record.stop.empty()) json["stop"] = record.stop;
  if (record.oversubscribed) json["oversubscribed"] = true;
  if (record.shares_cores) json["shares_cores"] = true;
  if (!record.memory.empty()) json["memory"] = write_list(record.memory, category_fields);
  if (!record.breakdown.empty()) json["breakdown_s"] = write_list(record.breakdown, part_fields);
  if (record.step_breakdown.ranks() > 0)
    json["step_breakdown"] = write(record.step_breakdown, step_fields);
  if (!record.timeline.empty()) json["timeline"] = write_list(record.timeline, span_fields);
  // A loss that is not finite ends the list, so earlier steps keep their places.
  for (const double loss : record.losses) {
    if (!std::isfinite(loss)) break;
    json["losses"].push_back(loss);
  }
  if (record.link_matrix.ranks() > 0) json["link_matrix"] = link_matrix_json(record.link_matrix);
  for (const MemoryMap& map : record.memory_maps)
    json["memory_maps"].push_back(memory_map_json(map));
  return json.dump();
}

Record read_record(const Json& json) {
  Record record;
  record.name = json.at("name").get<std::string>();
  record.unit = json.at("unit").get<std::string>();
  for (const auto& [axis, value] : json.at("case").items())
    record.axes.emplace_back(axis, value.get<std::string>());
  record.slice = json.value("slice", "");
  if (const Json* const traits = json.find("traits"))
    read(*traits, traits_fields, record.traits.emplace());
  record.repetition = json.value("repetition_index", 0);
  record.verdict = parse_ruling(json.at("verdict").get<std::string>());
  record.reason = json.value("reason", "");
  if (const Json* const failure = json.find("failure")) record.failure = read_failure(*failure);
  if (const std::string unit = json.value("time_unit", "ns"); unit != "ns")
    throw std::runtime_error(fmt::format("time_unit is \"{}\"; expected ns", unit));
  record.seconds = json.at("real_time").get<double>() * 1e-9;
  record.cpu_seconds = json.at("cpu_time").get<double>() * 1e-9;
  record.note = json.value("note", "");
  record.fingerprint = json.value("fingerprint", "");
  record.timing = json.value("timing", "");
  record.stop = json.value("stop", "");
  record.oversubscribed = json.value("oversubscribed", false);
  record.shares_cores = json.value("shares_cores", false);
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
  if (const Json* const quantiles = json.find("quantiles_s")) {
    read(*quantiles, quantile_fields, record.quantiles);
    record.quantiles.median = record.seconds;
  }
  read_list(json, "memory", category_fields, record.memory);
  read_list(json, "breakdown_s", part_fields, record.breakdown);
  if (const Json* const breakdown = json.find("step_breakdown"))
    read(*breakdown, step_fields, record.step_breakdown);
  read_list(json, "timeline", span_fields, record.timeline);
  for (const auto& loss : json.value("losses", Json::array()))
    record.losses.push_back(loss.get<double>());
  if (const Json* const matrix = json.find("link_matrix"))
    record.link_matrix = read_link_matrix(*matrix);
  for (const auto& one : json.value("memory_maps", Json::array()))
    record.memory_maps.push_back(read_memory_map(one));
  return record;
}

}  // namespace harness
