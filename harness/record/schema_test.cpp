// Checks a written run.json against results/run.schema.json, with a checker of the keywords used
// there.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <regex>
#include <set>

#include "harness/json/json.h"
#include "harness/record/run_json.h"
#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"

namespace harness {
namespace {
bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  throw std::runtime_error("the schema names a type that this checker does not know: " + type);
}

class Checker {
 public:
  explicit Checker(Json schema) : root_(std::move(schema)) {}
  std::vector<std::string> errors(const Json& value) {
    errors_.clear();
    check(value, root_, "");
    return errors_;
  }

 private:
  void wrong(const std::string& where, const std::string& what) {
    errors_.push_back(where + ": " + what);
  }

  void check(const Json& value, const Json& schema, const std::string& where) {
    static const std::set<std::string> known{"$schema",    "$id",
                                             "$defs",      "$ref",
                                             "title",      "description",
                                             "type",       "enum",
                                             "const",      "items",
                                             "pattern",    "required",
                                             "properties", "additionalProperties",
                                             "minimum",    "propertyNames"};
    for (const auto& [keyword, ignored] : schema.items())
      if (!known.contains(keyword))
        throw std::runtime_error("this checker does not know the keyword " + keyword);
    if (schema.contains("$ref")) {
      const std::string name =
          schema["$ref"].get<std::string>().substr(std::string("#/$defs/").size());
      return check(value, root_["$defs"].at(name), where);
    }
    if (schema.contains("type") && !has_type(value, schema["type"].text()))
      return wrong(where, "is no " + schema["type"].get<std::string>());
    if (schema.contains("const") && value != schema["const"]) wrong(where, "is " + value.dump());
    if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end())
      wrong(where, value.dump() + " is not allowed");
    if (schema.contains("minimum") && value.get<double>() < schema["minimum"].get<double>())
      wrong(where, "is too small");
    if (schema.contains("pattern") &&
        !std::regex_search(value.get<std::string>(),
                           std::regex(schema["pattern"].get<std::string>())))
      wrong(where, value.dump() + " does not match");
    if (value.is_array() && schema.contains("items"))
      for (std::size_t i = 0; i < value.size(); ++i)
        check(value[i], schema["items"], where + "/" + std::to_string(i));
    if (value.is_object()) check_object(value, schema, where);
  }

  void check_object(const Json& value, const Json& schema, const std::string& where) {
    for (const auto& key : schema.value("required", Json::array()))
      if (!value.contains(key.text())) wrong(where, "lacks " + key.text());
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [key, member] : value.items()) {
      if (schema.contains("propertyNames"))
        check(Json(key), schema["propertyNames"], where + "/" + key);
      if (properties.contains(key)) {
        check(member, properties[key], where + "/" + key);
      } else if (schema.contains("additionalProperties")) {
        const Json& rest = schema["additionalProperties"];
        if (rest.is_boolean() ? !rest.get<bool>() : false)
          wrong(where, "has an unknown key " + key);
        if (rest.is_object()) check(member, rest, where + "/" + key);
      }
    }
  }

  Json root_;
  std::vector<std::string> errors_;
};

Json load(const std::string& path) { return Json::parse(file_text(path)); }

class Schema : public testing::Test {
 protected:
  void SetUp() override {
    RunWriter writer({"quick",
                      "shardmark run",
                      "",
                      "running",
                      "",
                      {{"gemm_GFLOPs/ranks:1/dtype:float", 80.5}},
                      R"({"keys":{"a":{"value":1,"origin":"x"}},"warnings":["w"]})"},
                     directory_);
    writer.add(example_record(0));
    writer.add(example_record(1, Ruling::fail));
    writer.add(example_record(2, Ruling::skipped));
  }
  TestFolder folder_;
  const std::string directory_ = folder_.path();
  Checker checker_{load(SHARDMARK_SCHEMA)};
};

TEST_F(Schema, AWrittenRunFollowsIt) {
  EXPECT_EQ(checker_.errors(load(directory_ + "/run.json")), std::vector<std::string>{});
  mark_aborted(directory_,
               {.kind = machine::Failure::Kind::lost_rank, .rank = 1, .text = "it died"},
               example_record(4, Ruling::fail));
  EXPECT_EQ(checker_.errors(load(directory_ + "/run.json")), std::vector<std::string>{});
}

TEST_F(Schema, RejectsInvalidRuns) {
  const Json good = load(directory_ + "/run.json");
  const auto refuses = [&](const std::function<void(Json&)>& spoil, const std::string& where) {
    Json bad = good;
    spoil(bad);
    const auto errors = checker_.errors(bad);
    ASSERT_EQ(errors.size(), 1u) << where;
    EXPECT_EQ(errors[0].substr(0, where.size()), where);
  };
  refuses([](Json& run) { run["context"]["status"] = "perhaps"; }, "/context/status: ");
  refuses([](Json& run) { run["context"].erase("caches"); }, "/context: lacks caches");
  refuses([](Json& run) { run["benchmarks"][1]["verdict"] = "ok"; }, "/benchmarks/1/verdict: ");
  refuses([](Json& run) { run["benchmarks"][0].erase("real_time"); },
          "/benchmarks/0: lacks real_time");
  refuses([](Json& run) { run["benchmarks"][1]["failure"]["kind"] = "bad luck"; },
          "/benchmarks/1/failure/kind: ");
  refuses([](Json& run) { run["benchmarks"][1]["failure"]["rank"] = -1; },
          "/benchmarks/1/failure/rank: ");
  refuses([](Json& run) { run["benchmarks"][0]["oracles"]["luck"] = Json::object(); },
          "/benchmarks/0/oracles: ");
  refuses([](Json& run) { run["benchmarks"][0]["case"]["bytes"] = 8; },
          "/benchmarks/0/case/bytes: ");
  refuses([](Json& run) { run["benchmarks"][0]["busbw_GBps"] = "3"; },
          "/benchmarks/0/busbw_GBps: ");
  refuses([](Json& run) { run["benchmarks"][0]["link_matrix"].erase("hosts"); },
          "/benchmarks/0/link_matrix: lacks hosts");
  refuses([](Json& run) { run["benchmarks"][0]["link_matrix"]["latency_us"][1][2] = "slow"; },
          "/benchmarks/0/link_matrix/latency_us/1/2: ");
  refuses([](Json& run) { run["benchmarks"][0]["link_matrix"]["slow_pairs"][0]["metric"] = "x"; },
          "/benchmarks/0/link_matrix/slow_pairs/0/metric: ");
  refuses([](Json& run) { run["benchmarks"][0]["memory_maps"][1]["failed"].erase("longest"); },
          "/benchmarks/0/memory_maps/1/failed: lacks longest");
  refuses([](Json& run) { run["benchmarks"][0]["memory_maps"][0]["blocks"][0]["end"] = -1; },
          "/benchmarks/0/memory_maps/0/blocks/0/end: ");
}

}  // namespace
}  // namespace harness
