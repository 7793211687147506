#include "suite/expectation/expectation.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "collectives/communicator/choose.h"
#include "collectives/communicator/library.h"
#include "machine/base/names.h"
#include "suite/configuration/models.h"
#include "suite/expectation/record_values.h"
#include "suite/options/options.h"
#include "suite/predict/step.h"
#include "suite/training_step/step_sweep.h"

namespace suite {
namespace {

using harness::axis;
using harness::counter;
using harness::Record;
using predict::Cluster;

// A case in the words of the prediction.
struct Case {
  const Record& record;
  const Cluster& cluster;
  const std::optional<TrainingConfig>& configured;
};

double gemm(const Case& c) {
  const auto product = gemm_of(c.record);
  const auto dtype = dtype_of(c.record);
  // A file has the peaks of float32 and of the half types.
  if (!product || !dtype || machine::size_of(*dtype) > 4) return 0;
  return gemm_s(c.cluster.gpu, *product, *dtype);
}

double memory(const Case& c) {
  return streaming_s(c.cluster.gpu, counter(c.record, "memory_bytes"));
}

double host_device(const Case& c) {
  if (axis(c.record, "pages") != "pinned") return 0;
  return number_of<double>(axis(c.record, "bytes")).value_or(0) / c.cluster.pcie;
}

constexpr int most_walked = 256;  // ranks of a plan that is walked

double collective(const Case& c, machine::Operation operation) {
  const int ranks = ranks_of(c.record);
  const double bytes = counter(c.record, "bytes");
  if (ranks < 2 || bytes <= 0) return 0;
  const std::string algorithm = axis(c.record, "algorithm");
  if (algorithm == collectives::library || algorithm == collectives::automatic) {
    // Only the operations of a training have usual algorithms.
    if (operation_of(c.record.unit) != operation) return 0;
    return collective_s(c.cluster, operation, spread(c.cluster, ranks, 1), bytes);
  }
  if (ranks > most_walked) return 0;
  const int in_node = std::min(ranks, c.cluster.gpus_per_node);
  const collectives::Call call{
      .ranks = ranks,
      .root = number_of<int>(axis(c.record, "root")).value_or(0),
      .inner =
          number_of<int>(axis(c.record, "inner")).value_or(ranks % in_node == 0 ? in_node : 1)};
  const collectives::Algorithm& plan = collectives::find_algorithm(operation, algorithm);
  return plan.refuses(call).empty() ? plan_s(plan, call, bytes, c.cluster) : 0;
}

template <machine::Operation operation>
double collective_of(const Case& c) {
  return collective(c, operation);
}

// Returns the trainer of this program, without overlap unless the case requests it.
predict::Software own_software(const TrainingConfig& config) {
  return {.name = "shardmark",
          .source = "suite/trainer",
          .gradient_bytes = 4,
          .dp_overlap = config.zero.overlaps(),
          .reduction_overlap = config.zero.overlaps(),
          .gathers = 3,
          .optimizer_bytes = 24 + 4 + 4 + 8 + 6};
}

constexpr double least_step_s = 20e-3;  // the prediction does not model what shorter steps wait for

double step(const Case& c) {
  try {
    TrainingConfig config =
        completed(with_axes(c.configured.value_or(TrainingConfig()), c.record.axes));
    if (config.model.tokens > 0)
      config.model.vocabulary = padded_vocabulary(config.model, config.degrees.tp);
    const double seconds = predict_step(config, c.cluster, own_software(config)).step_s;
    return seconds < least_step_s ? 0 : seconds;
  } catch (const std::invalid_argument&) {
    return 0;  // no prediction: keys that predict rejects
  } catch (const harness::UsageError&) {
    return 0;
  }
}

struct Row {
  std::string_view unit;
  double (*seconds)(const Case&);
};
using enum machine::Operation;
constexpr Row rows[] = {{"gemm", gemm},
                        {"memory_bandwidth", memory},
                        {"host_device_bandwidth", host_device},
                        {"all_reduce", collective_of<all_reduce>},
                        {"all_gather", collective_of<all_gather>},
                        {"reduce_scatter", collective_of<reduce_scatter>},
                        {"broadcast", collective_of<broadcast>},
                        {"reduce", collective_of<reduce>},
                        {"gather", collective_of<gather>},
                        {"scatter", collective_of<scatter>},
                        {"all_to_all", collective_of<all_to_all>},
                        {"gpt_step", step},
                        {"llama_step", step},
                        {"gpt_grid", step},
                        {"training_speed", step}};

bool describes(const Cluster& cluster, const Record& record, bool on_gpu) {
  const std::string transport = axis(record, "transport");
  if (transport.empty() || axis(record, "ranks") == "1") return true;
  if (on_gpu) return transport == "nccl" || transport == "cuda_ipc";
  const bool in_node = ranks_of(record) <= cluster.gpus_per_node;
  return transport == (in_node ? "shared_memory" : "mpi");
}

// "step", "computation", … of kind_of_case.
const std::vector<std::string> kinds{"step",    "computation", "bandwidth",
                                     "message", "latency",     "other"};

}  // namespace

Cluster peaks_of(Cluster cluster) {
  cluster.gpu.bandwidth_fraction = cluster.gpu.gemm_fraction = 1;
  cluster.gpu.gemm_depth = cluster.gpu.kernel_s = 0;
  for (predict::Links* links : {&cluster.node, &cluster.network}) {
    links->latency_s = 0;
    links->fraction = 1;
  }
  return cluster;
}

Expectation::Expectation(Cluster cluster, bool on_gpu, std::optional<TrainingConfig> configured)
    : cluster_(std::move(cluster)),
      peaks_(peaks_of(cluster_)),
      on_gpu_(on_gpu),
      configured_(std::move(configured)) {}

harness::Promise Expectation::promise(const Record& record) const {
  const auto row = std::ranges::find(rows, record.unit, &Row::unit);
  if (row == std::end(rows) || !describes(cluster_, record, on_gpu_)) return {};
  const double expected = row->seconds({record, cluster_, configured_});
  return {expected, expected > 0 ? row->seconds({record, peaks_, configured_}) : 0};
}

Floors default_floors() { return {{"step", 0.8}, {"computation", 0.8}, {"bandwidth", 0.8}}; }

void read_floors(const std::string& text, Floors& floors) {
  for (const std::string& one : split_list(text)) {
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos) {
      const double floor = real_number("--expect-floor", one, 0, 10);
      for (const auto& [kind, unused] : default_floors()) floors[kind] = floor;
      continue;
    }
    const std::string kind = one.substr(0, equals);
    if (std::ranges::find(kinds, kind) == kinds.end())
      throw harness::UsageError(machine::unknown("kind of --expect-floor", kind, kinds));
    floors[kind] = real_number("--expect-floor " + kind, one.substr(equals + 1), 0, 10);
  }
}

}  // namespace suite
