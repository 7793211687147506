#include "suite/files/hostfile.h"

#include "suite/testing/file_case.h"

namespace suite {
namespace {

using testing::expect_words;

class Hostfile : public ::testing::Test {
 protected:
  // Returns the hosts as "a:4 b:1", or the error message.
  std::string read(const std::string& text) const {
    testing::write_bytes(folder_.path("hosts"), text);
    std::string hosts;
    try {
      for (const HostSlots& host : read_hostfile(folder_.path("hosts")))
        hosts += (hosts.empty() ? "" : " ") + host.name + ":" + std::to_string(host.slots);
    } catch (const harness::UsageError& error) {
      return error.what();
    }
    return hosts;
  }
  const testing::Folder folder_;
};

TEST_F(Hostfile, ReadsTheFormatOfEveryLauncher) {
  EXPECT_EQ(read("worker-1 slots=4\nworker-2 slots=2\n"), "worker-1:4 worker-2:2");  // DeepSpeed
  EXPECT_EQ(read("a slots=4 max_slots=8 # all\n\n  b\n"), "a:4 b:1");                // Open MPI
  EXPECT_EQ(read("a:2\nb.lan:16"), "a:2 b.lan:16");                                  // MPICH
  EXPECT_EQ(read("a\nb\na\na\n"), "a:3 b:1");                                        // Slurm
  EXPECT_EQ(read("node[08-10,3]-ib slots=8"), "node08-ib:8 node09-ib:8 node10-ib:8 node3-ib:8");
}

TEST_F(Hostfile, ReadsManyHosts) {
  testing::write_bytes(folder_.path("hosts"), "er[01-100000]\na\ner[1-9]\n");
  EXPECT_EQ(read_hostfile(folder_.path("hosts")).size(), 100'010u);
}

TEST_F(Hostfile, RejectsInvalidLinesWithTheirNumber) {
  expect_words(read("a\nb slot=4\n"), {"hosts, line 2", "'slot=4'", "slots=N"});
  expect_words(read("a slots=0"), {"line 1", "'0'", "1 to 4096"});
  expect_words(read("a:x"), {"'x'"});
  expect_words(read("a:4 slots=4"), {"twice"});
  expect_words(read("a slots=4\na slots=4"), {"line 2", "a is given twice"});
  expect_words(read("a slots=4\na"), {"line 2", "twice"});
  expect_words(read("n[1-3"), {"'n[1-3'", "brackets"});
  expect_words(read("n[3-1]"), {"'3-1'", "range"});
  expect_words(read("n[1-9999999]"), {"range"});
  expect_words(read("-launcher"), {"'-launcher'", "not a host name"});
  expect_words(read("# none\n"), {"contains no host"});
  EXPECT_THROW(read_hostfile(folder_.path("")), harness::UsageError);
}

}  // namespace
}  // namespace suite
