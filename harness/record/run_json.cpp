#include "harness/record/run_json.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "harness/json/json.h"
#include "harness/record/record_json.h"
#include "harness/record/running_case.h"
#include "machine/base/disk_fault.h"
#include "machine/base/error.h"

namespace harness {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view schema_family = "shardmark-run/";
constexpr std::string_view schema = "shardmark-run/2";
// An older schema that is also read. It has only the texts of failures.
constexpr std::string_view older_schema = "shardmark-run/1";

[[noreturn]] void refuse(const std::string& path, int error) {
  const std::string line = fmt::format("cannot write to {}: {}", path, std::strerror(error));
  if (error == ENOTDIR || error == EEXIST || error == ENAMETOOLONG || error == ENOENT ||
      error == EISDIR)
    throw machine::UsageError(line);
  throw machine::MachineError(line, machine::kind_of_errno(error));
}

void make_directory(const std::string& directory) {
  if (directory.empty())
    throw machine::UsageError("cannot write to \"\": the output directory has no name");
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) refuse(directory, failed.value());
  if (!fs::is_directory(directory, failed)) refuse(directory, ENOTDIR);
}

bool holds_a_run(const std::string& directory) {
  std::ifstream file(directory + "/run.json");
  std::string start(8192, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  return start.find(schema_family) != std::string::npos;
}

constexpr std::string_view parts[] = {"environment.json", "junit.xml",  "report.html",
                                      "trace.json",       "drain.json", "cluster.toml",
                                      "run.json"};

// Returns whether write_file left this file when its process was killed: "run.json.1234.tmp".
bool is_left_over(const std::string& file) {
  return file.ends_with(".tmp") && std::ranges::any_of(parts, [&](std::string_view part) {
           return file.starts_with(part) &&
                  file.find_first_not_of("0123456789", part.size() + 1) == file.size() - 4;
         });
}

// A directory must not show one run's cases with another's figures. run.json is removed last, so
// that the next run removes the rest if this process is killed halfway.
void remove_older_run(const std::string& directory) {
  std::error_code ignored;
  std::vector<fs::path> left_over;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (is_left_over(entry.path().filename().string())) left_over.push_back(entry.path());
  for (const fs::path& path : left_over) fs::remove(path, ignored);
  if (!holds_a_run(directory)) return;
  fs::remove_all(directory + "/figures", ignored);
  for (const std::string_view part : parts)
    fs::remove(fmt::format("{}/{}", directory, part), ignored);
  say_none_runs(directory);
}

// The keys that context_json() adds to the constant ones.
constexpr const char* changing[] = {
    "profile", "command",       "words",    "configuration", "status",    "rates", "status_reason",
    "resumed", "cases_not_run", "injected", "failure",       "lost_rank", "gpus"};

void put_failure(Json& context, const machine::Failure& failure) {
  context["failure"] = failure_json(failure);
  context.erase("lost_rank");
  if (const int rank = machine::lost_rank(failure); rank >= 0) context["lost_rank"] = rank;
}

Json context_json(const std::string& constant, const RunContext& context) {
  Json json = Json::parse(constant);
  json["profile"] = context.profile;
  json["command"] = context.command;
  if (!context.words.empty()) json["words"] = context.words;
  if (!context.configuration.empty()) json["configuration"] = Json::parse(context.configuration);
  if (!context.injected.empty()) json["injected"] = context.injected;
  json["status"] = context.status;
  json["status_reason"] = context.status_reason;
  if (context.failure) put_failure(json, *context.failure);
  if (!context.resumed.empty()) json["resumed"] = context.resumed;
  if (context.not_run > 0) json["cases_not_run"] = context.not_run;
  if (const Gpus& gpus = context.gpus; gpus.seen > 0)
    json["gpus"] = {{"seen", gpus.seen}, {"tested", gpus.tested}, {"virtual", gpus.is_virtual}};
  Json& rates = json["rates"] = Json::object();
  for (const auto& [what, rate] : context.rates)
    if (std::isfinite(rate)) rates[what] = rate;
  return json;
}

constexpr std::string_view end_of_run = "\n  ]\n}\n";

std::string separator(bool first) { return first ? "\n    " : ",\n    "; }

// run.json: a line for each key of the context and for each record's text.
std::string run_text(const Json& context, const auto& records) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : context.items())
    lines.push_back(fmt::format("    {}: {}", Json(key).dump(), value.dump()));
  return fmt::format("{{\n  \"context\": {{\n{}\n  }},\n  \"benchmarks\": [{}{}{}",
                     fmt::join(lines, ",\n"), records.empty() ? "" : separator(true),
                     fmt::join(records, separator(false)), end_of_run);
}

