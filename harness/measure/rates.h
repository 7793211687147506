#pragma once
// The measured limits of this machine, to compare a case's time with: rates of copying memory and
// of updating it in place by working set, of receiving from another rank, and of multiplying
// matrices, with 1 … all ranks active. Each rate is an upper bound: the best of several batches.
// If ranks share the memory, all of them are active in each batch.
// Copies use the faster way to store, through the cache or bypassing it. limit.h has the limit that
// follows from a case's cost.

#include <compare>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "machine/device/dtype.h"
#include "machine/link/link.h"
#include "machine/world/world.h"

namespace harness {

// Identifies the rate of receiving from the previous rank, in a ring of all ranks at once.
struct LinkKey {
  int ranks = 0;
  machine::Transport transport{};
  // The sender has just written the bytes, so they come from its cache. Otherwise they are
  // unchanged since they were received last. A difference for shared_memory only.
  bool fresh = false;
  auto operator<=>(const LinkKey&) const = default;
};

// Selects one rate: the matrix rate of a dtype, the copy rate or the rate of updates in place of a
// working set, or the rate of a transport for a working set.
struct RateKey {
  enum class Kind : unsigned char { none, matrix, memory, update, link };
  Kind kind = Kind::none;
  int ranks = 0;
  machine::Dtype dtype{};
  machine::Transport transport{};
  double working_set_bytes = 0;
  auto operator<=>(const RateKey&) const = default;
};
// "the matrix rate of bfloat16", "the copy rate", "the rate of nccl".
std::string text_of(const RateKey& key);

class Rates {
 public:
  // Returns the bytes read plus written per second and rank, if `ranks` ranks copy working sets of
  // this size (source plus destination), each with all threads of its device. Interpolates linearly
  // in the logarithm of the size. 0: not measured.
  double memory_bytes_per_second(double working_set_bytes, int ranks) const;
  // Returns the same of updates in place (sums of floats into one array or three, on a host), or
  // the copy rate if it is higher. A copy reads each line of its target before it overwrites it, or
  // bypasses the caches.
  double update_bytes_per_second(double working_set_bytes, int ranks) const;
  // Returns the bytes received per second and rank, each counted once. The working set is the bytes
  // that one rank sends plus those it receives.
  double link_bytes_per_second(double working_set_bytes, const LinkKey& key) const;
  // Returns the best sustained rate of matrix products of a GPU (matrix_rate.h).
  double flops_per_second(machine::Dtype dtype, int ranks) const;
  // For run.json: "copy_GBps/ranks:2/bytes:1048576", "update_GBps/ranks:2/bytes:1048576",
  // "link_GBps/transport:shared_memory/state:fresh/ranks:2/bytes:1048576",
  // "peak_GFLOPs/dtype:bfloat16".
  std::map<std::string, double> named() const;

  // Set a rate directly.
  void set_memory(int ranks, double working_set_bytes, double bytes_per_second);
  void set_update(int ranks, double working_set_bytes, double bytes_per_second);
  void set_link(const LinkKey& key, double working_set_bytes, double bytes_per_second);
  void set_flops(int ranks, machine::Dtype dtype, double flops_per_second);
  // Sets the vendor's dense peak (machine/device/dense_peak.h), for named() only. 0: unknown.
  void set_peak(machine::Dtype dtype, double flops_per_second);

  // Measure with the first `ranks` ranks active, unless the rates are already known. Links are
  // measured only if the transport can connect these ranks. Collective over the world. On a host
  // one to three seconds each, on GPUs some seconds. Every rank gets the same numbers: means over
  // ranks. Both leave World::set_active_ranks at `ranks`.
  void measure(machine::World& world, int ranks);
  void measure_link(machine::World& world, int ranks, machine::Transport transport);

  // Measures a known rate again, and keeps the better number. Collective over the key's ranks, the
  // first of the world; other ranks do not use the rate. Returns false without measuring if the
  // rate was measured again most_again times.
  static constexpr int most_again = 12;
  bool measure_again(machine::World& world, const RateKey& key);

 private:
  using Curve = std::map<double, double>;  // working set -> bytes/s

  std::map<int, Curve> copy_, update_;  // by ranks
  std::set<int> without_rates_;         // numbers of ranks that take turns on a GPU or on cores
  std::map<LinkKey, Curve> link_;
  std::map<std::pair<int, machine::Dtype>, double> gemm_;  // (ranks, dtype) -> FLOP/s
  std::map<machine::Dtype, double> peak_;                  // FLOP/s
  std::map<RateKey, int> again_;                           // measurements after the first
};

}  // namespace harness
