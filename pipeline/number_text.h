#pragma once
// Numbers in the text forms of schedules and placements, also at compile time.

#include <stdexcept>
#include <string>
#include <string_view>

namespace pipeline {

constexpr void append_number(std::string& out, int number) {
  if (number < 0) out += '-';
  std::string digits;
  long rest = number < 0 ? -static_cast<long>(number) : number;
  do digits.insert(digits.begin(), static_cast<char>('0' + rest % 10));
  while (rest /= 10);
  out += digits;
}

// Removes the leading digits of `word` and returns their value. Throws std::invalid_argument if
// there are no digits or the value is too large.
constexpr int take_number(std::string_view& word) {
  if (word.empty() || word[0] < '0' || word[0] > '9')
    throw std::invalid_argument("schedule: a number is missing");
  int number = 0;
  for (; !word.empty() && word[0] >= '0' && word[0] <= '9'; word.remove_prefix(1)) {
    if (number > 99'999'999) throw std::invalid_argument("schedule: the number is too large");
    number = 10 * number + (word[0] - '0');
  }
  return number;
}

}  // namespace pipeline
