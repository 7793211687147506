#pragma once
// Deliberate faults, to show that the report names them: `--inject KIND:KEY=VALUE,…`. Off in every
// profile. A run with faults is never accepted, and lists them.
//
//   slow_rank:rank=1,seconds=5ms         late by this time in every run of a sample
//   slow_rank:rank=1,factor=2            as if it computed at half the speed
//   slow_core:rank=1,threads=2           busy threads on the cores that the rank is bound to
//   jitter:rank=1,seconds=20ms,probability=0.1
//   slow_link:ranks=2-3,rate=50MB/s      between two ranks, both directions, any transport
//   corrupt_message:rank=1,peer=0,iteration=7,bit=3   in sample 7, from rank 0 to rank 1
//   corrupt_result:rank=1,iteration=2,bit=30          in the matrix product number 2 of judging
//   hang, die, exit_early:rank=1,iteration=7          in sample 7 of the first case that has one
//   out_of_memory:rank=1,bytes=64KiB     allocations fail beyond that
//   slow_disk:rank=1,rate=20MB/s         of its offloading; on rank 0 also of the run directory
//   full_disk:rank=1,bytes=1MiB          the same files: writes beyond that fail
//   wrong_version:rank=1,library=nccl,version=2.18.3  in its fingerprint
//
// An iteration is the number of a sample, from 0, in every case that reaches it, or `judging`.
// Seconds may have the units ms and us.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "harness/fingerprint/fingerprint.h"
#include "harness/unit/unit.h"
#include "machine/base/disk_fault.h"
#include "machine/device/gemm.h"
#include "machine/world/world.h"

namespace harness {

struct Fault {
  std::string text, kind;  // as given
  int rank = -1, peer = -1;
  int iteration = 0;
  std::uint64_t bit = 0;
  double factor = 1, seconds = 0, probability = 0, bytes_per_second = 0;
  std::int64_t bytes = 0;
  int threads = 1;
  std::string library, version;
};
inline constexpr int warm_up = -1, judging = -2,
                     elsewhere = -3;  // in addition to the numbers of samples

// Throws UsageError: an unknown kind or key (with the nearest), an invalid value, a missing key.
Fault parse_fault(std::string_view text);
// Throws UsageError for a rank that a launch of `ranks` does not have.
void check_ranks(const std::vector<Fault>& faults, int ranks);

// The active faults of one rank. The world must outlive it, and has no links of its cases yet.
class Injection {
 public:
  Injection(std::vector<Fault> faults, machine::World& world);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;

  std::vector<std::string> texts() const;
  int* sample() { return &sample_; }  // the sampler writes the sample's number here
  InjectedVersions versions() const;  // for this rank's fingerprint
  void set_case(const std::string& name) { case_ = name; }
  // Run and judge a unit with the faults.
  void run(Instance& instance);
  void judge(Instance& instance, Judge& judge);

 private:
  bool mine(const Fault& fault) const { return fault.rank == world_.rank(); }
  void begin(const Fault& fault);
  // Called around a run of the unit in a sample, and around its judging.
  void before(bool judges);
  void after(double own_s);
  // Called after a matrix product is written.
  void product(machine::Stream& stream, const machine::Matrix& c);
  // Reports the fault, once per sample, which may be a batch of runs.
  void report(const Fault& fault);

  std::vector<Fault> faults_;
  machine::World& world_;
  std::string case_, reported_;
  int sample_ = warm_up;
  int at_ = elsewhere;
  std::vector<bool> due_;  // by fault
  std::uint64_t runs_ = 0;
  int products_ = 0;
  machine::DiskFault disk_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> busy_;
};

}  // namespace harness
