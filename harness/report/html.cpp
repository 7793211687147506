#include "harness/report/html.h"

#include <fmt/format.h>

#include "harness/diagnose/health.h"
#include "harness/record/summary.h"
#include "harness/report/junit.h"

namespace harness {
namespace {

std::string section(const char* id, const char* title, const std::string& body) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, title, body);
}

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
      summary.accepted ? "accepted" : "rejected", escaped(summary.verdict),
      escaped(summary.details));
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

std::string failures(const RunFile& run) {
  std::string text;
  for (const Record& record : run.records) {
    if (record.verdict != Ruling::fail) continue;
    text += fmt::format("<li><p class=\"case\">{}</p>\n", breakable(record.name));
    for (const std::string& line : failure_lines(record))
      text += fmt::format("<p>{}</p>\n", escaped(line));
    text += "</li>\n";
  }
  return text.empty() ? ""
                      : section("failed", "Failed cases",
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
                       number_heads({"Cases"}) + "<th>Reason</th><th>Units</th>", rows));
}

std::string numbers_of(const Figure& figure) {
  if (figure.rows.size() < 2) return "";
  std::string head, rows;
  for (const std::string& cell : figure.rows[0]) head += fmt::format("<th>{}</th>", escaped(cell));
  for (std::size_t i = 1; i < figure.rows.size(); ++i) {
    rows += "<tr>";
    for (const std::string& cell : figure.rows[i])
      rows += fmt::format("<td>{}</td>", escaped(cell));
    rows += "</tr>\n";
  }
  return fmt::format("<details><summary>The numbers</summary>\n{}</details>\n",
                     table("Numbers of this figure", "", head, rows));
}

std::string figure_section(const Figures& figures) {
  std::string body;
  if (!figures.missing.empty())
    body += fmt::format(
        "<p class=\"note\">{}: {}</p>\n",
        figures.figures.empty() ? "There are no figures" : "Some figures may be missing",
        escaped(figures.missing));
  if (!figures.figures.empty()) {
    body += "<div class=\"figures\">\n";
    for (const Figure& figure : figures.figures)
      body += fmt::format(
          "<figure>\n<div class=\"drawing\">{}</div>\n<figcaption><b>{}</b> "
          "{}</figcaption>\n{}</figure>\n",
          figure.svg, escaped(figure.title.empty() ? figure.name : figure.title + "."),
          escaped(figure.caption), numbers_of(figure));
    body += "</div>\n";
  }
  return body.empty() ? "" : section("figures", "Figures", body);
}

// Empty if there are no findings.
std::string health_section(const Health& health) {
  if (health.findings.empty()) return "";
  return section("health", "Parts to take out of service",
                 fmt::format("<pre>{}</pre>\n", escaped(health_text(health))));
}

std::string rates(const RunContext& context) {
  if (context.rates.empty()) return "";
  std::string rows;
  for (const auto& [what, rate] : context.rates)
    rows +=
        fmt::format("<tr><td>{}</td><td class=\"number\">{:.4g}</td></tr>\n", escaped(what), rate);
  return fmt::format("<details><summary>Measured limits of this machine</summary>\n{}</details>\n",
                     table("Measured limits", "", "<th>Limit</th>" + number_heads({"Rate"}), rows));
}

}  // namespace

std::string html_seconds(double seconds) {
  std::string text = seconds_text(seconds);
  if (text.ends_with(" us")) text.replace(text.size() - 2, 1, "\xc2\xb5");
  return text;
}

std::string breakable(const std::string& name) {
  std::string text;
  for (const char c : escaped(name)) {
    text += c;
    if (c == '/') text += "<wbr>";
  }
  return text;
}

std::string table(const std::string& label, std::string_view css_class, std::string_view head,
                  std::string_view rows) {
  return fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" "
      "aria-label=\"{}\">\n<table{}><thead><tr>{}"
      "</tr></thead>\n<tbody>\n{}</tbody></table>\n</div>\n",
      escaped(label), css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class), head, rows);
}

std::string number_heads(std::initializer_list<std::string_view> titles) {
  std::string heads;
  for (const std::string_view title : titles)
    heads += fmt::format("<th class=\"number\">{}</th>", title);
  return heads;
}

std::string number_cells(std::initializer_list<std::string> texts) {
  std::string cells;
  for (const std::string& text : texts) cells += fmt::format("<td class=\"number\">{}</td>", text);
  return cells;
}

std::string report_html(const RunFile& run, const Figures& figures,
                        const std::string& environment) {
  const Summary summary = summarize(run.context, run.records);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      escaped(fmt::format("{} \xe2\x80\x93 Shardmark on {}", summary.verdict, run.host_name)),
      page_style);
  page += header(run, summary);
  page += failures(run);
  page += health_section(health_of(run, environment));
  page += skips(summary);
  page += figure_section(figures);
  page += section("units", "Every case", overview_table(run) + case_tables(run));
  page += section("oracles", "Oracle results", oracle_table(run) + bits_table(run));
  std::string machine = rates(run.context);
  if (!environment.empty())
    machine += fmt::format(
        "<details><summary>Fingerprint of every rank</summary>\n<pre>{}</pre></details>\n",
        escaped(environment));
  if (!machine.empty()) page += section("machine", "The machine", machine);
  return page + fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", page_script);
}

void write_report(const std::string& directory, bool draw) {
  const RunFile run = read_run(directory);
  const Figures figures = figures_of(directory, draw);
  const std::string environment = file_text(directory + "/environment.json");
  write_file(directory + "/drain.json", health_json(health_of(run, environment)));
  write_file(directory + "/report.html", report_html(run, figures, environment));
}

}  // namespace harness
