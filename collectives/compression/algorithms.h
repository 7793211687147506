#pragma once
// The algorithms of compressions(), each in the file of its name.

#include "collectives/compression/compressed_all_reduce.h"
#include "machine/device/float_codes/float_codes.h"

namespace collectives {

using MadeCompression = std::unique_ptr<CompressedAllReduce>;

MadeCompression make_top_k(const CompressionSetup& setup);
MadeCompression make_threshold(const CompressionSetup& setup);
MadeCompression make_deviation(const CompressionSetup& setup);
MadeCompression make_quantized_all_gather(const CompressionSetup& setup, machine::FloatCode code);
MadeCompression make_quantized_reduce_scatter(const CompressionSetup& setup,
                                              machine::FloatCode code, bool two_hops);

}  // namespace collectives
