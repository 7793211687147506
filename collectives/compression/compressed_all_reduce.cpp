#include "collectives/compression/compressed_all_reduce.h"

#include <cmath>
#include <string>

#include "collectives/compression/algorithms.h"
#include "collectives/compression/int_block.h"
#include "collectives/compression/one_bit.h"
#include "collectives/compression/wire_dtype.h"
#include "machine/base/clock.h"
#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace collectives {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

CompressedAllReduce::CompressedAllReduce(const CompressionSetup& setup)
    : setup_(setup), staging_(setup.pages ? *setup.pages : setup.host) {
  const std::int64_t count = setup.count;
  const CompressionOptions& options = setup.options;
  if (count < 0) machine::reject("compression: the count is {}; expected 0 or more", count);
  if (options.k < 1) machine::reject("top_k: k is {}; expected 1 or more", options.k);
  if (!(options.threshold > 0) || std::isinf(options.threshold))
    machine::reject("threshold is {}; expected a finite number above 0", options.threshold);
  if (!(options.deviations > 0) || std::isinf(options.deviations))
    machine::reject("deviations is {}; expected a finite number above 0", options.deviations);
  values_ = host_tensor(Dtype::float32, count);
  setup_.host.stream().kernels().fill(values_, 0);
}

CompressedAllReduce::~CompressedAllReduce() = default;

Tensor CompressedAllReduce::host_tensor(Dtype dtype, std::int64_t elements) const {
  return Tensor(setup_.host, dtype, {elements}, Category::buffers);
}

void CompressedAllReduce::lap(double Seconds::*phase) {
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
  const bool in_staged = !in.device().readable_by_host();
  const bool out_staged = !out.device().readable_by_host();
  const Tensor given = in_staged ? staging_.down(0, in) : in;

  seconds_ = {};
  lap_began_ = machine::steady_s();
  machine::Stream& host = setup_.host.stream();
  if (options().feedback)
    host.kernels().add(values_, given, values_);
  else
    host.copy(values_.data(), given.data(), given.bytes());
  const Tensor result = out_staged ? staging_.memory(0, out) : out;
  exchange(values_.as<float>(), result.as<float>());

  if (out_staged) staging_.up(0, result, out);
}

void CompressedAllReduce::reset() {
  setup_.host.stream().kernels().fill(values_, 0);
  forget();
}

std::vector<double> CompressedAllReduce::held_back() const { return to_doubles(values_); }

namespace {

template <class Code>
MadeCompression make_all_gather(const CompressionSetup& setup) {
  return make_quantized_all_gather(setup, std::make_unique<Code>());
}

template <class Code, int hops>
MadeCompression make_reduce_scatter(const CompressionSetup& setup) {
  return make_quantized_reduce_scatter(setup, std::make_unique<Code>(), hops == 2);
}

}  // namespace

const std::vector<Compression>& compressions() {
  constexpr std::string_view zero_pp = "Wang et al. 2023 (ZeRO++), arXiv:2306.10209",
                             hooks = "PyTorch DDP, fp16_compress_hook and bf16_compress_hook";
  static const std::vector<Compression> all = {
      {"top_k", "Lin et al. 2018, arXiv:1712.01887", make_top_k},
      {"threshold", "Strom 2015, doi:10.21437/Interspeech.2015-354", make_threshold},
      {"deviation", "Shi et al. 2019, arXiv:1911.08772", make_deviation},
      {"int8_block", "Dettmers 2015, arXiv:1511.04561", make_all_gather<Int8Block>},
      {"quantized_reduce_scatter", zero_pp, make_reduce_scatter<Int8Block, 1>},
      {"quantized_reduce_scatter_int4", zero_pp, make_reduce_scatter<Int4Block, 1>},
      {"two_hop_reduce_scatter", zero_pp, make_reduce_scatter<Int8Block, 2>},
      {"two_hop_reduce_scatter_int4", zero_pp, make_reduce_scatter<Int4Block, 2>},
      {"one_bit", "Tang et al. 2021, arXiv:2102.02888", make_reduce_scatter<OneBit, 1>},
      {"half_wire", hooks, make_reduce_scatter<WireDtype<machine::Half>, 1>},
      {"bfloat16_wire", hooks, make_reduce_scatter<WireDtype<machine::Bfloat16>, 1>},
  };
  return all;
}

std::vector<std::string> compression_names() {
  std::vector<std::string> names;
  for (const Compression& compression : compressions()) names.emplace_back(compression.name);
  return names;
}

std::unique_ptr<CompressedAllReduce> make_compression(std::string_view name, machine::Device& host,
                                                      Communicator& communicator,
                                                      std::int64_t count,
                                                      const CompressionOptions& options,
                                                      machine::Device* pages) {
  for (const Compression& compression : compressions())
    if (compression.name == name)
      return compression.make({host, communicator, count, options, pages});
  throw std::invalid_argument(machine::unknown("compression", name, compression_names()));
}

}  // namespace collectives
