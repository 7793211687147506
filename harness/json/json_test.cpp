#include "harness/json/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>

namespace harness {
namespace {

TEST(Json, KeepsTypesAndOrderOfMembers) {
  const Json run{{"z", 1},
                 {"a", {1.5, -2, true, nullptr, "text"}},
                 {"none", Json::object()},
                 {"nested", {{"b", std::vector<int>{}}}}};
  EXPECT_EQ(run.dump(), R"({"z":1,"a":[1.5,-2,true,null,"text"],"none":{},"nested":{"b":[]}})");
  EXPECT_EQ(Json::parse(run.dump()), run);
  EXPECT_EQ(Json(std::map<std::string, double>{{"x", 0.1}}).dump(), R"({"x":0.1})");
  EXPECT_EQ((Json{{"rank", 0}, {"host", "a"}}.dump(1)), "{\n \"rank\": 0,\n \"host\": \"a\"\n}");
}

TEST(Json, KeepsEveryNumber) {
  const auto largest = std::numeric_limits<std::uint64_t>::max();
  const auto least = std::numeric_limits<std::int64_t>::min();
  const Json read = Json::parse(Json{largest, least, 0.1, 1e300}.dump());
  EXPECT_EQ(read[0].get<std::uint64_t>(), largest);
  EXPECT_EQ(read[1].get<std::int64_t>(), least);
  EXPECT_EQ(read[2].get<double>(), 0.1);
  EXPECT_EQ(read[3].get<double>(), 1e300);
  EXPECT_EQ(Json(-1), Json(-1.0));
  EXPECT_FALSE(Json(-1) == Json(largest));
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, ALaterMemberReplacesAnEarlierOneOfTheSameKey) {
  const Json read = Json::parse(R"({"a": 1, "b": 2, "a": {"c": 3}})");
  EXPECT_EQ(read.dump(), R"({"a":{"c":3},"b":2})");
}

TEST(Json, ObjectsAreEqualInAnyOrder) {
  EXPECT_EQ((Json{{"a", 1}, {"b", 2}}), (Json{{"b", 2}, {"a", 1}}));
  EXPECT_FALSE((Json{{"a", 1}, {"b", 2}}) == (Json{{"b", 2}, {"c", 1}}));
  EXPECT_FALSE((Json{1, 2}) == (Json{2, 1}));
}

TEST(Json, FindsByKeysAndIndices) {
  const Json run = Json::parse(R"({"ranks": [{"host": "a"}, {"host": "b"}]})");
  ASSERT_NE(run.find_path("/ranks/1/host"), nullptr);
  EXPECT_EQ(run.find_path("/ranks/1/host")->text(), "b");
  EXPECT_EQ(run.find_path("/ranks/2/host"), nullptr);
  EXPECT_EQ(run.find_path("/ranks/host"), nullptr);
  EXPECT_EQ(run.find_path("/rank"), nullptr);
  EXPECT_EQ(run.value("name", "unknown"), "unknown");
}

TEST(Json, ReplacesBytesThatAreNotUtf8) { EXPECT_EQ(Json("a\xff").dump(), "\"a\xef\xbf\xbd\""); }

JsonError::Kind kind_of(const std::function<void()>& call, std::size_t* byte = nullptr) {
  try {
    call();
  } catch (const JsonError& error) {
    if (byte != nullptr) *byte = error.byte;
    return error.kind;
  }
  ADD_FAILURE() << "throws nothing";
  return {};
}

TEST(Json, SaysWhatIsWrong) {
  using Kind = JsonError::Kind;
  std::size_t byte = 0;
  EXPECT_EQ(kind_of([] { Json::parse("[1, 2"); }, &byte), Kind::syntax);
  EXPECT_EQ(byte, 6u);
  EXPECT_EQ(kind_of([] { Json::parse("[1e400]"); }), Kind::number_too_large);
  EXPECT_EQ(kind_of([] { Json::parse("[[[1]]]", 2); }), Kind::too_deep);
  EXPECT_EQ(kind_of([] { Json::parse(std::string(1000, '[')); }), Kind::too_deep);
  EXPECT_EQ(Json::parse("[[1]]", 2)[0][0], 1);
  const Json one{{"rank", 0}};
  EXPECT_EQ(kind_of([&] { (void)one.at("host"); }), Kind::missing);
  EXPECT_EQ(kind_of([&] { (void)one.at("rank").text(); }), Kind::type);
  EXPECT_EQ(kind_of([&] { (void)one["rank"].at("host"); }), Kind::type);
  EXPECT_EQ(kind_of([&] { (void)(Json{1, 2})[2]; }), Kind::missing);
  EXPECT_TRUE(Json::parse_or_null("{").is_null());
}

}  // namespace
}  // namespace harness
