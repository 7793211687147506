#pragma once
// The tensors of GPT-2 in the names and layouts of Hugging Face's transformers (models/gpt2), and
// the parameters of this project that correspond to them.
//
//   theirs                      shape          ours                            rows of ours
//   wte.weight                  [V, h]         embedding.token.weight          as theirs, padded
//   wpe.weight                  [s, h]         embedding.position.weight       as theirs, the first
//   h.N.ln_1.weight, bias       [h]            blocks.N.norm1.gain, bias
//   h.N.attn.c_attn.weight      [h, 3h]        blocks.N.attention.qkv.weight   transposed, by head
//   h.N.attn.c_attn.bias        [3h]           blocks.N.attention.qkv.bias     by head
//   h.N.attn.c_proj.weight      [h, h]         blocks.N.attention.projection…  transposed
//   h.N.ln_2.weight, bias       [h]            blocks.N.norm2.gain, bias
//   h.N.mlp.c_fc.weight         [h, 4h]        blocks.N.mlp.fc1.weight         transposed
//   h.N.mlp.c_proj.weight       [4h, h]        blocks.N.mlp.fc2.weight         transposed
//   ln_f.weight, bias           [h]            head.norm.gain, bias
//
// Transposed: their Conv1D stores [in, out], ours [out, in]. By head: their 3h columns are all
// queries, then all keys, then all values, each ordered by head. Ours are (q, k, v) of head 0, then
// of head 1 (layers/attention/attention.h), so that TP divides between heads.

#include <cstdint>
#include <string>
#include <vector>

#include "layers/gpt_config.h"

namespace suite {

struct Gpt2Tensor {
  std::string theirs, ours;
  std::vector<std::uint64_t> shape;  // theirs, with all rows of a padded table
  int block = 0;                     // -1: embedding; the number of layers: head
  bool transposed = false, by_head = false;
  bool padded = false;      // the file may have fewer rows
  bool first_rows = false;  // the file may have more rows: positions that are not trained
};
// Returns the tensors in the order of forward, without the prefix of their names.
std::vector<Gpt2Tensor> gpt2_tensors(const layers::GptConfig& config);

// Returns the row-major index in their tensor of our element [row, col].
std::uint64_t their_index(const Gpt2Tensor& tensor, const layers::GptConfig& config,
                          std::int64_t row, std::int64_t col);

}  // namespace suite
