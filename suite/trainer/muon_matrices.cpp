#include "suite/trainer/muon_matrices.h"

#include <string_view>

namespace suite {
namespace {

using collectives::Parameter, collectives::Role, collectives::Spread;
using Cut = zero::MatrixRow::Cut;

bool is_matrix(const Parameter& parameter) {
  const std::string_view name = parameter.name;
  return (parameter.role == Role::weight || parameter.role == Role::residual) &&
         parameter.global_shape.rank() == 2 && !name.starts_with("embedding.") &&
         name != "head.output.weight";
}

// Returns whether the parameter is two matrices of `hidden` columns, each a row of its shape.
bool is_stacked(const Parameter& parameter, const TrainingConfig::Model& model) {
  const std::string_view name = parameter.name;
  return (model.swiglu && name.ends_with(".fc1.weight")) || name.ends_with(".cross.kv.weight");
}

}  // namespace

void name_matrices(zero::GradientPlan& plan, const layers::Parameters& parameters,
                   const TrainingConfig& config) {
  if (config.optimizer.type != "muon") return;
  const TrainingConfig::Model& model = config.model;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    if (!is_matrix(parameter)) continue;
    zero::MatrixRow& matrix = plan.rows[i].matrix;
    const bool stacked = is_stacked(parameter, model),
               cut = parameter.placement.tp == Spread::sharded;
    const bool columns = cut && !stacked && parameter.placement.dim == 1;
    matrix.cut = columns ? Cut::columns : cut ? Cut::rows : Cut::nothing;
    matrix.columns = stacked ? model.hidden : parameter.global_shape[1] / (columns ? plan.tp : 1);
    if (config.optimizer.muon.split_qkv && parameter.name.ends_with(".attention.qkv.weight")) {
      const std::int64_t head = model.hidden / model.heads;
      matrix.parts = {model.heads / model.query_groups() * head, head, head};
    }
  }
}

}  // namespace suite
