#include "suite/trainer/gpt2_tensors.h"

#include <fmt/format.h>

#include <utility>

namespace suite {

std::vector<Gpt2Tensor> gpt2_tensors(const layers::GptConfig& config) {
  const auto extent = [](int value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t h = extent(config.hidden), f = extent(config.ffn());
  std::vector<Gpt2Tensor> table;
  const auto add = [&](int block, std::string theirs, std::string ours,
                       std::vector<std::uint64_t> shape) -> Gpt2Tensor& {
    table.push_back({std::move(theirs), std::move(ours), std::move(shape), block});
    return table.back();
  };
  const auto add_norm = [&](int block, const std::string& theirs, const std::string& ours) {
    add(block, theirs + ".weight", ours + ".gain", {h});
    add(block, theirs + ".bias", ours + ".bias", {h});
  };
  const auto add_linear = [&](int block, const std::string& theirs, const std::string& ours,
                              std::uint64_t in, std::uint64_t out, bool by_head = false) {
    Gpt2Tensor& weight = add(block, theirs + ".weight", ours + ".weight", {in, out});
    weight.transposed = true;
    weight.by_head = by_head;
    add(block, theirs + ".bias", ours + ".bias", {out}).by_head = by_head;
  };
  add(-1, "wte.weight", "embedding.token.weight", {extent(config.vocabulary), h}).padded = true;
  add(-1, "wpe.weight", "embedding.position.weight", {extent(config.sequence), h}).first_rows =
      true;
  for (int block = 0; block < config.layers; ++block) {
    const std::string theirs = fmt::format("h.{}", block), ours = fmt::format("blocks.{}", block);
    add_norm(block, theirs + ".ln_1", ours + ".norm1");
    add_linear(block, theirs + ".attn.c_attn", ours + ".attention.qkv", h, 3 * h, true);
    add_linear(block, theirs + ".attn.c_proj", ours + ".attention.projection", h, h);
    add_norm(block, theirs + ".ln_2", ours + ".norm2");
    add_linear(block, theirs + ".mlp.c_fc", ours + ".mlp.fc1", h, f);
    add_linear(block, theirs + ".mlp.c_proj", ours + ".mlp.fc2", f, h);
  }
  add_norm(config.layers, "ln_f", "head.norm");
  return table;
}

std::uint64_t their_index(const Gpt2Tensor& tensor, const layers::GptConfig& config,
                          std::int64_t row, std::int64_t col) {
  const bool vector = tensor.shape.size() == 1;
  std::int64_t output = vector ? col : row;
  if (tensor.by_head) {
    const std::int64_t size = config.hidden / config.heads;
    const std::int64_t head = output / (3 * size), part = output / size % 3;
    output = part * config.hidden + head * size + output % size;
  }
  const auto cols = static_cast<std::int64_t>(tensor.shape.back());
  if (vector) return static_cast<std::uint64_t>(output);
  return static_cast<std::uint64_t>(tensor.transposed ? col * cols + output : output * cols + col);
}

}  // namespace suite
