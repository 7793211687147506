// The figures of report.html: folded by group, loaded when opened.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/report/page_parts.h"

namespace harness {
namespace {

// Returns a file name as a relative address. Escapes the characters that have a meaning in URLs.
std::string address(const std::string& name) {
  std::string text = "figures/";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '-' || c == '_' || c == '.')
      text += c;
    else
      text += fmt::format("%{:02X}", byte);
  }
  return text;
}

std::string figure_html(const Figure& figure) {
  const std::string title = escaped(figure.title.empty() ? figure.name : figure.title);
  const std::string file = address(figure.name);
  const std::string size =
      figure.width > 0 && figure.height > 0
          ? fmt::format(" width=\"{:.0f}\" height=\"{:.0f}\"", 2 * figure.width, 2 * figure.height)
          : "";
  return fmt::format(
      "<figure>\n<a class=\"drawing\" href=\"{0}.svg\"><img src=\"{0}.svg\" alt=\"{1}\" "
      "loading=\"lazy\"{2}></a>\n<figcaption><b>{1}.</b> {3} <a href=\"{0}.csv\">Data<span "
      "class=\"hidden\"> of {1}</span> (CSV)</a></figcaption>\n</figure>\n",
      file, title, size, escaped(figure.caption));
}

// Returns the kinds of a group, in the order of the listing.
std::string group_html(const std::string& group, const std::vector<Figure>& figures,
                       const std::string& directory) {
  std::string body, kind;
  std::size_t number = 0;
  for (const Figure& figure : figures) {
    if (figure.group != group) continue;
    ++number;
    if (body.empty() || figure.kind != kind) {
      if (!body.empty()) body += "</div>\n";
      kind = figure.kind;
      body += fmt::format(
          "<h3>{}</h3>\n<p class=\"note\">To draw all cases again, also as PDF: "
          "<code>scripts/figures.py "
          "{} --only {} --format pdf</code></p>\n<div class=\"figures\">\n",
          escaped(figure.about.empty() ? figure.kind : figure.about), escaped(directory),
          escaped(kind));
    }
    body += figure_html(figure);
  }
  return fold("group",
              fmt::format("{} <span class=\"quiet\">{}</span>",
                          escaped(group.empty() ? "Other" : group), counted(number, "figure")),
              body + "</div>\n");
}

}  // namespace

std::string figure_gallery(const Figures& figures, const std::string& directory) {
  std::string body;
  if (!figures.missing.empty())
    body += fmt::format(
        "<p class=\"note\">{}: {}</p>\n",
        figures.figures.empty() ? "There are no figures" : "Some figures may be missing",
        escaped(figures.missing));
  std::vector<std::string> groups;
  for (const Figure& figure : figures.figures)
    if (std::ranges::find(groups, figure.group) == groups.end()) groups.push_back(figure.group);
  for (const std::string& group : groups) body += group_html(group, figures.figures, directory);
  if (!groups.empty())
    body +=
        "<p class=\"print-only\">Figures that were folded are in the folder figures/ next to "
        "this page.</p>\n";
  return body;
}

}  // namespace harness
