#pragma once
// Training of a GPT, Llama, BERT or T5 model, implemented a second time: plain loops in double over
// whole matrices, one sequence after the other. It judges the training step, so it includes nothing
// of layers, zero and the trainer; both sides only draw the same random numbers.
//
//   plain::Training training(model, rule, seed);
//   const plain::Step step = training.step(batch, rate, /*skip=*/false);
//
// The mathematics, with the papers that define it:
//   model       Radford et al. 2019; Touvron et al. 2023, arXiv:2302.13971; Devlin et al. 2019,
//               arXiv:1810.04805, with norms first (Shoeybi et al. 2019, arXiv:1909.08053); Raffel
//               et al. 2020, arXiv:1910.10683, with GELU; experts as in moe_reference.h;
//               attention without the pairs that sparse_rule.h does not see
//   loss        cross-entropy, summed over the tokens that have a target; the softmax ignores rows
//               of the table that are padding; and for each layer with experts and each micro-batch
//               the auxiliary losses, which are means over its tokens, times their number
//   gradient    of the sum, divided once by the number of those tokens in the whole step
//   clipping    of the 2-norm of all gradients, each parameter once
//   update      Adam (Kingma and Ba 2015, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2019,
//               arXiv:1711.05101), Lion (Chen et al. 2023, arXiv:2302.06675), LAMB (You et al.
//               2019, arXiv:1904.00962), Muon (Jordan et al. 2024) with AdamW of what is not a
//               matrix, Adafactor (Shazeer and Stern 2018, arXiv:1804.04235), 1-bit Adam (Tang et
//               al. 2021, arXiv:2102.02888), 1-bit LAMB (Li et al. 2021, arXiv:2104.06069),
//               RMSProp, SGD with momentum; weights decay, biases and gains do not

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "suite/reference/attention/sparse_rule.h"
#include "suite/reference/moe_reference.h"
#include "suite/reference/plain/muon.h"

namespace suite::plain {

struct Model {
  int layers = 0, hidden = 0, heads = 0, groups = 0;  // groups: heads of keys and values
  int table_rows = 0, vocabulary = 0;                 // vocabulary: rows that are tokens
  int sequence = 0, ffn = 0;
  bool encoder = false;  // BERT: attention to all keys, token types, a hidden layer in the head
  bool encoder_decoder = false;       // T5: half of the layers each
  static constexpr int buckets = 32;  // of relative positions
  bool rms_norm = false, swiglu = false, rotary = false, biases = true, tied = true;
  double epsilon = 1e-5, rotary_base = 10000, hidden_dropout = 0, attention_dropout = 0;
  // The experts of every experts_every-th layer from 0 on. No layer has experts if `experts` of the
  // sizes is 0. tokens: of a micro-batch, which a router sees together.
  MoeSizes mixture{.experts = 0};
  int experts_every = 1;
  SparseRule sparse{};
  int block = 0;  // positions of a block of `sparse`; 0: attention is dense

