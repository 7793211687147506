#include "layers/experts/dispatch/row_operations.h"

#include <type_traits>

#include "machine/device/host/threads.h"

namespace layers {
namespace {

// On the host, products of batches of single rows are twenty times slower than these loops.
bool loops(const Context& context) { return context.device.readable_by_host(); }

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Returns the bytes that a row moves, from which host::parallel chooses the number of threads.
template <class T>
std::int64_t work_of(std::int64_t cols) {
  return 2 * cols * std::int64_t{sizeof(T)};
}

template <class T>
void scale_by_loops(const Tensor& weights, const Tensor& from, const Tensor& to) {
  const std::int64_t cols = from.cols();
  const auto scale_rows_of = [&, weight = weights.as<T>(), in = from.as<T>(), out = to.as<T>()](
                                 std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto factor = static_cast<Sum<T>>(weight[row]);
      const T* const source = in + row * cols;
      T* const target = out + row * cols;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < cols; ++c)
        target[c] = static_cast<T>(factor * static_cast<Sum<T>>(source[c]));
    }
  };
  machine::host::parallel(from.device().threads(), from.rows(), work_of<T>(cols), 1, scale_rows_of);
}

template <class T>
void dot_by_loops(const Tensor& left, const Tensor& right, const Tensor& dots) {
  constexpr std::int64_t lanes = 16;  // partial sums, which compilers vectorize
  const std::int64_t cols = left.cols();
  const auto dot_rows_of = [&, a = left.as<T>(), b = right.as<T>(), out = dots.as<Sum<T>>()](
                               std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto product = [&](std::int64_t c) {
        return static_cast<Sum<T>>(a[row * cols + c]) * static_cast<Sum<T>>(b[row * cols + c]);
      };
      Sum<T> partial[lanes] = {}, sum = 0;
      std::int64_t c = 0;
      for (; c + lanes <= cols; c += lanes)
        for (std::int64_t lane = 0; lane < lanes; ++lane) partial[lane] += product(c + lane);
      for (; c < cols; ++c) sum += product(c);
      for (const Sum<T> part : partial) sum += part;
      out[row] = sum;
    }
  };
  machine::host::parallel(left.device().threads(), left.rows(), work_of<T>(cols), 1, dot_rows_of);
}

// Returns a batch of matrices [rows, cols], one after the other.
Matrix batch_of(const Tensor& tensor, std::int64_t rows, std::int64_t cols) {
  Matrix batch;
  batch.data = tensor.data();
  batch.dtype = tensor.dtype();
  batch.rows = rows;
  batch.cols = cols;
  batch.row_stride = cols;
  batch.batch = {1, tensor.size() / (rows * cols)};
  batch.batch_stride = {0, rows * cols};
  return batch;
}

}  // namespace

Tensor make_index(const Context& context, const std::vector<std::int32_t>& index,
                  Category category) {
  Tensor tensor(context.device, Dtype::int32, {static_cast<std::int64_t>(index.size())}, category);
  if (index.empty()) return tensor;
  context.stream().copy(tensor.data(), index.data(), tensor.bytes());
  context.stream().synchronize();  // the caller's memory may be free before the copy
  return tensor;
}

Tensor make_weights(const Context& context, const std::vector<double>& weights, Category category) {
  Tensor tensor = context.tensor({static_cast<std::int64_t>(weights.size())}, category);
  from_doubles(tensor, weights);
  return tensor;
}

std::vector<std::int32_t> index_on_host(const Context& context, const Tensor& index) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(index.size()));
  context.stream().copy(values.data(), index.data(), index.bytes());
  context.stream().synchronize();
  return values;
}

std::vector<double> weights_of_rows(const std::vector<double>& weights,
                                    const std::vector<std::int32_t>& slots) {
  std::vector<double> of_rows;
  of_rows.reserve(slots.size());
  for (const std::int32_t slot : slots)
    of_rows.push_back(slot < 0 ? 0 : weights[static_cast<std::size_t>(slot)]);
  return of_rows;
}

std::vector<double> sums_of_slots(const std::vector<double>& values,
                                  const std::vector<std::int32_t>& slots, std::int64_t count) {
  std::vector<double> sums(static_cast<std::size_t>(count));
  for (std::size_t row = 0; row < slots.size(); ++row)
    if (slots[row] >= 0) sums[static_cast<std::size_t>(slots[row])] += values[row];
  return sums;
}

void gather_rows(const Context& context, const Tensor& index, const Tensor& from,
                 const Tensor& to) {
  if (to.size() > 0) context.kernels().embedding(index.as<std::int32_t>(), from, 0, to);
}

void sum_rows(const Context& context, const Tensor& index, const Tensor& from, const Tensor& to) {
  const bool narrow = context.dtype != context.accumulator();
  const Tensor sums =
      narrow ? Tensor(context.device, context.accumulator(), to.shape(), Category::buffers) : to;
  context.kernels().fill(sums, 0);
  if (from.size() > 0)
    context.kernels().embedding_backward(index.as<std::int32_t>(), from, 0, sums);
  if (narrow) context.kernels().cast(sums, to);
}

void scale_rows(const Context& context, const Tensor& weights, const Tensor& from,
                const Tensor& to) {
  if (from.size() == 0) return;
  if (loops(context))
    return machine::visit(from.dtype(), [&]<class T>(T) { scale_by_loops<T>(weights, from, to); });
  gemm(context.stream(), batch_of(weights, 1, 1), batch_of(from, 1, from.cols()),
       batch_of(to, 1, to.cols()));
}

std::vector<double> dot_rows(const Context& context, const Tensor& a, const Tensor& b) {
  const Tensor dots = context.row_values(a.rows(), Category::buffers);
  if (loops(context))
    machine::visit(a.dtype(), [&]<class T>(T) { dot_by_loops<T>(a, b, dots); });
  else if (a.size() > 0)
    gemm(context.stream(), batch_of(a, 1, a.cols()), batch_of(b, b.cols(), 1),
         batch_of(dots, 1, 1));
  context.stream().synchronize();
  return to_doubles(dots);
}

}  // namespace layers
