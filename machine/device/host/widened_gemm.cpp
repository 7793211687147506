#include "machine/device/host/widened_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "machine/base/error.h"
#include "machine/device/host/onednn_gemm.h"
#include "machine/device/host/threads.h"
#include "machine/device/kernels/fields.h"

namespace machine::host {
namespace {

// Rows, columns and terms of a panel: as floats, it takes about 1 MiB.
constexpr std::int64_t most = 512, grain = 32;

std::int64_t ratio_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// An extent, split into parts of nearly equal size, multiples of the grain.
struct Split {
  std::int64_t extent, parts;

  std::int64_t begin(std::int64_t part) const {
    return part == parts ? extent : extent * part / parts / grain * grain;
  }
  std::int64_t size(std::int64_t part) const { return begin(part + 1) - begin(part); }
  std::int64_t largest() const { return std::min(extent, ratio_up(extent, parts) + grain); }
};

struct Panels {
  Split rows, cols, terms;

  // At least one panel for each of `threads`, if the product is large enough.
  Panels(const Matrix& a, const Matrix& b, std::int64_t threads)
      : rows{a.rows, ratio_up(a.rows, most)},
        cols{b.cols, ratio_up(ratio_up(b.cols, most), threads) * threads},
        terms{a.cols, ratio_up(a.cols, most)} {
    cols.parts = std::clamp(b.cols / grain, std::int64_t{1}, cols.parts);
    rows.parts = std::max(rows.parts, std::min(ratio_up(threads, cols.parts), a.rows / grain));
  }
};

// Returns [rows, cols] of x from an element on.
Matrix part_of(const Matrix& x, std::int64_t first, std::int64_t rows, std::int64_t cols) {
  Matrix part = x;
  part.data = static_cast<char*>(x.data) + first * static_cast<std::int64_t>(size_of(x.dtype));
  part.rows = rows;
  part.cols = cols;
  part.batch = {1, 1};
  return part;
}

// The neighbouring elements of a matrix: `lines` runs of `length`. A packed matrix is one line.
struct Lines {
  std::int64_t lines, length, stride;

  explicit Lines(const Matrix& x)
      : lines(x.col_stride == 1 ? x.rows : x.cols),
        length(x.col_stride == 1 ? x.cols : x.rows),
        stride(x.col_stride == 1 ? x.row_stride : x.col_stride) {
    if (stride != length) return;
    length *= lines;
    lines = 1;
  }
};

template <class T>
void widen_line(const T* __restrict in, float* __restrict out, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) out[i] = kernel::widen(in[i]);
}

// out = sums + beta out, rounded once.
template <class T>
void narrow_line(const float* __restrict sums, float beta, T* __restrict out, std::int64_t length) {
  if (beta == 0) {  // the previous values are unused and may be NaN
    for (std::int64_t i = 0; i < length; ++i) out[i] = kernel::narrow<T>(sums[i]);
  } else {
    for (std::int64_t i = 0; i < length; ++i)
      out[i] = kernel::narrow<T>(sums[i] + beta * kernel::widen(out[i]));
  }
}

// Returns x as packed floats at `to`, whose neighbours are those of x.
Matrix widened(const Matrix& x, float* to) {
  const Lines in(x);
  visit(x.dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>)
      for (std::int64_t line = 0; line < in.lines; ++line)
        widen_line(static_cast<const T*>(x.data) + line * in.stride, to + line * in.length,
                   in.length);
  });
  Matrix floats = x;
  floats.data = to;
  floats.dtype = Dtype::float32;
  (x.col_stride == 1 ? floats.row_stride : floats.col_stride) = x.col_stride == 1 ? x.cols : x.rows;
  return floats;
}

// c = product + beta c. The rows of the product are packed.
void narrow(const Matrix& product, float beta, const Matrix& c) {
  const Lines out(c);
  visit(c.dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>)
      for (std::int64_t line = 0; line < out.lines; ++line)
        narrow_line(static_cast<const float*>(product.data) + line * out.length, beta,
                    static_cast<T*>(c.data) + line * out.stride, out.length);
  });
}

// The panels of one thread.
class Worker {
 public:
  Worker(const Matrix& a, const Matrix& b, const Matrix& c, const Panels& panels, float* memory)
      : a_(a),
        b_(b),
        c_(c),
        panels_(panels),
        left_(memory),
        right_(left_ + panels.rows.largest() * panels.terms.largest()),
        product_(right_ + panels.cols.largest() * panels.terms.largest()) {}

  static std::int64_t floats(const Panels& panels) {
    const std::int64_t rows = panels.rows.largest(), cols = panels.cols.largest(),
                       terms = panels.terms.largest();
    return (rows * terms + cols * terms + rows * cols + grain - 1) / grain * grain;
  }

  void multiply(std::int64_t panel, float alpha, float beta) {
    const std::int64_t j = panel % panels_.cols.parts, i = panel / panels_.cols.parts;
    const std::int64_t row = i % panels_.rows.parts, batch = i / panels_.rows.parts;
    const std::int64_t m = panels_.rows.size(row), n = panels_.cols.size(j);
    const auto at = [&](const Matrix& x, std::int64_t of_row, std::int64_t of_col) {
      return x.offset(batch / x.batch[1], batch % x.batch[1]) + of_row * x.row_stride +
             of_col * x.col_stride;
    };
    const Matrix to = part_of(c_, at(c_, panels_.rows.begin(row), panels_.cols.begin(j)), m, n);
    Matrix product = to;
    if (c_.dtype != Dtype::float32) {
      product.data = product_;
      product.dtype = Dtype::float32;
      product.row_stride = n;
    }
    for (std::int64_t part = 0; part < panels_.terms.parts; ++part) {
      const std::int64_t first = panels_.terms.begin(part), k = panels_.terms.size(part);
      if (i != widened_ || panels_.terms.parts > 1)
        held_ = widened(part_of(a_, at(a_, panels_.rows.begin(row), first), m, k), left_);
      widened_ = i;
      const Matrix right = widened(part_of(b_, at(b_, first, panels_.cols.begin(j)), k, n), right_);
      const float before = part > 0 ? 1 : c_.dtype == Dtype::float32 ? beta : 0;
      if (!multiply_by_onednn(held_, right, product, alpha, before, 1))
        throw MachineError(
            fmt::format("oneDNN cannot multiply floats [{}, {}] x [{}, {}]", m, k, k, n));
    }
    if (c_.dtype != Dtype::float32) narrow(product, beta, to);
  }

 private:
  const Matrix &a_, &b_, &c_;
  const Panels& panels_;
  float *left_, *right_, *product_;
  std::int64_t widened_ = -1;  // the rows that held_ has
  Matrix held_;
};

}  // namespace

void multiply_widened(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
                      int threads, Scratch& scratch) {
  const std::int64_t batches = c.batch[0] * c.batch[1];
  const Panels panels(a, b, ratio_up(threads, batches));
  const std::int64_t each = Worker::floats(panels),
                     count = batches * panels.rows.parts * panels.cols.parts;
  auto* const memory = static_cast<float*>(
      scratch.at_least(static_cast<std::size_t>(threads * each) * sizeof(float)));
  std::exception_ptr failure;                       // an exception must not leave a parallel loop
  constexpr std::int64_t worth_a_thread = 1 << 20;  // host::multiply chose their number
  parallel(threads, count, worth_a_thread, 1, [&](std::int64_t begin, std::int64_t end) {
    try {
      Worker worker(a, b, c, panels, memory + thread_index() * each);
      for (std::int64_t panel = begin; panel < end; ++panel) worker.multiply(panel, alpha, beta);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace machine::host
