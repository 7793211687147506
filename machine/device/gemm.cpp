#include "machine/device/gemm.h"

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/device/faults.h"
#include "machine/device/kernels.h"

namespace machine {

Matrix matrix(const Tensor& tensor) {
  Matrix result;
  result.data = tensor.data();
  result.dtype = tensor.dtype();
  result.rows = tensor.rows();
  result.cols = tensor.cols();
  result.row_stride = tensor.cols();
  return result;
}

namespace {

thread_local GemmLog* open_log = nullptr;

void check_layout(const Matrix& matrix) {
  SHARDMARK_CHECK(matrix.rows, >=, 0);
  SHARDMARK_CHECK(matrix.cols, >=, 0);
  if (matrix.row_stride != 1) SHARDMARK_CHECK(matrix.col_stride, ==, 1);
}

}  // namespace

GemmLog::GemmLog() {
  SHARDMARK_CHECK(open_log == nullptr, ==, true);
  open_log = this;
}

GemmLog::~GemmLog() { open_log = nullptr; }

double GemmLog::Product::flops() const {
  const auto batches = static_cast<double>(c.batch[0] * c.batch[1]);
  return 2 * batches * static_cast<double>(c.rows) * static_cast<double>(c.cols) *
         static_cast<double>(a.cols);
}

void gemm(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
          float beta) {
  SHARDMARK_CHECK(a.rows, ==, c.rows);
  SHARDMARK_CHECK(b.cols, ==, c.cols);
  SHARDMARK_CHECK(a.cols, ==, b.rows);
  SHARDMARK_CHECK(name(a.dtype), ==, name(b.dtype));
  if (!has_every_kernel(a.dtype))
    throw std::logic_error(fmt::format("gemm: unsupported dtype {}", name(a.dtype)));
  const bool narrow = a.dtype == Dtype::bfloat16 || a.dtype == Dtype::float16;
  if (!(narrow && c.dtype == Dtype::float32)) SHARDMARK_CHECK(name(a.dtype), ==, name(c.dtype));
  for (const std::size_t level : {0, 1}) {
    SHARDMARK_CHECK(a.batch[level], ==, c.batch[level]);
    SHARDMARK_CHECK(b.batch[level], ==, c.batch[level]);
  }
  for (const Matrix* matrix : {&a, &b, &c}) check_layout(*matrix);
  if (c.rows * c.cols * c.batch[0] * c.batch[1] == 0) return;
  if (open_log) open_log->products_.push_back({a, b, c, alpha, beta});
  stream.kernels().do_gemm(a, b, c, alpha, beta);
  const Faults* faults = stream.device().faults();
  if (faults && faults->after_gemm) faults->after_gemm(stream, c);
}

bool fused_gemm(Stream& stream, const Matrix& a, const Matrix& b, const Tensor& bias,
                const Tensor& sums, const Tensor& c) {
  const Matrix out = matrix(c);
  SHARDMARK_CHECK(a.rows, ==, out.rows);
  SHARDMARK_CHECK(b.cols, ==, out.cols);
  SHARDMARK_CHECK(a.cols, ==, b.rows);
  SHARDMARK_CHECK(bias.size(), ==, out.cols);
  if (sums) SHARDMARK_CHECK(sums.size(), ==, c.size());
  for (const Matrix* matrix : {&a, &b}) check_layout(*matrix);
  const bool one_dtype = a.dtype == out.dtype && b.dtype == out.dtype &&
                         bias.dtype() == out.dtype && (!sums || sums.dtype() == out.dtype);
  if (!one_dtype || c.size() == 0 || a.cols == 0) return false;
  if (!stream.kernels().do_fused_gemm(a, b, out, bias.data(), sums ? sums.data() : nullptr))
    return false;
  if (open_log) open_log->products_.push_back({a, b, out, 1, 0});
  const Faults* faults = stream.device().faults();
  if (faults && faults->after_gemm) faults->after_gemm(stream, out);
  return true;
}

}  // namespace machine
