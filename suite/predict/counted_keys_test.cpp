#include "suite/predict/counted_keys.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "suite/configuration/keys.h"
#include "suite/configuration/models.h"
#include "suite/configuration/resolve.h"
#include "suite/predict/step.h"
#include "suite/testing/file_case.h"

namespace suite::predict {
namespace {

using configuration::Key;
using configuration::Taken;
using layers::RecomputeGranularity;

// Configurations that together meet the needs of all keys.
std::vector<TrainingConfig> bases() {
  TrainingConfig usual;
  usual.model = named_model("gpt2_124m");
  usual.model.layers = 4;
  usual.model.vocabulary = padded_vocabulary(usual.model, 2);
  usual.model.hidden_dropout = 0.1;
  usual.degrees = {.tp = 2, .dp = 16, .pp = 2};
  usual.precision.dtype = machine::Dtype::bfloat16;
  usual.batch.global_batch_size = 128;
  usual.activations.sequence_parallel = true;
  usual.schedule.train_iters = 1'000'000;
  std::vector<TrainingConfig> all{usual};
  const auto add = [&](const std::function<void(TrainingConfig&)>& change) {
    change(all.emplace_back(usual));
  };
  for (const int stage : {1, 2})
    add([&](TrainingConfig& c) {
      c.zero.stage = stage;
      c.degrees = {.tp = 2, .dp = 32};
    });
  add([](TrainingConfig& c) {
    c.zero.stage = 3;
    c.zero.param_persistence_threshold = 1000;
    c.degrees = {.dp = 32};
    c.activations.sequence_parallel = false;
    c.activations.recompute_granularity = RecomputeGranularity::full;
  });
  add([](TrainingConfig& c) {
    c.zero.stage = 3;
    c.degrees = {.tp = 2, .dp = 16};
    c.activations.recompute_granularity = RecomputeGranularity::full;
    c.activations.sequence_parallel = false;
    c.zero.options.offload_param.device = c.zero.options.offload_optimizer.device =
        zero::OffloadDevice::nvme;
  });
  add([](TrainingConfig& c) {
    c.zero.stage = 1;
    c.zero.options.offload_optimizer.device = zero::OffloadDevice::cpu;
    c.degrees = {.dp = 32};
    c.activations.sequence_parallel = false;
    c.activations.tp_comm = {};
  });
  add([](TrainingConfig& c) {
    c.degrees = {.cp = 8, .dp = 4};
    c.activations.use_flash_attn = true;
    c.activations.sequence_parallel = false;
    c.context.comm_type = layers::CpCommType::a2a_p2p;
    c.context.a2a_size = 2;
  });
  add([](TrainingConfig& c) {
    c.activations.sequence_parallel = false;
    c.activations.recompute_granularity = RecomputeGranularity::full;
    c.activations.cpu_checkpointing = true;
    c.activations.contiguous_memory_optimization = true;
    c.activations.number_checkpoints = 100;
  });
  add([](TrainingConfig& c) {
    c.degrees = {.cp = 4, .dp = 8};
    c.activations.use_flash_attn = true;
    c.activations.sequence_parallel = false;
    c.context.comm_type = layers::CpCommType::a2a;
    c.context.order = layers::SequenceOrder::striped;
    c.context.fpdt = true;
    c.context.fpdt_chunk_size = 256;
  });
  add([](TrainingConfig& c) { c.activations.tp_comm.enabled = true; });
  add([](TrainingConfig& c) {
    c.activations.recompute_granularity = RecomputeGranularity::full;
    c.activations.sequence_parallel = false;
  });
  for (const char* type : {"muon", "sgd", "one_bit_lamb", "adamw_8bit"})
    add([&](TrainingConfig& c) {
      c.optimizer.type = type;
      c.zero.stage = c.optimizer.type == "sgd" ? 1 : 0;
    });
  for (const char* algorithm : {"top_k", "deviation"})
    add([&](TrainingConfig& c) { c.zero.options.gradient_compression.algorithm = algorithm; });
  add([](TrainingConfig& c) {
    c.model.layers = 8;
    c.pipeline.schedule = "interleaved_1f1b";
    c.pipeline.virtual_stages = 2;
  });
  add([](TrainingConfig& c) { c.fp8.format = layers::Fp8Format::hybrid; });
  add([](TrainingConfig& c) {
    c.model = named_model("mixtral_8x7b");
    c.model.layers = 4;
    c.degrees = {.tp = 2, .dp = 8};
    c.expert_parallel = 4;
    c.expert_tensor_parallel = 1;
    c.model.moe.load_balancing = layers::LoadBalancing::aux_loss;
    c.model.moe.expert_capacity_factor = 1.5;
  });
  return all;
}

// Everything that a user sees of a prediction.
std::vector<double> numbers(const Prediction& p) {
  std::vector<double> all{p.step_s,           p.model_flops,      p.before_freeze_s,
                          p.checkpoint_s,     p.held.cpu.total(), p.held.nvme.total(),
                          p.held.gpu.total(), p.optimizer_s,      p.offload_s};
  for (const GroupTime& one : p.groups) {
    all.push_back(one.bytes);
    all.push_back(one.exposed_s);
    all.push_back(one.hidden_s);
  }
  return all;
}

struct Outcome {
  std::optional<std::vector<double>> numbers;
  std::string why_not;
};
// Software that hides little, so that keys that hide more change the time.
Outcome predicted(const TrainingConfig& config) {
  static const Cluster cluster = read_cluster("dgx_h100");
  try {
    return {numbers(predict_step(config, cluster, find_software("megatron_2021"))), {}};
  } catch (const std::invalid_argument& error) {
    return {{}, error.what()};
  } catch (const std::out_of_range& error) {
    ADD_FAILURE() << error.what();
    return {{}, error.what()};
  }
}

// Returns whether a training step supports the configuration.
bool is_step(const TrainingConfig& config) {
  return predict::is_step(config, read_cluster("dgx_h100"), find_software("megatron_2021"));
}

// Other values of a key: the other truth, all choices, or a number that is smaller or larger.
std::vector<Value> others(const Key& key, const configuration::Field& field) {
  using configuration::Kind;
  const std::string now = field.text();
  if (field.kind() == Kind::truth) return {now != "true"};
  std::vector<Value> values;
  if (!key.limits.choices.empty()) {
    for (const std::string& choice : key.limits.choices)
      if (choice != now) values.emplace_back(choice);
    return values;
  }
  if (field.kind() == Kind::list) return {configuration::value_of(Kind::list, "2+3")};
  if (field.kind() == Kind::pair) return {std::vector<double>{0.5, 0.5}};
  if (field.kind() == Kind::word) {
    EXPECT_FALSE(key.limits.example.empty()) << key.name() << " has no choices and no example";
    return {std::string(key.limits.example)};
  }
  if (now == "none") return {2.0};
  const double number = std::stod(now);
  for (const double other : {number / 2, number * 2, number + 1, 0.1, 1000.0, 5.0, 0.0})
    if (other != number && other >= key.limits.least && other <= key.limits.most &&
        (field.kind() == Kind::number ||
         other == static_cast<double>(static_cast<std::int64_t>(other))))
      values.emplace_back(other);
  return values;
}

// A counted key changes a prediction, one without effect changes none, and another has an error
// that names it.
TEST(CountedKeys, EveryKeyIsTakenAsItsRowSays) {
  const std::vector<TrainingConfig> configs = bases();
  std::vector<Outcome> before;
  for (const TrainingConfig& config : configs) {
    before.push_back(predicted(config));
    ASSERT_TRUE(before.back().numbers) << before.back().why_not;
  }
  for (const Key& key : configuration::keys()) {
    const Taken taken = key.predicted.taken;
    if (!key.field || taken == Taken::resolved) continue;
    SCOPED_TRACE(key.name());
    int tried = 0, changed = 0, named = 0;
    std::string why_not;
    for (std::size_t i = 0; i < configs.size() && !(taken == Taken::counted && changed); ++i) {
      TrainingConfig config = configs[i];
      if (key.needs && !key.needs->met(config) && taken != Taken::unaffected) continue;
      for (const Value& value : others(key, key.field(config))) {
        TrainingConfig other = configs[i];
        key.field(other).set(value);
        if (taken == Taken::unaffected && !is_step(other) && is_step(configs[i])) continue;
        const Outcome after = predicted(other);
        if (!after.numbers) {
          why_not = after.why_not;
          named += after.why_not.find(key.name()) != std::string::npos ? 1 : 0;
          continue;
        }
        ++tried;
        if (after.numbers == before[i].numbers) continue;
        ++changed;
        EXPECT_NE(taken, Taken::unaffected) << " of base " << i;
      }
    }
    EXPECT_EQ(changed > 0, taken == Taken::counted) << why_not;
    EXPECT_EQ(tried > 0, taken != Taken::rejected) << why_not;
    EXPECT_TRUE(named > 0 || taken != Taken::rejected) << why_not;
  }
}

TEST(CountedKeys, RejectionsNameTheKeyAndTheReason) {
  TrainingConfig config = bases().front();
  const auto why_not = [&](const char* cluster) {
    try {
      predict_step(config, read_cluster(cluster), find_software("megatron_core"));
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  config.fp8.format = layers::Fp8Format::hybrid;
  EXPECT_EQ(why_not("dgx_h100"), "accepted");
  testing::expect_words(why_not("dgx_a100"),
                        {"fp8-format hybrid requires gpu.fp8_tflops of cluster dgx_a100"});
  config.activations.recompute_granularity = RecomputeGranularity::full;
  testing::expect_words(why_not("dgx_h100"), {"fp8-format hybrid", "recompute-granularity"});
  config = bases().front();
  config.precision.dtype = machine::Dtype::float64;
  testing::expect_words(why_not("dgx_h100"), {"predict does not support dtype double"});
  config = bases().front();
  config.pipeline.partition_method = "parameters";
  testing::expect_words(why_not("dgx_h100"), {"pipeline.partition parameters"});
  config = bases().front();
  for (const auto& [frozen, words] :
       {std::pair("block.*", "unknown parameter 'block.*'"), {"*", "leave a parameter to train"}}) {
    config.frozen = frozen;
    testing::expect_words(why_not("dgx_h100"), {"freeze", words});
  }
  config = bases().front();
  config.optimizer.type = "one_bit_adam";
  config.zero.stage = 1;
  testing::expect_words(why_not("dgx_h100"), {"one_bit_adam", "stage"});
}

}  // namespace
}  // namespace suite::predict
