#include "machine/base/error.h"

#include <fmt/format.h>

namespace machine::detail {

std::string text_of(std::string_view value) { return std::string(value); }
std::string text_of(long long value) { return fmt::to_string(value); }
std::string text_of(unsigned long long value) { return fmt::to_string(value); }
std::string text_of(double value) { return fmt::to_string(value); }

void check_failed(const char* file, int line, const char* condition, const std::string& left,
                  const std::string& right) {
  throw std::logic_error(
      fmt::format("{}:{}: {} does not hold: {} against {}", file, line, condition, left, right));
}

}  // namespace machine::detail
