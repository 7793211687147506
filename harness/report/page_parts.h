#pragma once
// Parts of report.html that several of its sections share.

#include <initializer_list>
#include <string>
#include <string_view>

namespace harness {

// Returns a section with a heading; empty if the body is empty.
std::string section(std::string_view id, std::string_view title, const std::string& body);
// Returns a folded part. summary: HTML.
std::string fold(std::string_view css_class, std::string_view summary, const std::string& body);
// Returns a table that scrolls if it is wider than the page. head and rows: <th> and <tr> elements.
std::string table(const std::string& label, std::string_view css_class, std::string_view head,
                  std::string_view rows);
// <th> elements, and those of columns of numbers.
std::string heads(std::initializer_list<std::string_view> titles);
std::string number_heads(std::initializer_list<std::string_view> titles);
// <td> elements of numbers.
std::string number_cells(std::initializer_list<std::string> texts);
// Returns a <td> with the value for sorting; empty if the text is empty.
std::string sorted_cell(const std::string& text, double value);

// "105 us" with the micro sign.
std::string html_seconds(double seconds);
// Returns an empty text if the number is not positive.
std::string percent(double fraction);
// "1 case", "2 cases".
std::string counted(std::size_t number, std::string_view noun);
// Returns a case's name, escaped, in which a line may break after each slash.
std::string breakable(const std::string& name);

extern const char* const page_style;
extern const char* const page_script;

}  // namespace harness
