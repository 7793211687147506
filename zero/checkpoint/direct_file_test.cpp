#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/direct_reader.h"
#include "zero/checkpoint/direct_writer.h"

namespace zero {
namespace {

// Runs each test with io_uring, if the kernel has it, and without.
class DirectFiles : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const std::string why = IoRing::why_not(); GetParam() && !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { std::filesystem::remove(path); }

  // Several slots of the writer, and neither whole slots nor whole pages.
  static std::string numbers() {
    std::mt19937 random(7);  // NOLINT: the same numbers every time
    std::string bytes(std::size_t{21'000'077}, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  }
  void write(const std::string& bytes) const {
    DirectWriter writer(path, 3, GetParam());
    std::size_t length = 1;
    for (std::size_t at = 0; at < bytes.size(); at += length, length = 3 * length + 1)
      writer.write(bytes.data() + at, std::min(length, bytes.size() - at));
    EXPECT_EQ(writer.bytes(), bytes.size());
    writer.finish();
  }

  const std::string path = ::testing::TempDir() + "direct_file_" + std::to_string(::getpid());
};

TEST_P(DirectFiles, HoldWhatWasWritten) {
  for (const std::string& bytes :
       {numbers(), std::string(), std::string("a line"), std::string(std::size_t{8} << 20, 'x')}) {
    write(bytes);
    std::ifstream file(path, std::ios::binary);
    const std::string found{std::istreambuf_iterator<char>(file), {}};
    ASSERT_EQ(found.size(), bytes.size());
    EXPECT_TRUE(found == bytes);
  }
}

TEST_P(DirectFiles, AnyPartIsRead) {
  const std::string bytes = numbers();
  write(bytes);
  DirectReader reader(GetParam());
  const std::size_t all = bytes.size(), page = 4096, mega = std::size_t{1} << 20;
  for (const auto& [offset, count] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, all},
                                                        {64, 9 * mega + 5},
                                                        {page, 2 * mega},
                                                        {all - mega - 1, mega + 1},
                                                        {all - 100, 100},
                                                        {128, 0},
                                                        {3 * page - 64, mega}}) {
    std::string arrived;
    std::size_t odd = 0;  // bytes of the parts before the last
    const std::byte* const read =
        reader.read(path, offset, count, [&](const void* part, std::size_t size) {
          odd = arrived.size();
          arrived.append(static_cast<const char*>(part), size);
        });
    EXPECT_TRUE(arrived == bytes.substr(offset, count)) << offset << " " << count;
    EXPECT_EQ(std::memcmp(read, bytes.data() + offset, count), 0) << offset << " " << count;
    if (offset % 64 == 0) EXPECT_EQ(odd % 64, 0u) << offset << " " << count;
  }
}

TEST_P(DirectFiles, APartBeyondTheEndIsRefused) {
  write(std::string(std::size_t{3} << 20, 'x'));
  DirectReader reader(GetParam());
  const auto nothing = [](const void*, std::size_t) {};
  try {
    reader.read(path, std::size_t{2} << 20, std::size_t{2} << 20, nothing);
    ADD_FAILURE() << "it was read";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()), path + ": it is truncated");
  }
  EXPECT_THROW(reader.read(path + ".none", 0, 1, nothing), CheckpointError);
}

TEST_P(DirectFiles, AreRemovedUnlessFinished) {
  {
    DirectWriter writer(path, 0, GetParam());
    const std::string bytes(std::size_t{9} << 20, 'x');
    writer.write(bytes.data(), bytes.size());
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  try {
    const DirectWriter writer("/nowhere/at/all", 2, GetParam());
    ADD_FAILURE() << "it was created";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()),
              "cannot create /nowhere/at/all of rank 2: No such file or directory");
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DirectFiles, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Ring" : "Calls"; });

}  // namespace
}  // namespace zero
