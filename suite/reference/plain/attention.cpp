// The attention of plain::Training.

#include <algorithm>
#include <cmath>

#include "suite/reference/plain/training.h"

namespace suite::plain {

namespace {

using Rows = std::vector<double>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

// Rotates the pair of columns i and i + head/2 of queries and keys by direction * position *
// base^(-2i/head). Columns: for each group its queries, a key and a value.
void Training::rotate(Rows& qkv, double direction) const {
  if (!model_.rotary) return;
  const int head = model_.head(), of_group = model_.heads / model_.groups + 2;
  for (int position = 0; position < model_.sequence; ++position)
    for (int at = 0; at < model_.groups * of_group; ++at) {
      if (at % of_group == of_group - 1) continue;  // a value
      double* const x = qkv.data() + std::int64_t{position} * model_.qkv() + at * head;
      for (int i = 0; i < head / 2; ++i) {
        const double angle = direction * position * std::pow(model_.rotary_base, -2.0 * i / head);
        const double first = x[i], second = x[i + head / 2];
        x[i] = first * std::cos(angle) - second * std::sin(angle);
        x[i + head / 2] = first * std::sin(angle) + second * std::cos(angle);
      }
    }
}

void Training::attend(const std::string& name, std::int64_t sequence_index,
                      Attention& attention) const {
  const int head = model_.head(), shared = model_.heads / model_.groups, length = model_.sequence;
  const std::int64_t width = model_.qkv();
  const double scale = model_.scale();
  attention.probabilities.assign(index(std::int64_t{model_.heads} * length * length), 0);
  attention.context.assign(index(std::int64_t{length} * model_.hidden), 0);
  const auto row_of = [&](int h, int query) {
    return index((std::int64_t{h} * length + query) * length);
  };
  for (int h = 0; h < model_.heads; ++h) {
    const std::int64_t group = h / shared * (shared + 2);
    const double* const q = attention.qkv.data() + (group + h % shared) * head;
    const double* const k = attention.qkv.data() + (group + shared) * head;
    const std::vector<bool> seen = model_.block > 0 ? model_.sparse.seen(h) : std::vector<bool>();
    const auto sees = [&](std::int64_t query, std::int64_t key) {
      return seen.empty() ||
             seen[index(query / model_.block * model_.sparse.blocks + key / model_.block)];
    };
    for (int i = 0; i < length; ++i) {
      double* const p = attention.probabilities.data() + row_of(h, i);
      double largest = -INFINITY, sum = 0;
      for (int j = 0; j < attention.keys(i); ++j) {
        for (int d = 0; d < head; ++d) p[j] += scale * q[i * width + d] * k[j * width + d];
        if (!attention.bias.empty()) p[j] += attention.bias[row_of(h, i) + index(j)];
        if (!sees(i, j)) p[j] = -INFINITY;
        largest = std::max(largest, p[j]);
      }
      for (int j = 0; j < attention.keys(i); ++j) sum += p[j] = std::exp(p[j] - largest);
      for (int j = 0; j < attention.keys(i); ++j) p[j] /= sum;
    }
  }
  attention.weights = attention.probabilities;
  drop(name + ".probabilities.dropout", model_.attention_dropout,
       sequence_index * model_.heads * length * length, attention.weights);
  for (int h = 0; h < model_.heads; ++h) {
    const double* const v =
        attention.qkv.data() + (h / shared * (shared + 2) + shared + 1) * std::int64_t{head};
    for (int i = 0; i < length; ++i)
      for (int j = 0; j < attention.keys(i); ++j)
        for (int d = 0; d < head; ++d)
          attention.context[index(std::int64_t{i} * model_.hidden + h * head + d)] +=
              attention.weights[row_of(h, i) + index(j)] * v[j * width + d];
  }
}

Rows Training::attend_backward(const std::string& name, std::int64_t sequence_index,
                               const Attention& attention, const Rows& d_context,
                               Rows* d_bias) const {
  const int head = model_.head(), shared = model_.heads / model_.groups, length = model_.sequence;
  const std::int64_t width = model_.qkv();
  const double scale = model_.scale();
  Rows d_qkv(attention.qkv.size()), d_p(attention.probabilities.size());
  for (int h = 0; h < model_.heads; ++h) {
    const std::int64_t value = (h / shared * (shared + 2) + shared + 1) * std::int64_t{head};
    for (int i = 0; i < length; ++i)
      for (int j = 0; j < attention.keys(i); ++j) {
        const std::size_t at = index((std::int64_t{h} * length + i) * length + j);
        for (int d = 0; d < head; ++d) {
          const double gradient = d_context[index(std::int64_t{i} * model_.hidden + h * head + d)];
          d_p[at] += gradient * attention.qkv[index(j * width + value + d)];
          d_qkv[index(j * width + value + d)] += attention.weights[at] * gradient;
        }
      }
  }
  drop(name + ".probabilities.dropout", model_.attention_dropout,
       sequence_index * model_.heads * length * length, d_p);
  for (int h = 0; h < model_.heads; ++h) {
    const std::int64_t group = h / shared * (shared + 2);
    const std::int64_t query = (group + h % shared) * head, key = (group + shared) * head;
    for (int i = 0; i < length; ++i) {
      const std::size_t row = index((std::int64_t{h} * length + i) * length);
      double sum = 0;
      for (int j = 0; j < attention.keys(i); ++j)
        sum += d_p[row + index(j)] * attention.probabilities[row + index(j)];
      for (int j = 0; j < attention.keys(i); ++j) {
        const double d_biased =
            attention.probabilities[row + index(j)] * (d_p[row + index(j)] - sum);
        const double d_score = scale * d_biased;
        if (d_bias) (*d_bias)[row + index(j)] += d_biased;
        for (int d = 0; d < head; ++d) {
          d_qkv[index(i * width + query + d)] +=
              d_score * attention.qkv[index(j * width + key + d)];
          d_qkv[index(j * width + key + d)] +=
              d_score * attention.qkv[index(i * width + query + d)];
        }
      }
    }
  }
  return d_qkv;
}

}  // namespace suite::plain
