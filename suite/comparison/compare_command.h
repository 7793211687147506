#pragma once
// `shardmark compare`: two runs, or two sets of launches, against each other.

#include <string>
#include <vector>

#include "harness/compare/compare.h"

namespace suite::comparison {

// argv[1] is "compare". Returns the exit code: harness::accepted; harness::case_failed when a case
// became slower, a number changed, or what --fail-on names is there; harness::usage when the two
// are not comparable. Throws harness::UsageError.
int run_compare(int argc, char** argv);

// What a comparison can end with 1 for, beside what always counts.
std::vector<std::string> fail_on_names();
// Throws harness::UsageError for a name that is none of them.
void check_fail_on(const std::vector<std::string>& names);
int exit_code(const harness::RunComparison& comparison, const std::vector<std::string>& fail_on);

// One line: what differs, and what to do.
std::string refusal(const harness::RunComparison& comparison);

// Throws harness::UsageError naming the flag nearest to a word that is none.
void refuse_words(const std::vector<std::string>& words, std::string_view command,
                  const std::vector<std::string>& flags);

}  // namespace suite::comparison