  int head() const { return hidden / heads; }
  double scale() const;  // of scores
  bool has_positions() const { return !rotary && !encoder_decoder; }
  bool crosses(int layer) const { return encoder_decoder && layer >= layers / 2; }
  bool has_experts(int layer) const { return mixture.experts > 0 && layer % experts_every == 0; }
  bool ends_encoder(int layer) const { return encoder_decoder && layer + 1 == layers / 2; }
  int qkv() const { return (heads + 2 * groups) * head(); }
  // Returns the floating-point operations of forward and backward for that many tokens.
  double flops(std::int64_t tokens) const;
};

struct Rule {
  enum class Kind : unsigned char {
    sgd,
    rmsprop,
    adam,
    adamw,
    lion,
    lamb,
    muon,
    adafactor,
    one_bit_adam,
    one_bit_lamb
  };
  Kind kind = Kind::adamw;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0;
  double momentum = 0, smoothing = 0.99;          // of SGD and Muon, and of RMSProp
  double least_ratio = 0.01, largest_ratio = 10;  // of LAMB's norms of a parameter and its update
  Muon muon = {};
  double decay_rate = 0.8, largest_update = 1;  // of Adafactor
  std::int64_t freeze_step = 0;  // updates before the 1-bit rules' variance is constant
  // For 1-bit LAMB.
  double ratio_beta = 0.9, least_factor = 0.5, largest_factor = 4, largest_change = 0.1;
  double largest_norm = 0;  // of the gradient; 0: not clipped
};

// A router's decisions for a micro-batch: moe_reference.h.
struct Decisions {
  std::vector<std::int32_t> chosen, choices;
};

// The sequences of a step, and their place in the training.
struct Batch {
  std::vector<std::int32_t> tokens, targets;  // [sequences, sequence]; a negative target: none
  std::int64_t first_token = 0;               // number of tokens in earlier steps
  // For an encoder: the type of each token, and each sequence's length without padding. For an
  // encoder-decoder: the lengths of the encoder's sequences, and the decoder's tokens.
  std::vector<std::int32_t> types{}, lengths{}, decoder_tokens{};
  // For a model with experts: the routers' decisions for each micro-batch and layer. They are
  // given, so that a rounding error never changes a choice. The caller judges them by the logits.
  std::vector<std::vector<Decisions>> decisions{};
};

struct Parameter {
  std::vector<double> value, gradient;  // gradient: of the sum of the losses
  bool decays = false, frozen = false;  // frozen: neither in the norm nor updated
  std::vector<double> first_moment, second_moment;
  std::int64_t columns = 0;  // of a matrix
  bool hidden = false;       // Muon orthogonalizes it
  // Rows of a group that belong to its queries, its key and its value.
  std::vector<std::int64_t> parts{};
  // 1-bit LAMB: a variance that is not constant, the mean of ratios, and the last factor.
  std::vector<double> fresh_variance{};
  double ratio = 0, factor = 1;
};

// The inputs and results of attention for one sequence. The columns of qkv are, for each group, its
// queries, a key and a value.
struct Attention {
  std::int64_t length = 0;  // of the keys without padding
  bool causal = true;
  std::vector<double> bias;  // of scores, [heads, queries, keys], or empty
  std::vector<double> qkv, probabilities, weights, context;
  // Returns the number of keys that a query sees.
  std::int64_t keys(std::int64_t query) const { return causal ? query + 1 : length; }
};
// The inputs and results of one block's forward for one sequence. Without `encoded` it has no cross
// attention.
struct Block {
  Attention self, cross;
  std::vector<double> x, norm1, residual, encoded, cross_norm, crossed, norm2, inner, active, y;
  const std::vector<double>& before_mlp() const { return encoded.empty() ? residual : crossed; }
};

struct Step {
  double loss = 0;               // mean over the tokens that count
  double gradient_norm = 0;      // of the mean gradient, before clipping
  double factor = 0;             // of the summed gradient in the update: clipping over tokens
  std::vector<double> logits{};  // of the routers, by micro-batch, then by layer
};

class Training {
 public:
  // Draws the initial values: normal 0.02, residual projections divided by sqrt(2 layers), biases
  // and gains normal 0.1 around 0 and 1.
  Training(const Model& model, const Rule& rule, std::uint64_t seed);

  // Computes loss and gradients, and updates with that learning rate unless the step is skipped.
  // sums: the gradients that the norm and the update use in place of those that this computes (of
  // compressed gradients), by parameter; the momenta, once a 1-bit rule's variance is constant. A
  // name with one of these suffixes gives the parameter's moments before the update.
  using Sums = std::map<std::string, std::vector<double>>;
  static constexpr const char *first_moment = "/first_moment", *second_moment = "/second_moment";
  Step step(const Batch& batch, double learning_rate, bool skip, const Sums* sums = nullptr);

  const std::map<std::string, Parameter>& parameters() const { return parameters_; }
  // Freezes the parameters whose name matches a pattern, in which * stands for any characters.
  void freeze(const std::string& pattern);
  // Adds `shift` to one element of a parameter, for difference quotients.
  void move(const std::string& name, std::size_t element, double shift) {
    parameters_.at(name).value[element] += shift;
  }
  // Adds a shift to each element of a parameter, for values that are rounded before their use.
  void move(const std::string& name, const std::vector<double>& shifts, double times = 1) {
    std::vector<double>& value = parameters_.at(name).value;
    for (std::size_t i = 0; i < value.size(); ++i) value[i] += times * shifts[i];
  }

 private:
  // One sequence of a batch.
  struct Sequence {
    const std::int32_t *tokens, *targets, *types, *decoder_tokens;
    std::int64_t keys;  // length without padding
  };
  using Rows = std::vector<double>;  // [rows, columns]

  Parameter& declare(const std::string& name, std::int64_t size, double mean, double stddev,
                     bool decays);
  // hidden: neither an embedding nor the output layer.
  void declare_matrix(const std::string& name, std::int64_t out, std::int64_t in, double stddev,
                      bool hidden = true) {
    Parameter& parameter = declare(name, out * in, 0, stddev, true);
    parameter.columns = in;
    parameter.hidden = hidden;
  }
  void declare_norm(const std::string& name);
  void declare_linear(const std::string& name, std::int64_t out, std::int64_t in, double stddev);

