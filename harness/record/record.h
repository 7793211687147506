#pragma once
// One case's result: the only source of run.json, the report and the console. results/README.md
// documents the fields.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/base/failure.h"

namespace harness {

enum class Ruling : unsigned char { pass, fail, skipped };
std::string_view name(Ruling ruling);

// Decides whether a case is right (README, "Five oracles").
enum class Oracle : unsigned char { numerics, volume, memory, schedule, determinism };
inline constexpr Oracle all_oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                         Oracle::schedule, Oracle::determinism};
std::string_view name(Oracle oracle);

// The source of an oracle's expectation. independent: a closed form of the literature or another
// computation. shared: it iterates the layout, plan or messages of the judged code.
enum class Reference : unsigned char { independent, shared };
std::string_view name(Reference reference);

// The worst finding of one oracle over all ranks: the first failure, or else the finding nearest to
// failing.
struct OracleResult {
  Oracle oracle{};
  Ruling ruling = Ruling::pass;
  double measured = 0, expected = 0;  // error and bound; bytes; 0 and 0 for texts and hashes
  std::string text;  // "rank 3: blocks.1.mlp.fc1.weight, error 3.1e-7, bound 1.9e-6"
  Reference reference = Reference::independent;
  int rank = -1;  // that found it; if fingerprints differ, the only different rank
  static auto members(auto& self) {
    return std::tie(self.oracle, self.ruling, self.measured, self.expected, self.text,
                    self.reference, self.rank);
  }
};

// Properties of a case that a unit states, for the search for slow parts of the machine (health).
struct Traits {
  bool equal_work = false;     // all ranks do the same work, so a rank that takes longer is slow
  bool limit_applies = false;  // a healthy machine comes near the limit
  bool uses_disk = false;      // the disk determines its time
  bool operator==(const Traits&) const = default;
};

struct CategoryBytes {
  std::string category;
  std::uint64_t measured = 0, expected = 0;
  static auto members(auto& self) { return std::tie(self.category, self.measured, self.expected); }
};

// A bar of a timeline.
struct Span {
  int rank = 0;
  std::string lane, name;
  double start_s = 0, end_s = 0;
  static auto members(auto& self) {
    return std::tie(self.rank, self.lane, self.name, self.start_s, self.end_s);
  }
};

struct Quantiles {
  double min = 0, p5 = 0, p25 = 0, median = 0, p75 = 0, p95 = 0, max = 0;
};

// t[rank][iteration], seconds.
struct SampleMatrix {
  int ranks = 0;
  std::vector<double> seconds;  // ranks * iterations, one row per rank
  int iterations() const { return ranks == 0 ? 0 : static_cast<int>(seconds.size()) / ranks; }
};

// Rates of every ordered pair of ranks: [from][to], row by row; 0 on the diagonal.
struct LinkMatrix {
  std::vector<std::string> hosts;  // of the ranks; empty: no matrix
  std::vector<double> bandwidth_GBps, latency_us;
  // Hosts whose ranks wait for their cores. A pair there counts as slow only if it is much slower.
  std::vector<std::string> crowded_hosts;

  // A pair that takes longer than similar pairs.
  struct SlowPair {
    int from = 0, to = 0;
    std::string metric;             // "bandwidth" or "latency"
    double value = 0, typical = 0;  // its fastest pass; the median of its kind of pairs
    double z = 0;                   // robust standard deviations of its time above that median
  };
  std::vector<SlowPair> slow_pairs;  // the worst first

  int ranks() const { return static_cast<int>(hosts.size()); }
};

// Addresses and lifetimes of the allocations in one block of memory. Time is counted in events:
// allocations and frees.
struct MemoryMap {
  std::string name;         // distinguishes the case's maps
  std::uint64_t bytes = 0;  // of the memory
  std::int64_t events = 0;
  // The allocation that failed and ended the map: requested bytes, free bytes, longest hole. asked
  // 0: no allocation failed.
  std::uint64_t asked = 0, free = 0, longest = 0;

  struct Block {
    std::string category;
    std::uint64_t address = 0, bytes = 0;
    std::int64_t begin = 0, end = 0;  // end: events if never freed
    bool operator==(const Block&) const = default;
  };
  std::vector<Block> blocks;
  bool operator==(const MemoryMap&) const = default;
};

// The time of one step by part on every rank, [rank][part]: a rank's parts sum to its step. Hidden
// parts ran concurrently with the rank's own thread. waited_s is [rank][rank waited for], within
// the parts.
struct StepBreakdown {
  std::vector<std::string> parts, hidden_parts;
  std::vector<std::vector<double>> seconds, hidden_s, waited_s;
  int ranks() const { return static_cast<int>(seconds.size()); }
  bool operator==(const StepBreakdown&) const = default;
};

// The part of a record that the unit fills (Description, description.h).
struct Described {
  std::string note;         // for the reader: the algorithm that auto picked
  std::string fingerprint;  // hash of rank 0's result of real numbers
  std::vector<std::pair<std::string, double>> breakdown;  // seconds
  StepBreakdown step_breakdown;
  std::vector<Span> timeline;
  std::vector<Span> trace;  // one step of every rank, only for trace.json
  std::vector<double> losses;
  LinkMatrix link_matrix;
  std::vector<MemoryMap> memory_maps;
};

struct Record : Described {
  std::string unit, name;
  std::vector<std::pair<std::string, std::string>> axes;  // in the order of the name
  std::string slice;                                      // of the profile (sweep.h)
  int repetition = 0;
  std::optional<Traits> traits;  // unknown in runs of older programs

  Ruling verdict = Ruling::skipped;
  std::string reason;
  std::optional<machine::Failure> failure;  // of a failed case; without text if read from a file
  std::vector<OracleResult> oracles;

  double seconds = 0;      // headline: median over iterations of the maximum over ranks
  double cpu_seconds = 0;  // of this rank's process, per iteration
  Quantiles quantiles;
  std::string timing;           // sample, loop, window, armed (sampler.h)
  bool oversubscribed = false;  // ranks shared a GPU, so times do not show speed
  bool shares_cores = false;    // more ranks than cores, so the times include scheduling
  std::string stop;             // converged, time_cap, sample_cap
  SampleMatrix samples;
  std::map<std::string, double> counters;  // counters.h
  std::vector<CategoryBytes> memory;
};
// Returns a counter's value; `otherwise` if it is missing or not finite.
double counter(const Record& record, const std::string& key, double otherwise = 0);
// Returns an axis's value; empty if the case lacks the axis.
std::string axis(const Record& record, std::string_view name);

// The GPUs of all hosts of a launch.
struct Gpus {
  int seen = 0;             // by the ranks or by the driver
  int tested = 0;           // those of the ranks of passed cases
  bool is_virtual = false;  // machine/virtual_gpu: the run does not show hardware
  bool operator==(const Gpus&) const = default;
};

// run.json's context: the data of a launch in addition to its records.
struct RunContext {
  std::string profile, command, out_dir;
  std::string status = "running", status_reason;
  std::map<std::string, double> rates;  // "copy_GBps/ranks:2/bytes:1048576" and the like
  std::string configuration = {};       // JSON of the configuration files' result; empty: no files
  std::vector<std::string> words = {};  // of the command line, to continue the run
  std::vector<std::string> resumed = {};   // when it was continued, as dates
  int not_run = 0;                         // cases left out by the time limit
  std::vector<std::string> injected = {};  // deliberate faults
  // The failure that aborted the run. If read from a file, its text is only in status_reason.
  std::optional<machine::Failure> failure = {};
  Gpus gpus = {};
};

}  // namespace harness
