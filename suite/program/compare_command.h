#pragma once
// `shardmark compare`: two runs, or two sets of launches, against each other.

#include <string>
#include <string_view>
#include <vector>

#include "harness/compare/compare.h"

namespace CLI {
class App;
}

namespace suite::comparison {

// argv[1] is "compare". Returns the exit code: harness::accepted; harness::case_failed when a case
// became slower, a number changed, or what --fail-on names is there; harness::usage when the two
// are not comparable. Throws harness::UsageError.
int run_compare(int argc, char** argv);

// What two sides are compared by, whoever made them.
struct Comparing {
  harness::CompareOptions options;
  std::vector<std::string> fail_on;  // what ends with 1, beside what always does
  bool all = false;                  // list every case, however many

  void add_flags(CLI::App& app);
  // argv without its first two words. Returns the help if that is asked for, else nothing. Throws
  // harness::UsageError.
  std::string parse(CLI::App& app, int argc, char** argv);
  int exit_code(const harness::RunComparison& comparison) const;

 private:
  double floor_percent_ = -1;  // negative: not given
};

// One line: what differs, and what to do.
std::string refusal(const harness::RunComparison& comparison);

// Throws harness::UsageError naming the flag nearest to a word that is none.
void refuse_words(const std::vector<std::string>& words, std::string_view command,
                  const std::vector<std::string>& flags);

}  // namespace suite::comparison
