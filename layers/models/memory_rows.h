#pragma once
// The rows of the table of a stage's tensors (gpt_memory.cpp): their bytes, and when and where they
// are held.

#include <cstddef>
#include <string_view>

namespace layers {

// The category that counts a tensor.
enum class Held : unsigned char {
  saved,  // from forward for backward: activations. If the layer is recomputed: buffers until its
          // forward ends, and as `later` from its second forward on
  later,  // for the weight half: activations if that runs later, buffers if it follows at once
  now,    // within a call: buffers
};

// The moments of a part, `steps` for each pass, in the order of the code. At the last moment of a
// pass, all memory that its end frees is free, and the next pass has not allocated memory.
inline constexpr int steps = 40, last = steps - 2;
inline constexpr int forward = 0, input_half = steps, weight_half = 2 * steps;
inline constexpr int forward_end = forward + last, input_end = input_half + last,
                     done = weight_half + last;

// The first moments of the perceptron, and the number of moments that experts need in its place.
inline constexpr int of_mlp = forward + 12, d_of_mlp = input_half, of_experts = 10,
                     mlp_weights_end = weight_half + 1;

// The memory that holds a tensor.
enum class Place : unsigned char { device, host };

struct Row {
  Held held;
  std::string_view name;
  std::size_t bytes;
  int from, to;  // moments, both included
  Place place = Place::device;
};

}  // namespace layers
