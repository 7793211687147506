#pragma once
// How many parameters a model of a shape has. A layer of width h, ffn width f, a heads and g query
// groups has, with biases and LayerNorm,
//   q, k, v      h (h + 2 h g/a) + (h + 2 h g/a)        projection   h² + h
//   ffn          u h f + u f + f h + h                   norms        4 h
// where u is 2 with swiglu and 1 without: 12 h² + 13 h for GPT-2's f = 4h, g = a. Around the layers
// are the token table V h (twice where untied), positions s h where they are learned, and a norm.

#include "suite/configuration/training_config.h"

namespace suite::configuration {

using Model = TrainingConfig::Model;

// Of the whole model, no padding; or the number that is all that is known.
double parameters_of(const Model& model);
// Of the largest pipeline stage on one rank of tp, padding included: the first or the last.
double parameters_of_rank(const Model& model, const machine::Degrees& degrees);
// Of the largest single part (a matrix with its bias), which DeepSpeed's estimator calls the
// largest layer.
double largest_part(const Model& model);

}  // namespace suite::configuration