  void drop(const std::string& name, double probability, std::int64_t first, Rows& rows) const;
  Rows norm(const std::string& name, const Rows& x) const;
  Rows norm_backward(const std::string& name, const Rows& x, const Rows& d_y);
  Rows linear(const std::string& name, const Rows& x, int in, int out) const;
  Rows linear_backward(const std::string& name, const Rows& x, const Rows& d_y, int in, int out);
  void rotate(Rows& qkv, double direction) const;
  void attend(const std::string& name, std::int64_t sequence_index, Attention& attention) const;
  // Adds to d_bias unless it is null.
  Rows attend_backward(const std::string& name, std::int64_t sequence_index,
                       const Attention& attention, const Rows& d_context, Rows* d_bias) const;
  Rows bias(bool causal) const;
  void bias_backward(bool causal, const Rows& d_bias);
  void cross(const std::string& name, std::int64_t sequence_index, Block& block) const;
  void cross_backward(const std::string& name, std::int64_t sequence_index, const Block& block,
                      Rows& d_residual, Rows& d_encoded);
  Rows activate(const Rows& inner) const;
  Rows activate_backward(const Rows& inner, const Rows& d_active) const;
  // The two halves of a block: up to norm2, and the perceptron.
  Block attended(const std::string& name, std::int64_t sequence_index, Block block,
                 const Rows& x) const;
  void perceive(const std::string& name, Block& block) const;
  Rows perceive_backward(const std::string& name, const Block& block, const Rows& d_y);
  // Adds dropout and the residual path to block.y.
  void finish(const std::string& name, std::int64_t sequence_index, Block& block) const;
  Rows attended_backward(const std::string& name, std::int64_t sequence_index, const Block& block,
                         const Rows& d_norm2, const Rows& d_y, Rows* d_bias = nullptr,
                         Rows* d_encoded = nullptr);
  // block: with the settings of its attention and the encoder's rows.
  Block forward(const std::string& name, std::int64_t sequence_index, Block block,
                const Rows& x) const;
  Rows backward(const std::string& name, std::int64_t sequence_index, const Block& block,
                const Rows& d_y, Rows* d_bias = nullptr, Rows* d_encoded = nullptr);
  Rows embedded(const std::string& dropout, std::int64_t sequence_index, const std::int32_t* tokens,
                const std::int32_t* types) const;
  void embedded_backward(const std::string& dropout, std::int64_t sequence_index,
                         const std::int32_t* tokens, const std::int32_t* types, Rows d_x);
  // Returns the loss and sets the gradient of its input.
  double head(const Rows& last, const std::int32_t* targets, Rows& d_last);
  // Return the loss of a sequence and add its gradients.
  double train(std::int64_t sequence_index, const Sequence& of);
  double train_both(std::int64_t sequence_index, const Sequence& of);
  // The experts of a block (experts.cpp), for the rows of a micro-batch.
  void declare_experts(const std::string& name, double weight, double residual);
  MoeValues mixture_values(const std::string& name, const Rows& x,
                           const Decisions& decisions) const;
  void add_mixture_gradients(const std::string& name, const MoeReference& gradients);
  // Returns the loss of a micro-batch, auxiliary losses included, and adds its gradients and
  // logits.
  double train_together(std::int64_t sequence_index, const std::vector<Sequence>& sequences,
                        const std::vector<Decisions>& decisions, std::vector<double>& logits);
  const std::vector<double>& used(const std::string& name, const Parameter& parameter,
                                  const Sums* sums) const {
    return sums ? sums->at(name) : parameter.gradient;
  }
  // sum: the momentum, or null if this computes it.
  void one_bit_step(double factor, double learning_rate, const std::vector<double>& gradient,
                    const std::vector<double>* sum, Parameter& parameter) const;
  void one_bit_lamb_step(double factor, double learning_rate, const std::vector<double>& gradient,
                         const std::vector<double>* sum, Parameter& parameter) const;
  void adafactor_step(double factor, double learning_rate, const std::vector<double>& gradient,
                      Parameter& parameter) const;
  void update(double factor, double learning_rate, const Sums* sums);

  Model model_;
  Rule rule_;
  std::uint64_t seed_;
  std::map<std::string, Parameter> parameters_;
  std::int64_t updates_ = 0;
};

}  // namespace suite::plain
