#include "suite/reference/half_range.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "machine/base/error.h"

namespace suite {

using machine::Matrix;
using machine::Tensor;

namespace {

constexpr double half_end = 65520;  // numbers from here on round to infinity

Matrix plain(const Tensor& tensor) { return machine::matrix(tensor); }

template <class Visit>
void each(const Matrix& m, const Visit& visit) {
  SHARDMARK_CHECK(name(m.dtype), ==, name(machine::Dtype::float64));
  const auto* const data = static_cast<const double*>(m.data);
  for (std::int64_t outer = 0; outer < m.batch[0]; ++outer)
    for (std::int64_t inner = 0; inner < m.batch[1]; ++inner)
      for (std::int64_t row = 0; row < m.rows; ++row)
        for (std::int64_t col = 0; col < m.cols; ++col)
          visit(row, col,
                std::abs(data[outer * m.batch_stride[0] + inner * m.batch_stride[1] +
                              row * m.row_stride + col * m.col_stride]));
}

double largest(const Matrix& m) {
  double most = 0;
  each(m, [&](std::int64_t, std::int64_t, double value) { most = std::max(most, value); });
  return most;
}

// Returns the largest sum of |elements| of a row.
double largest_row_sum(const Matrix& m) {
  double most = 0, sum = 0;
  each(m, [&](std::int64_t, std::int64_t col, double value) {
    sum = col == 0 ? value : sum + value;
    most = std::max(most, sum);
  });
  return most;
}

// Returns an upper bound of all partial sums of the elements of a b.
double largest_partial(const Matrix& a, const Matrix& b) {
  return std::min(largest_row_sum(a) * largest(b), largest(a) * largest_row_sum(b.transposed()));
}

}  // namespace

std::optional<bool> must_overflow(const StepMagnitudes& step, double scale, double relative) {
  const double stored = std::max(step.forward.stored, scale * step.backward.stored);
  const double partial = std::max(step.forward.partial, scale * step.backward.partial);
  if (stored * (1 - relative) >= half_end) return true;
  if (partial * (1 + relative) < half_end) return false;
  return std::nullopt;
}

// Calls the host's kernels, and records the results that a step in half would store in half.
class RangeDevice::Watch final : public machine::Kernels {
 public:
  explicit Watch(machine::Stream& host) : stream_(host), host_(host.kernels()) {}

  struct Gradient {
    Tensor tensor;
    InHalf in_half = InHalf::nothing;
    double sum = 0;  // upper bound of all sums of its contributions so far
    bool has(const void* at) const {
      const auto* const begin = static_cast<const char*>(tensor.data());
      return begin <= at && at < static_cast<const void*>(begin + tensor.bytes());
    }
  };
  std::vector<Gradient> gradients;
  StepMagnitudes seen;

  // Adds the final gradients to the magnitudes.
  void look_at_gradients() {
    is_backward_ = true;
    for (Gradient& gradient : gradients) {
      if (gradient.in_half == InHalf::nothing) continue;
      if (gradient.in_half == InHalf::sum) look(gradient.tensor);
      look_at(std::exchange(gradient.sum, 0), false);
    }
    is_backward_ = false;
  }

  using T = const Tensor&;
  using M = const Matrix&;
  using Tokens = const std::int32_t*;
  using Mask = const std::uint8_t*;
  using Long = std::int64_t;

