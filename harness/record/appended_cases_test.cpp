// Cases that RunWriter appends to run.json.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "harness/record/run_json.h"
#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"
#include "machine/base/error.h"

namespace harness {
namespace {

namespace fs = std::filesystem;

class AppendedCases : public testing::Test {
 protected:
  std::string text() const { return read_bytes(directory_ + "/run.json"); }
  void put(const std::string& contents) const {
    std::ofstream(directory_ + "/run.json") << contents;
  }

  TestFolder folder_;
  const std::string directory_ = folder_.path("run");
  RunContext context_{"quick", "shardmark run --ranks 3", "", "running", "", {}};
};

// A case costs the bytes of its record, not those of the run.
TEST_F(AppendedCases, ACaseIsAppended) {
  RunWriter writer(context_, directory_);
  const auto number_of_file = [&] {
    struct stat found {};
    EXPECT_EQ(::stat((directory_ + "/run.json").c_str(), &found), 0);
    return found.st_ino;
  };
  writer.add(example_record(0));
  const ino_t before = number_of_file();
  const std::string text_before = text();
  writer.add(example_record(1));
  EXPECT_EQ(number_of_file(), before);
  const std::string kept = text_before.substr(0, text_before.size() - 7);  // without its end
  EXPECT_EQ(text().substr(0, kept.size()), kept);
  const std::string appended = text();
  writer.measured(context_);
  EXPECT_EQ(text(), appended) << "a replaced file has other bytes than an appended one";
}

// A write that a kill ends may leave any number of bytes.
TEST_F(AppendedCases, ACaseThatIsCutOffIsDropped) {
  RunWriter writer(context_, directory_);
  writer.add(example_record(0));
  const std::string before = text();
  writer.add(example_record(1));
  const std::string after = text();
  const std::size_t end = before.size() - 7;
  std::size_t whole = 0;
  const std::size_t more = after.size() - end;
  for (std::size_t bytes = 0; bytes < more; bytes += bytes < 20 || bytes + 20 > more ? 1 : 13) {
    std::string cut = after.substr(0, end + bytes);
    if (cut.size() < before.size()) cut += before.substr(cut.size());
    put(cut);
    const RunFile run = read_run(directory_);
    ASSERT_TRUE(run.records.size() == 1 || run.records.size() == 2) << bytes;
    EXPECT_EQ(run.records[0].name, example_record(0).name);
    whole += run.records.size() == 2;
  }
  EXPECT_GE(whole, 5U) << "only the end of the file is missing";
  EXPECT_LE(whole, 8U);
  put(after);
  context_.status = "complete";
  writer.finish(context_);
  put(text().substr(0, text().size() - 3));
  EXPECT_THROW(read_run(directory_), machine::UsageError);
}

TEST_F(AppendedCases, AFullDiskLeavesTheFinishedCases) {
  machine::DiskFault disk;
  RunWriter writer(context_, directory_, false, &disk);
  writer.add(example_record(0));
  const std::string before = text();
  Record record = example_record(1);
  record.samples = {};  // the first write is that of run.json
  record.trace.clear();
  disk.room = 1;
  EXPECT_THROW(writer.add(record), machine::MachineError);
  EXPECT_EQ(text(), before);
}

// A file that another process replaced is not extended.
TEST_F(AppendedCases, AnotherFileInItsPlaceIsReplaced) {
  RunWriter writer(context_, directory_);
  writer.add(example_record(0));
  put("short");
  writer.add(example_record(1));
  EXPECT_EQ(read_run(directory_).records.size(), 2U);
  fs::remove(directory_ + "/run.json");
  writer.add(example_record(2));
  EXPECT_EQ(read_run(directory_).records.size(), 3U);
}

}  // namespace
}  // namespace harness
