#include "harness/run/google_front.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <regex>

#include "harness/run/run.h"
#include "machine/base/names.h"

namespace harness {
namespace {

constexpr std::string_view prefix = "--benchmark_";

// Passed to Google Benchmark unchanged.
const std::vector<std::string> honoured = {"repetitions",
                                           "enable_random_interleaving",
                                           "report_aggregates_only",
                                           "display_aggregates_only",
                                           "color",
                                           "counters_tabular",
                                           "context",
                                           "time_unit"};
const std::vector<std::string> ours = {"filter", "list_tests", "format", "out", "out_format"};
// Decided by the sampler, not by Google Benchmark.
const std::vector<std::string> meaningless = {"min_time", "min_warmup_time", "perf_counters"};

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

bool parse_switch(const std::string& flag, const std::string& value) {
  for (const char* yes : {"", "true", "yes", "on", "1"})
    if (value == yes) return true;
  for (const char* no : {"false", "no", "off", "0"})
    if (value == no) return false;
  throw UsageError(fmt::format("{}{}: '{}' is not true or false", prefix, flag, value));
}

void check_word(const std::string& flag, const std::string& value,
                const std::vector<std::string>& words) {
  if (!contains(words, value))
    throw UsageError(machine::unknown(fmt::format("{}{}", prefix, flag), value, words));
}

std::string name_with_all_axes(const PlannedCase& one) {
  std::string name = one.unit;
  for (const auto& [axis, value] : one.axes) name += fmt::format("/{}:{}", axis, value);
  return name;
}

using Runs = std::vector<benchmark::BenchmarkReporter::Run>;

// Cases are arguments, 0, 1, ..., of few families of Google Benchmark: the time in which it looks
// for families to run grows with the square of their number (1.7). It warns of larger ones.
constexpr std::size_t cases_of_family = 100;

// Reports under the case's own name.
template <class Base>
class CaseNames final : public Base {
 public:
  template <class... Options>
  explicit CaseNames(const std::vector<PlannedCase>& cases, std::size_t width, Options... options)
      : Base(options...), cases_(cases), width_(width) {}

  bool ReportContext(const benchmark::BenchmarkReporter::Context& context) override {
    benchmark::BenchmarkReporter::Context own = context;
    own.name_field_width = std::max(own.name_field_width, width_);
    return Base::ReportContext(own);
  }

  void ReportRuns(const Runs& reports) override {
    Runs renamed = reports;
    for (auto& run : renamed) {
      run.family_index = std::stoll(run.run_name.args);
      run.per_family_instance_index = 0;
      run.run_name.function_name = cases_[static_cast<std::size_t>(run.family_index)].name;
      run.run_name.args.clear();
      run.run_name.iterations.clear();
      run.run_name.time_type.clear();
    }
    Base::ReportRuns(renamed);
  }

 private:
  const std::vector<PlannedCase>& cases_;
  const std::size_t width_;  // of the longest selected name
};

class Silent final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const Runs&) override {}
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // Google Benchmark's CSV
std::unique_ptr<benchmark::BenchmarkReporter> reporter(const std::string& format,
                                                       const std::vector<PlannedCase>& cases,
                                                       std::size_t width, bool display) {
  if (format == "json") return std::make_unique<CaseNames<benchmark::JSONReporter>>(cases, width);
  if (format == "csv") return std::make_unique<CaseNames<benchmark::CSVReporter>>(cases, width);
  if (format == "console")
    return std::make_unique<CaseNames<benchmark::ConsoleReporter>>(
        cases, width,
        display ? benchmark::ConsoleReporter::OO_Defaults : benchmark::ConsoleReporter::OO_None);
  return std::make_unique<Silent>();
}
#pragma GCC diagnostic pop

void report(benchmark::State& state, const Record& record) {
  if (record.verdict != Ruling::pass) {
    const std::string message = fmt::format("{}: {}", name(record.verdict), record.reason);
    state.SkipWithError(message.c_str());
    return;
  }
  for (auto _ : state) state.SetIterationTime(record.seconds);
  for (const auto& [counter, value] : record.counters)
    if (std::isfinite(value)) state.counters[counter] = value;
}

}  // namespace

