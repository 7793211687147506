#include "collectives/compression/compressed_all_reduce.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "collectives/compression/int_block.h"
#include "collectives/compression/quantized_all_gather.h"
#include "collectives/compression/quantized_reduce_scatter.h"
#include "collectives/compression/threshold.h"
#include "collectives/compression/top_k.h"
#include "collectives/compression/wire_dtype.h"
#include "machine/base/clock.h"
#include "machine/base/names.h"

namespace collectives {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

CompressedAllReduce::CompressedAllReduce(const CompressionSetup& setup) : setup_(setup) {
  const std::int64_t count = setup.count;
  const CompressionOptions& options = setup.options;
  if (count < 0)
    throw std::invalid_argument(
        fmt::format("compression: the count is {}; expected 0 or more", count));
  if (options.k < 1)
    throw std::invalid_argument(fmt::format("top_k: k is {}; expected 1 or more", options.k));
  if (!(options.threshold > 0) || std::isinf(options.threshold))
    throw std::invalid_argument(
        fmt::format("threshold is {}; expected a finite number above 0", options.threshold));
  values_ = host_tensor(Dtype::float32, count);
  setup_.world.host_device().stream().kernels().fill(values_, 0);
}

CompressedAllReduce::~CompressedAllReduce() = default;

Tensor CompressedAllReduce::host_tensor(Dtype dtype, std::int64_t elements) const {
  return Tensor(setup_.world.host_device(), dtype, {elements}, Category::buffers);
}

void CompressedAllReduce::lap(double Seconds::*phase) {
  const double ended = machine::steady_s();
  seconds_.*phase += ended - lap_began_;
  lap_began_ = ended;
}

void CompressedAllReduce::run(const Tensor& in, const Tensor& out) {
  for (const Tensor* tensor : {&in, &out}) {
    if (tensor->dtype() != Dtype::float32)
      throw std::invalid_argument(
          fmt::format("compression takes float, not {}", machine::name(tensor->dtype())));
    if (tensor->size() != count())
      throw std::invalid_argument(
          fmt::format("compression made for {} elements, called with {}", count(), tensor->size()));
  }
  if (count() == 0) return;
  const bool in_staged = !in.device().readable_by_host();
  const bool out_staged = !out.device().readable_by_host();
  if ((in_staged || out_staged) && !staged_) staged_ = host_tensor(Dtype::float32, count());
  if (in_staged) {
    in.device().stream().copy(staged_.data(), in.data(), in.bytes());
    in.device().stream().synchronize();
  }

  seconds_ = {};
  lap_began_ = machine::steady_s();
  const Tensor& given = in_staged ? staged_ : in;
  machine::Stream& host = setup_.world.host_device().stream();
  if (options().feedback)
    host.kernels().add(values_, given, values_);
  else
    host.copy(values_.data(), given.data(), given.bytes());
  const Tensor& result = out_staged ? staged_ : out;
  exchange(values_.as<float>(), result.as<float>());

  if (out_staged) {
    out.device().stream().copy(out.data(), staged_.data(), out.bytes());
    out.device().stream().synchronize();
  }
}

void CompressedAllReduce::reset() {
  setup_.world.host_device().stream().kernels().fill(values_, 0);
  forget();
}

std::vector<double> CompressedAllReduce::held_back() const { return to_doubles(values_); }

namespace {

using Made = std::unique_ptr<CompressedAllReduce>;

template <class T>
Made make(const CompressionSetup& setup) {
  return std::make_unique<T>(setup);
}

Made make_all_gather(const CompressionSetup& setup) {
  return std::make_unique<QuantizedAllGather>(setup, std::make_unique<Int8Block>());
}

template <class Code, int hops>
Made make_reduce_scatter(const CompressionSetup& setup) {
  return std::make_unique<QuantizedReduceScatter>(setup, std::make_unique<Code>(), hops == 2);
}

}  // namespace

const std::vector<Compression>& compressions() {
  static const std::vector<Compression> all = {
      {"top_k", TopK::paper, make<TopK>},
      {"threshold", Threshold::paper, make<Threshold>},
      {"int8_block", Int8Block::paper, make_all_gather},
      {"quantized_reduce_scatter", QuantizedReduceScatter::paper,
       make_reduce_scatter<Int8Block, 1>},
      {"quantized_reduce_scatter_int4", QuantizedReduceScatter::paper,
       make_reduce_scatter<Int4Block, 1>},
      {"two_hop_reduce_scatter", QuantizedReduceScatter::paper, make_reduce_scatter<Int8Block, 2>},
      {"two_hop_reduce_scatter_int4", QuantizedReduceScatter::paper,
       make_reduce_scatter<Int4Block, 2>},
      {"half_wire", WireDtype<machine::Half>::paper,
       make_reduce_scatter<WireDtype<machine::Half>, 1>},
      {"bfloat16_wire", WireDtype<machine::Bfloat16>::paper,
       make_reduce_scatter<WireDtype<machine::Bfloat16>, 1>},
  };
  return all;
}

std::unique_ptr<CompressedAllReduce> make_compression(std::string_view name, machine::World& world,
                                                      Communicator& communicator,
                                                      std::int64_t count,
                                                      const CompressionOptions& options) {
  std::vector<std::string> names;
  for (const Compression& compression : compressions()) {
    if (compression.name == name) return compression.make({world, communicator, count, options});
    names.emplace_back(compression.name);
  }
  throw std::invalid_argument(machine::unknown("compression", name, names));
}

}  // namespace collectives
