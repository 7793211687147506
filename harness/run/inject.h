#pragma once
// Faults put into a run on purpose, to show that its report names them: `--inject
// KIND:KEY=VALUE,…`. Off in every profile; a run with faults is never accepted, and says what was
// injected.
//
//   slow_rank:rank=1,seconds=5ms         late by that much in every run of a sample
//   slow_rank:rank=1,factor=2            as if it computed at half the speed
//   slow_core:rank=1,threads=2           busy threads beside it, on the cores that it is bound to
//   jitter:rank=1,seconds=20ms,probability=0.1
//   slow_link:ranks=2-3,rate=50MB/s      between two ranks, both ways, whatever the transport
//   corrupt_message:rank=1,peer=0,iteration=7,bit=3   in what rank 1 receives from 0 in sample 7
//   corrupt_result:rank=1,iteration=2,bit=30          in the matrix product number 2 while judged
//   hang, die, exit_early:rank=1,iteration=7          in sample 7 of the first case that has one
//   out_of_memory:rank=1,bytes=64KiB     allocations fail beyond that
//   slow_disk:rank=1,rate=20MB/s         of what it offloads; of rank 0, its run directory, too
//   full_disk:rank=1,bytes=1MiB          likewise: nothing is written beyond that
//   wrong_version:rank=1,library=nccl,version=2.18.3  in its fingerprint
//
// An iteration is the number of a sample, from 0, in every case that it comes to; `judging` is the
// time in which the case is judged. Seconds also have ms and us.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/fingerprint/fingerprint.h"
#include "harness/unit/unit.h"
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
inline constexpr int warm_up = -1, judging = -2, elsewhere = -3;  // beside the numbers of samples

// Throws UsageError: an unknown kind or key (naming the nearest), a value that is none, a key that
// is missing.
Fault parse_fault(std::string_view text);
// Throws UsageError for a rank that a launch of `ranks` does not have.
void check_ranks(const std::vector<Fault>& faults, int ranks);

// The faults of one rank while it lives. The world must outlive it, and has no links of its cases
// yet.
class Injector;
class Injection {
 public:
  Injection(std::vector<Fault> faults, machine::World& world);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;

  std::vector<std::string> texts() const;
  // The instance of the case `name`, with the faults around its runs and its judging.
  std::unique_ptr<Instance> with_faults(std::unique_ptr<Instance> instance,
                                        const std::string& name);
  int* sample();                      // where the sampler writes the sample's number
  InjectedVersions versions() const;  // for this rank's fingerprint

 private:
  std::unique_ptr<Injector> injector_;
};

}  // namespace harness
