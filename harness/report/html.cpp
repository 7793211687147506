#include "harness/report/html.h"

#include <fmt/format.h>

#include <optional>

#include "harness/diagnose/health.h"
#include "harness/record/summary.h"
#include "harness/report/junit.h"
#include "harness/report/page_parts.h"
#include "harness/report/previous_run.h"

namespace harness {
namespace {

// Returns "2026-08-01 12:00 +02:00" for "2026-08-01T12:00:00+02:00".
std::string date_text(const std::string& rfc3339) {
  if (rfc3339.size() != 25) return rfc3339;
  return fmt::format("{} {} {}", rfc3339.substr(0, 10), rfc3339.substr(11, 5), rfc3339.substr(19));
}

std::string header(const RunFile& run, const Summary& summary) {
  const RunContext& context = run.context;
  std::string text = fmt::format(
      "<header class=\"{}\">\n<p class=\"program\">Shardmark</p>\n<h1>{}</h1>\n<p "
      "class=\"counts\">{}</p>\n",
      summary.ruling == Ruling::pass   ? "accepted"
      : summary.ruling == Ruling::fail ? "rejected"
                                       : "undecided",
      escaped(summary.verdict), escaped(summary.details));
  if (!context.status_reason.empty())
    text += fmt::format("<p class=\"reason\">{}</p>\n", escaped(context.status_reason));
  text += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : {std::pair{"Machine", run.host_name},
                                    {"Date", date_text(run.date)},
                                    {"Profile", context.profile},
                                    {"Status", context.status}})
    if (!value.empty())
      text += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, escaped(value));
  if (!context.command.empty())
    text += fmt::format("<div class=\"wide\"><dt>Command</dt><dd><code>{}</code></dd></div>\n",
                        escaped(context.command));
  return text + "</dl>\n</header>\n";
}

// "rank 2, sample 7, caused by rank 0": the facts of a failure.
std::string where(const machine::Failure& failure) {
  std::string text;
  const auto add = [&text](std::string_view words, int number) {
    if (number >= 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", words, number);
  };
  add("rank", failure.rank);
  add("sample", failure.sample);
  if (failure.summed_ranks <= 2) add("caused by rank", failure.peer);
  return text;
}

std::string failures(const RunFile& run) {
  std::string text;
  for (const Record& record : run.records) {
    if (record.verdict != Ruling::fail) continue;
    text += fmt::format("<li><p class=\"case\">{} <a href=\"#unit-{}\">all cases of {}</a></p>\n",
                        breakable(record.name), escaped(record.unit), escaped(record.unit));
    if (record.failure)
      if (const std::string place = where(*record.failure); !place.empty())
        text += fmt::format("<p><b>{}</b></p>\n", place);
    for (const std::string& line : failure_lines(record))
      text += fmt::format("<p>{}</p>\n", escaped(line));
    text += "</li>\n";
  }
  return text.empty() ? ""
                      : section("failed", "Failed cases",
                                fmt::format("<ul class=\"failures\">\n{}</ul>\n", text));
}

std::string slower_than_expected(const RunFile& run) {
  std::string text;
  for (const Record& record : run.records)
    if (below_expectation(record))
      text += fmt::format(
          "<li><p class=\"case\">{} <a href=\"#unit-{}\">all cases of {}</a></p>\n"
          "<p>{}</p></li>\n",
          breakable(record.name), escaped(record.unit), escaped(record.unit),
          escaped(expectation_text(record)));
  return text.empty() ? ""
                      : section("slow", "Slower than expected",
                                fmt::format("<ul class=\"failures\">\n{}</ul>\n", text));
}

std::string skips(const Summary& summary) {
  if (summary.skips.empty()) return "";
  std::string rows;
  for (const SkipGroup& group : summary.skips) {
    std::string units;
    for (const auto& [unit, cases] : group.units)
      units += fmt::format("{}<span class=\"nobreak\">{} {}</span>", units.empty() ? "" : ", ",
                           escaped(unit), cases);
    rows += fmt::format("<tr><td class=\"number\">{}</td><td>{}</td><td>{}</td></tr>\n",
                        group.cases, escaped(group.reason), units);
  }
  return section("skipped", "Skipped cases",
                 table("Skipped cases by reason", "wrapping",
                       number_heads({"Cases"}) + heads({"Reason", "Units"}), rows));
}

std::string health_section(const Health& health) {
  return section("health", "Parts to take out of service",
                 health.findings.empty()
                     ? "<p>health: OK. No part needs to be taken out of service.</p>\n"
                     : fmt::format("<pre>{}</pre>\n", escaped(health_text(health))));
}

}  // namespace

std::string report_html(const RunFile& run, const Figures& figures, const std::string& environment,
                        const Fields& fields, const std::string& comparison) {
  const Summary summary = summarize(run.context, run.records);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; "
      "form-action 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src "
      "'self'\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      escaped(fmt::format("{} \xe2\x80\x93 Shardmark on {}", summary.verdict, run.host_name)),
      page_style);
  page += header(run, summary);
  page += failures(run);
  page += slower_than_expected(run);
  page += health_section(health_of(run, environment));
  page += section("machine", "The machine", machine_card(run, fields));
  page += section("units", "Units", unit_table(run));
  page += section("cases", "Cases", case_tables(run));
  page += section("oracles", "Oracle results", oracle_table(run) + bits_table(run));
  page += section("figures", "Figures", figure_gallery(figures, run.context.out_dir));
  page += section("previous", "Since the previous run", comparison);
  page += skips(summary);
  if (!environment.empty())
    page += section("fingerprint", "Fingerprint",
                    fold("", "Hardware, software and environment of every rank",
                         fmt::format("<pre>{}</pre>\n", escaped(environment))));
  return page + fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", page_script);
}

std::string write_report(const std::string& directory, bool draw) {
  const RunFile run = read_run(directory);
  const std::string environment = file_text(directory + "/environment.json");
  write_file(directory + "/drain.json", health_json(health_of(run, environment)));
  Fields fields;  // empty without an environment.json, as after a lost rank
  try {
    fields = read_fields(directory, run);
  } catch (const UsageError&) {
  }
  const Figures figures = figures_of(directory, draw);
  const std::optional<PreviousRun> previous = previous_run(directory, run, fields);
  write_file(directory + "/report.html", report_html(run, figures, environment, fields,
                                                     previous ? previous_run_html(*previous) : ""));
  return figures.missing;
}

}  // namespace harness
