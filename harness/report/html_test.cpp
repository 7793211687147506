#include "harness/report/html.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>

#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"

namespace harness {
namespace {

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

// Columns without values are not shown.
TEST_F(Html, ShowsTheWireAndTheOverlap) {
  const std::string html = page();
  EXPECT_NE(html.find(">Wire</th>"), std::string::npos);
  EXPECT_NE(html.find(">0.750 GB/s</td>"), std::string::npos);
  EXPECT_NE(html.find(">Overlap</th>"), std::string::npos);
  EXPECT_NE(html.find(">-0.25</td>"), std::string::npos);
  EXPECT_EQ(html.find("GEMM slow-down"), std::string::npos);
}

TEST_F(Html, ShowsAlgorithmsWithTheSameBits) {
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
  EXPECT_NE(same.find("<td>dtype half, ranks 2</td><td>the same for all: direct, ring</td>"),
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

TEST_F(Html, ShowsTheVerdictFirstAndTheFingerprintLast) {
  folder_.put("environment.json", R"({"same_on_all_ranks": {"cpu": "<x>"}})");
  folder_.put("figures/a.svg", "<svg></svg>");
  folder_.put("figures/figures.json", R"([{"name": "a"}])");
  const std::string html = page();
  const char* const order[] = {"<h1>REJECTED</h1>",
                               "9 passed, 1 failed, 2 skipped",
                               "Failed cases</h2>",
                               "rank 2, sample 7, caused by rank 0",
                               "Parts to take out of service</h2>",
                               "The machine</h2>",
                               "Units</h2>",
                               "Cases</h2>",
                               "Oracle results</h2>",
                               "Figures</h2>",
                               "Skipped cases</h2>",
                               "Fingerprint</h2>"};
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

TEST_F(Html, IsSelfContainedAndEscapesText) {
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
  EXPECT_EQ(count(html, "<svg onload"), 0u);
  EXPECT_EQ(count(html, "<i>"), 0u);
  EXPECT_FALSE(std::regex_search(html, std::regex(R"re(<[^>]*\s(src|href)="?(https?:)?//)re")));
  EXPECT_EQ(count(html, "@import"), 0u);
}

TEST_F(Html, FiguresAreFilesThatLoadOnDemand) {
  folder_.put("figures/a \"b.svg", std::string(1 << 20, ' '));
  folder_.put("figures/c.svg", "<svg></svg>");
  folder_.put("figures/figures.json",
              R"([{"name": "c", "kind": "loss", "about": "Loss", "group": "Training <x>",
                   "title": "Second", "caption": "How <to> read", "width": 100, "height": 50},
                  {"name": "a \"b", "kind": "memory", "group": "Memory"},
                  {"name": "../../outside", "kind": "loss"}, 7])");
  const std::string html = page();
  EXPECT_LT(html.size(), 1u << 19) << "without the drawings";
  EXPECT_NE(html.find("<img src=\"figures/c.svg\" alt=\"Second\" loading=\"lazy\" width=\"200\" "
                      "height=\"100\">"),
            std::string::npos);
  EXPECT_NE(html.find("<img src=\"figures/a%20%22b.svg\" alt=\"a &quot;b\""), std::string::npos);
  EXPECT_NE(html.find("href=\"figures/c.csv\""), std::string::npos);
  EXPECT_NE(html.find("How &lt;to&gt; read"), std::string::npos);
  EXPECT_NE(html.find("--only loss --format pdf</code>"), std::string::npos);
  EXPECT_LT(html.find("Training &lt;x&gt;"), html.find(">Memory <span")) << "the listing's order";
  EXPECT_EQ(html.find("outside"), std::string::npos);
  EXPECT_EQ(count(html, "<img"), 2u);
}

TEST_F(Html, IdsAreUniqueAndLinksHaveTargets) {
  const std::string html = page();
  std::set<std::string> ids;
  const std::regex id(R"re(\sid="([^"]*)")re");
  for (std::sregex_iterator one(html.begin(), html.end(), id), end; one != end; ++one)
    EXPECT_TRUE(ids.insert((*one)[1]).second) << (*one)[1];
  EXPECT_FALSE(ids.empty());
  const std::regex reference(R"re(href="#([^"]*))re");
  for (std::sregex_iterator one(html.begin(), html.end(), reference), end; one != end; ++one)
    EXPECT_TRUE(ids.contains((*one)[1])) << (*one)[1];
}

TEST_F(Html, TheMachineIsOnOneCard) {
  RunFile run = read_run(directory_);
  run.context.not_run = 3;
  const std::string card = machine_card(run, {{"host", "node-a x4"},
                                              {"ranks", "4"},
                                              {"hardware.cpu", "EPYC <1>"},
                                              {"hardware.cores", "2"},
                                              {"hardware.memory_bytes", "2147483648"},
                                              {"hardware.cuda_devices", "0"},
                                              {"hardware.new_part", "shown too"},
                                              {"software.mpi.version", "MPICH Version:\t4.0.2"},
                                              {"software.nccl.loaded", "absent"}});
  for (const char* words : {"EPYC &lt;1&gt;, 2 cores</dd>", "2.0 GiB", "<dt>GPUs</dt><dd>none</dd>",
                            "<dt>MPI</dt><dd>MPICH 4.0.2</dd>", "<dt>New part</dt>", "not recorded",
                            "GPUs: none found", "NCCL: not loaded", "all ranks were on one host",
                            "2 skipped cases", "3 cases after the time limit"})
    EXPECT_NE(card.find(words), std::string::npos) << words;
  const std::string cluster =
      machine_card(run, {{"host", "node-a x4, node-b x4"},
                         {"hardware.cuda_devices", "4"},
                         {"hardware.network.eth0", "up"},
                         {"hardware.network.mlx5_0", "400 Gb/sec, ACTIVE"}});
  EXPECT_NE(cluster.find("<dd>eth0 (up), mlx5_0 (400 Gb/sec, ACTIVE)</dd>"), std::string::npos);
  EXPECT_EQ(cluster.find("<dt>network"), std::string::npos);
  EXPECT_EQ(cluster.find("on one host"), std::string::npos);
  EXPECT_EQ(cluster.find("none found"), std::string::npos);
  const auto gpus = [&](const char* device, const char* is_virtual) {
    return machine_card(run, {{"hardware.cuda_devices", "4"},
                              {"hardware.device", device},
                              {"software.cuda.virtual", is_virtual}});
  };
  EXPECT_NE(gpus("NVIDIA H100", "false").find("<dd>4: NVIDIA H100</dd>"), std::string::npos);
  EXPECT_NE(gpus("host: EPYC", "false").find("<dd>4, not used</dd>"), std::string::npos);
  EXPECT_NE(gpus("host: EPYC", "true").find("<dd>4 virtual, no hardware</dd>"), std::string::npos);
}

TEST_F(Html, ARowOfAUnitShowsItsBestCase) {
  RunFile run;
  const auto add = [&run](double rate, double limit, double speedup) {
    Record& record = run.records.emplace_back(example_record(0));
    record.axes[3].second = std::to_string(run.records.size() * 1024);
    record.counters = {{"bytes", 1024.0 * static_cast<double>(run.records.size())},
                       {"busbw_GBps", rate},
                       {"limit_fraction", limit},
                       {"speedup_over_library", speedup}};
  };
  add(1, 0.9, 3);
  add(4, 0.25, 1.5);
  add(2, 0.8, 2);
  const std::string row = unit_table(run);
  EXPECT_NE(row.find(">4.00 GB/s</td>"), std::string::npos) << row;
  EXPECT_NE(row.find(">25\xe2\x80\x89%</td>"), std::string::npos) << row;
  EXPECT_NE(row.find(">1.50\xc3\x97*</td>"), std::string::npos) << row;
  EXPECT_NE(row.find("rate: 1.00 GB/s at 1 KiB to 2.00 GB/s at 3 KiB"), std::string::npos) << row;
  EXPECT_NE(row.find("<circle cx=\"59.8\" cy=\"3.0\""), std::string::npos) << "at the best" << row;
}

TEST_F(Html, ACaseShowsBothUtilizationsAndAStaleLimit) {
  RunFile run;
  for (const double mfu : {0.412, 0.398}) {
    Record& record = run.records.emplace_back(example_record(0));
    record.counters = {
        {"mfu", mfu}, {"mfu_of_gemm", 0.521}, {"limit_fraction", 1.04}, {"limit_is_stale", 1}};
  }
  const std::string tables = case_tables(run);
  EXPECT_NE(tables.find(">MFU</th>"), std::string::npos) << tables;
  EXPECT_NE(tables.find(">41\xe2\x80\x89%</td>"), std::string::npos) << tables;
  EXPECT_NE(tables.find(">MFU of GEMM</th>"), std::string::npos) << tables;
  EXPECT_NE(tables.find(">52\xe2\x80\x89%</td>"), std::string::npos) << tables;
  EXPECT_NE(tables.find(">104\xe2\x80\x89% (stale)</td>"), std::string::npos) << tables;
}

TEST_F(Html, ReportsTheCauseOfMissingFigures) {
  folder_.put("fails.py", "import sys\nprint('figures: matplotlib is missing')\nsys.exit(3)\n");
  ::setenv("SHARDMARK_FIGURES", (directory_ + "/fails.py").c_str(), 1);
  EXPECT_NE(page(true).find("There are no figures: figures: matplotlib is missing"),
            std::string::npos);
  folder_.put("draws.py",
              "import os, sys\nos.makedirs(sys.argv[1] + '/figures')\n"
              "open(sys.argv[1] + '/figures/x.svg', 'w').write('<svg></svg>')\n"
              "open(sys.argv[1] + '/figures/figures.json', 'w').write("
              "'[{\"name\": \"x\"}, {\"name\": \"y\"}]')\n");
  ::setenv("SHARDMARK_FIGURES", (directory_ + "/draws.py").c_str(), 1);
  const std::string html = page(true);
  EXPECT_NE(html.find("<img src=\"figures/x.svg\""), std::string::npos);
  EXPECT_NE(html.find("Some figures may be missing: y.svg is missing"), std::string::npos);
  ::unsetenv("SHARDMARK_FIGURES");
}

}  // namespace
}  // namespace harness
