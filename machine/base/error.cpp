#include "machine/base/error.h"

#include <fmt/format.h>

namespace machine::detail {

std::string text_of(double value) { return fmt::to_string(value); }

void check_failed(const char* file, int line, const char* condition, const std::string& left,
                  const std::string& right) {
  throw std::logic_error(
      fmt::format("{}:{}: check failed: {} ({} vs {})", file, line, condition, left, right));
}

}  // namespace machine::detail
