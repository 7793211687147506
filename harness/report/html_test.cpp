#include "harness/report/html.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>

#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"

namespace harness {
namespace {

constexpr auto drawing = R"svg(<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "x" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="244.8pt" height="180pt" viewBox="0 0 244.8 180" xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata><rdf about="x"/></metadata>
 <defs><path id="m1" d="M 0 0 L 9 9"/><clipPath id="p1"><rect width="9" height="9"/></clipPath></defs>
 <g id="figure_1" clip-path="url(#p1)"><use xlink:href="#m1" x="1"/><text font-size="9">a</text></g>
</svg>
)svg";

class Html : public testing::Test {
 protected:
  void SetUp() override {
    RunWriter writer({"quick",
                      "shardmark run --filter '<b>&'",
                      "",
                      "running",
                      "",
                      {{"copy_GBps/ranks:2", 12.5}}},
                     directory_);
    for (int i = 0; i < 12; ++i)
      writer.add(example_record(i, i == 3       ? Ruling::fail
                                   : i % 5 == 4 ? Ruling::skipped
                                                : Ruling::pass));
    writer.finish({"quick", "shardmark run --filter '<b>&'", "", "complete", "", {}});
  }
  std::string page(bool draw = false) const {
    write_report(directory_, draw);
    return folder_.text("report.html");
  }
  TestFolder folder_;
  const std::string directory_ = folder_.path();
};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
    ++found;
  return found;
}

// And not the columns that no case fills.
TEST_F(Html, ShowsTheWireAndWhatIsHidden) {
  const std::string html = page();
  EXPECT_NE(html.find(">Wire</th>"), std::string::npos);
  EXPECT_NE(html.find(">0.750 GB/s</td>"), std::string::npos);
  EXPECT_NE(html.find(">Overlap</th>"), std::string::npos);
  EXPECT_NE(html.find(">-0.25</td>"), std::string::npos);
  EXPECT_EQ(html.find("GEMM slow-down"), std::string::npos);
}

TEST_F(Html, SaysWhichAlgorithmsGiveTheSameBits) {
  RunFile run;
  const auto add = [&](const std::string& algorithm, const std::string& bytes,
                       const std::string& fingerprint, const std::string& ranks = "2") {
    Record& record = run.records.emplace_back(example_record(0));
    record.axes = {{"algorithm", algorithm},
                   {"transport", "mpi"},
                   {"dtype", "half"},
                   {"ranks", ranks},
                   {"bytes", bytes}};
    record.fingerprint = fingerprint;
  };
  add("ring", "8", "1");
  EXPECT_EQ(bits_table(run), "");
  add("direct", "8", "1");
  const std::string same = bits_table(run);
  EXPECT_NE(same.find("<td>dtype half, ranks 2</td><td>the same of all: direct, ring</td>"),
            std::string::npos)
      << same;
  for (const auto& [algorithm, fingerprint] :
       {std::pair{"ring", "2"}, {"direct", "3"}, {"library", "3"}})
    add(algorithm, "64", fingerprint);
  add("ring", "64", "7", "4");
  const std::string different = bits_table(run);
  EXPECT_NE(different.find("<td>2 different at 64 bytes: ring; direct = library</td>"),
            std::string::npos)
      << different;
  EXPECT_EQ(different.find("ranks 4"), std::string::npos);
}

TEST_F(Html, SaysTheVerdictFirstAndTheMachineLast) {
  folder_.put("environment.json", R"({"same_on_all_ranks": {"cpu": "<x>"}})");
  folder_.put("figures/a.svg", drawing);
  const std::string html = page();
  const char* const order[] = {"<h1>REJECTED</h1>", "9 passed, 1 failed, 2 skipped",
                               "Failed cases",      "Skipped cases",
                               "Figures",           "Every case",
                               "Oracle results",    "The machine",
                               "Fingerprint"};
  std::size_t at = 0;
  for (const char* const part : order) {
    const std::size_t next = html.find(part, at);
    ASSERT_NE(next, std::string::npos) << part;
    at = next;
  }
  EXPECT_NE(html.find("needs 4 GPUs, found 0"), std::string::npos);
  EXPECT_NE(html.find("&quot;cpu&quot;: &quot;&lt;x&gt;&quot;"), std::string::npos);
  EXPECT_EQ(count(html, "<tr><td><span class=\"verdict"), 12u);
}

