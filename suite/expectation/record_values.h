#pragma once
// Values of a record's axes that the prediction's formulas take.

#include <optional>
#include <string_view>
#include <vector>

#include "harness/record/record.h"
#include "machine/base/operation.h"
#include "machine/device/dtype.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/kernel_time.h"

namespace suite {

int ranks_of(const harness::Record& record);
std::optional<machine::Dtype> dtype_of(const harness::Record& record);
// Returns the product of a record of `gemm`, whose axis `shape` is MxNxK.
std::optional<predict::Gemm> gemm_of(const harness::Record& record);
// Returns the collective that a unit of this name measures, if the prediction knows its usual
// algorithms.
std::optional<machine::Operation> operation_of(std::string_view unit);
// Returns the charge of the case's algorithm, or of all usual ones if a library or `auto` chooses.
// Empty: an algorithm that does not support the ranks, or whose volume is not of one size.
std::vector<predict::Charge> charges_of(const harness::Record& record);

}  // namespace suite
