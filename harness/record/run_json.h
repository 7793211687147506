#pragma once
// A run directory's run.json and samples.bin: extended after every case, read as a whole.
//
//   RunWriter writer(context, "results/runs/today");
//   writer.add(record);                  // after every case: finished cases are on disk
//   context.status = "complete";
//   writer.finish(context);
//   RunFile run = read_run("results/runs/today");
//
// The keys are Google Benchmark's (version 1.7.1) and those of results/README.md. A number that is
// NaN or infinite is left out; a double in the file reads back bit for bit (a record's two times
// pass through nanoseconds).

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"
#include "harness/record/sink.h"
#include "harness/record/trace.h"
#include "machine/base/disk_fault.h"

namespace harness {

struct OpenFile {
  int descriptor = -1;
  ~OpenFile();
};

class RunWriter final : public Sink {
 public:
  // Creates the directory and writes a run.json without cases, after removing an older run's files.
  // continues: appends to the finished cases of the run there (read_finished). Throws UsageError if
  // the path cannot be a directory (a file is there). Throws machine::MachineError for an error of
  // the system (permission, full disk), or if another writer has the directory. Errors have path
  // and reason. `disk`, if any, must outlive this.
  RunWriter(RunContext context, const std::string& directory, bool continues = false,
            machine::DiskFault* disk = nullptr);

  void started(const std::string& name) override;
  // Appends the samples to samples.bin, the trace to trace.json and the record to run.json. On an
  // error the cases of the directory are unchanged. Earlier records of this name keep their number
  // of repetitions until finish or measured.
  void add(const Record& record) override;
  // Both replace run.json with this context: status, reason, rates.
  void finish(const RunContext& context) override;
  void measured(const RunContext& context) override;
  // mark_aborted; drops later writes. May be called by another thread.
  void abort(const machine::Failure& failure, const Record& failing) override;

 private:
  // A case's name and JSON. Its number of repetitions may be that of an earlier moment.
  struct Entry {
    std::string name, text;
  };
  void take_up();
  int repetitions(const std::string& name, int repetition);
  // Places of unit and name, assigned when they first appear.
  std::pair<int, int> place(const std::string& unit, const std::string& name);
  void write();
  void append();

  std::string directory_;
  machine::DiskFault* disk_;
  RunContext context_;
  std::string constant_context_;  // the constant part of the context, as JSON
  std::vector<Entry> entries_;
  std::map<std::string, int> repetitions_;               // by case name
  std::map<std::string, std::pair<int, int>> families_;  // unit -> its index, names so far
  std::map<std::string, int> instance_;                  // case name -> index in its family
  std::uint64_t samples_bytes_ = 0, run_bytes_ = 0;      // of the files
  OpenFile samples_file_;                                // locked, to keep other writers away
  std::optional<TraceWriter> trace_;
  mutable std::mutex writing_;  // run.json
  bool aborted_ = false;
};

struct RunFile {
  RunContext context;  // out_dir: the directory it was read from
  std::string date, host_name;
  // Other keys of the context about machine and build, as JSON text: "mhz_per_cpu" -> "2596".
  std::map<std::string, std::string> machine;
  std::vector<Record> records;
};

// Reads a run directory, or its run.json. Reads samples.bin if it exists. Throws UsageError with
// file and place if it is missing, cut off, or not a run. The last case of a run that was killed
// may be cut off; it is dropped.
RunFile read_run(const std::string& given);

// Reads the cases that need not run again: without samples, and without the case that was running
// when a rank was lost. Also throws UsageError if run.json lacks the words of its command line.
RunFile read_finished(const std::string& directory);

// Marks the run in `directory` aborted by this failure and adds the case that ran (in place of its
// own record, if that is the last and failed). An aborted run keeps its failure, unless only the
// new failure has a lost rank. For a process without a RunWriter of the directory. Throws like
// RunWriter.
void mark_aborted(const std::string& directory, const machine::Failure& failure,
                  const Record& failing);

// Replaces a file by renaming, so that a reader sees the old text or the new one.
void write_file(const std::string& path, std::string_view text, machine::DiskFault* disk = nullptr);
// Writes all of text at this offset of an open file. `path` is for errors.
void write_at(int file, std::string_view text, std::uint64_t offset, const std::string& path,
              machine::DiskFault* disk = nullptr);
// Returns the text of a file; empty if it cannot be read.
std::string file_text(const std::string& path);

}  // namespace harness
