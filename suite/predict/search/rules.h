#pragma once
// The literature's rules of thumb for the degrees of a training, compared with the search: how much
// slower is the fastest step that keeps a rule than the fastest of all?

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "suite/predict/search/search.h"

namespace suite::predict {

// A model on a number of GPUs, and what the rules ask of its candidates.
struct Situation {
  std::string model;
  int gpus = 0;
  int gpus_per_node = 0;
  double parameters = 0;
  // The smallest tp x pp of a candidate that fits, without offload if one does.
  int smallest_parts = 0;
};

struct Rule {
  std::string_view text, source;
  bool (*keeps)(const TrainingConfig& config, const Situation& situation) = nullptr;
};
const std::vector<Rule>& rules();

struct RuleCase {
  Situation situation;
  Choice best;                    // of all candidates
  std::optional<Choice> keeping;  // the fastest that keeps the rule; empty: none
  double slower() const;          // 0.1: 10 % slower than best
  bool holds() const;             // at most 5 % slower
};
struct CheckedRule {
  Rule rule;
  std::vector<RuleCase> cases;
};

struct RuleModel {
  std::string name;
  int global_batch_size = 0;
};
// Returns the models and numbers of GPUs of check_rules' defaults.
std::vector<RuleModel> rule_models();
std::vector<int> rule_gpus();

// Leaves out situations in which nothing fits. TP may have the GPUs of up to four nodes.
std::vector<CheckedRule> check_rules(const Cluster& cluster, const Software& software,
                                     const std::vector<RuleModel>& models = rule_models(),
                                     const std::vector<int>& gpus = rule_gpus());
std::string text(const std::vector<CheckedRule>& checked);

}  // namespace suite::predict