  void add(T a, T b, T out) override { host_.add(a, b, out), look(out); }
  void scale(T in, double factor, T out) override { host_.scale(in, factor, out), look(out); }
  void add_bias(T x, T bias, T out) override { host_.add_bias(x, bias, out), look(out); }
  void gelu(T x, T out) override { host_.gelu(x, out), look(out); }
  void gelu_backward(T x, T d_out, T d_x) override {
    host_.gelu_backward(x, d_out, d_x), look(d_x);
  }
  void layer_norm(T x, T gain, T bias, double epsilon, T out, T mean, T rstd) override {
    host_.layer_norm(x, gain, bias, epsilon, out, mean, rstd), look(out);
  }
  void layer_norm_backward_input(T x, T gain, T mean, T rstd, T d_out, T d_x) override {
    host_.layer_norm_backward_input(x, gain, mean, rstd, d_out, d_x), look(d_x);
  }
  void rms_norm(T x, T gain, double epsilon, T out, T rstd) override {
    host_.rms_norm(x, gain, epsilon, out, rstd), look(out);
  }
  void rms_norm_backward_input(T x, T gain, T rstd, T d_out, T d_x) override {
    host_.rms_norm_backward_input(x, gain, rstd, d_out, d_x), look(d_x);
  }
  void swiglu(M gate, M up, M out) override { host_.swiglu(gate, up, out), look(out); }
  void swiglu_backward(M gate, M up, M d_out, M d_gate, M d_up) override {
    host_.swiglu_backward(gate, up, d_out, d_gate, d_up), look(d_gate), look(d_up);
  }
  void rotary(M x, const machine::Rotary& options, M out) override {
    host_.rotary(x, options, out), look(out);
  }
  void rotary_backward(M d_out, const machine::Rotary& options, M d_x) override {
    host_.rotary_backward(d_out, options, d_x), look(d_x);
  }
  void dropout(T in, double probability, std::uint64_t seed, machine::Region region,
               T out) override {
    host_.dropout(in, probability, seed, region, out), look(out);
  }
  // Blockwise attention stores no probabilities and rounds their gradients before it scales them.
  void softmax_backward(T p, T d_p, double scale, const machine::SoftmaxMask& mask,
                        T d_scores) override {
    look_at(2 * std::max(1.0, scale) * largest(plain(d_p)), false);
    host_.softmax_backward(p, d_p, scale, mask, d_scores);
  }
  void embedding(Tokens tokens, T table, Long first_row, T out) override {
    host_.embedding(tokens, table, first_row, out), look(out);
  }
  void embedding_backward(Tokens tokens, T d_out, Long first_row, T d_table) override {
    host_.embedding_backward(tokens, d_out, first_row, d_table);
    add(d_table, column_sum(d_out));
    is_backward_ = false;
  }
  void cross_entropy_backward(T logits, T max, T sum_exp, Tokens targets, Long first_col,
                              Long vocabulary, double factor, T d_logits) override {
    is_backward_ = true;
    host_.cross_entropy_backward(logits, max, sum_exp, targets, first_col, vocabulary, factor,
                                 d_logits);
    look(d_logits);
  }

  // These results are not recorded: results in float, results that are not activations, and results
  // of at most 1.
  void merge_attention(M block, M block_sums, M out, M sums) override {
    host_.merge_attention(block, block_sums, out, sums);
  }
  void fill_pattern(T out, const machine::Pattern& pattern, int rank, Long first) override {
    host_.fill_pattern(out, pattern, rank, first);
  }
  void check_pattern(T output, const machine::Pattern& pattern, const machine::PatternPart& part,
                     double bound, T errors) override {
    host_.check_pattern(output, pattern, part, bound, errors);
  }
  void fill(T out, double value) override { host_.fill(out, value); }
  void cast(T in, T out) override { host_.cast(in, out); }
  void accumulate(T in, T out) override {
    host_.accumulate(in, out);
    add(out, largest(plain(in)));
  }
  void reduce_to_all(machine::Reduction reduction, machine::Dtype dtype,
                     std::span<const void* const> ins, std::span<void* const> outs, Long count,
                     machine::Store store) override {
    host_.reduce_to_all(reduction, dtype, ins, outs, count, store);
  }
  void divide(machine::Dtype dtype, void* data, Long count, Long divisor) override {
    host_.divide(dtype, data, count, divisor);
  }
  void sum_of_squares(T in, T out) override { host_.sum_of_squares(in, out); }
  void fill_normal(T out, std::uint64_t seed, machine::Region region, double mean,
                   double stddev) override {
    host_.fill_normal(out, seed, region, mean, stddev);
  }
  void fill_uniform(T out, std::uint64_t seed, machine::Region region, double low,
                    double high) override {
    host_.fill_uniform(out, seed, region, low, high);
  }
  void accumulate_column_sums(T x, T out) override {
    host_.accumulate_column_sums(x, out);
    add(out, column_sum(x));
  }
  void layer_norm_backward_weights(T x, T mean, T rstd, T d_out, T d_gain, T d_bias) override {
    host_.layer_norm_backward_weights(x, mean, rstd, d_out, d_gain, d_bias);
    add(d_gain, largest_normal(x) * column_sum(d_out));
    add(d_bias, column_sum(d_out));
  }
  void rms_norm_backward_weights(T x, T rstd, T d_out, T d_gain) override {
    host_.rms_norm_backward_weights(x, rstd, d_out, d_gain);
    add(d_gain, largest_normal(x) * column_sum(d_out));
  }
  void softmax(T scores, double scale, const machine::SoftmaxMask& mask, T probabilities) override {
    host_.softmax(scores, scale, mask, probabilities);
  }
  void row_max(T logits, Long first_col, Long vocabulary, T out) override {
    host_.row_max(logits, first_col, vocabulary, out);
  }
  void exp_sums(T logits, T max, Tokens targets, Long first_col, Long vocabulary, T sum_exp,
                T target) override {
    host_.exp_sums(logits, max, targets, first_col, vocabulary, sum_exp, target);
  }
  void cross_entropy(T sum_exp, T target, Tokens targets, T loss) override {
    host_.cross_entropy(sum_exp, target, targets, loss);
  }
  void sum(T in, T out) override { host_.sum(in, out); }
  void sgd(T gradient, double scale, double rate, T master, T weight) override {
    host_.sgd(gradient, scale, rate, master, weight);
  }
  void momentum(T gradient, double scale, const machine::Momentum& options, Mask mask, T master,
                T velocity, T weight) override {
    host_.momentum(gradient, scale, options, mask, master, velocity, weight);
  }
  void rmsprop(T gradient, double scale, const machine::RmsProp& options, Mask mask, T master,
               T second, T weight) override {
    host_.rmsprop(gradient, scale, options, mask, master, second, weight);
  }
  void adam(T gradient, double scale, const machine::Adam& options, Long step, Mask mask, T master,
            T first, T second, T weight) override {
    host_.adam(gradient, scale, options, step, mask, master, first, second, weight);
  }
  void adamw(T gradient, double scale, const machine::AdamW& options, Long step, Mask mask,
             T master, T first, T second, T weight) override {
    host_.adamw(gradient, scale, options, step, mask, master, first, second, weight);
  }
  void lion(T gradient, double scale, const machine::Lion& options, Mask mask, T master, T first,
            T weight) override {
    host_.lion(gradient, scale, options, mask, master, first, weight);
  }
  void triad(T a, T b, double factor, T out) override { host_.triad(a, b, factor, out); }

