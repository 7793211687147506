#pragma once
// A thread in every rank that ends the launch when a rank is lost, instead of letting the others
// wait.
//
// It shows the others that this process lives, looks at them every 200 ms, and when one is lost
// (diagnosis.h) waits a second for further reasons. Then the lowest rank that still can marks the
// run aborted with the case that ran, rewrites junit.xml and report.html, prints one line to
// stderr, kills what of this host's ranks does not stop by itself, and ends with exit code 4; the
// others end with 4 too. Ranks that are threads of one process are not watched.
//
// Launchers kill all ranks when one is killed; SupervisedRank (supervisor.h) keeps them from it.
// MPICH's mpiexec wants -disable-auto-cleanup besides, or it also does so when a rank ends early by
// itself, and returns 9 in the place of 4.

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
  // World and sink must outlive it. timeout_s: of World; the watchdog reports a little earlier than
  // waits give up, while every rank still shows which rank it waits for. names: of the cases that
  // may run, for those longer than the board has room for. sink: which writes to out_dir in this
  // process; null: another process does.
  Watchdog(machine::World& world, std::string out_dir, double timeout_s,
           std::vector<std::string> names = {}, Sink* sink = nullptr);
  // Ends watching. If a rank has failed by then it does not return: the report comes first.
  ~Watchdog();

  // This rank cannot go on: reports why, then ends the process with code 4.
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
