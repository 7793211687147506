// The encoder-decoder of plain::Training (Raffel et al. 2020, arXiv:1910.10683): relative position
// bias, shared embedding, cross attention.

#include <algorithm>
#include <cmath>
#include <utility>

#include "suite/reference/plain/training.h"

namespace suite::plain {

namespace {

using Rows = std::vector<double>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The paper's text: half of the buckets for exact distances, the others logarithmic up to 128, all
// larger distances in the last one. In both directions each has half of the buckets.
int bucket_of(int query, int key, bool causal) {
  const int each = causal ? Model::buckets : Model::buckets / 2;
  const int first = !causal && key > query ? each : 0;
  const int distance = causal ? std::max(query - key, 0) : std::abs(query - key);
  const int exact = each / 2;
  for (int at = each - 1; at >= exact; --at) {
    // The smallest distance of this bucket: exact (128 / exact)^((at - exact) / exact).
    const double part = static_cast<double>(at - exact) / exact;
    const double least = exact * std::pow(128.0 / exact, part);
    if (distance >= least * (1 - 1e-12)) return first + at;
  }
  return first + distance;
}

void add(Rows& to, const Rows& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

const char* bias_name(bool causal) {
  return causal ? "embedding.decoder_bias.weight" : "embedding.encoder_bias.weight";
}

}  // namespace

// [heads, queries, keys]
Rows Training::bias(bool causal) const {
  const Rows& table = parameters_.at(bias_name(causal)).value;
  const int length = model_.sequence;
  Rows all;
  for (int h = 0; h < model_.heads; ++h)
    for (int i = 0; i < length; ++i)
      for (int j = 0; j < length; ++j)
        all.push_back(table[index(h * Model::buckets + bucket_of(i, j, causal))]);
  return all;
}

void Training::bias_backward(bool causal, const Rows& d_bias) {
  Rows& gradient = parameters_.at(bias_name(causal)).gradient;
  const int length = model_.sequence;
  for (int h = 0; h < model_.heads; ++h)
    for (int i = 0; i < length; ++i)
      for (int j = 0; j < length; ++j)
        gradient[index(h * Model::buckets + bucket_of(i, j, causal))] +=
            d_bias[index((std::int64_t{h} * length + i) * length + j)];
}

// Attention whose queries are rows of the decoder, and whose keys and values are rows of the
// encoder. Stored as attention of one sequence: (q, k, v) of head 0, of head 1, ….
void Training::cross(const std::string& name, std::int64_t sequence_index, Block& block) const {
  const int hidden = model_.hidden, head = model_.head();
  block.cross_norm = norm(name + ".cross_norm", block.residual);
  const Rows q = linear(name + ".cross.q", block.cross_norm, hidden, hidden);
  const Rows kv = linear(name + ".cross.kv", block.encoded, hidden, 2 * hidden);
  block.cross.qkv.clear();
  for (std::int64_t row = 0; row < model_.sequence; ++row)
    for (int h = 0; h < model_.heads; ++h) {
      const auto take = [&](const Rows& from, std::int64_t first) {
        const auto begin = from.begin() + first;
        block.cross.qkv.insert(block.cross.qkv.end(), begin, begin + head);
      };
      take(q, row * hidden + h * head);
      take(kv, row * 2 * hidden + h * head);
      take(kv, row * 2 * hidden + hidden + h * head);
    }
  attend(name + ".cross", sequence_index, block.cross);
  block.crossed = linear(name + ".cross.projection", block.cross.context, hidden, hidden);
  drop(name + ".cross.dropout", model_.hidden_dropout, sequence_index * model_.sequence * hidden,
       block.crossed);
  add(block.crossed, block.residual);
}

// d_residual: the gradient of the block after cross attention, then of its input.
void Training::cross_backward(const std::string& name, std::int64_t sequence_index,
                              const Block& block, Rows& d_residual, Rows& d_encoded) {
  const int hidden = model_.hidden, head = model_.head();
  Rows dropped = d_residual;
  drop(name + ".cross.dropout", model_.hidden_dropout, sequence_index * model_.sequence * hidden,
       dropped);
  const Rows d_context =
      linear_backward(name + ".cross.projection", block.cross.context, dropped, hidden, hidden);
  const Rows d_qkv =
      attend_backward(name + ".cross", sequence_index, block.cross, d_context, nullptr);
  Rows d_q, d_kv;
  for (std::int64_t row = 0; row < model_.sequence; ++row)
    for (int part = 0; part < 3; ++part)
      for (int h = 0; h < model_.heads; ++h) {
        const auto begin = d_qkv.begin() + row * 3 * hidden + (3 * h + part) * head;
        Rows& to = part == 0 ? d_q : d_kv;
        to.insert(to.end(), begin, begin + head);
      }
  const Rows d_norm = linear_backward(name + ".cross.q", block.cross_norm, d_q, hidden, hidden);
  add(d_encoded, linear_backward(name + ".cross.kv", block.encoded, d_kv, hidden, 2 * hidden));
  add(d_residual, norm_backward(name + ".cross_norm", block.residual, d_norm));
}

double Training::train_both(std::int64_t sequence_index, const Sequence& of) {
  const auto name = [](int i) { return "blocks." + std::to_string(i); };
  const int half = model_.layers / 2;
  std::vector<Block> blocks;
  Rows x = embedded("embedding.dropout", sequence_index, of.tokens, nullptr);
  const Rows encoder_bias = bias(false), decoder_bias = bias(true);
  Rows encoded;
  for (int i = 0; i < model_.layers; ++i) {
    if (i == half) {
      encoded = norm(name(half - 1) + ".end", x);
      x = embedded("embedding.decoder.dropout", sequence_index, of.decoder_tokens, nullptr);
    }
    Block block;
    block.self.causal = i >= half;
    block.self.length = of.keys;
    block.self.bias = i < half ? encoder_bias : decoder_bias;
    if (i >= half) block.encoded = encoded;
    block.cross.length = of.keys;
    block.cross.causal = false;
    blocks.push_back(forward(name(i), sequence_index, std::move(block), x));
    x = blocks.back().y;
  }
  Rows d_x;
  const double loss = head(x, of.targets, d_x);
  Rows d_encoded(encoded.size()), d_encoder_bias(encoder_bias.size()),
      d_decoder_bias(decoder_bias.size());
  for (int i = model_.layers - 1; i >= 0; --i) {
    if (i == half - 1) {
      embedded_backward("embedding.decoder.dropout", sequence_index, of.decoder_tokens, nullptr,
                        d_x);
      d_x = norm_backward(name(half - 1) + ".end", blocks[index(i)].y, d_encoded);
    }
    d_x = backward(name(i), sequence_index, blocks[index(i)], d_x,
                   i < half ? &d_encoder_bias : &d_decoder_bias, i < half ? nullptr : &d_encoded);
  }
  embedded_backward("embedding.dropout", sequence_index, of.tokens, nullptr, d_x);
  bias_backward(false, d_encoder_bias);
  bias_backward(true, d_decoder_bias);
  return loss;
}

}  // namespace suite::plain
