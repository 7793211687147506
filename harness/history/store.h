#pragma once
// Runs over time, in one SQLite file: a table of runs, a table of their cases.
//
//   History history("results/history.sqlite");          // created if missing
//   for (const Launch& launch : launches) history.add(launch);
//   for (const Point& point : history.series("all_reduce/…")) …
//
// One program writes at a time; others wait a few seconds. Requires a file system with locks.
// Throws UsageError if the file is not a history or a name is unknown, machine::MachineError for an
// error of SQLite or the system.

#include <string>
#include <string_view>
#include <vector>

#include "harness/compare/launches.h"

struct sqlite3;

namespace harness {

struct StoredRun {
  int id = 0;  // in the order of adding
  std::string date, path, commit;
  int cases = 0, failed = 0;
  Fields fields;
};

struct Point {
  int run = 0;         // StoredRun::id
  double seconds = 0;  // median over the run's repetitions
};

struct CaseTime {
  std::string name, verdict;
  double seconds = 0;  // 0: not timed, or did not pass
};

class History {
 public:
  explicit History(const std::string& file);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Returns false if the history has this run (by its date, host and times).
  bool add(const Launch& launch);
  std::vector<StoredRun> runs() const;  // by date
  std::vector<std::string> cases() const;
  std::vector<CaseTime> cases_of(int run) const;  // by name
  // Returns the runs in which the case passed and was timed, by date.
  std::vector<Point> series(const std::string& name) const;

 private:
  void rename_cases();  // of runs that an earlier version stored (current_case_name)

  sqlite3* database_ = nullptr;
  std::string file_;
};

// Returns whether a field is the program's own version, which a history tracks.
bool is_own_version(std::string_view field);
// Fields in which two runs differ, without the program's own version.
std::vector<Difference> breaks(const StoredRun& before, const StoredRun& after);

}  // namespace harness
