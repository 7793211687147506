#pragma once
// Products of groups of rows, each with the matrix of its group: what all experts of a rank compute
// (Gale et al. 2022, arXiv:2211.15841). Group i has the next rows[i] rows; a group may be empty.
//
//   grouped_gemm(stream, tokens, rows, weights_transposed, out);   // out_i = tokens_i W_iᵀ

#include <cstdint>
#include <span>

#include "machine/device/gemm.h"

namespace layers {

// c_i = a_i b_i. a [sum of rows, k], b_i [k, n], c [sum of rows, n].
void grouped_gemm(machine::Stream& stream, const machine::Matrix& a,
                  std::span<const std::int64_t> rows, std::span<const machine::Matrix> b,
                  const machine::Matrix& c);
// c_i += a_iᵀ b_i. a [sum of rows, m], b [sum of rows, n], c_i [m, n] or nothing: not computed.
void grouped_gemm_of_rows(machine::Stream& stream, const machine::Matrix& a,
                          const machine::Matrix& b, std::span<const std::int64_t> rows,
                          std::span<const machine::Matrix> c);

}  // namespace layers
