#include "harness/history/store.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <optional>

#include "harness/json/json.h"
#include "harness/measure/statistics.h"
#include "harness/record/summary.h"
#include "harness/unit/sweep.h"
#include "machine/base/error.h"

namespace harness {
namespace {

constexpr const char* schema = R"(
  CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, date TEXT NOT NULL, path TEXT NOT NULL,
    commit_id TEXT NOT NULL, fields TEXT NOT NULL);
  CREATE TABLE IF NOT EXISTS case_time (
    run INTEGER NOT NULL REFERENCES run(id), name TEXT NOT NULL, verdict TEXT NOT NULL,
    seconds REAL, PRIMARY KEY (run, name)) WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS case_name ON case_time(name);
)";
constexpr int application = 0x53484d4b;  // "SHMK", in the file's header
constexpr int patience_ms = 5000;

[[noreturn]] void refuse(sqlite3* database, const std::string& file) {
  const int code = sqlite3_errcode(database) & 0xff;
  // The message may quote the content of a damaged file.
  const std::string text = plain(fmt::format("{}: {}", file, sqlite3_errmsg(database)));
  if (code == SQLITE_NOTADB || code == SQLITE_CANTOPEN || code == SQLITE_CORRUPT)
    throw UsageError(text);
  throw machine::MachineError(text, code == SQLITE_FULL ? machine::Failure::Kind::disk_full
                                                        : machine::Failure::Kind::exception);
}

class Statement {
 public:
  // values: of the text's question marks, in order. An empty optional is NULL.
  Statement(sqlite3* database, const std::string& file, const char* text, const auto&... values)
      : database_(database), file_(file) {
    if (sqlite3_prepare_v2(database, text, -1, &statement_, nullptr) != SQLITE_OK)
      refuse(database, file);
    int place = 0;
    (bind(++place, values), ...);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Returns whether there is another row.
  bool step() {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) refuse(database_, file_);
    return code == SQLITE_ROW;
  }
  std::string text(int column) const {
    const unsigned char* found = sqlite3_column_text(statement_, column);
    return found ? reinterpret_cast<const char*>(found) : "";
  }
  int integer(int column) const { return sqlite3_column_int(statement_, column); }
  double number(int column) const { return sqlite3_column_double(statement_, column); }

 private:
  void bind(int place, std::string_view text) {
    sqlite3_bind_text(statement_, place, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  void bind(int place, std::int64_t value) { sqlite3_bind_int64(statement_, place, value); }
  void bind(int place, std::optional<double> value) {
    if (value) sqlite3_bind_double(statement_, place, *value);
  }

  sqlite3* database_;
  const std::string& file_;
  sqlite3_stmt* statement_ = nullptr;
};

struct CaseRow {
  Ruling verdict = Ruling::pass;
  std::vector<double> seconds;
};

std::map<std::string, CaseRow> rows_of(const Launch& launch) {
  std::map<std::string, CaseRow> rows;
  for (const Record& record : launch.records) {
    CaseRow& row = rows[case_name(record.unit, current_axes(record.axes))];
    if (record.verdict != Ruling::pass && row.verdict != Ruling::fail) row.verdict = record.verdict;
    if (record.verdict == Ruling::pass && record.seconds > 0 && !record.oversubscribed)
      row.seconds.push_back(record.seconds);
  }
  return rows;
}

// FNV-1a over the fields that identify a run.
std::string digest_of(const Launch& launch) {
  std::uint64_t hash = 14695981039346656037u;
  const auto take = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  };
  take(launch.date);
  for (const auto& [field, value] : launch.fields) take(field + "=" + value + "\n");
  for (const Record& record : launch.records)
    take(fmt::format("{} {}\n", record.name, record.seconds));
  return fmt::format("{:016x}", hash);
}

}  // namespace