 private:
  void do_gemm(M a, M b, M c, float alpha, float beta) override {
    if (Gradient* const gradient = find(c.data)) {
      if (gradient->in_half != InHalf::nothing)
        gradient->sum += std::abs(alpha) * largest_partial(a, b);
    } else {
      look_at(
          std::abs(alpha) * largest_partial(a, b) + (beta == 0 ? 0 : std::abs(beta) * largest(c)),
          false);
    }
    machine::gemm(stream_, a, b, c, alpha, beta);
  }
  void do_attention(const machine::AttentionForward&) override { refuse(); }
  void do_attention_backward(const machine::AttentionBackward&) override { refuse(); }
  [[noreturn]] static void refuse() {
    throw std::logic_error("blockwise attention is not supported");
  }

  Gradient* find(const void* at) {
    const auto found =
        std::ranges::find_if(gradients, [&](const Gradient& one) { return one.has(at); });
    return found == gradients.end() ? nullptr : &*found;
  }
  void add(T out, double contribution) {
    if (Gradient* const gradient = find(out.data())) gradient->sum += contribution;
  }
  static double column_sum(T x) { return largest_row_sum(plain(x).transposed()); }
  // The root of the mean square of a normalized row is at most 1.
  static double largest_normal(T x) { return std::sqrt(static_cast<double>(x.cols())); }

  void look(T out) { look(plain(out)); }
  void look(M out) { look_at(largest(out), true); }
  void look_at(double value, bool is_stored) {
    Magnitude& magnitude = is_backward_ ? seen.backward : seen.forward;
    if (is_stored) magnitude.stored = std::max(magnitude.stored, value);
    magnitude.partial = std::max(magnitude.partial, value);
  }

  machine::Stream& stream_;
  machine::Kernels& host_;
  bool is_backward_ = false;
};

class RangeDevice::Stream final : public machine::Stream {
 public:
  Stream(RangeDevice& device, std::unique_ptr<machine::Kernels> kernels)
      : machine::Stream(device, std::move(kernels)), host_(device.inner_->stream()) {}
  void copy(void* to, const void* from, std::size_t bytes) override { host_.copy(to, from, bytes); }
  std::unique_ptr<machine::Event> record() override { return host_.record(); }
  void wait(const machine::Event& event) override { host_.wait(event); }
  void synchronize() override { host_.synchronize(); }

 private:
  machine::Stream& host_;
};

RangeDevice::RangeDevice(int threads) : Device(Kind::host), inner_(machine::make_host_device()) {
  inner_->set_threads(threads);
  set_threads(threads);
  stream_ = make_stream();
}

RangeDevice::~RangeDevice() { stream_.reset(); }

std::unique_ptr<machine::Stream> RangeDevice::make_stream() {
  auto watch = std::make_unique<Watch>(inner_->stream());
  watch_ = watch.get();
  return std::make_unique<Stream>(*this, std::move(watch));
}

void* RangeDevice::do_allocate(std::size_t bytes) {
  constexpr std::size_t alignment = 64;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void RangeDevice::do_free(void* data, std::size_t) { std::free(data); }

void RangeDevice::watch_gradient(const Tensor& gradient, InHalf in_half) {
  watch_->gradients.push_back({gradient, in_half});
}

StepMagnitudes RangeDevice::take() {
  watch_->look_at_gradients();
  return std::exchange(watch_->seen, {});
}

}  // namespace suite
