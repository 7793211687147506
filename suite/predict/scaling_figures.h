#pragma once
// Figures of scaling as data: how time, volume and memory grow with the number of GPUs and with the
// degrees. scripts/figures.py draws predict.json, and writes a CSV next to each figure.
//
//   const std::vector<ScalingFigure> all = scaling_figures(cluster,
//   find_software("megatron_core")); write_file(DIR + "/predict.json", json(all, cluster));

#include <string>
#include <vector>

#include "suite/predict/step.h"

namespace suite::predict {

struct ScalingFigure {
  std::string name, title, caption;
  struct Axis {
    std::string label;
    bool logarithmic = false;  // of base 2 for x, of base 10 for y
  };
  Axis x, y;
  struct Line {
    std::string name;
    std::vector<double> x, y;
  };
  std::vector<Line> lines;
};

// strong_scaling, weak_scaling    GPT-3 175B, TP 8 x PP 8, from 64 to 16,384 GPUs
// zero_memory_stage_1 to 3        bytes of a GPU, 7.5e9 to 1e12 parameters, on 1 to 1024 GPUs
// dp_overhead                     exposed reduction, GPT 1.7B, on 1 to 256 GPUs
// tp_communication, pp_bubble     by degree, GPT-3 175B
// pp_communication                time of all messages of a stage, by degree
// savings                         an all-reduce by ring, hierarchy, overlap and compression over a
//                                 star's
// throughput_model                N / (t + c (N - 1)), a ring, and predict_step
std::vector<ScalingFigure> scaling_figures(const Cluster& cluster, const Software& software);
std::string json(const std::vector<ScalingFigure>& figures, const Cluster& cluster);

}  // namespace suite::predict