// Writes all of text from this offset on. Returns 0 or the error.
int write_all(int file, std::string_view text, std::uint64_t offset, machine::DiskFault* disk) {
  for (std::size_t done = 0; done < text.size();) {
    ssize_t wrote =
        ::pwrite(file, text.data() + done, text.size() - done, static_cast<off_t>(offset + done));
    if (wrote < 0)
      wrote = -errno;
    else if (disk)
      wrote = static_cast<ssize_t>(disk->result(wrote, true));
    if (wrote < 0 && wrote != -EINTR) return static_cast<int>(-wrote);
    if (wrote > 0) done += static_cast<std::size_t>(wrote);
  }
  return 0;
}

// Deeper than the format. Writing and printing recurse.
constexpr int deepest = 24;

// RunWriter::add appends to run.json. A kill in that moment cuts off a record, which was not
// finished, or the end. Returns the rest of the run, if that is what happened to this text.
std::optional<Json> before_cut(const std::string& text, std::size_t error) {
  std::string_view rest = std::string_view(text).substr(0, std::max<std::size_t>(error, 1) - 1);
  std::size_t ended = end_of_run.size();  // bytes of the end that are there
  while (!rest.ends_with(end_of_run.substr(0, ended))) --ended;
  rest.remove_suffix(ended);
  for (std::string_view kept : {rest, rest.substr(0, std::min(rest.rfind('\n'), rest.size()))}) {
    kept = kept.substr(0, kept.find_last_not_of(", \n") + 1);
    Json json = Json::parse_or_null(std::string(kept) + std::string(end_of_run));
    const Json* const context = json.is_object() ? json.find("context") : nullptr;
    if (context && context->is_object() && (*context)["status"] == "running") return json;
  }
  return std::nullopt;
}

Json parse(const std::string& path) {
  if (!std::ifstream(path, std::ios::binary))
    throw machine::UsageError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  const std::string text = file_text(path);
  try {
    return Json::parse(text, deepest);
  } catch (const JsonError& error) {
    if (error.kind == JsonError::Kind::too_deep)
      throw machine::UsageError(
          fmt::format("{} is nested more than {} levels deep", path, deepest));
    if (error.kind == JsonError::Kind::number_too_large)
      throw machine::UsageError(fmt::format("{} contains a number that is too large", path));
    if (std::optional<Json> rest = before_cut(text, error.byte)) return *std::move(rest);
    const auto before =
        text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    const auto line = 1 + std::count(text.begin(), before, '\n');
    throw machine::UsageError(fmt::format("{} is cut off or not JSON: line {}, byte {} of {}", path,
                                          line, error.byte, text.size()));
  }
}

const Json& context_of(const Json& json, const std::string& path) {
  if (!json.is_object() || !json.contains("context") || !json.contains("benchmarks"))
    throw machine::UsageError(
        fmt::format("{} is not a run: it has no context and benchmarks", path));
  const Json& context = json["context"];
  if (!context.is_object() || !context.contains("schema"))
    throw machine::UsageError(
        fmt::format("{} was not written by shardmark: its context names no schema", path));
  if (context["schema"] != schema && context["schema"] != older_schema)
    throw machine::UsageError(
        fmt::format("{} has schema {}; expected \"{}\"", path, context["schema"].dump(), schema));
  return context;
}

