#include "harness/report/junit.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>

#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"

namespace harness {
namespace {

// Returns the first XML error, or an empty text. Checks that tags match, attributes are quoted,
// every & begins an entity, and text has no <.
std::string malformed(std::string_view xml) {
  std::vector<std::string> open;
  std::size_t at = xml.find("?>");
  if (!xml.starts_with("<?xml ") || at == std::string_view::npos) return "no declaration";
  at += 2;
  for (std::size_t mark = xml.find('&'); mark != std::string_view::npos;
       mark = xml.find('&', mark + 1)) {
    const auto entity = xml.substr(mark, xml.find(';', mark) - mark + 1);
    if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;" &&
        entity != "&#39;")
      return "entity at " + std::to_string(mark);
  }
  while (at < xml.size()) {
    if (xml[at++] != '<') continue;
    const bool closing = xml[at] == '/';
    if (closing) ++at;
    std::size_t end = at;
    while (std::isalnum(static_cast<unsigned char>(xml[end])) || xml[end] == '-') ++end;
    const std::string name(xml.substr(at, end - at));
    if (name.empty()) return "tag at " + std::to_string(at);
    for (at = end; xml[at] != '>' && xml[at] != '/';) {
      if (std::isspace(static_cast<unsigned char>(xml[at]))) {
        ++at;
        continue;
      }
      const std::size_t equals = xml.find("=\"", at);
      const std::size_t quote = xml.find('"', equals + 2);
      if (equals == std::string_view::npos || quote == std::string_view::npos)
        return "attribute at " + std::to_string(at);
      if (xml.substr(equals, quote - equals).find('<') != std::string_view::npos)
        return "< in an attribute";
      at = quote + 1;
    }
    if (closing) {
      if (open.empty() || open.back() != name) return "unexpected </" + name + ">";
      open.pop_back();
    } else if (xml[at] != '/') {
      open.push_back(name);
    } else {
      ++at;
    }
    ++at;
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

RunFile example() {
  RunFile run;
  run.context = {"quick", "shardmark run --x \"<&>'\"", "", "complete", "", {}};
  run.date = "2026-08-01T12:00:00+02:00";
  run.host_name = "node1";
  run.records = {example_record(0), example_record(1, Ruling::fail), example_record(2),
                 example_record(3, Ruling::skipped), example_record(4)};
  run.records[4].repetition = 1;
  return run;
}

TEST(Junit, HasASuiteForEveryUnitAndACaseForEveryRecord) {
  const std::string xml = junit_xml(example());
  EXPECT_EQ(malformed(xml), "");
  const auto contains = [&](const std::string& text) {
    return xml.find(text) != std::string::npos;
  };
  EXPECT_TRUE(
      contains(R"(<testsuites name="shardmark" tests="5" failures="1" errors="0" skipped="1")"));
  EXPECT_TRUE(
      contains(R"(<testsuite name="all_reduce" tests="4" failures="1" errors="0" skipped="1")"));
  EXPECT_TRUE(contains(R"(<testsuite name="gemm" tests="1" failures="0" errors="0" skipped="0")"));
  EXPECT_TRUE(contains(R"(timestamp="2026-08-01T12:00:00" hostname="node1")"));
  EXPECT_TRUE(contains(
      R"(<testcase classname="gemm" name="gemm/algorithm:ring/dtype:float/ranks:3/bytes:10")"));
  EXPECT_TRUE(contains("bytes:12 (repetition 1)\""));
  EXPECT_TRUE(contains(R"(<skipped message="needs 4 GPUs, found 0"/>)"));
  EXPECT_TRUE(
      contains("<failure message=\"numerics: rank 2: &quot;x&quot; &lt;b&gt;\xc3\xa9&lt;/b&gt; "
               "&amp; y, error 0.1, bound 0.01\" "
               "type=\"numerics\">"));
  EXPECT_TRUE(contains(
      R"(<property name="command" value="shardmark run --x &quot;&lt;&amp;&gt;&#39;&quot;"/>)"));
}

TEST(Junit, ACaseBelowItsExpectedSpeedIsAFailure) {
  RunFile run = example();
  Record& slow = run.records[0];
  slow.counters.insert(
      {{"expected_s", slow.seconds / 2}, {"expected_fraction", 0.5}, {"expected_floor", 0.8}});
  const std::string xml = junit_xml(run);
  EXPECT_EQ(malformed(xml), "");
  EXPECT_NE(xml.find(R"(tests="5" failures="2" errors="0" skipped="1")"), std::string::npos);
  EXPECT_NE(xml.find("<failure message=\"50 % of the expected speed (floor 80 %)"),
            std::string::npos);
}

TEST(Junit, HostileTextStaysText) {
  RunFile run = example();
  run.records[1].name = "x\"/><evil a=\"\x01\x02\xff\xc3";
  run.records[1].reason =
      "]]> <!-- \xed\xa0\x80 \xf4\x90\x80\x80 \xef\xbf\xbf & &amp; \n\t\r\x7f end";
  run.records[1].unit = "<unit>";
  run.context.status_reason = std::string("null \0 here", 11);
  const std::string xml = junit_xml(run);
  EXPECT_EQ(malformed(xml), "");
  EXPECT_EQ(xml.find("<evil"), std::string::npos);
  EXPECT_EQ(xml.find('\x01'), std::string::npos);
  EXPECT_NE(xml.find("&amp;amp;"), std::string::npos);
}

TEST(Junit, TheCheckDetectsBrokenXml) {
  const std::string xml = junit_xml(example());
  EXPECT_NE(malformed(xml.substr(0, xml.size() - 20)), "");
  std::string bad = xml;
  bad.replace(bad.find("&quot;"), 6, "&");
  EXPECT_NE(malformed(bad), "");
}

TEST(Junit, XmllintAgrees) {
  if (std::system("command -v xmllint > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "xmllint is not installed";
  const TestFolder folder;
  const std::string directory = folder.path();
  {
    RunWriter writer({"quick", "a \x02 \xff <b>", "", "complete", "", {}}, directory);
    for (const Record& record : example().records) writer.add(record);
  }
  write_junit(directory);
  EXPECT_EQ(std::system(("xmllint --noout " + directory + "/junit.xml").c_str()), 0);
}

TEST(Escaped, ReplacesInvalidCharacters) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(escaped("\x01\x7f"), r + r);
  EXPECT_EQ(escaped("\xc0\xaf"), r + r) << "overlong";
  EXPECT_EQ(escaped("\xe2\x82"), r + r) << "cut off";
}

}  // namespace
}  // namespace harness