GoogleFront::GoogleFront(const std::vector<std::string>& flags) {
  std::vector<std::string> known;
  for (const auto* words : {&honoured, &ours})
    for (const std::string& word : *words) known.push_back(std::string(prefix) + word);
  for (const std::string& flag : flags) {
    const std::size_t equals = flag.find('=');
    const std::string whole = flag.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : flag.substr(equals + 1);
    const std::string word = whole.starts_with(prefix) ? whole.substr(prefix.size()) : "";
    if (contains(meaningless, word))
      throw UsageError(
          fmt::format("{} is not supported: the sampler decides how long a case runs", whole));
    if (!contains(honoured, word) && !contains(ours, word))
      throw UsageError(machine::unknown("flag", whole, known));
    if (word == "filter")
      filter_ = value;
    else if (word == "list_tests")
      list_only_ = parse_switch(word, value);
    else if (word == "out")
      out_ = value;
    else if (word == "format" || word == "out_format")
      check_word(word, (word == "format" ? format_ : out_format_) = value,
                 {"console", "json", "csv"});
    else {
      if (word == "time_unit") {
        check_word(word, value, {"ns", "us", "ms", "s"});
      } else if (word == "repetitions") {
        repetitions_ = AxisText<int>::parse("benchmark_repetitions", value);
        if (repetitions_ < 1) throw UsageError("--benchmark_repetitions must be at least 1");
      } else if (word == "context") {
        if (value.find('=') == std::string::npos)
          throw UsageError(fmt::format("{}: '{}' is not key=value", whole, value));
      } else if (word != "color" || value != "auto") {
        parse_switch(word, value);
      }
      passed_on_.push_back(equals == std::string::npos ? flag + "=true" : flag);
    }
  }
  // Google Benchmark would end this process only.
  if (!out_.empty() && !list_only_ && !std::ofstream(out_, std::ios::app))
    throw UsageError(fmt::format("--benchmark_out: cannot write '{}'", out_));
}

std::vector<std::size_t> GoogleFront::select(const std::vector<PlannedCase>& cases) const {
  std::vector<std::size_t> selected;
  const bool negative = filter_.starts_with('-');
  const std::string pattern = filter_ == "all" ? "" : negative ? filter_.substr(1) : filter_;
  std::regex expression;
  try {
    expression = std::regex(pattern, std::regex::extended | std::regex::nosubs);
  } catch (const std::regex_error& error) {
    throw UsageError(fmt::format("--benchmark_filter: '{}' is not a regular expression: {}",
                                 filter_, error.what()));
  }
  const auto matches = [&](const PlannedCase& one) {
    return std::regex_search(one.name, expression) ||
           std::regex_search(name_with_all_axes(one), expression);
  };
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (pattern.empty() || matches(cases[i]) != negative) selected.push_back(i);
  if (selected.empty())
    throw UsageError(
        cases.empty()
            ? std::string("no case selected")
            : fmt::format("no case selected: --benchmark_filter '{}' matches none of {} names, "
                          "such as {}",
                          filter_, cases.size(), cases.front().name));
  return selected;
}

void GoogleFront::list(const std::vector<PlannedCase>& cases,
                       const std::vector<std::size_t>& selected) const {
  for (const std::size_t index : selected) fmt::print("{}\n", cases[index].name);
  std::fflush(stdout);
}

void GoogleFront::run(const std::vector<PlannedCase>& cases,
                      const std::vector<std::size_t>& selected,
                      const std::function<const Record*(std::size_t, int)>& run_case,
                      const std::function<std::string()>& why_not) const {
  std::vector<int> repetitions(cases.size(), 0);
  const auto run_one = [&](benchmark::State& state) {
    const auto i = static_cast<std::size_t>(state.range(0));
    const Record* record = run_case(i, repetitions[i]++);
    if (record)
      report(state, *record);
    else
      state.SkipWithError(why_not().c_str());
  };
  benchmark::internal::Benchmark* family = nullptr;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    if (i % cases_of_family == 0) {
      family = benchmark::RegisterBenchmark("case", run_one);
      family->Iterations(1)->UseManualTime();
    }
    family->Arg(static_cast<std::int64_t>(selected[i]));
  }
  // Google Benchmark's flags are global: reset those of an earlier run first.
  std::vector<std::string> arguments = {"shardmark",
                                        "--benchmark_repetitions=1",
                                        "--benchmark_filter=",
                                        "--benchmark_format=console",
                                        "--benchmark_out_format=" + out_format_,
                                        "--benchmark_out=" + out_};
  arguments.insert(arguments.end(), passed_on_.begin(), passed_on_.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(arguments.size());
  benchmark::Initialize(&argc, argv.data());

  std::size_t width = 0;
  for (const std::size_t i : selected) width = std::max(width, cases[i].name.size());
  const auto display = reporter(format_, cases, width, true);
  const auto file = out_.empty() ? nullptr : reporter(out_format_, cases, width, false);
  benchmark::RunSpecifiedBenchmarks(display.get(), file.get());
  benchmark::ClearRegisteredBenchmarks();
}

}  // namespace harness
