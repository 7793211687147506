#include "suite/predict/search/rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "suite/configuration/models.h"
#include "suite/plan/model_shape.h"

namespace suite::predict {
namespace {

constexpr double tolerance = 0.05;
constexpr int nodes_of_tp = 4;

constexpr std::string_view megatron = "Narayanan et al. 2021, arXiv:2104.04473";

TrainingConfig base_of(const RuleModel& model) {
  TrainingConfig config;
  config.model = named_model(model.name);
  config.precision.dtype = machine::Dtype::bfloat16;
  config.batch.global_batch_size = model.global_batch_size;
  config.activations.use_flash_attn = true;
  return config;
}

bool is_data_parallel(const TrainingConfig& c) { return c.degrees.tp == 1 && c.degrees.pp == 1; }

bool is_in_three_dimensions(const TrainingConfig& c) {
  return c.degrees.tp > 1 && c.degrees.pp > 1 && c.degrees.dp > 1;
}

bool offloads(const TrainingConfig& c) {
  return c.zero.options.offload_optimizer.device != zero::OffloadDevice::none;
}

int smallest_parts(const Candidates& candidates) {
  int smallest = 0;
  for (const bool with_offload : {false, true}) {
    if (smallest > 0) break;
    for (const TrainingConfig* one : candidates.fitting())
      if (offloads(*one) == with_offload) {
        const int parts = one->degrees.tp * one->degrees.pp;
        smallest = smallest == 0 ? parts : std::min(smallest, parts);
      }
  }
  return smallest;
}

std::string degrees_text(const TrainingConfig& c) {
  return fmt::format("tp {} pp {} dp {} ZeRO {}{}", c.degrees.tp, c.degrees.pp, c.degrees.dp,
                     c.zero.stage, offloads(c) ? " offload" : "");
}

}  // namespace

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all{
      {"tp stays within a node", megatron,
       [](const TrainingConfig& c, const Situation& s) { return c.degrees.tp <= s.gpus_per_node; }},
      {"pp only if tp has all GPUs of a node", megatron,
       [](const TrainingConfig& c, const Situation& s) {
         return c.degrees.pp == 1 || c.degrees.tp >= s.gpus_per_node;
       }},
      {"tp x pp is the smallest that fits, dp takes the other GPUs", megatron,
       [](const TrainingConfig& c, const Situation& s) {
         return c.degrees.tp * c.degrees.pp == s.smallest_parts;
       }},
      {"dp up to 1e8 parameters, tp up to 1e9, then tp, pp and dp", "a guide to Megatron-DeepSpeed",
       [](const TrainingConfig& c, const Situation& s) {
         if (s.parameters < 1e8) return is_data_parallel(c);
         if (s.parameters < 1e9) return c.degrees.tp > 1 && c.degrees.pp == 1;
         return is_in_three_dimensions(c);
       }},
      {"dp up to 1e9 parameters, dp with tp or pp up to 1e10, then tp, pp and dp",
       "an article about parallelism", [](const TrainingConfig& c, const Situation& s) {
         if (s.parameters <= 1e9) return is_data_parallel(c);
         if (s.parameters < 1e10) return c.degrees.dp > 1 && !is_data_parallel(c);
         return is_in_three_dimensions(c);
       }}};
  return all;
}

double RuleCase::slower() const {
  return keeping ? keeping->prediction.step_s / best.prediction.step_s - 1 : 0;
}

bool RuleCase::holds() const { return keeping && slower() <= tolerance; }

// Batches of 0.5 million tokens for GPT-2, and of 3 to 4 million.
std::vector<RuleModel> rule_models() {
  return {{"gpt2_124m", 512},   {"gpt2_1558m", 512},  {"llama2_7b", 1024},
          {"llama2_13b", 1024}, {"llama2_70b", 1024}, {"gpt3_175b", 1536}};
}

std::vector<int> rule_gpus() { return {8, 64, 512}; }

std::vector<CheckedRule> check_rules(const Cluster& cluster, const Software& software,
                                     const std::vector<RuleModel>& models,
                                     const std::vector<int>& gpus) {
  std::vector<CheckedRule> checked;
  for (const Rule& rule : rules()) checked.push_back({rule, {}});
  for (const RuleModel& model : models)
    for (const int count : gpus) {
      const TrainingConfig base = base_of(model);
      Candidates candidates(grid(base, cluster, count, nodes_of_tp * cluster.gpus_per_node),
                            cluster, software, cluster.gpu.memory);
      const Found found = candidates.fastest(1);
      if (found.best.empty()) continue;
      const Situation situation{model.name, count, cluster.gpus_per_node,
                                configuration::parameters_of(base.model),
                                smallest_parts(candidates)};
      for (CheckedRule& one : checked) {
        const Found keeping = candidates.fastest(
            1, [&](const TrainingConfig& config) { return one.rule.keeps(config, situation); });
        one.cases.push_back({situation, found.best.front(), std::nullopt});
        if (!keeping.best.empty()) one.cases.back().keeping = keeping.best.front();
      }
    }
  return checked;
}

std::string text(const std::vector<CheckedRule>& checked) {
  std::string out = fmt::format(
      "How much slower is the fastest step that keeps a rule than the fastest of all?\n"
      "A rule holds where this is at most {:.0f} %.\n",
      100 * tolerance);
  for (const CheckedRule& one : checked) {
    out += fmt::format("\n{} ({})\n  holds in {} of {} cases\n", one.rule.text, one.rule.source,
                       std::ranges::count_if(one.cases, &RuleCase::holds), one.cases.size());
    for (const RuleCase& exception : one.cases) {
      if (exception.holds()) continue;
      out += fmt::format("  {:<10} on {:>3} GPUs: ", exception.situation.model,
                         exception.situation.gpus);
      if (exception.keeping)
        out += fmt::format("{:5.1f} % slower, {} instead of {}\n", 100 * exception.slower(),
                           degrees_text(exception.keeping->config),
                           degrees_text(exception.best.config));
      else
        out +=
            fmt::format("no step keeps it; the fastest: {}\n", degrees_text(exception.best.config));
    }
  }
  return out;
}

}  // namespace suite::predict