// Returns the number of finished entries, without a case that ran when a rank was lost. That case
// is the last one and failed.
std::size_t finished_entries(const Json& json) {
  const Json& entries = json["benchmarks"];
  const bool torn = json["context"].value("status", "") == "aborted" && !entries.empty() &&
                    entries.back().value("verdict", "") == "fail";
  return entries.size() - torn;
}

void read_samples(std::ifstream& file, const std::string& path, const Json& entry, Record& record) {
  if (!entry.contains("samples_offset")) return;
  const auto offset = entry["samples_offset"].get<std::uint64_t>();
  const auto ranks = entry.at("samples_ranks").get<int>();
  const auto iterations = entry.at("samples").get<int>();
  if (ranks < 1 || iterations < 0)
    throw std::runtime_error(
        fmt::format("samples of {} ranks and {} iterations", ranks, iterations));
  const std::uint64_t bytes =
      sizeof(double) * static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(iterations);
  // Checked before the allocation: a wrong number may exceed the memory.
  file.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(std::max<std::streamoff>(0, file.tellg()));
  if (bytes > size || offset > size - bytes)
    throw machine::UsageError(fmt::format("{} is cut off: {} has samples at bytes {} to {}", path,
                                          record.name, offset, offset + bytes));
  record.samples.ranks = ranks;
  record.samples.seconds.resize(bytes / sizeof(double));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(record.samples.seconds.data()),
            static_cast<std::streamsize>(bytes));
}

}  // namespace

void write_file(const std::string& path, std::string_view text, machine::DiskFault* disk) {
  const std::string beside = fmt::format("{}.{}.tmp", path, ::getpid());
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) refuse(path, errno);
  int error = write_all(file, text, 0, disk);
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  ::unlink(beside.c_str());
  refuse(path, error);
}

