#include "harness/record/run_json.h"
#include "harness/record/running_case.h"
#include "harness/run/run.h"

namespace harness {
namespace {

class RunDirectory final : public Sink {
 public:
  RunDirectory(const RunContext& context, const std::string& directory, bool continues,
               machine::DiskFault* disk)
      : writer_(context, directory, continues, disk) {}
  void started(const std::string& name) override { say_running(writer_.directory(), name); }
  void add(const Record& record) override { writer_.add(record); }
  void finish(const RunContext& context) override {
    writer_.finish(context);
    say_none_runs(writer_.directory());
  }
  void abort(const machine::Failure& failure, const Record& lost) override {
    writer_.abort(failure, lost);
  }
  void measured(const RunContext& context) override { writer_.finish(context); }

 private:
  RunWriter writer_;
};

}  // namespace

std::unique_ptr<Sink> write_to(const RunContext& context, const std::string& directory,
                               bool continues, machine::DiskFault* disk) {
  return std::make_unique<RunDirectory>(context, directory, continues, disk);
}

}  // namespace harness
