// Compares an optimizer's pass over memory with the fastest update in place of the same arrays.
//
//   optimizer_benchmark [TURNS] [ELEMENTS]
//
// Both take turns in one process, so that the speed of the memory, which changes between launches,
// changes both. The update adds the gradient to one, two or three of the optimizer's arrays of wide
// elements at once; of these the fastest in each turn counts. A rate counts the bytes that the
// program reads and writes. A cache fetches the lines of 16-bit values, too, if they do not bypass
// it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "machine/base/clock.h"
#include "machine/base/names.h"
#include "machine/device/host/fetch.h"
#include "machine/device/host/threads.h"
#include "machine/world/world.h"
#include "zero/optimizers/optimizer.h"

namespace zero {
namespace {

constexpr std::int64_t of_line = machine::host::line_bytes / sizeof(float);

double seconds_of(machine::Device& device, const auto& pass) {
  const double begin = machine::steady_s();
  pass();
  device.stream().synchronize();
  return machine::steady_s() - begin;
}

// Adds `in` to the first `Count` arrays.
template <int Count>
void add(const float* __restrict in, float* const* arrays, std::int64_t begin, std::int64_t end) {
  float* __restrict x = arrays[0];
  float* __restrict y = Count > 1 ? arrays[1] : nullptr;
  float* __restrict z = Count > 2 ? arrays[2] : nullptr;
  for (std::int64_t line = begin; line < end; line += of_line) {
    machine::host::fetch_ahead(in + line);
    for (int k = 0; k < Count; ++k) machine::host::fetch_ahead(arrays[k] + line);
    const std::int64_t to = std::min(end, line + of_line);
#pragma omp simd
    for (std::int64_t i = line; i < to; ++i) {
      x[i] += in[i];
      if constexpr (Count > 1) y[i] += in[i];
      if constexpr (Count > 2) z[i] += in[i];
    }
  }
}

// Returns the bytes per second of the fastest update of these arrays.
double update_rate(machine::Device& device, const float* in, const std::vector<float*>& arrays,
                   std::int64_t elements) {
  const auto rate = [&]<int Count>() {
    constexpr std::int64_t bytes = (1 + 2 * Count) * std::int64_t{sizeof(float)};
    const auto part = [&](std::int64_t begin, std::int64_t end) {
      add<Count>(in, arrays.data(), begin, end);
    };
    const double seconds = seconds_of(
        device, [&] { machine::host::parallel(device.threads(), elements, bytes, of_line, part); });
    return static_cast<double>(bytes * elements) / seconds;
  };
  double best = rate.operator()<1>();
  if (arrays.size() > 1) best = std::max(best, rate.operator()<2>());
  if (arrays.size() > 2) best = std::max(best, rate.operator()<3>());
  return best;
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

void compare(machine::World& world, const std::string& name, Dtype dtype, int turns,
             std::int64_t elements) {
  machine::Device& device = world.host_device();
  const Tensor values(device, dtype, {elements}, Category::parameters);
  const Tensor gradient(device, Dtype::float32, {elements}, Category::gradients);
  device.stream().kernels().fill(values, 1);
  device.stream().kernels().fill(gradient, 1e-3);
  device.stream().synchronize();
  Optimizer optimizer(find_rule(name), values, std::vector<std::uint8_t>(values.size(), 1));
  const RangeStates& states = optimizer.states();
  std::vector<float*> arrays;
  for (const Tensor* state : {&states.master, &states.first_moment, &states.second_moment})
    if (*state) arrays.push_back(state->as<float>());
  const auto wide = static_cast<double>((1 + 2 * arrays.size()) * sizeof(float));
  const auto narrow = dtype == Dtype::float32 ? 0.0 : static_cast<double>(size_of(dtype));
  std::vector<double> rates, ratios;
  for (int turn = 0; turn < turns; ++turn) {
    const double of_update = update_rate(device, gradient.as<float>(), arrays, elements);
    const double seconds = seconds_of(device, [&] { optimizer.update(gradient, 1); });
    if (turn == 0) continue;  // touches the pages
    rates.push_back((wide + narrow) * static_cast<double>(elements) / seconds);
    ratios.push_back(rates.back() / of_update);
  }
  fmt::print("{:>9} {:>9} {:>9.0f} {:>8.1f} {:>11.2f}\n", name, machine::name(dtype), wide + narrow,
             median(rates) / 1e9, median(ratios));
}

}  // namespace
}  // namespace zero

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::max(2, std::atoi(argv[1])) : 24;
  const std::int64_t elements = argc > 2 ? std::max(1, std::atoi(argv[2])) : 32 << 20;
  machine::run_ranks(1, [&](machine::World& world) {
    fmt::print("{} elements, {} threads, medians of {} turns\n", elements,
               world.host_device().threads(), turns - 1);
    fmt::print("{:>9} {:>9} {:>9} {:>8} {:>11}\n", "optimizer", "values", "B/element", "GB/s",
               "over update");
    for (const std::string& name : zero::rule_names())
      for (const zero::Dtype dtype :
           {zero::Dtype::float32, zero::Dtype::bfloat16, zero::Dtype::float16})
        zero::compare(world, name, dtype, turns, elements);
  });
  return 0;
}
