#include "collectives/compression/compressed_all_reduce.h"

#include <cmath>
#include <limits>
#include <string>

#include "collectives/compression/algorithms.h"
#include "machine/base/clock.h"
#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace collectives {

using machine::Category;
using machine::Dtype;
using machine::FloatCode;
using machine::Tensor;

CompressedAllReduce::CompressedAllReduce(const CompressionSetup& setup)
    : setup_(setup), staging_(setup.pages ? *setup.pages : setup.device) {
  const std::int64_t count = setup.count;
  const CompressionOptions& options = setup.options;
  if (count < 0) machine::reject("compression: the count is {}; expected 0 or more", count);
  if (options.k < 1) machine::reject("top_k: k is {}; expected 1 or more", options.k);
  if (!(options.threshold > 0) || std::isinf(options.threshold))
    machine::reject("threshold is {}; expected a finite number above 0", options.threshold);
  if (!(options.deviations > 0) || std::isinf(options.deviations))
    machine::reject("deviations is {}; expected a finite number above 0", options.deviations);
  values_ = buffer(Dtype::float32, count);
  stream().kernels().fill(values_, 0);
}

CompressedAllReduce::~CompressedAllReduce() = default;

Tensor CompressedAllReduce::buffer(Dtype dtype, std::int64_t elements) const {
  return Tensor(setup_.device, dtype, {elements}, Category::compression);
}

void CompressedAllReduce::reject_long_index(std::int64_t count) {
  if (count > std::numeric_limits<std::int32_t>::max())
    machine::reject("a sparse code's index has 31 bits, too few for {} elements", count);
}

void CompressedAllReduce::lap(double Seconds::*phase) {
  if (!setup_.device.readable_by_host()) return;  // its work is only queued
  const double ended = machine::steady_s();
  seconds_.*phase += ended - lap_began_;
  lap_began_ = ended;
}

void CompressedAllReduce::run(const Tensor& in, const Tensor& out) {
  for (const Tensor* tensor : {&in, &out}) {
    if (tensor->dtype() != Dtype::float32)
      machine::reject("compression requires float tensors (got {})",
                      machine::name(tensor->dtype()));
    if (tensor->size() != count())
      machine::reject("compression requires tensors of {} elements (got {})", count(),
                      tensor->size());
  }
  if (count() == 0) return;
  const bool on_host = setup_.device.readable_by_host();
  if (!on_host && (in.device().readable_by_host() || out.device().readable_by_host()))
    machine::reject("compression on a GPU requires tensors of a GPU");
  const bool in_staged = on_host && !in.device().readable_by_host();
  const bool out_staged = on_host && !out.device().readable_by_host();
  const Tensor given = in_staged ? staging_.down(0, in) : in;

  seconds_ = {};
  lap_began_ = machine::steady_s();
  if (options().feedback)
    stream().kernels().add(values_, given, values_);
  else
    stream().copy(values_.data(), given.data(), given.bytes());
  const Tensor result = out_staged ? staging_.memory(0, out) : out;
  exchange(values_, result);

  if (out_staged) staging_.up(0, result, out);
}

void CompressedAllReduce::reset() {
  stream().kernels().fill(values_, 0);
  forget();
}

std::vector<double> CompressedAllReduce::held_back() const { return to_doubles(values_); }

namespace {

template <FloatCode code>
MadeCompression make_all_gather(const CompressionSetup& setup) {
  return make_quantized_all_gather(setup, code);
}

template <FloatCode code, int hops>
MadeCompression make_reduce_scatter(const CompressionSetup& setup) {
  return make_quantized_reduce_scatter(setup, code, hops == 2);
}

}  // namespace

const std::vector<Compression>& compressions() {
  constexpr std::string_view zero_pp = "Wang et al. 2023 (ZeRO++), arXiv:2306.10209",
                             hooks = "PyTorch DDP, fp16_compress_hook and bf16_compress_hook";
  using enum FloatCode;
  static const std::vector<Compression> all = {
      {"top_k", "Lin et al. 2018, arXiv:1712.01887", make_top_k},
      {"threshold", "Strom 2015, doi:10.21437/Interspeech.2015-354", make_threshold},
      {"deviation", "Shi et al. 2019, arXiv:1911.08772", make_deviation},
      {"int8_block", "Dettmers 2015, arXiv:1511.04561", make_all_gather<int8_block>},
      {"quantized_reduce_scatter", zero_pp, make_reduce_scatter<int8_block, 1>},
      {"quantized_reduce_scatter_int4", zero_pp, make_reduce_scatter<int4_block, 1>},
      {"two_hop_reduce_scatter", zero_pp, make_reduce_scatter<int8_block, 2>},
      {"two_hop_reduce_scatter_int4", zero_pp, make_reduce_scatter<int4_block, 2>},
      {"one_bit", "Tang et al. 2021, arXiv:2102.02888", make_reduce_scatter<one_bit, 1>},
      {"half_wire", hooks, make_reduce_scatter<half, 1>},
      {"bfloat16_wire", hooks, make_reduce_scatter<bfloat16, 1>},
  };
  return all;
}

std::vector<std::string> compression_names() {
  std::vector<std::string> names;
  for (const Compression& compression : compressions()) names.emplace_back(compression.name);
  return names;
}

std::unique_ptr<CompressedAllReduce> make_compression(
    std::string_view name, machine::Device& device, Communicator& communicator, std::int64_t count,
    const CompressionOptions& options, machine::Device* pages) {
  for (const Compression& compression : compressions())
    if (compression.name == name)
      return compression.make({device, communicator, count, options, pages});
  throw std::invalid_argument(machine::unknown("compression", name, compression_names()));
}

}  // namespace collectives
