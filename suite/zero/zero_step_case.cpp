#include "suite/zero/zero_step_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "machine/base/error.h"
#include "machine/link/connect.h"
#include "zero/offload/io_ring.h"

namespace suite {

using harness::Profile;
using machine::Dtype;
using machine::Transport;
using Case = ZeroStepCase;

namespace {

constexpr int whole = Case::whole;

// The values of a profile. Of what may be chosen else, the first is what it usually is.
struct Values {
  std::vector<Transport> transport = {Transport::shared_memory};
  std::vector<Dtype> dtype = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
  std::vector<int> ranks, parameters = {100'003}, micro_batches;
  std::vector<bool> overlap = {true}, contiguous = {true}, delayed = {false};
  std::vector<int> reduce_bucket = {20'000}, all_gather_bucket = {whole};
  std::vector<std::string> wire = {"default"}, offload = {"none"}, offload_param = {"none"};
  std::vector<int> prefetch = {50'000'000}, persistence = {100}, max_live = {1'000'000'000};
};

std::string why_no_case(const Case& c) {
  if (c.parameters < 1000) return fmt::format("{} parameters: at least 1000", c.parameters);
  if (c.micro_batches < 1) return fmt::format("{} micro-batches: at least 1", c.micro_batches);
  if (c.reduce_bucket < 1 || c.all_gather_bucket < 1 || c.max_live < 1 || c.prefetch_bucket < 0)
    return "a bucket has one element at least";
  if (c.overlap && c.transport != Transport::shared_memory)
    return "overlap_comm needs shared_memory: one thread alone may use the others";
  if (c.wire != "default" && c.dtype == Dtype::float64)
    return "communication_data_type narrows gradients of float, not of double";
  if (c.sub_group_size < 1 || c.buffer_count < 1)
    return "sub_group_size and buffer_count: at least 1";
  if (c.max_in_cpu < 0) return "max_in_cpu: not negative";
  if (c.delayed && c.ratio != "1")
    return fmt::format("delayed_update with ratio {}: it is offload_step that judges this",
                       c.ratio);
  try {
    const zero::StepOptions options = c.step_options(1, 0);
    zero::check(options.offload_optimizer);
    zero::check(options.offload_param, c.stage, options.offload_optimizer);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

harness::Sweep<Case> sweep_of(const Values& values) {
  harness::Sweep<Case> sweep;
  // With a list of several values, the first is the usual one.
  const auto chosen = [&](const char* name, auto field, const auto& list, auto allowed) {
    sweep.axis(name, field, list, allowed);
    if (list.size() > 1)
      sweep.usual(name,
                  harness::AxisText<typename std::decay_t<decltype(list)>::value_type>::format(
                      list.front()));
  };
  const std::vector<std::string> wires = {"default", "bfloat16", "half"};
  const std::vector<int> any;
  const std::vector<bool> either;
  sweep
      .axis("transport", &Case::transport, values.transport,
            {Transport::shared_memory, Transport::mpi})
      .axis("dtype", &Case::dtype, values.dtype,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("zero-stage", &Case::stage, {0, 1, 2, 3}, {0, 1, 2, 3})
      .axis("ranks", &Case::ranks, values.ranks)
      .axis("parameters", &Case::parameters, values.parameters);
  chosen("gradient_accumulation_steps", &Case::micro_batches, values.micro_batches, any);
  chosen("overlap_comm", &Case::overlap, values.overlap, either);
  chosen("contiguous_gradients", &Case::contiguous, values.contiguous, either);
  chosen("reduce_bucket_size", &Case::reduce_bucket, values.reduce_bucket, any);
  chosen("allgather_bucket_size", &Case::all_gather_bucket, values.all_gather_bucket, any);
  chosen("communication_data_type", &Case::wire, values.wire, wires);
  chosen("stage3_prefetch_bucket_size", &Case::prefetch_bucket, values.prefetch, any);
  chosen("stage3_param_persistence_threshold", &Case::persistence_threshold, values.persistence,
         any);
  chosen("stage3_max_live_parameters", &Case::max_live, values.max_live, any);
  chosen("offload_optimizer", &Case::offload, values.offload, zero::offload_device_names());
  chosen("offload_param", &Case::offload_param, values.offload_param, zero::offload_device_names());
  chosen("delayed_update", &Case::delayed, values.delayed, either);
  sweep.axis("ratio", &Case::ratio, {"1"}, {"0", "0.25", "0.5", "0.75", "1"})
      .axis("sub_group_size", &Case::sub_group_size, {4000})
      .axis("buffer_count", &Case::buffer_count, {4})
      .axis("max_in_cpu", &Case::max_in_cpu, {0})
      .axis("nvme_path", &Case::nvme_path, {"temporary"})
      .only(why_no_case);
  return sweep;
}

// In small buckets, with micro-batches and overlap. Where the states are is where the values are,
// or on the device.
bool values_offloaded(const Case& c) {
  return c.transport == Transport::shared_memory && c.overlap && !c.delayed &&
         c.micro_batches == 3 && c.reduce_bucket != whole && c.parameters <= 100'003 &&
         c.offload == (c.dtype == Dtype::float32 ? "none" : c.offload_param);
}

// How many of these axes are not what they usually are.
int unusual(const Case& c) {
  return (c.micro_batches != 1) + c.overlap + !c.contiguous + (c.reduce_bucket != whole) +
         (c.all_gather_bucket != whole) + (c.wire != "default") +
         (c.prefetch_bucket != 50'000'000) + (c.persistence_threshold != 100) +
         (c.max_live != 1'000'000'000);
}

// One way of each: on the host, on the host and late, and in a file beside all else; values too.
bool offloaded_in_quick(const Case& c) {
  if (c.offload_param != "none")
    return values_offloaded(c) && c.ranks == 2 &&
           c.dtype == (c.offload_param == "cpu" ? Dtype::float32 : Dtype::bfloat16);
  if (c.transport != Transport::shared_memory) return false;
  if (c.ranks == 4)
    return c.offload == "nvme" && c.stage == 2 && c.dtype == Dtype::float16 && unusual(c) == 3;
  if (unusual(c) != 0 || c.offload != "cpu") return false;
  return c.delayed ? c.stage == 3 && c.dtype == Dtype::bfloat16
                   : c.stage == 1 && c.dtype == Dtype::float16;
}

// Without overlap, one after the other, in one bucket: each stage in both dtypes. Then buckets,
// micro-batches and overlap together.
bool in_quick(const Case& c) {
  if (c.offloads()) return offloaded_in_quick(c);
  if (c.dtype == Dtype::float16) return false;
  if (unusual(c) == 0)
    return c.ranks == 2 ? c.transport == Transport::shared_memory &&
                              (c.stage < 2 || (c.stage == 3) == (c.dtype == Dtype::bfloat16))
                        : c.transport == Transport::mpi &&
                              (c.stage % 2 == 1) == (c.dtype == Dtype::bfloat16);
  return c.ranks == 4 && unusual(c) == 3 && c.stage > 0 &&
         (c.stage == 3) == (c.dtype == Dtype::bfloat16);
}

// Of the product of stages, ranks, micro-batches, dtypes and overlap a third for each way to
// offload, so that every two values meet in each: whatever two axes are, a third of those left goes
// through all remainders.
bool offloaded_in_acceptance(const Case& c) {
  if (c.offload_param != "none")
    return values_offloaded(c) && (c.ranks == 3 || c.dtype == Dtype::bfloat16);
  const int ranks = c.ranks == 8 ? 5 : c.ranks;
  const int dtype = c.dtype == Dtype::float32 ? 0 : c.dtype == Dtype::bfloat16 ? 1 : 2;
  const int way = c.delayed ? 2 : c.offload == "nvme" ? 1 : 0;
  return (c.stage + ranks + c.micro_batches + dtype + c.overlap) % 3 == way;
}

// Everything as usual over both transports; the matrix of stages, ranks, micro-batches, dtypes and
// overlap in small buckets.
bool in_acceptance(const Case& c) {
  if (unusual(c) == 0 && !c.offloads()) return c.parameters <= 100'003 || c.dtype != Dtype::float16;
  if (c.parameters > 100'003 || c.transport != Transport::shared_memory) return false;
  if (c.reduce_bucket == whole) return false;
  return !c.offloads() || offloaded_in_acceptance(c);
}

}  // namespace

zero::StepOptions ZeroStepCase::step_options(double clip_norm, int rank) const {
  zero::StepOptions options;
  options.clip_norm = clip_norm;
  options.allgather_bucket_size = all_gather_bucket;
  if (wire == "bfloat16") options.communication_data_type = Dtype::bfloat16;
  if (wire == "half") options.communication_data_type = Dtype::float16;
  options.overlap_comm = overlap;
  options.contiguous_gradients = contiguous;
  options.stage3_prefetch_bucket_size = prefetch_bucket;
  options.stage3_max_live_parameters = max_live;
  zero::StateOptions& states = options.offload_optimizer;
  states.device = zero::find_offload_device(offload);
  states.cpu.piece_size = sub_group_size;
  states.cpu.ratio = std::stod(ratio);
  states.cpu.delayed_update = delayed;
  states.nvme.sub_group_size = sub_group_size;
  states.nvme.buffer_count = buffer_count;
  states.nvme.swap.folder =
      nvme_path == "temporary" ? std::filesystem::temp_directory_path().string() : nvme_path;
  states.nvme.swap.io.rank = rank;
  zero::ValueOptions& values = options.offload_param;
  values.device = zero::find_offload_device(offload_param, "offload_param");
  values.swap = states.nvme.swap;
  values.buffer_count = buffer_count;
  values.buffer_size = sub_group_size;
  values.max_in_cpu = max_in_cpu;
  return options;
}

harness::Sweep<Case> zero_step_sweep(Profile profile) {
  const bool quick = profile == Profile::quick;
  Values values;
  values.transport = {Transport::shared_memory, Transport::mpi};
  values.ranks = quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8};
  if (!quick) values.parameters.push_back(1'000'003);
  values.micro_batches = quick ? std::vector{1, 3} : std::vector{1, 2, 3};
  values.overlap = values.delayed = {false, true};
  values.reduce_bucket = {whole, 20'000};
  values.offload = values.offload_param = zero::offload_device_names();
  harness::Sweep<Case> sweep = sweep_of(values);
  return std::move(sweep.sample(quick ? in_quick : in_acceptance));
}

harness::Sweep<Case> zero_options_sweep(Profile profile) {
  const bool quick = profile == Profile::quick;
  Values values;
  if (quick) values.dtype = {Dtype::float32};
  values.ranks = {quick ? 4 : 3};
  values.micro_batches = {quick ? 3 : 2};
  values.contiguous = {true, false};
  values.all_gather_bucket = {whole, 10'000};
  values.wire = {"default", "bfloat16", "half"};
  values.prefetch = {50'000'000, 0, 30'000};
  values.persistence = {100, 100'000};
  values.max_live = {1'000'000'000, 50'000};
  harness::Sweep<Case> sweep = sweep_of(values);
  return std::move(sweep.sample([quick](const Case& c) {
    const int others = unusual(c) - 3;  // beside micro-batches, overlap and buckets
    return quick ? c.stage == 2 && others == 2 && c.wire == "half" && !c.contiguous : others == 1;
  }));
}

std::string why_not(const Case& c, const harness::Context& context) {
  if (c.overlap && !context.device.readable_by_host())
    return "overlap_comm needs tensors in host memory";
  if (c.offload == "nvme" || c.offload_param == "nvme") {
    if (std::string why = zero::IoRing::why_not(); !why.empty()) return why;
    try {
      const zero::StateOptions states = c.step_options(1, context.group.index).offload_optimizer;
      const auto probe =
          zero::IoFile::unnamed(states.nvme.swap.folder, zero::io_alignment, context.group.index);
      if (!probe.direct()) return probe.note();
    } catch (const machine::MachineError&) {
      // A folder that is not there is no reason to skip: the case will say so.
    }
  }
  return machine::why_not(context.world, context.group, c.transport);
}

}  // namespace suite
