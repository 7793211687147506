#include "suite/trainer/gpt2_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "machine/base/names.h"
#include "suite/files/safetensors.h"
#include "suite/trainer/gpt2_tensors.h"

namespace suite {

using machine::Axis;
using machine::Dtype;

namespace {

constexpr std::string_view prefix = "transformer.";

double element(const StoredTensor& tensor, Dtype dtype, std::uint64_t index) {
  double value = 0;
  machine::visit(dtype, [&](auto zero) {
    using T = decltype(zero);
    T stored;
    std::memcpy(&stored, tensor.bytes.data() + index * sizeof(T), sizeof(T));
    value = static_cast<double>(static_cast<machine::Accumulator<T>>(stored));
  });
  return value;
}

std::vector<std::byte> rounded(const std::vector<double>& values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * machine::size_of(dtype));
  machine::visit(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T stored = static_cast<T>(static_cast<machine::Accumulator<T>>(values[i]));
      std::memcpy(bytes.data() + i * sizeof(T), &stored, sizeof(T));
    }
  });
  return bytes;
}

// Returns 12 for "h.12.ln_1.weight"; empty for a name without a block.
std::optional<int> block_of(std::string_view name) {
  if (!name.starts_with("h.")) return {};
  std::size_t at = 2;
  int block = 0;
  for (; at < name.size() && at < 8 && std::isdigit(static_cast<unsigned char>(name[at])); ++at)
    block = 10 * block + (name[at] - '0');
  return at > 2 && at < name.size() && name[at] == '.' ? std::optional(block) : std::nullopt;
}

