#pragma once
// The number of parameters of a model. A layer of width h, ffn width f, a heads and g query groups
// has, with biases and LayerNorm,
//   q, k, v      h (h + 2 h g/a) + (h + 2 h g/a)        projection   h² + h
//   ffn          u h f + u f + f h + h                   norms        4 h
// where u is 2 with swiglu and 1 without: 12 h² + 13 h for GPT-2's f = 4h, g = a. A layer with
// experts has the ffn of each expert and of the shared one, and the router's num_experts h. The
// other parameters are the token table V h (twice if untied), learned positions s h, and a norm.

#include "suite/configuration/training_config.h"

namespace suite::configuration {

using Model = TrainingConfig::Model;

// Counts the whole model without padding. Returns model.parameters if the shape is unknown.
double parameters_of(const Model& model);
// Counts the largest pipeline stage, the first or the last, on one rank of tp with padding, and
// 1/ep of the experts, which etp divides (0: tp).
double parameters_of_rank(const Model& model, const machine::Degrees& degrees, int ep = 1,
                          int etp = 0);
double parameters_of_rank(const TrainingConfig& config);
// Counts those of experts only, in a mean stage.
double expert_parameters_of_rank(const TrainingConfig& config);
// Counts the largest single part (a matrix with its bias), which DeepSpeed's estimator calls the
// largest layer.
double largest_part(const Model& model);

}  // namespace suite::configuration
