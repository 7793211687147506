#pragma once
// Statements about memory as they circulate, each beside what the planner's own formulas make of
// it: which hold, in what sense, and what would have to be true instead.

#include <string>
#include <vector>

namespace suite::configuration {

struct Claim {
  enum class Verdict : unsigned char { holds, roughly, fails };
  std::string statement;
  Verdict verdict = Verdict::holds;
  struct Number {
    std::string what, unit;
    double value = 0;
  };
  std::vector<Number> numbers;
  std::string conclusion;
};
std::string_view name(Claim::Verdict verdict);

std::vector<Claim> claims();
std::string text(const std::vector<Claim>& claims);

}  // namespace suite::configuration
