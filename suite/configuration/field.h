#pragma once
// A typed reference to a member of a TrainingConfig, and the values that it can be given.
//
//   const Field field(config.zero.stage);
//   field.set(3.0);        // throws std::bad_variant_access for another kind of value
//   field.text();          // "3"
//
// An enumeration has the names that its own room defines.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layers/context_parallel/context_parallel.h"
#include "layers/fp8/options.h"
#include "layers/models/activation_options.h"
#include "layers/moe_config.h"
#include "layers/sparse/sparse_layout.h"
#include "layers/tensor_grids/plans/grid_plan.h"
#include "machine/device/dtype.h"
#include "machine/link/link.h"
#include "suite/files/json_leaves.h"
#include "zero/stages/step_options.h"

namespace suite::configuration {

enum class Kind : unsigned char { truth, whole, number, word, pair, list };
std::string_view name(Kind kind);  // "a whole number", for messages

class Field {
 public:
  template <class T>
  explicit Field(T& at) : at_(&at) {}

  Kind kind() const;
  const void* address() const;
  void set(const Value& value) const;
  void copy(const Field& other) const;  // another reference to the same member
  Field of_pair(std::size_t index) const;
  std::string text() const;  // "5e-05", "cpu", "true"; "none" if empty

 private:
  std::variant<
      bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, std::optional<bool>*,
      std::optional<int>*, std::optional<std::int64_t>*, std::array<double, 2>*, std::vector<int>*,
      machine::Dtype*, machine::Transport*, layers::Normalization*, layers::PositionEmbedding*,
      layers::Architecture*, layers::RecomputeGranularity*, layers::RecomputeMethod*,
      layers::CpCommType*, layers::SequenceOrder*, layers::LoadBalancing*, layers::TokenDropPolicy*,
      layers::TokenDispatcherType*, zero::OffloadDevice*, layers::Fp8Format*, layers::Fp8Recipe*,
      layers::AmaxAlgorithm*, layers::SparseMode*, layers::TensorParallelMode*, layers::GridMethod*>
      at_;
};

// Returns the value of a text on a command line: 1, on and true are true; 4+2 is a list, and so is
// [4, 2]. Null: the text has another kind.
Value value_of(Kind kind, const std::string& text);

}  // namespace suite::configuration