History::History(const std::string& file) : file_(file) {
  if (sqlite3_open(file.c_str(), &database_) != SQLITE_OK) {
    const std::string why = database_ ? sqlite3_errmsg(database_) : "out of memory";
    sqlite3_close(database_);
    throw UsageError(fmt::format("{}: {}", file, why));
  }
  sqlite3_busy_timeout(database_, patience_ms);
  try {
    Statement found(database_, file_, "PRAGMA application_id");
    found.step();
    Statement tables(database_, file_, "SELECT count(*) FROM sqlite_master");
    tables.step();
    if (found.integer(0) != application && tables.integer(0) > 0)
      throw UsageError(fmt::format("{} is a database of another program", file));
    const std::string all = fmt::format("PRAGMA application_id = {}; {}", application, schema);
    if (tables.integer(0) == 0 &&
        sqlite3_exec(database_, all.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
      refuse(database_, file_);
  } catch (...) {
    sqlite3_close_v2(database_);
    throw;
  }
}

History::~History() { sqlite3_close_v2(database_); }

bool History::add(const Launch& launch) {
  Statement(database_, file_, "BEGIN IMMEDIATE").step();
  try {
    rename_cases();
    const auto commit = launch.fields.find("software.shardmark.commit");
    Statement(database_, file_,
              "INSERT OR IGNORE INTO run(digest, date, path, commit_id, fields)"
              " VALUES(?, ?, ?, ?, ?)",
              digest_of(launch), launch.date, launch.path,
              commit == launch.fields.end() ? "" : commit->second, Json(launch.fields).dump())
        .step();
    const bool is_new = sqlite3_changes(database_) > 0;
    const std::int64_t id = sqlite3_last_insert_rowid(database_);
    if (is_new)
      for (const auto& [name, row] : rows_of(launch))
        Statement(database_, file_,
                  "INSERT INTO case_time(run, name, verdict, seconds) VALUES(?, ?, ?, ?)", id, name,
                  harness::name(row.verdict),
                  row.seconds.empty() ? std::nullopt : std::optional(median(row.seconds)))
            .step();
    Statement(database_, file_, "COMMIT").step();
    return is_new;
  } catch (...) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
    throw;
  }
}

void History::rename_cases() {
  for (const std::string& name : cases()) {
    const std::string current = current_case_name(name);
    if (current == name) continue;
    Statement(database_, file_, "UPDATE case_time SET name = ? WHERE name = ?", current, name)
        .step();
  }
}

std::vector<StoredRun> History::runs() const {
  std::vector<StoredRun> all;
  Statement rows(database_, file_,
                 "SELECT id, date, path, commit_id, fields,"
                 " (SELECT count(*) FROM case_time WHERE run = id),"
                 " (SELECT count(*) FROM case_time WHERE run = id AND verdict = 'fail')"
                 " FROM run ORDER BY date, id");
  while (rows.step()) {
    StoredRun& run = all.emplace_back();
    run.id = rows.integer(0);
    run.date = rows.text(1);
    run.path = rows.text(2);
    run.commit = rows.text(3);
    const auto fields = Json::parse_or_null(rows.text(4));
    if (!fields.is_object()) throw UsageError(fmt::format("{}: run {} is damaged", file_, run.id));
    for (const auto& [field, value] : fields.items())
      run.fields[field] = value.is_string() ? value.get<std::string>() : value.dump();
    run.cases = rows.integer(5);
    run.failed = rows.integer(6);
  }
  return all;
}

std::vector<std::string> History::cases() const {
  // SQLite answers SELECT DISTINCT from all rows. This takes one search of the index per name.
  std::vector<std::string> names;
  Statement rows(database_, file_,
                 "WITH RECURSIVE next(name) AS (SELECT min(name) FROM case_time UNION ALL"
                 " SELECT (SELECT min(name) FROM case_time WHERE name > next.name) FROM next"
                 " WHERE next.name IS NOT NULL)"
                 " SELECT name FROM next WHERE name IS NOT NULL");
  while (rows.step()) names.push_back(rows.text(0));
  return names;
}

std::vector<CaseTime> History::cases_of(int run) const {
  std::vector<CaseTime> all;
  Statement rows(database_, file_,
                 "SELECT name, verdict, CASE verdict WHEN 'pass' THEN seconds END"
                 " FROM case_time WHERE run = ? ORDER BY name",
                 std::int64_t{run});
  while (rows.step()) all.push_back({rows.text(0), rows.text(1), rows.number(2)});
  return all;
}

std::vector<Point> History::series(const std::string& name) const {
  std::vector<Point> points;
  Statement rows(database_, file_,
                 "SELECT run, seconds FROM case_time JOIN run ON run = id"
                 " WHERE name = ? AND verdict = 'pass' AND seconds IS NOT NULL ORDER BY date, id",
                 name);
  while (rows.step()) points.push_back({rows.integer(0), rows.number(1)});
  return points;
}

bool is_own_version(std::string_view field) { return field.starts_with("software.shardmark."); }

std::vector<Difference> breaks(const StoredRun& before, const StoredRun& after) {
  std::vector<Difference> found = differences(before.fields, after.fields, Factors({}));
  std::erase_if(found, [](const Difference& d) { return is_own_version(d.field); });
  return found;
}

}  // namespace harness
