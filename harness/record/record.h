#pragma once
// One case's result. What run.json, the report and the console print comes from here and from
// nowhere else; results/README.md documents the fields.

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

// What decides that a case is right (README, "Five oracles").
enum class Oracle : unsigned char { numerics, volume, memory, schedule, determinism };
inline constexpr Oracle all_oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                         Oracle::schedule, Oracle::determinism};
std::string_view name(Oracle oracle);

// Where an oracle's expectation comes from. independent: a closed form of the literature or another
// computation. shared: it iterates the layout, plan or messages of the code that it judges.
enum class Reference : unsigned char { independent, shared };
std::string_view name(Reference reference);

// The worst finding of one oracle over all ranks: of a failure the first, else the nearest to
// failing.
struct OracleResult {
  Oracle oracle{};
  Ruling ruling = Ruling::pass;
  double measured = 0, expected = 0;  // error and bound; bytes; 0 and 0 for texts and hashes
  std::string text;  // "rank 3: blocks.1.mlp.fc1.weight, error 3.1e-7, bound 1.9e-6"
  Reference reference = Reference::independent;
  int rank = -1;  // that found it; of differing fingerprints the one unlike all others
};

// What a unit states of a case, for the search for slow parts of the machine (health).
struct Traits {
  bool equal_work = false;     // all ranks do the same work, so a rank that takes longer is slow
  bool limit_applies = false;  // a healthy machine comes near the limit
  bool uses_disk = false;      // its time is the disk's
  bool operator==(const Traits&) const = default;
};

struct CategoryBytes {
  std::string category;
  std::uint64_t measured = 0, expected = 0;
};

// A bar of a timeline.
struct Span {
  int rank = 0;
  std::string lane, name;
  double start_s = 0, end_s = 0;
};

struct Quantiles {
  double min = 0, p5 = 0, p25 = 0, median = 0, p75 = 0, p95 = 0, max = 0;
};

// t[rank][iteration], seconds.
struct SampleMatrix {
  int ranks = 0;
  std::vector<double> seconds;  // ranks * iterations, a row a rank
  int iterations() const { return ranks == 0 ? 0 : static_cast<int>(seconds.size()) / ranks; }
};

// What every ordered pair of ranks reaches: [from][to], row by row; 0 on the diagonal.
struct LinkMatrix {
  std::vector<std::string> hosts;  // of the ranks; empty: there is no matrix
  std::vector<double> bandwidth_GBps, latency_us;
  // Where ranks wait for their cores: of pairs there only those far slower are called slow.
  std::vector<std::string> crowded_hosts;

  // A pair that takes longer than such pairs do.
  struct SlowPair {
    int from = 0, to = 0;
    std::string metric;             // "bandwidth" or "latency"
    double value = 0, typical = 0;  // of its fastest pass; the median of the pairs of its kind
    double z = 0;                   // robust standard deviations of its time above that median
  };
  std::vector<SlowPair> slow_pairs;  // the worst first

  int ranks() const { return static_cast<int>(hosts.size()); }
};

// What lay where in one block of memory, and from when to when. Time is counted in events:
// allocations and what gave them back.
struct MemoryMap {
  std::string name;         // what tells it from the case's other maps
  std::uint64_t bytes = 0;  // of the memory
  std::int64_t events = 0;
  // Of an allocation that failed, which ended it: what it asked for, what was free, and the longest
  // hole. asked 0: none failed.
  std::uint64_t asked = 0, free = 0, longest = 0;

  struct Block {
    std::string category;
    std::uint64_t address = 0, bytes = 0;
    std::int64_t begin = 0, end = 0;  // end: events, of what was never given back
    bool operator==(const Block&) const = default;
  };
  std::vector<Block> blocks;
  bool operator==(const MemoryMap&) const = default;
};

// Where one step's time went on every rank, [rank][part]: a rank's parts sum to its step. What
// ran beside the rank's own thread is apart; waited_s is [rank][rank waited for], within the parts.
struct StepBreakdown {
  std::vector<std::string> parts, hidden_parts;
  std::vector<std::vector<double>> seconds, hidden_s, waited_s;
  int ranks() const { return static_cast<int>(seconds.size()); }
  bool operator==(const StepBreakdown&) const = default;
};

// The part of a record that the unit fills (Description, description.h).
struct Described {
  std::string note;         // what a reader should know: the algorithm that auto picked
  std::string fingerprint;  // hash of rank 0's result of real numbers: equal bits, equal text
  std::vector<std::pair<std::string, double>> breakdown;  // seconds
  StepBreakdown step_breakdown;
  std::vector<Span> timeline;
  std::vector<Span> trace;  // one step of every rank, for trace.json alone
  std::vector<double> losses;
  LinkMatrix link_matrix;
  std::vector<MemoryMap> memory_maps;
};

struct Record : Described {
  std::string unit, name;
  std::vector<std::pair<std::string, std::string>> axes;  // in the order of the name
  std::string slice;                                      // of the profile: harness/unit/sweep.h
  int repetition = 0;
  std::optional<Traits> traits;  // unknown of runs that were written without them

  Ruling verdict = Ruling::skipped;
  std::string reason;
  std::optional<machine::Failure> failure;  // why it failed; read from a file, without its text
  std::vector<OracleResult> oracles;

  double seconds = 0;      // headline: median over iterations of the maximum over ranks
  double cpu_seconds = 0;  // of this rank's process, per iteration
  Quantiles quantiles;
  std::string timing;           // sample, loop, window, armed (sampler.h)
  bool oversubscribed = false;  // ranks shared a GPU: what they took says nothing about speed
  std::string stop;             // converged, time_cap, sample_cap
  SampleMatrix samples;
  std::map<std::string, double> counters;  // counters.h
  std::vector<CategoryBytes> memory;
};
// A counter's value, or otherwise where the record has none, or none that is finite.
double counter(const Record& record, const std::string& key, double otherwise = 0);
// An axis's value, empty where the case has no such axis.
std::string axis(const Record& record, std::string_view name);

// What a launch is about, beside its records: run.json's context.
struct RunContext {
  std::string profile, command, out_dir;
  std::string status = "running", status_reason;
  std::map<std::string, double> rates;  // "copy_GBps/ranks:2/bytes:1048576" and the like
  std::string configuration = {};  // JSON: what configuration files came to; empty: there were none
  std::vector<std::string> words = {};     // of the command line, for who continues the run
  std::vector<std::string> resumed = {};   // when it was continued, as dates
  int not_run = 0;                         // cases that the run's time left out
  std::vector<std::string> injected = {};  // faults put in on purpose
  // Why the run was aborted; read from a file, without its text, which is status_reason.
  std::optional<machine::Failure> failure = {};
};

}  // namespace harness
