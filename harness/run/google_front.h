#pragma once
// Google Benchmark as the front of a run, on rank 0: its flags select, repeat and print the cases.
// The times come from the sampler (manual time, one iteration per repetition).
//
// --benchmark_filter and --benchmark_list_tests act on the cases' own names, without the
// "/iterations:1/manual_time" that Google Benchmark would append; its reports leave that out too.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "harness/record/record.h"
#include "harness/unit/unit.h"

namespace harness {

class GoogleFront {
 public:
  // Throws UsageError for an unknown flag (with the nearest), an unsupported flag, a malformed
  // value, or a --benchmark_out that cannot be written.
  explicit GoogleFront(const std::vector<std::string>& flags);

  bool list_only() const { return list_only_; }
  int repetitions() const { return repetitions_; }  // of each case
  // Indices of the cases whose names, short or with all axes, match --benchmark_filter ('-' in
  // front: do not match). Throws UsageError with the filter if no case matches or it is not a
  // regular expression.
  std::vector<std::size_t> select(const std::vector<PlannedCase>& cases) const;
  void list(const std::vector<PlannedCase>& cases, const std::vector<std::size_t>& selected) const;

  // Calls run_case(index, repetition) --benchmark_repetitions times for each selected case and
  // reports the record. Null: the case was not run, and why_not() is the reason.
  void run(const std::vector<PlannedCase>& cases, const std::vector<std::size_t>& selected,
           const std::function<const Record*(std::size_t, int)>& run_case,
           const std::function<std::string()>& why_not) const;

 private:
  std::vector<std::string> passed_on_;  // flags that Google Benchmark itself acts on
  std::string filter_, format_, out_, out_format_ = "json";
  bool list_only_ = false;
  int repetitions_ = 1;
};

}  // namespace harness
