#pragma once
// Statements about the training of large models, in five documents, with the arithmetic that holds
// or contradicts them. The numbers come from the planner, the volumes of the collectives, the
// simulation of pipelines and the cost of models, so a change of these formulas changes verdicts.
//
//   for (const Claim& claim : all_claims()) …
//   text(all_claims());

#include <string>
#include <string_view>
#include <vector>

namespace suite {

// assumed: under the assumption in `conclusion`. open: no arithmetic decides; the numbers show what
// the statement means.
enum class ClaimVerdict : unsigned char { holds, assumed, fails, open };
std::string_view name(ClaimVerdict verdict);  // "holds", "holds if", "fails", "open"

struct Claim {
  int number = 0;  // over all documents
  std::string statement;
  ClaimVerdict verdict = ClaimVerdict::open;
  struct Number {
    std::string what;
    double value = 0;
    std::string unit = {};
  };
  std::vector<Number> numbers;
  std::string conclusion = {};
  bool about_memory = false;
};

struct ClaimDocument {
  std::string_view name;
  std::vector<Claim> claims;
};

std::vector<Claim> guide_claims();                   // Megatron-DeepSpeed guide: 1 to 29
std::vector<Claim> zero_claims();                    // ZeRO article: 30 to 58
std::vector<Claim> model_parallelism_claims();       // model parallelism guide: 59 to 75
std::vector<Claim> communication_note_claims();      // communication note: 76 to 82
std::vector<Claim> parallel_communication_claims();  // parallel communication article: 83 to 110

std::vector<ClaimDocument> all_claims();
// only_memory: the claims that the planner decides.
std::string text(const std::vector<ClaimDocument>& documents, bool only_memory = false);

}  // namespace suite