// Returns whether the tensor is an attention mask. Older versions stored masks with the weights.
bool is_mask(std::string_view name) {
  return block_of(name) && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

// A file whose names and shapes were checked against the model.
class Gpt2File {
 public:
  Gpt2File(const std::string& path, const layers::GptConfig& config, int tp)
      : file_(path), prefix_(file_.find("transformer.wte.weight") ? prefix : "") {
    const std::vector<Gpt2Tensor> wanted = gpt2_tensors(config);
    check_names(wanted, config);
    for (const Gpt2Tensor& tensor : wanted) check(tensor, tp);
    vocabulary_ = static_cast<int>(of("wte.weight").shape[0]);
    if (const StoredTensor* head = file_.find("lm_head.weight")) check_tied(*head);
  }

  const StoredTensor& of(const std::string& name) const {
    return *file_.find(std::string(prefix_) + name);
  }
  int vocabulary() const { return vocabulary_; }

 private:
  void check_names(const std::vector<Gpt2Tensor>& wanted, const layers::GptConfig& config) const {
    std::vector<std::string> known, unknown;
    for (const Gpt2Tensor& tensor : wanted) known.push_back(std::string(prefix_) + tensor.theirs);
    std::vector<std::string> sorted = known;
    std::sort(sorted.begin(), sorted.end());
    for (const StoredTensor& tensor : file_.tensors())
      if (!std::binary_search(sorted.begin(), sorted.end(), tensor.name)) {
        std::string_view name = tensor.name;
        if (name.starts_with(prefix_)) name.remove_prefix(prefix_.size());
        if (is_mask(name) || tensor.name == "lm_head.weight") continue;
        if (const auto block = block_of(name); block && *block >= config.layers)
          throw FileError(fmt::format("{}: tensor {} belongs to block {}, but the model has {}",
                                      file_.path(), in_quotes(tensor.name), *block, config.layers));
        unknown.push_back(tensor.name.substr(0, 200));
      }
    for (const std::string& name : known)
      if (!file_.find(name)) {
        const std::string near = machine::nearest(name, unknown);
        throw FileError(
            fmt::format("{} has no tensor '{}'{}", file_.path(), name,
                        near.empty() ? "" : fmt::format("; did you mean {}?", in_quotes(near))));
      }
    if (unknown.empty()) return;
    const std::string near = machine::nearest(unknown[0], known);
    throw FileError(fmt::format("{}: tensor {} is not one of GPT-2's{}", file_.path(),
                                in_quotes(unknown[0]),
                                near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  }

  void check(const Gpt2Tensor& wanted, int tp) const {
    const StoredTensor& stored = of(wanted.theirs);
    const auto dtype = dtype_of_tensor(stored.dtype);
    if (!dtype || !machine::has_every_kernel(*dtype))
      throw FileError(fmt::format("{}: dtype of tensor '{}' is {}; expected F32, F16, BF16 or F64",
                                  file_.path(), stored.name, stored.dtype));
    auto shape = wanted.shape;
    std::string padding;
    if (wanted.padded && stored.shape.size() == 2) {
      const std::uint64_t most = 128u * static_cast<std::uint64_t>(tp) - 1;
      const std::uint64_t least = shape[0] > most ? shape[0] - most : 1;
      if (stored.shape[0] < shape[0] && stored.shape[0] >= least) shape[0] = stored.shape[0];
      padding = fmt::format(", or as few as {} rows", least);
    }
    if (wanted.first_rows && stored.shape.size() == 2 && stored.shape[0] > shape[0]) {
      shape[0] = stored.shape[0];
    }
    if (stored.shape != shape)
      throw FileError(fmt::format("{}: shape of tensor '{}' is {}; expected {}{}", file_.path(),
                                  stored.name, stored.shape_text(),
                                  TensorEntry{"", "", wanted.shape}.shape_text(), padding));
  }

  void check_tied(const StoredTensor& head) const {
    const StoredTensor& table = of("wte.weight");
    if (head.dtype != table.dtype || head.shape != table.shape ||
        !std::ranges::equal(head.bytes, table.bytes))
      throw FileError(
          fmt::format("{}: tensor 'lm_head.weight' is not '{}', but the model's output layer is "
                      "its token table",
                      file_.path(), table.name));
  }

  Safetensors file_;
  std::string_view prefix_;
  int vocabulary_ = 0;
};

// Returns rank 0 of the grid and the tp ranks of the first replica that hold the tensor. If two
// stages hold it, the first stage is used.
machine::Group holders(const Gpt2Tensor& tensor, const machine::Group& group,
                       const machine::Grid& grid, const std::vector<int>& stages) {
  const int stage =
      tensor.block < 0 ? stages.front() : stages[static_cast<std::size_t>(tensor.block)];
  const machine::Grid first(grid.degrees(),
                            machine::Grid(grid.degrees(), 0).rank_at(Axis::pp, stage));
  std::vector<int> ranks{0};
  for (int tp_rank = 0; tp_rank < grid.size(Axis::tp); ++tp_rank)
    if (const int rank = first.rank_at(Axis::tp, tp_rank); rank != 0) ranks.push_back(rank);
  machine::Group result{"holders", {}, -1};
  for (const int rank : ranks) {
    if (rank == group.index) result.index = result.size();
    result.members.push_back(group.members[static_cast<std::size_t>(rank)]);
  }
  return result;
}

// One rank's part of a parameter; empty if the rank adds nothing.
struct Shard {
  std::int64_t row = 0, col = 0, cols = 0;
  std::vector<double> values = {};
  static auto members(auto& self) { return std::tie(self.row, self.col, self.cols, self.values); }
};

Shard shard_of(const Gpt2Tensor& tensor, const layers::Parameters& parameters,
               const machine::Grid& grid) {
  const auto held = std::ranges::find(parameters, tensor.ours,
                                      [](const auto* parameter) { return parameter->name; });
  if (held == parameters.end()) return {};
  const collectives::Parameter& parameter = **held;
  const int tp_rank = grid.coordinate(Axis::tp);
  if (parameter.placement.tp == collectives::Spread::replicated && tp_rank > 0) return {};
  const machine::Region region = parameter.region(tp_rank);
  return {region.row, region.col, parameter.value.cols(), to_doubles(parameter.value)};
}

// Returns the whole tensor in their layout.
std::vector<double> whole(const Gpt2Tensor& tensor, const layers::GptConfig& config, int vocabulary,
                          const std::vector<Shard>& shards) {
  std::uint64_t size = 1;
  for (const std::uint64_t extent : tensor.shape) size *= extent;
  if (tensor.padded) size = size / tensor.shape[0] * static_cast<std::uint64_t>(vocabulary);
  std::vector<double> values(size);
  for (const Shard& shard : shards)
    for (std::size_t i = 0; i < shard.values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t row = shard.row + at / shard.cols, col = shard.col + at % shard.cols;
      if (!tensor.padded || row < vocabulary)
        values[their_index(tensor, config, row, col)] = shard.values[i];
    }
  return values;
}

}  // namespace

void refuse_unlike_gpt2(const layers::GptConfig& config) {
  const auto refuse = [](bool unlike, std::string_view key, std::string_view value,
                         std::string_view theirs) {
    if (unlike)
      throw FileError(
          fmt::format("files have weights of GPT-2, with {} {}, but the model has {}; only a "
                      "model of GPT-2's shape can be loaded or saved",
                      key, theirs, value));
  };
  const auto positions = config.position_embedding_type;
  refuse(config.architecture != layers::Architecture::decoder, "architecture",
         name(config.architecture), "decoder");
  refuse(config.normalization != layers::Normalization::layer_norm, "normalization",
         name(config.normalization), "LayerNorm");
  refuse(positions != layers::PositionEmbedding::learned_absolute, "position-embedding-type",
         name(positions), "learned_absolute");
  refuse(config.swiglu, "swiglu", "1", "0");
  refuse(config.has_experts(), "num-experts", std::to_string(config.moe.num_experts), "0");
  refuse(config.query_groups() != config.heads, "group-query-attention", "1", "0");
  refuse(config.disable_bias_linear, "disable-bias-linear", "1", "0");
  refuse(config.untie_embeddings_and_output_weights, "untie-embeddings-and-output-weights", "1",
         "0");
}

void check_gpt2(const std::string& path, const layers::GptConfig& config, int tp) {
  refuse_unlike_gpt2(config);
  const Gpt2File file(path, config, tp);
}

int load_gpt2(const std::string& path, const layers::GptConfig& config,
              const layers::Parameters& parameters, int tp, int tp_rank) {
  const Gpt2File file(path, config, tp);
  const std::vector<Gpt2Tensor> table = gpt2_tensors(config);
  for (const collectives::Parameter* parameter : parameters) {
    const auto tensor =
        std::ranges::find(table, parameter->name, [](const Gpt2Tensor& row) { return row.ours; });
    if (tensor == table.end())
      throw std::logic_error(fmt::format("load_gpt2: no tensor for {}", parameter->name));
    const StoredTensor& stored = file.of(tensor->theirs);
    const Dtype dtype = *dtype_of_tensor(stored.dtype);
    const machine::Region region = parameter->region(tp_rank);
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(parameter->value.size()));
    for (std::int64_t row = region.row; row < region.row + parameter->value.rows(); ++row)
      for (std::int64_t col = region.col; col < region.col + parameter->value.cols(); ++col)
        values.push_back(tensor->padded && row >= file.vocabulary()
                             ? 0
                             : element(stored, dtype, their_index(*tensor, config, row, col)));
    from_doubles(parameter->value, values);
  }
  return file.vocabulary();
}

void save_gpt2(const std::string& path, const layers::GptConfig& config, int vocabulary,
               const layers::Parameters& parameters, machine::World& world,
               const machine::Group& group, const machine::Grid& grid,
               const std::vector<int>& stages) {
  const std::vector<Gpt2Tensor> table = gpt2_tensors(config);
  const Dtype dtype = parameters.front()->value.dtype();
  std::string error;  // of rank 0, which still gathers the rest, because no rank may wait for it
  std::unique_ptr<SafetensorsWriter> writer;
  const auto attempt = [&](const auto& work) {
    if (!error.empty()) return;
    try {
      work();
    } catch (const FileError& failure) {
      error = failure.what();
    }
  };
  if (group.index == 0)
    attempt([&] {
      std::vector<TensorEntry> entries;
      for (const Gpt2Tensor& tensor : table) {
        entries.push_back({tensor.theirs, std::string(tensor_dtype_name(dtype)), tensor.shape});
        if (tensor.padded) entries.back().shape[0] = static_cast<std::uint64_t>(vocabulary);
      }
      writer = std::make_unique<SafetensorsWriter>(path, std::move(entries));
    });

  for (const Gpt2Tensor& tensor : table) {
    const machine::Group group_of_tensor = holders(tensor, group, grid, stages);
    if (group_of_tensor.index < 0) continue;
    const std::vector<Shard> shards =
        world.all_gather(group_of_tensor, shard_of(tensor, parameters, grid));
    if (group.index == 0)
      attempt([&] { writer->add(rounded(whole(tensor, config, vocabulary, shards), dtype)); });
  }
  if (group.index == 0) attempt([&] { writer->finish(); });
  error = world.broadcast(group, 0, error);
  if (!error.empty()) throw FileError(error);
}

}  // namespace suite
