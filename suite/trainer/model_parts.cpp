#include "suite/trainer/model_parts.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "suite/trainer/model_chunks.h"

namespace suite {

ModelParts model_parts(ModelChunks& model) {
  std::unordered_map<const collectives::Parameter*, int> row_of;
  for (const collectives::Parameter* parameter : model.parameters())
    row_of.emplace(parameter, static_cast<int>(row_of.size()));
  ModelParts parts;
  for (const layers::Parameters& part : model.parts()) {
    std::vector<int>& rows = parts.emplace_back();
    for (const collectives::Parameter* parameter : part) rows.push_back(row_of.at(parameter));
  }
  return parts;
}

zero::LayoutOptions layout_options(const TrainingConfig& config, const ModelParts& parts) {
  zero::LayoutOptions options{.reduce_bucket_size = config.zero.reduce_bucket_size};
  if (config.zero.stage < 2) return options;
  // Stage 2 shards no values, so small parameters stay with their part.
  options.persistence_threshold =
      config.zero.stage == 3 ? config.zero.param_persistence_threshold : 0;
  int rows = 0;
  for (const std::vector<int>& part : parts)
    for (const int row : part) rows = std::max(rows, row + 1);
  options.parts.resize(static_cast<std::size_t>(rows));
  for (std::size_t part = parts.size(); part-- > 0;)  // a shared row belongs to its first user
    for (const int row : parts[part])
      options.parts[static_cast<std::size_t>(row)] = static_cast<int>(part);
  return options;
}

zero::Usage model_usage(const TrainingConfig& config, const ModelParts& parts) {
  if (config.zero.stage < 2) return {};
  const std::vector<int>&embedding = parts.front(), &head = parts.back();
  zero::Usage usage{.micro_batches = config.micro_batches(), .uses = parts};
  // Backward: the embedding is not here, because its backward reads no values.
  usage.uses.push_back(head);
  const auto groups = layers::layer_groups(config.activations, parts.size() - 2);
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    const auto begin = parts.begin() + 1 + static_cast<std::ptrdiff_t>(group->begin),
               end = parts.begin() + 1 + static_cast<std::ptrdiff_t>(group->end);
    if (group->recomputed) usage.uses.insert(usage.uses.end(), begin, end);
    usage.uses.insert(usage.uses.end(), std::make_reverse_iterator(end),
                      std::make_reverse_iterator(begin));
  }
  usage.begun.assign(parts.rbegin(), parts.rend());
  usage.ready = usage.begun;
  // A table that the embedding shares is not ready: the embedding still adds to it.
  std::erase_if(usage.ready.front(), [&](int row) {
    return std::find(embedding.begin(), embedding.end(), row) != embedding.end();
  });
  return usage;
}

}  // namespace suite
