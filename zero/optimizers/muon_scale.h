#pragma once
// The options of Muon's step that are words: the coefficients of Newton-Schulz (newton_schulz.h)
// and the scale of an orthogonal step. Names are Megatron-LM's.

#include <cstdint>

namespace zero {

// simple: Jordan's, the same in each step. quintic: another triple in each of five steps.
enum class NewtonSchulzType : unsigned char { quintic, simple };

// The scale of a matrix [rows, columns], which maps columns to rows:
//   spectral       sqrt(max(rows, columns)) (Liu et al. 2025, arXiv:2502.16982, with a factor 0.2)
//   unit_rms_norm  sqrt(rows / columns) (Bernstein and Newhouse 2024, arXiv:2409.20325)
//   shape_scaling  sqrt(max(1, rows / columns)) (Jordan et al. 2024)
enum class MuonScale : unsigned char { spectral, unit_rms_norm, shape_scaling };
double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t columns);

}  // namespace zero
