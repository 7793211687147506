#pragma once
// Published training runs (published_runs.csv, with their sources) and their predictions. The rows
// marked `fit` are those from which gemm_fraction of a cluster was chosen. Rows marked `chosen` had
// a part in the choice of a software's options or of an input that no source states, so they do not
// count as predicted. No constant belongs to a row. An input that a source does not publish
// (micro-batch, virtual stages, recomputation) is the one with which the prediction is fastest
// among those that fit into memory.

#include <string>
#include <vector>

#include "suite/configuration/training_config.h"
#include "suite/predict/cluster.h"

namespace suite::predict {

enum class Use : unsigned char { predict, fit, chosen };

struct PublishedRun {
  Use use = Use::predict;
  std::string source, table, model, cluster, software, inputs;
  TrainingConfig config;
  bool any_micro_batch = false, any_virtual_stages = false, any_recompute = false;
  double step_s = 0;                            // published, or from the published FLOP/s
  double stated_step_s = 0, stated_tflops = 0;  // 0: not published
  // FLOPs of a step by the source's own formula; 0: it states only a time.
  double stated_flops = 0;
};
std::vector<PublishedRun> published_runs();

struct Comparison {
  PublishedRun run;
  double predicted_s = 0;
  std::string chosen;  // the inputs that were not published: "micro-batch 2, 7 virtual stages"
  double error() const { return predicted_s / run.step_s - 1; }
};
// clusters: replace the built-in cluster of the same name.
std::vector<Comparison> compare_published(const std::vector<Cluster>& clusters = {});

struct Accuracy {
  int rows = 0;
  double mean = 0, worst = 0;  // of the absolute errors
};
Accuracy accuracy(const std::vector<Comparison>& all, Use use);
// Returns the absolute error that `share` of the predicted rows do not exceed.
double error_quantile(const std::vector<Comparison>& all, double share);

std::string text(const std::vector<Comparison>& all);  // a table for Markdown

}  // namespace suite::predict
