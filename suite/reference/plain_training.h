#pragma once
// Training of a GPT, Llama or BERT model, implemented a second time: plain loops in double over
// whole matrices, one sequence after the other. It judges the training step, so it includes nothing
// of layers, zero and the trainer; both sides only draw the same random numbers.
//
//   plain::Training training(model, rule, seed);
//   const plain::Step step = training.step(batch, rate, /*skip=*/false);
//
// The mathematics, with the papers that define it:
//   model       Radford et al. 2019; Touvron et al. 2023, arXiv:2302.13971; Devlin et al. 2019,
//               arXiv:1810.04805, with norms first (Shoeybi et al. 2019, arXiv:1909.08053)
//   loss        cross-entropy, summed over the tokens that have a target; the softmax ignores rows
//               of the table that are padding
//   gradient    of the sum, divided once by the number of those tokens in the whole step
//   clipping    of the 2-norm of all gradients, each parameter once
//   update      Adam (Kingma and Ba 2015, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2019,
//               arXiv:1711.05101), RMSProp, SGD with momentum; weights decay, biases and gains do
//               not

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace suite::plain {

struct Model {
  int layers = 0, hidden = 0, heads = 0, groups = 0;  // groups: heads of keys and values
  int table_rows = 0, vocabulary = 0;                 // vocabulary: rows that are tokens
  int sequence = 0, ffn = 0;
  bool encoder = false;  // BERT: attention to all keys, token types, a hidden layer in the head
  bool rms_norm = false, swiglu = false, rotary = false, biases = true, tied = true;
  double epsilon = 1e-5, rotary_base = 10000, hidden_dropout = 0, attention_dropout = 0;

  int head() const { return hidden / heads; }
  int qkv() const { return (heads + 2 * groups) * head(); }
  // Returns the floating-point operations of forward and backward for that many tokens.
  double flops(std::int64_t tokens) const;
};

struct Rule {
  enum class Kind : unsigned char { sgd, rmsprop, adam, adamw };
  Kind kind = Kind::adamw;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0;
  double momentum = 0, smoothing = 0.99;  // of SGD and of RMSProp
  double largest_norm = 0;                // of the gradient; 0: not clipped
};

// The sequences of a step, and their place in the training.
struct Batch {
  std::vector<std::int32_t> tokens, targets;  // [sequences, sequence]; a negative target: none
  std::int64_t first_token = 0;               // number of tokens in earlier steps
  // Of an encoder: the type of each token, and each sequence's length without padding.
  std::vector<std::int32_t> types{}, lengths{};
};

struct Parameter {
  std::vector<double> value, gradient;  // gradient: of the sum of the losses
  bool decays = false;
  std::vector<double> first_moment, second_moment;
};

struct Step {
  double loss = 0;           // mean over the tokens that count
  double gradient_norm = 0;  // of the mean gradient, before clipping
  double factor = 0;         // of the summed gradient in the update: clipping over tokens
};

class Training {
 public:
  // Draws the initial values: normal 0.02, residual projections divided by sqrt(2 layers), biases
  // and gains normal 0.1 around 0 and 1.
  Training(const Model& model, const Rule& rule, std::uint64_t seed);

  // Computes loss and gradients, and updates with that learning rate unless the step is skipped.
  Step step(const Batch& batch, double learning_rate, bool skip);

  const std::map<std::string, Parameter>& parameters() const { return parameters_; }
  // Adds `shift` to one element of a parameter, for difference quotients.
  void move(const std::string& name, std::size_t element, double shift) {
    parameters_.at(name).value[element] += shift;
  }

 private:
  struct Block;
  using Rows = std::vector<double>;  // [rows, columns]

  Parameter& declare(const std::string& name, std::int64_t size, double mean, double stddev,
                     bool decays);
  void declare_norm(const std::string& name);
  void declare_linear(const std::string& name, std::int64_t out, std::int64_t in, double stddev);

  void drop(const std::string& name, double probability, std::int64_t first, Rows& rows) const;
  Rows norm(const std::string& name, const Rows& x) const;
  Rows norm_backward(const std::string& name, const Rows& x, const Rows& d_y);
  Rows linear(const std::string& name, const Rows& x, int in, int out) const;
  Rows linear_backward(const std::string& name, const Rows& x, const Rows& d_y, int in, int out);
  void rotate(Rows& qkv, double direction) const;
  std::int64_t keys(const Block& block, std::int64_t query) const;  // the number that it sees
  void attend(const std::string& name, std::int64_t sequence_index, Block& block) const;
  Rows attend_backward(const std::string& name, std::int64_t sequence_index, const Block& block,
                       const Rows& d_context) const;
  Rows activate(const Rows& inner) const;
  Rows activate_backward(const Rows& inner, const Rows& d_active) const;
  Block forward(const std::string& name, std::int64_t sequence_index, std::int64_t keys,
                const Rows& x) const;
  Rows backward(const std::string& name, std::int64_t sequence_index, const Block& block,
                const Rows& d_y);
  // Returns the loss of a sequence and adds its gradients.
  double train(std::int64_t sequence_index, const std::int32_t* tokens, const std::int32_t* targets,
               const std::int32_t* types, std::int64_t keys);
  void update(double factor, double learning_rate);

  Model model_;
  Rule rule_;
  std::uint64_t seed_;
  std::map<std::string, Parameter> parameters_;
  std::int64_t updates_ = 0;
};

}  // namespace suite::plain