TEST_F(Html, AsksForNothingElseAndLetsNoTextBecomeMarkup) {
  Record hostile = example_record(50, Ruling::fail);
  hostile.unit = "<script>alert(1)</script>";
  hostile.name = hostile.unit + "/x:\"'>";
  hostile.axes = {{"<i>", "</td><img src=x onerror=alert(2)>"}};
  hostile.reason = "</p><script src=http://example.org/x.js></script>";
  hostile.oracles[0].text = "<svg onload=alert(3)>";
  { RunWriter({"<p>", "</code><script>", "", "complete", "", {}}, directory_).add(hostile); }
  const std::string html = page();
  EXPECT_EQ(count(html, "<script"), 1u) << "the page's own";
  EXPECT_EQ(count(html, "<img"), 0u);
  EXPECT_EQ(count(html, "<svg"), 0u);
  EXPECT_FALSE(std::regex_search(html, std::regex(R"re(<[^>]*\s(src|href)="?(https?:)?//)re")));
  EXPECT_EQ(count(html, "@import"), 0u);
}

TEST_F(Html, FiguresStandInThePageWithIdsOfTheirOwn) {
  folder_.put("figures/a.svg", drawing);
  folder_.put("figures/b.svg", drawing);
  folder_.put("figures/a.csv", "bytes,\"busbw, GB/s\"\n8,1.5\n\"a \"\"q\"\"\",2\n");
  folder_.put("figures/figures.json",
              R"([{"name": "b", "title": "Second", "caption": "How <to> read"}, {"name": "a"}])");
  const std::string html = page();
  EXPECT_EQ(count(html, "<svg"), 2u);
  EXPECT_EQ(count(html, "<?xml"), 0u);
  EXPECT_EQ(count(html, "<metadata"), 0u);
  EXPECT_LT(html.find("Second."), html.find("aria-label=\"a\"")) << "in the listing's order";
  EXPECT_NE(html.find("How &lt;to&gt; read"), std::string::npos);
  EXPECT_NE(html.find("<th>busbw, GB/s</th>"), std::string::npos);
  EXPECT_NE(html.find("<td>a &quot;q&quot;</td>"), std::string::npos);
  std::set<std::string> ids;
  const std::regex id(R"re(\sid="([^"]*)")re");
  for (std::sregex_iterator one(html.begin(), html.end(), id), end; one != end; ++one)
    EXPECT_TRUE(ids.insert((*one)[1]).second) << (*one)[1];
  const std::regex reference(R"re((?:url\(|href=")#([^")]*))re");
  for (std::sregex_iterator one(html.begin(), html.end(), reference), end; one != end; ++one)
    EXPECT_TRUE(ids.contains((*one)[1])) << (*one)[1];
}

TEST_F(Html, SaysWhyThereAreNoFigures) {
  folder_.put("fails.py", "import sys\nprint('figures: matplotlib is missing')\nsys.exit(3)\n");
  ::setenv("SHARDMARK_FIGURES", (directory_ + "/fails.py").c_str(), 1);
  EXPECT_NE(page(true).find("There are no figures: figures: matplotlib is missing"),
            std::string::npos);
  folder_.put(
      "draws.py",
      "import os, sys\nos.makedirs(sys.argv[1] + '/figures')\n"
      "open(sys.argv[1] + '/figures/x.svg', 'w').write('<svg width=\"9\" height=\"7\"></svg>')\n");
  ::setenv("SHARDMARK_FIGURES", (directory_ + "/draws.py").c_str(), 1);
  const std::string html = page(true);
  EXPECT_NE(html.find("<svg viewBox=\"0 0 9 7\" role=\"img\" aria-label=\"x\">"),
            std::string::npos);
  EXPECT_EQ(html.find("figures:"), std::string::npos);
  ::unsetenv("SHARDMARK_FIGURES");
}

TEST(InlinedSvg, RefusesWhatIsNoDrawing) {
  EXPECT_EQ(inlined_svg("", "f-", "x"), "");
  EXPECT_EQ(inlined_svg("<svg>", "f-", "x"), "");
  EXPECT_EQ(inlined_svg("<svg><script>alert(1)</script></svg>", "f-", "x"), "");
}

TEST(Csv, QuotesCommasAndLines) {
  using Rows = std::vector<std::vector<std::string>>;
  EXPECT_EQ(parse_csv("a,b\r\n1,\r\n"), (Rows{{"a", "b"}, {"1", ""}}));
  EXPECT_EQ(parse_csv("\"x,\"\"y\nz\",2"), (Rows{{"x,\"y\nz", "2"}}));
  EXPECT_EQ(parse_csv("\n\na\n"), (Rows{{"a"}}));
  EXPECT_TRUE(parse_csv("").empty());
}

}  // namespace
}  // namespace harness
