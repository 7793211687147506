#pragma once
// Published claims about memory, checked with the planner's formulas. Each claim has a verdict, its
// numbers, and a conclusion.

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
