#pragma once
// The errors of compressed gradients, from complete selections and the codes' definitions in
// double. Shares no code with collectives/compression.

#include <cstdint>
#include <string_view>
#include <vector>

namespace suite {

// Return the elements that a rank keeps; zero if sent. top_k sends the first of equal magnitudes;
// deviation sends each element whose magnitude reaches a multiple of the root of the mean square.
std::vector<double> kept_by_top_k(const std::vector<double>& values, std::int64_t k);
std::vector<double> kept_by_deviation(const std::vector<double>& values, double deviations);

// Adds the largest error of coding values with these magnitudes: one rounding to a wire dtype, one
// bit for each (collectives/compression/one_bit.h), or blocks of 8 or 4 bits (int_block.h). A block
// does not reach into the next of `shares` equal shares.
void add_code_errors(std::string_view algorithm, std::int64_t shares,
                     const std::vector<double>& magnitudes, std::vector<double>& error);

}  // namespace suite
