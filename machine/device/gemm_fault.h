#pragma once
// Who may spoil the result of a matrix product, to show that it is found: called after each, when
// there is anybody.

#include "machine/device/gemm.h"

namespace machine {

inline void (*after_gemm)(Stream& stream, const Matrix& c) = nullptr;

}  // namespace machine