void write_at(int file, std::string_view text, std::uint64_t offset, const std::string& path,
              machine::DiskFault* disk) {
  if (const int error = write_all(file, text, offset, disk); error != 0) refuse(path, error);
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

RunWriter::RunWriter(RunContext context, const std::string& directory, bool continues,
                     machine::DiskFault* disk)
    : directory_(directory),
      disk_(disk),
      context_(std::move(context)),
      constant_context_(machine_context(schema).dump()) {
  make_directory(directory_);
  const std::string samples = directory_ + "/samples.bin";
  int& file = samples_file_.descriptor;
  file = ::open(samples.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) refuse(samples, errno);
  // The lock ends with the process. Not every file system has locks.
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw machine::MachineError(
        fmt::format("cannot write to {}: another run is writing there", directory_));
  if (continues)
    take_up();
  else
    remove_older_run(directory_);
  if (::ftruncate(file, static_cast<off_t>(samples_bytes_)) != 0) refuse(samples, errno);
  trace_.emplace(directory_, entries_.size());
  write();
}

OpenFile::~OpenFile() {
  if (descriptor >= 0) ::close(descriptor);
}

// Keeps the entries and the constant part of the context, such as the date of the first launch.
void RunWriter::take_up() {
  const std::string path = directory_ + "/run.json";
  const Json json = parse(path);
  Json constant = context_of(json, path);
  for (const char* key : changing) constant.erase(key);
  constant["schema"] = schema;
  constant_context_ = constant.dump();
  const Json& entries = json["benchmarks"];
  const std::size_t count = finished_entries(json);
  for (std::size_t i = 0; i < count; ++i) {
    const Json& entry = entries[i];
    const auto name = entry.at("name").get<std::string>();
    place(entry.at("unit").get<std::string>(), name);
    entries_.push_back({name, entry.dump()});
    repetitions(name, entry.value("repetition_index", 0));
    if (entry.contains("samples_offset"))
      samples_bytes_ =
          std::max(samples_bytes_, entry["samples_offset"].get<std::uint64_t>() +
                                       sizeof(double) * entry.at("samples").get<std::uint64_t>() *
                                           entry.at("samples_ranks").get<std::uint64_t>());
  }
}

std::pair<int, int> RunWriter::place(const std::string& unit, const std::string& name) {
  const auto [family, new_family] =
      families_.try_emplace(unit, static_cast<int>(families_.size()), 0);
  const auto [instance, new_name] = instance_.try_emplace(name, family->second.second);
  if (new_name) ++family->second.second;
  return {family->second.first, instance->second};
}

int RunWriter::repetitions(const std::string& name, int repetition) {
  int& repetitions = repetitions_[name];
  repetitions = std::max(repetitions, repetition + 1);
  return repetitions;
}

void RunWriter::started(const std::string& name) { say_running(directory_, name); }

void RunWriter::add(const Record& record) {
  const std::string_view samples(reinterpret_cast<const char*>(record.samples.seconds.data()),
                                 record.samples.seconds.size() * sizeof(double));
  // Written before run.json refers to them.
  write_at(samples_file_.descriptor, samples, samples_bytes_, directory_ + "/samples.bin", disk_);
  const auto [family, instance] = place(record.unit, record.name);
  const int repeated = repetitions(record.name, record.repetition);
  entries_.push_back(
      {record.name, record_json(record, {family, instance, repeated, samples_bytes_})});
  samples_bytes_ += samples.size();
  trace_->add(entries_.size() - 1, record);
  append();
}

void RunWriter::finish(const RunContext& context) {
  measured(context);
  say_none_runs(directory_);
}

void RunWriter::measured(const RunContext& context) {
  context_ = context;
  write();
}

void RunWriter::write() {
  constexpr std::string_view key = "\"repetitions\":";
  std::vector<std::string_view> records;
  for (Entry& entry : entries_) {
    const std::size_t number = entry.text.find(key) + key.size();
    entry.text.replace(number, entry.text.find(',', number) - number,
                       std::to_string(repetitions_.at(entry.name)));
    records.push_back(entry.text);
  }
  const std::string text = run_text(context_json(constant_context_, context_), records);
  const std::lock_guard lock(writing_);
  if (aborted_) return;
  write_file(directory_ + "/run.json", text, disk_);
  run_bytes_ = text.size();
}

// Replacing the file after every case would take a time quadratic in the cases.
void RunWriter::append() {
  std::unique_lock lock(writing_);
  if (aborted_) return;
  const std::string path = directory_ + "/run.json";
  const OpenFile file{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
  struct stat found {};
  if (file.descriptor < 0 || ::fstat(file.descriptor, &found) != 0 ||
      static_cast<std::uint64_t>(found.st_size) != run_bytes_) {  // not the file that was written
    lock.unlock();
    write();
    return;
  }
  const std::string more =
      separator(entries_.size() == 1) + entries_.back().text + std::string(end_of_run);
  const std::uint64_t end = run_bytes_ - end_of_run.size();
  if (const int error = write_all(file.descriptor, more, end, disk_); error != 0) {
    (void)::ftruncate(file.descriptor, static_cast<off_t>(end));
    write_all(file.descriptor, end_of_run, end, nullptr);  // into blocks that the file has
    refuse(path, error);
  }
  run_bytes_ = end + more.size();
}

void RunWriter::abort(const machine::Failure& failure, const Record& failing) {
  const std::lock_guard lock(writing_);
  aborted_ = true;
  mark_aborted(directory_, failure, failing);
}

namespace {

RunFile read(const std::string& given, bool with_samples) {
  std::error_code failed;
  const bool is_directory = fs::is_directory(given, failed);
  const std::string path = is_directory ? given + "/run.json" : given;
  if (!fs::exists(path, failed))
    throw machine::UsageError(is_directory
                                  ? fmt::format("{} is not a run: it contains no run.json", given)
                                  : fmt::format("no run at {}", given));
  const Json json = parse(path);
  const Json& context = context_of(json, path);
  RunFile run;
  std::string place = "context";
  try {
    run.context = {context.value("profile", ""),
                   context.value("command", ""),
                   is_directory ? given : fs::path(given).parent_path().string(),
                   context.value("status", ""),
                   context.value("status_reason", ""),
                   {},
                   context.contains("configuration") ? context["configuration"].dump() : "",
                   context.value("words", std::vector<std::string>()),
                   context.value("resumed", std::vector<std::string>()),
                   context.value("cases_not_run", 0),
                   context.value("injected", std::vector<std::string>()),
                   {},
                   {}};
    if (const Json* const failure = context.find("failure"))
      run.context.failure = read_failure(*failure);
    if (const Json* const gpus = context.find("gpus"))
      run.context.gpus = {gpus->at("seen").get<int>(), gpus->at("tested").get<int>(),
                          gpus->at("virtual").get<bool>()};
    const Json rates = context.value("rates", Json::object());
    for (const auto& [what, rate] : rates.items()) run.context.rates[what] = rate.get<double>();
    run.date = context.value("date", "");
    run.host_name = context.value("host_name", "");
    for (const char* key : {"mhz_per_cpu", "cpu_scaling_enabled", "caches"})
      if (context.contains(key)) run.machine[key] = context[key].dump();
    const std::string samples = (fs::path(path).parent_path() / "samples.bin").string();
    std::ifstream samples_file(samples, std::ios::binary);
    std::size_t index = 0;
    for (const auto& entry : json["benchmarks"]) {
      place = fmt::format("benchmarks[{}]", index++);
      run.records.push_back(read_record(entry));
      if (with_samples && samples_file.is_open())
        read_samples(samples_file, samples, entry, run.records.back());
    }
  } catch (const machine::UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw machine::UsageError(fmt::format("{}, {}: {}", path, place, error.what()));
  }
  return run;
}

}  // namespace

RunFile read_run(const std::string& given) { return read(given, true); }

RunFile read_finished(const std::string& directory) {
  RunFile run = read(directory, false);
  if (run.context.words.empty())
    throw machine::UsageError(
        fmt::format("{} cannot be continued: its run.json lacks the words of its "
                    "command line",
                    directory));
  run.records.resize(finished_entries(parse(directory + "/run.json")));
  return run;
}

void mark_aborted(const std::string& directory, const machine::Failure& failure,
                  const Record& failing) {
  const std::string path = directory + "/run.json";
  Json json = parse(path);
  const Json& before = context_of(json, path);
  if (before["status"] == "aborted" &&
      (machine::lost_rank(failure) < 0 || before.contains("lost_rank")))
    return;
  say_none_runs(directory);
  Json& context = json["context"];
  context["status"] = "aborted";
  context["status_reason"] = failure.text;
  context["schema"] = schema;
  put_failure(context, failure);
  // An exception of this process may have added the case already.
  Json& entries = json["benchmarks"];
  if (!entries.empty() && entries.back().value("name", "") == failing.name &&
      entries.back().value("verdict", "") == "fail")
    entries.pop_back();
  std::vector<std::string> records;
  int family = 0, instance = 0;
  for (const auto& entry : entries) {
    records.push_back(entry.dump());
    const int its_family = entry.value("family_index", 0);
    if (entry.value("unit", "") == failing.unit) {
      family = its_family;
      instance = std::max(instance, entry.value("per_family_instance_index", 0) + 1);
    } else if (instance == 0) {
      family = std::max(family, its_family + 1);
    }
  }
  records.push_back(record_json(failing, {family, instance, failing.repetition + 1, 0}));
  write_file(path, run_text(context, records));
}

}  // namespace harness
