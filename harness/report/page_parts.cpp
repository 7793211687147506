#include "harness/report/page_parts.h"

#include <fmt/format.h>

#include "harness/record/summary.h"
#include "harness/report/junit.h"

namespace harness {

std::string section(std::string_view id, std::string_view title, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format(
      "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 id=\"{0}-title\">{1}"
      "</h2>\n{2}</section>\n",
      id, title, body);
}

std::string fold(std::string_view css_class, std::string_view summary, const std::string& body) {
  return fmt::format("<details class=\"{}\">\n<summary>{}</summary>\n{}</details>\n", css_class,
                     summary, body);
}

std::string table(const std::string& label, std::string_view css_class, std::string_view head,
                  std::string_view rows) {
  return fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" "
      "aria-label=\"{}\">\n<table{}><thead><tr>{}"
      "</tr></thead>\n<tbody>\n{}</tbody></table>\n</div>\n",
      escaped(label), css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class), head, rows);
}

std::string heads(std::initializer_list<std::string_view> titles) {
  std::string text;
  for (const std::string_view title : titles)
    text += fmt::format("<th scope=\"col\">{}</th>", title);
  return text;
}

std::string number_heads(std::initializer_list<std::string_view> titles) {
  std::string text;
  for (const std::string_view title : titles)
    text += fmt::format("<th scope=\"col\" class=\"number\">{}</th>", title);
  return text;
}

std::string number_cells(std::initializer_list<std::string> texts) {
  std::string cells;
  for (const std::string& text : texts) cells += fmt::format("<td class=\"number\">{}</td>", text);
  return cells;
}

std::string sorted_cell(const std::string& text, double value) {
  return text.empty() ? "<td></td>"
                      : fmt::format("<td class=\"number\" data-v=\"{:.6g}\">{}</td>", value, text);
}

std::string html_seconds(double seconds) {
  std::string text = seconds_text(seconds);
  if (text.ends_with(" us")) text.replace(text.size() - 2, 1, "\xc2\xb5");
  return text;
}

std::string percent(double fraction) {
  return fraction > 0 ? fmt::format("{:.0f}\xe2\x80\x89%", 100 * fraction) : "";
}

std::string counted(std::size_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string breakable(const std::string& name) {
  std::string text;
  for (const char c : escaped(name)) {
    text += c;
    if (c == '/') text += "<wbr>";
  }
  return text;
}

}  // namespace harness
