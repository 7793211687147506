#pragma once
// A thread in every rank that ends the launch if a rank is lost, so that the others do not wait.
//
// It increments this rank's heartbeat and checks the other ranks every 200 ms. If a rank is lost
// (diagnosis.h) it waits a second for further reasons. Then the lowest responsive rank marks the
// run aborted with the current case, rewrites junit.xml and report.html, prints one line to stderr,
// kills ranks of this host that do not stop, and ends with exit code 4. The others also end with 4.
// Ranks that are threads of one process are not watched.
//
// Launchers kill all ranks if one is killed; SupervisedRank (supervisor.h) prevents that. MPICH's
// mpiexec also needs -disable-auto-cleanup. Otherwise it kills all ranks if one ends early, and
// returns 9 instead of 4.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "machine/base/failure.h"
#include "machine/world/world.h"

namespace harness {

class Sink;

class Watchdog {
 public:
  // World and sink must outlive it. timeout_s: World's; the watchdog reports a little before waits
  // time out, while every rank still shows its peer. names: the cases that may run, because the
  // board truncates long names. sink: writes to out_dir in this process; null: another process
  // does.
  Watchdog(machine::World& world, std::string out_dir, double timeout_s,
           std::vector<std::string> names = {}, Sink* sink = nullptr);
  // Stops watching. If a rank has failed it reports and does not return.
  ~Watchdog();

  // Reports why this rank cannot continue, then ends the process with code 4.
  [[noreturn]] void give_up(const machine::Failure& failure);

 private:
  class Eye;
  void watch();
  bool anybody_reported() const;
  void end_launch();

  machine::World& world_;
  std::string out_dir_;
  Sink* sink_;
  double timeout_s_;
  std::unique_ptr<Eye> eye_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace harness
