#include "harness/report/previous_run.h"

#include <gtest/gtest.h>

#include "harness/testing/example_runs.h"

namespace harness {
namespace {

class PreviousRunTest : public testing::Test {
 protected:
  // Writes a run with this date. In its fingerprint, `to` replaces `from`.
  std::string run(const std::string& name, const std::string& date,
                  const std::vector<Record>& records, const std::string& from = "",
                  const std::string& to = "") const {
    const std::string path = folder_.run(name, records, from, to);
    std::string text = folder_.text(name + "/run.json");
    const std::size_t at = text.find("\"date\": \"") + 9;
    text.replace(at, text.find('"', at) - at, date);
    folder_.put(name + "/run.json", text);
    return path;
  }
  static std::optional<PreviousRun> previous(const std::string& path) {
    const RunFile file = read_run(path);
    return previous_run(path, file, read_fields(path, file));
  }

  RunFolder folder_;
};

TEST_F(PreviousRunTest, IsTheLatestOlderRunOfTheSameMachine) {
  const std::vector<Record> records{timed_case("8", 1e-6)};
  run("a", "2026-01-01T00:00:00+00:00", records);
  run("b", "2026-01-02T00:00:00+00:00", records, "2.28.3", "2.18.3");
  run("another_cpu", "2026-01-03T00:00:00+00:00", records, "EPYC", "Xeon");
  run("other_cases", "2026-01-03T00:00:00+00:00", {timed_case("1024", 1e-6)});
  const std::string now = run("now", "2026-01-04T00:00:00+00:00", records);
  run("later", "2026-01-05T00:00:00+00:00", records);
  folder_.put("torn/run.json", "{\"context\": {\"date\": \"2026-01-03T01:00:00+00:00\", ");
  const std::optional<PreviousRun> found = previous(now);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "b");
  EXPECT_FALSE(previous(folder_.path("a"))) << "the first run has none";
}

TEST_F(PreviousRunTest, ShowsChangedVerdictsAndTheLargestChanges) {
  std::vector<Record> before, now;
  for (int i = 0; i < 20; ++i) {
    before.push_back(timed_case(std::to_string(8 << i), 1e-3));
    now.push_back(timed_case(std::to_string(8 << i), i < 10 ? 1e-3 * (2 + i) : 1e-3));
  }
  before[12].verdict = Ruling::fail;
  now[15].seconds = 0.5e-3;
  run("before", "2026-01-01T00:00:00+00:00", before);
  const std::optional<PreviousRun> found =
      previous(run("now", "2026-01-02T00:00:00+00:00", now, "2.28.3", "2.18.3"));
  ASSERT_TRUE(found);
  const std::string html = previous_run_html(*found);
  for (const char* words :
       {"<td>fail</td><td>pass</td>", "10 took longer and 1 took less time", "+1000", "-50",
        "no change of a time is statistically certain", "software.nccl"})
    EXPECT_NE(html.find(words), std::string::npos) << words << "\n" << html;
  EXPECT_EQ(html.find("+400"), std::string::npos) << "only the largest";
}

}  // namespace
}  // namespace harness
