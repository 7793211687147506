#include "suite/claims/claims.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace suite {
namespace {

std::map<int, Claim> by_number() {
  std::map<int, Claim> all;
  for (const ClaimDocument& document : all_claims())
    for (const Claim& claim : document.claims) {
      EXPECT_FALSE(all.contains(claim.number)) << claim.number;
      all[claim.number] = claim;
    }
  return all;
}

double number(const Claim& claim, std::string_view what) {
  for (const Claim::Number& one : claim.numbers)
    if (one.what.find(what) != std::string::npos) return one.value;
  throw std::logic_error("no number " + std::string(what));
}

// Judged by hand: H holds, I holds under an assumption, F fails, O open. Ten a row.
TEST(Claims, HaveTheVerdictsThatWereFoundByHand) {
  const std::string by_hand =
      "IHFFFFOOFF"
      "IFFHFFOOFO"
      "OOIFFFOOHI"
      "HIIHOOHOFF"
      "HHIHFOHIIF"
      "OIFOOIOHIH"
      "OFOFIIOFIF"
      "OFHOIHIFHH"
      "HHHIFFFOFF"
      "HFFFFFHOFI"
      "HFOFIOOFFH";
  const std::map<int, Claim> all = by_number();
  ASSERT_EQ(all.size(), 110U);
  for (int i = 1; i <= 110; ++i)
    EXPECT_EQ("HIFO"[static_cast<int>(all.at(i).verdict)], by_hand[static_cast<std::size_t>(i - 1)])
        << i << " " << all.at(i).statement;
}

// Independent arithmetic: by hand, from the papers' formulas.
TEST(Claims, HaveTheNumbersThatWereFoundByHand) {
  const std::map<int, Claim> all = by_number();
  struct Row {
    int claim;
    const char* what;
    double value, part;
  };
  for (const Row& row : {
           Row{1, "scores 5 a b s^2", 32.2, 0.002},
           {4, "16 bytes each", 650, 1e-6},
           {4, "18 bytes each", 731.25, 1e-6},
           {6, "states of one GPU", 650, 1e-6},
           {6, "values of one GPU", 81.25, 1e-6},
           {6, "60 GB of states", 120e9, 1e-6},
           {8, "a step", 12600, 0.001},
           {9, "optimizer states", 3.9, 1e-6},
           {13, "with biases", 217'432'719'360 + 12288.0 * (120 * 13 + 50257 + 8192 + 2), 1e-12},
           {13, "width at", 30046, 1e-4},
           {19, "1.3e12", 41, 1e-9},
           {19, "described", 7, 1e-9},
           {20, "at the speed", 399, 0.002},
           {21, "time between", 146, 0.002},
           {23, "speed of the other", 71.4, 0.001},
           {29, "states of a GPU", 6.08, 0.001},
           {30, "activations 34", 18.25, 0.001},
           {31, "16 bytes for each", 107.8146, 1e-5},
           {37, "stage 2", 28.84, 0.001},
           {37, "stage 1", 54.44, 0.001},
           {39, "16 / (4", 3.8209, 1e-4},
           {40, "16 / (2", 7.2113, 1e-4},
           {47, "of one GPU", 48.83, 0.001},
           {50, "Small", 60.5e6, 0.001},
           {50, "Base", 222.9e6, 0.001},
           {50, "Large", 737.7e6, 0.001},
           {50, "3B", 2.85e9, 0.001},
           {50, "11B", 11.3e9, 0.002},
           {68, "TP 8 sends", 176.2, 0.001},
           {68, "DP sends", 1.19, 0.001},
           {70, "300e9 tokens", 204, 0.01},
           {74, "parameters", 354'823'168, 1e-12},
           {77, "rate", 34.66, 0.001},
           {78, "ratio", 42, 1e-9},
           {79, "root of the star", 64, 1e-9},
           {84, "formula at 256", 9.96, 0.001},
           {88, "8 GPUs", 39.2, 0.001},
           {88, "64 GPUs", 48.7, 0.001},
           {89, "scaling at 64", 83.5, 0.001},
           {92, "formula, t = 1", 192, 1e-9},
           {92, "t = 2", 96, 1e-9},
           {92, "t = 4", 144, 1e-9},
           {95, "in float32", 72, 1e-9},
           {96, "p = 8", 28, 1e-9},
           {97, "of the whole", 46.67, 0.001},
           {102, "values of a normal", 92.03, 0.001},
           {102, "bytes of an element", 11.04, 0.001},
       })
    EXPECT_NEAR(number(all.at(row.claim), row.what) / row.value, 1, row.part)
        << row.claim << " " << row.what;
}

TEST(Claims, TheTextHasEveryClaimWithinAHundredColumns) {
  const std::string all = text(all_claims()), memory = text(all_claims(), true);
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = all.find('\n', at);
    EXPECT_LE(end - at, 100U) << all.substr(at, end - at);
    at = end + 1;
  }
  EXPECT_NE(all.find("\n 92 fails "), std::string::npos);
  EXPECT_EQ(memory.find("\n 92 fails "), std::string::npos);
  EXPECT_NE(memory.find("\n 39 fails "), std::string::npos);
  EXPECT_NE(all.find(" holds, "), std::string::npos);
}

}  // namespace
}  // namespace suite
