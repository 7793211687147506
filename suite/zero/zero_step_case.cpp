#include "suite/zero/zero_step_case.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "machine/base/error.h"
#include "machine/link/connect.h"
#include "zero/offload/io_ring.h"

namespace suite {

using Case = ZeroStepCase;

namespace {

std::string why_no_case(const Case& c) {
  if (c.parameters < 1000)
    return fmt::format("parameters is {}; expected at least 1000", c.parameters);
  if (c.micro_batches < 1)
    return fmt::format("micro-batches is {}; expected at least 1", c.micro_batches);
  if (c.reduce_bucket < 1 || c.all_gather_bucket < 1 || c.max_live < 1 || c.prefetch_bucket < 0)
    return "buckets must have at least one element";
  if (c.overlap && c.transport == Transport::mpi)
    return "overlap_comm requires shared_memory, which supports several threads, or cuda_ipc or "
           "nccl";
  if ((c.wire != "default" || c.sums != "default") && c.dtype == Dtype::float64)
    return "gradients of double values are double";
  if (const auto sums = Case::dtype_of(c.sums); sums && *sums != c.dtype && *sums != Dtype::float32)
    return fmt::format("grad_accum_dtype is {}; expected float or {}", c.sums,
                       machine::name(c.dtype));
  if (c.sub_group_size < 1 || c.buffer_count < 1)
    return "sub_group_size and buffer_count must be at least 1";
  if (!c.reduce_scatter && c.stage != 1 && c.stage != 2)
    return "reduce_scatter false requires ZeRO stage 1 or 2";
  if (!c.all_gather && c.stage != 1 && c.stage != 2)
    return "allgather_partitions false requires ZeRO stage 1 or 2";
  if (c.prescale && c.predivide != "1")
    return "gradient_predivide_factor requires prescale_gradients false";
  if (c.max_reuse < 0 || (c.max_reuse > 0 && c.stage != 3))
    return "stage3_max_reuse_distance must be at least 0, and requires ZeRO stage 3 above it";
  if (c.max_in_cpu < 0) return "max_in_cpu must be at least 0";
  if (c.delayed && c.ratio != "1")
    return fmt::format("delayed_update does not support ratio {} here; offload_step judges it",
                       c.ratio);
  try {
    const zero::StepOptions options = c.step_options(1, 0);
    zero::check(options.offload_optimizer);
    zero::check(options.offload_param, c.stage, options.offload_optimizer);
    const Dtype usual = c.dtype == Dtype::float64 ? c.dtype : Dtype::float32,
                gradients = Case::dtype_of(c.sums).value_or(usual);
    zero::check(options.plus_plus, {.stage = c.stage,
                                    .dp = c.ranks,
                                    .offloads_values = options.offload_param.offloads(),
                                    .values = c.dtype,
                                    .gradients = gradients,
                                    .wire = options.communication_data_type,
                                    .predivision = zero::predivision(options, c.ranks)});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// Returns the axes. By default each option is off.
Sweep<Case> axes() {
  using enum Dtype;
  const std::vector<std::string> devices = zero::offload_device_names();
  return Sweep<Case>()
      .axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
      .axis("zero-stage", &Case::stage, 1, {0, 1, 2, 3})
      .axis("ranks", &Case::ranks, 2)
      .axis("parameters", &Case::parameters, 100'003)
      .axis("gradient_accumulation_steps", &Case::micro_batches, 1)
      .axis("overlap_comm", &Case::overlap, false)
      .axis("contiguous_gradients", &Case::contiguous, true)
      .axis("reduce_bucket_size", &Case::reduce_bucket, Case::whole)
      .axis("allgather_bucket_size", &Case::all_gather_bucket, Case::whole)
      .axis("grad_accum_dtype", &Case::sums, "default", {"default", "float", "bfloat16", "half"})
      .axis("communication_data_type", &Case::wire, "default",
            {"default", "float", "bfloat16", "half"})
      .axis("reduce_scatter", &Case::reduce_scatter, true)
      .axis("allgather_partitions", &Case::all_gather, true)
      .axis("prescale_gradients", &Case::prescale, false)
      .axis("gradient_predivide_factor", &Case::predivide, "1", {"1", "0.75", "8"})
      .axis("stage3_prefetch_bucket_size", &Case::prefetch_bucket, 50'000'000)
      .axis("stage3_param_persistence_threshold", &Case::persistence_threshold, 100)
      .axis("stage3_max_live_parameters", &Case::max_live, 1'000'000'000)
      .axis("stage3_max_reuse_distance", &Case::max_reuse, 0)
      .axis("zero_hpz_partition_size", &Case::hpz, 1)
      .axis("zero_quantized_weights", &Case::quantized_weights, false)
      .axis("zero_quantized_gradients", &Case::quantized_gradients, false)
      .axis("offload_optimizer", &Case::offload, "none", devices)
      .axis("offload_param", &Case::offload_param, "none", devices)
      .axis("delayed_update", &Case::delayed, false)
      .axis("ratio", &Case::ratio, "1", {"0", "0.25", "0.5", "0.75", "1"})
      .axis("sub_group_size", &Case::sub_group_size, 4000)
      .axis("buffer_count", &Case::buffer_count, 4)
      .axis("max_in_cpu", &Case::max_in_cpu, 0)
      .axis("nvme_path", &Case::nvme_path, "temporary")
      .only(why_no_case);
}

using Variations = std::vector<harness::Variation>;

Variations operator+(Variations all, const Variations& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Variations in(Dtype dtype, int stage, int ranks) {
  return {vary(&Case::dtype, {dtype}), vary(&Case::stage, {stage}), vary(&Case::ranks, {ranks})};
}

// Returns the places of the optimizer's states and of the values.
Variations offloaded(const std::string& states, const std::string& values = "none",
                     bool delayed = false) {
  return {vary(&Case::offload, {states}), vary(&Case::offload_param, {values}),
          vary(&Case::delayed, {delayed})};
}

}  // namespace

std::optional<Dtype> ZeroStepCase::dtype_of(const std::string& word) {
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16})
    if (word == machine::name(dtype)) return dtype;
  return {};
}

zero::StepOptions ZeroStepCase::step_options(double clip_norm, int rank) const {
  zero::StepOptions options;
  options.clip_norm = clip_norm;
  options.allgather_bucket_size = all_gather_bucket;
  options.communication_data_type = dtype_of(wire);
  options.overlap_comm = overlap;
  options.reduce_scatters = reduce_scatter;
  options.all_gathers_values = all_gather;
  options.prescale_gradients = prescale;
  options.gradient_predivide_factor = std::stod(predivide);
  options.contiguous_gradients = contiguous;
  options.stage3_prefetch_bucket_size = prefetch_bucket;
  options.stage3_max_live_parameters = max_live;
  options.stage3_max_reuse_distance = max_reuse;
  options.plus_plus = {hpz, quantized_weights, quantized_gradients};
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

Sweep<Case> ZeroStepCases::sweep() {
  using enum Profile;
  using enum Dtype;
  Sweep<Case> sweep = axes();
  const auto stages = vary(&Case::stage, {0, 1, 2, 3});
  const auto ranks = vary(&Case::ranks, {1, 2, 3, 4, 8}), three = vary(&Case::ranks, {3});
  const auto dtypes = vary(&Case::dtype, {float32, bfloat16, float16}),
             two_dtypes = vary(&Case::dtype, {float32, bfloat16}),
             narrow = vary(&Case::dtype, {float16});
  const auto buckets = vary(&Case::reduce_bucket, {20'000});
  const auto overlap = vary(&Case::overlap, {true});
  const auto three_micro_batches = vary(&Case::micro_batches, {3});
  const auto mpi = vary(&Case::transport, {Transport::mpi});
  // Covers the default options over both transports. The matrix has small buckets.
  for (const auto& [elements, of] : {std::pair(100'003, dtypes), {1'000'003, two_dtypes}}) {
    const auto parameters = vary(&Case::parameters, {elements});
    sweep.slice({acceptance, paper}, "usual", {of, stages, ranks, parameters})
        .slice({acceptance, paper}, "transports",
               {mpi, of, stages, vary(&Case::ranks, {2, 3, 4, 8}), parameters});
  }
  const Variations matrix{dtypes,  stages,
                          ranks,   vary(&Case::micro_batches, {1, 2, 3}),
                          buckets, vary(&Case::overlap, {false, true})};
  sweep.slice({acceptance, paper}, "buckets", matrix)
      .slice({acceptance, paper}, "offload", matrix + offloaded("cpu"), {3, 1})
      .slice({acceptance, paper}, "offload", matrix + offloaded("nvme"), {3, 2})
      .slice({acceptance, paper}, "delayed", matrix + offloaded("cpu", "none", true), {3, 0});
  const Variations all_at_once{overlap, three_micro_batches, buckets};
  // The states are in the same place as the values, or on the device.
  for (const char* device : {"cpu", "nvme"}) {
    const Variations both = all_at_once + offloaded(device, device);
    sweep
        .slice({acceptance, paper}, "offload_param",
               both + Variations{vary(&Case::dtype, {bfloat16}), vary(&Case::stage, {3}), ranks})
        .slice({acceptance, paper}, "offload_param",
               in(float32, 3, 3) + all_at_once + offloaded("none", device))
        .slice({acceptance, paper}, "offload_param", in(float16, 3, 3) + both);
  }

  // Shards and buckets are not multiples of each other, in every ZeRO stage, each in some dtype.
  // One bucket has exactly all parameters.
  const Variations uneven{vary(&Case::parameters, {10'007}), vary(&Case::micro_batches, {2}),
                          overlap, vary(&Case::all_gather_bucket, {509})};
  const Variations prime = uneven + Variations{vary(&Case::reduce_bucket, {1009})};
  const Variations whole = uneven + Variations{vary(&Case::reduce_bucket, {10'007})};
  const Variations sub_groups{vary(&Case::sub_group_size, {101})};
  sweep.slice({quick}, "usual", {vary(&Case::stage, {0})})
      .slice({quick}, "usual", {vary(&Case::dtype, {bfloat16}), vary(&Case::stage, {3})})
      .slice({quick}, "transports", Variations{mpi} + in(float32, 0, 4))
      .slice({quick}, "transports", Variations{mpi} + in(bfloat16, 3, 4))
      .slice({quick}, "buckets", in(float32, 2, 4) + all_at_once)
      .slice({quick}, "buckets", in(bfloat16, 3, 4) + all_at_once)
      .slice({quick}, "offload", in(float16, 1, 2) + offloaded("cpu"))
      .slice({quick}, "offload", in(bfloat16, 3, 2) + offloaded("cpu", "none", true))
      .slice({quick}, "offload", in(float16, 2, 4) + all_at_once + offloaded("nvme"))
      .slice({quick}, "offload_param", in(float32, 3, 2) + all_at_once + offloaded("none", "cpu"))
      .slice({quick}, "offload_param", in(bfloat16, 3, 2) + all_at_once + offloaded("nvme", "nvme"))
      .slice({quick}, "edges", in(float16, 0, 3) + prime)
      .slice({quick}, "edges", in(float32, 1, 3) + prime)
      .slice({quick}, "edges", in(bfloat16, 2, 3) + prime)
      .slice({quick}, "edges", in(float16, 3, 3) + prime)
      .slice({quick}, "edges", in(bfloat16, 1, 3) + whole)
      .slice({quick}, "edges", in(float16, 1, 3) + prime + sub_groups + offloaded("cpu"));

  // Covers every ZeRO stage over 1 or 3 ranks, all other options at once, and offloaded states and
  // values.
  const Variations small{vary(&Case::parameters, {3001}), vary(&Case::reduce_bucket, {700}),
                         vary(&Case::sub_group_size, {100}), vary(&Case::buffer_count, {3})};
  const Variations small_narrow = small + Variations{narrow, stages, three};
  const Variations accumulated{three_micro_batches, overlap};
  sweep
      .slice({smoke}, "smoke",
             small + Variations{two_dtypes, stages, vary(&Case::ranks, {1, 3}),
                                vary(&Case::micro_batches, {1, 3})})
      .slice({smoke}, "smoke", small_narrow + accumulated)
      .slice({smoke}, "smoke",
             small_narrow + offloaded("cpu") + Variations{vary(&Case::ratio, {"0.5", "1"})})
      .slice({smoke}, "smoke", small_narrow + offloaded("cpu", "none", true))
      .slice({smoke}, "smoke", small_narrow + offloaded("nvme") + accumulated);
  for (const char* device : {"cpu", "nvme"})
    for (const char* states : {"none", "nvme"})
      sweep.slice({smoke}, "smoke",
                  small + offloaded(states, device) + in(float16, 3, 3) +
                      Variations{vary(&Case::max_in_cpu, {300})});
  return sweep;
}

Sweep<Case> zero_options_sweep() {
  using enum Profile;
  using enum Dtype;
  Sweep<Case> sweep = axes();
  const auto stages = vary(&Case::stage, {0, 1, 2, 3}), stage_3 = vary(&Case::stage, {3});
  const auto all_reduced = vary(&Case::reduce_scatter, {false}),
             broadcast = vary(&Case::all_gather, {false}),
             prescaled = vary(&Case::prescale, {true}),
             predivided = vary(&Case::predivide, {"0.75", "8"});
  const auto three = vary(&Case::ranks, {3});
  const auto overlap = vary(&Case::overlap, {true});
  const auto buckets = vary(&Case::reduce_bucket, {20'000});
  const auto two_micro_batches = vary(&Case::micro_batches, {2});
  const auto scattered = vary(&Case::contiguous, {false});
  for (const auto& [at_stages, option] : {std::pair(stages, scattered),
                                          {stages, vary(&Case::all_gather_bucket, {10'000})},
                                          {stages, vary(&Case::wire, {"bfloat16", "half"})},
                                          {stages, vary(&Case::sums, {"bfloat16", "half"})},
                                          {vary(&Case::stage, {1, 2}), all_reduced},
                                          {vary(&Case::stage, {1, 2}), broadcast},
                                          {stages, prescaled},
                                          {stages, predivided},
                                          {stage_3, vary(&Case::prefetch_bucket, {0, 30'000})},
                                          {stage_3, vary(&Case::persistence_threshold, {100'000})},
                                          {stage_3, vary(&Case::max_reuse, {30'000, 500'000})},
                                          {stage_3, vary(&Case::max_live, {50'000})}})
    sweep.slice({acceptance, paper}, "one at a time",
                {vary(&Case::dtype, {float32, bfloat16, float16}), at_stages, three,
                 two_micro_batches, option, overlap, buckets});
  const Variations edges{
      vary(&Case::parameters, {10'007}),     vary(&Case::reduce_bucket, {1500}),
      vary(&Case::all_gather_bucket, {500}), vary(&Case::prefetch_bucket, {3000}),
      vary(&Case::max_live, {5000}),         vary(&Case::persistence_threshold, {1000})};
  const Variations all = Variations{three} + edges;
  const auto half_wire = vary(&Case::wire, {"half"});
  // Gradients in 16 bits in every ZeRO stage, on each wire, and with states and values elsewhere.
  const auto narrow = [](Dtype dtype) {
    return Variations{vary(&Case::dtype, {dtype}),
                      vary(&Case::sums, {std::string(machine::name(dtype))})};
  };
  for (const Dtype dtype : {bfloat16, float16})
    sweep
        .slice({acceptance, paper}, "narrow sums",
               narrow(dtype) + Variations{stages, vary(&Case::ranks, {1, 2, 3, 8}),
                                          vary(&Case::micro_batches, {1, 3}), overlap, buckets,
                                          vary(&Case::wire, {"default", "float", "half"})})
        .slice({smoke}, "smoke",
               narrow(dtype) + all +
                   Variations{stages, vary(&Case::micro_batches, {1, 3}),
                              vary(&Case::wire, {"default", "float"})});
  const Variations two_hosts{stage_3, vary(&Case::ranks, {4}), vary(&Case::hpz, {2})};
  sweep
      .slice({acceptance, paper}, "secondary shards",
             Variations{stage_3, vary(&Case::dtype, {float32, bfloat16, float16}),
                        vary(&Case::ranks, {4, 8}), vary(&Case::hpz, {2, 4}), two_micro_batches,
                        overlap, buckets})
      .slice({quick}, "secondary shards",
             two_hosts + Variations{two_micro_batches, overlap, buckets})
      .slice({smoke}, "smoke",
             edges + two_hosts +
                 Variations{vary(&Case::dtype, {bfloat16}), vary(&Case::micro_batches, {1, 3}),
                            vary(&Case::overlap, {false, true})});
  // Values in 8 and gradients in 4 bits: alone, together and with secondary shards, in one hop and
  // in two, in every dtype.
  const Variations coded_values{vary(&Case::quantized_weights, {true})},
      coded_gradients{vary(&Case::quantized_gradients, {true})};
  const Variations coded = coded_values + coded_gradients;
  sweep
      .slice({acceptance, paper}, "quantized",
             Variations{stage_3, vary(&Case::dtype, {float32, bfloat16, float16}),
                        vary(&Case::ranks, {3, 4, 8}), vary(&Case::hpz, {1, 2}),
                        vary(&Case::quantized_weights, {false, true}),
                        vary(&Case::quantized_gradients, {false, true}), two_micro_batches, overlap,
                        buckets})
      .slice({quick, smoke}, "quantized",
             edges + two_hosts + coded + narrow(bfloat16) + Variations{overlap})
      .slice({smoke}, "smoke",  // on one host one hop, on two hosts two
             edges + coded + narrow(bfloat16) + Variations{stage_3, vary(&Case::ranks, {4})})
      .slice({smoke}, "smoke",
             edges + two_hosts + coded_gradients + narrow(float16) + Variations{two_micro_batches})
      .slice({smoke}, "smoke", all + coded + Variations{stage_3, overlap, two_micro_batches})
      .slice({smoke}, "smoke",
             all + coded + offloaded("cpu", "cpu") +
                 Variations{stage_3, vary(&Case::dtype, {bfloat16})})
      .slice({smoke}, "smoke",
             all + coded_values +
                 Variations{stage_3, vary(&Case::dtype, {float16}), vary(&Case::micro_batches, {3}),
                            vary(&Case::max_reuse, {3000})});
  const auto stages_1_2 = vary(&Case::stage, {1, 2});
  sweep.slice({quick}, "reduction", {stages_1_2, all_reduced, predivided, three, overlap})
      .slice({quick}, "reduction", narrow(float16) + Variations{stages, prescaled, three})
      .slice({quick}, "broadcast", {stages_1_2, broadcast, three, overlap, buckets})
      .slice({quick}, "reuse",
             Variations{stage_3, two_micro_batches, vary(&Case::max_reuse, {3000, 500'000})} + all)
      .slice({smoke}, "smoke",
             all + offloaded("cpu", "nvme") +
                 Variations{stage_3, two_micro_batches, overlap,
                            vary(&Case::max_reuse, {1, 3000, 8000, 500'000})})
      .slice({smoke}, "smoke",
             all + Variations{stages_1_2, all_reduced, half_wire, two_micro_batches})
      .slice({smoke}, "smoke", all + Variations{stages_1_2, broadcast, overlap})
      .slice({smoke}, "smoke", narrow(bfloat16) + all + Variations{stages, predivided, overlap})
      .slice({quick}, "narrow sums",
             narrow(bfloat16) + Variations{stages, vary(&Case::ranks, {1, 4})})
      .slice({quick}, "narrow sums",
             narrow(float16) + Variations{vary(&Case::stage, {2}), vary(&Case::ranks, {4}),
                                          vary(&Case::micro_batches, {3}), overlap, buckets,
                                          vary(&Case::wire, {"default", "float"})})
      .slice({quick}, "narrow sums",
             narrow(bfloat16) + offloaded("cpu") +
                 Variations{vary(&Case::stage, {2}), overlap, vary(&Case::ratio, {"0.5", "1"})})
      .slice({quick}, "narrow sums",
             narrow(float16) + offloaded("nvme", "nvme") +
                 Variations{stage_3, overlap, two_micro_batches});
  return sweep
      .slice({quick}, "narrow wire",
             {vary(&Case::stage, {2}), vary(&Case::ranks, {4}), vary(&Case::micro_batches, {3}),
              scattered, half_wire, overlap, buckets})
      .slice({quick}, "edges", Variations{stage_3, two_micro_batches} + all)
      .slice({smoke}, "smoke",
             Variations{vary(&Case::dtype, {bfloat16}), stages, vary(&Case::micro_batches, {1, 3}),
                        vary(&Case::overlap, {false, true}), scattered, half_wire} +
                 all);
}

std::string ZeroStepCases::why_not(const Case& c, const Context& context) {
  if (c.overlap && !context.device.readable_by_host() && !between_devices(c.transport))
    return "overlap_comm on a GPU requires transport cuda_ipc or nccl";
  if (c.offload == "nvme" || c.offload_param == "nvme") {
    if (std::string why = zero::IoRing::why_not(); !why.empty()) return why;
    try {
      const zero::StateOptions states = c.step_options(1, context.group.index).offload_optimizer;
      const auto probe =
          zero::IoFile::unnamed(states.nvme.swap.folder, zero::io_alignment, context.group.index);
      if (!probe.direct()) return probe.note();
    } catch (const machine::MachineError&) {
      // A missing folder is not a reason to skip: the case reports it.
    }
  }
  return machine::why_not(context.world, context.group, c.transport);
}

}  // namespace suite
