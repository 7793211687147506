#include "suite/configuration/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>

#include "machine/base/names.h"
#include "suite/configuration/models.h"
#include "suite/options/options.h"

namespace suite::configuration {
namespace {

using harness::UsageError;

// The values that Hugging Face's Trainer gives to "auto".
struct Filled {
  Value value;      // null: an input of the rule is unknown
  std::string why;  // the rule, or its unknown input
};
struct Automatic {
  std::string_view path;
  Filled (*fill)(const TrainingConfig& config);
};

constexpr std::string_view arguments = "Hugging Face's TrainingArguments";

template <int Numerator, int Denominator = 1>
Filled number(const TrainingConfig&) {
  return {static_cast<double>(Numerator) / Denominator, std::string(arguments)};
}

// Returns a value that follows from the model's width.
Filled of_width(const TrainingConfig& config, double value, std::string_view rule) {
  if (config.model.hidden > 0)
    return {std::floor(value), fmt::format("{}, as Hugging Face's Trainer has it", rule)};
  return {std::monostate{},
          fmt::format("it is {}, and no --hidden-size or --model is given", rule)};
}

double width(const TrainingConfig& config) { return config.model.hidden; }

// The rules in the order in which they apply. The three keys of the batch are not here.
constexpr Automatic automatic_rules[] = {
    {"optimizer.params.lr", number<5, 100'000>},
    {"optimizer.params.betas",
     [](const TrainingConfig&) -> Filled {
       return {std::vector<double>{0.9, 0.999}, std::string(arguments)};
     }},
    {"optimizer.params.eps", number<1, 100'000'000>},
    {"optimizer.params.weight_decay", number<0>},
    {"gradient_clipping", number<1>},
    {"scheduler.params.warmup_min_lr", number<0>},
    {"scheduler.params.warmup_max_lr",
     [](const TrainingConfig& config) -> Filled {
       return {config.optimizer.learning_rate, "the optimizer's learning rate"};
     }},
    {"scheduler.params.warmup_num_steps",
     [](const TrainingConfig& config) -> Filled {
       if (config.schedule.lr_warmup_iters)
         return {static_cast<double>(*config.schedule.lr_warmup_iters), "--lr-warmup-iters"};
       return number<0>(config);
     }},
    {"scheduler.params.total_num_steps",
     [](const TrainingConfig& config) -> Filled {
       if (config.schedule.train_iters)
         return {static_cast<double>(*config.schedule.train_iters), "--train-iters"};
       return {std::monostate{}, "it is the steps of the run, and no --train-iters is given"};
     }},
    {"zero_optimization.reduce_bucket_size",
     [](const TrainingConfig& c) {
       return of_width(c, width(c) * width(c), "hidden² of the model");
     }},
    {"zero_optimization.stage3_prefetch_bucket_size",
     [](const TrainingConfig& c) {
       return of_width(c, 0.9 * width(c) * width(c), "0.9 hidden² of the model");
     }},
    {"zero_optimization.stage3_param_persistence_threshold",
     [](const TrainingConfig& c) { return of_width(c, 10 * width(c), "10 hidden of the model"); }},
    {"pipeline.stages",
     [](const TrainingConfig& c) -> Filled {
       return {static_cast<double>(c.degrees.pp), "--pipeline-model-parallel-size"};
     }},
};

class Resolution {
 public:
  explicit Resolution(const Sources& sources) : sources_(sources) {
    notes_.ignore_unknown = sources.ignore_unknown;
  }

  Resolved take() {
    read();
    shape();
    fill();
    degrees();
    rows();
    batch();
    tools_own();
    leave_out();
    loss_scale();
    check();
    std::vector<Entry> all = entries();
    std::optional<std::uint64_t> seed;
    if (said_.said(&config_.seed)) seed = config_.seed;
    return {std::move(config_), std::move(all), std::move(notes_.ignored),
            std::move(notes_.warnings), seed};
  }

 private:
  void read() {
    if (!sources_.model.empty()) take_model();
    config_.model.parameters = sources_.parameters;
    if (!sources_.deepspeed_file.empty())
      read_deepspeed(sources_.deepspeed_file, read_leaves(sources_.deepspeed_file), config_, said_,
                     notes_);
    if (!sources_.megatron_file.empty())
      read_megatron(sources_.megatron_file, read_words(sources_.megatron_file), config_, said_,
                    notes_);
    read_megatron("command line", sources_.words, config_, said_, notes_);
    for (const auto& [axis, text] : sources_.axes) {
      if (axis == "model-args" && text != "none")
        read_megatron("--model-args", words_of("--model-args", text), config_, said_, notes_);
      else if (axis != "model" && axis != "model-args" && axis != "ranks")
        read_axis(axis, text, config_, said_);
    }
  }

  void take_model() {
    const std::vector<std::string>& names = model_names();
    if (std::ranges::find(names, sources_.model) == names.end())
      throw UsageError(machine::unknown("model", sources_.model, names));
    set_model(config_, sources_.model);
    own_sequence_ = config_.model.sequence;
    const Origin origin = of_model();
    TrainingConfig fresh;
    for (const Key& key : model_keys()) {
      if (!key.field || key.megatron.empty()) continue;
      const Field field = key.field(config_);
      if (field.text() != key.field(fresh).text()) said_.note(field, origin);
    }
  }
  Origin of_model() const { return {"--model " + sources_.model, ""}; }

  void shape() {
    TrainingConfig::Model& model = config_.model;
    if (model.parameters > 0 && model.layers > 0)
      reject("--parameters {} and a model's shape ({} layers): give one of the two",
             model.parameters, model.layers);
    if (own_sequence_ > 0 && !said_.said(&model.seq_length))
      said_.set(Field(model.seq_length), static_cast<double>(own_sequence_), of_model());
    model.sequence = model.seq_length.value_or(0);
    if (!model.has_shape()) return;
    if (model.tokens == 0) {
      said_.set(Field(model.tokens), 50257.0, {"assumed", "GPT-2's"});
      notes_.warnings.emplace_back("--vocab-size is not given; GPT-2's 50257 is used");
    }
    if (model.num_query_groups != 1 && !model.group_query_attention)
      said_.set(Field(model.group_query_attention), true, {"derived", "--num-query-groups"});
    divide("--num-attention-heads", model.heads, "--hidden-size", model.hidden);
    divide("--num-query-groups", model.query_groups(), "--num-attention-heads", model.heads);
  }

  static void divide(std::string_view what, std::int64_t number, std::string_view of,
                     std::int64_t whole) {
    if (whole > 0 && number > 0 && whole % number != 0)
      reject("{} {} does not divide {} {}", what, number, of, whole);
  }

  void rows() {
    try {
      complete_shape(config_);
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
  }

  bool is_automatic(const void* field) {
    return std::ranges::any_of(notes_.automatic, [&](const auto& one) {
      return one.first->field(config_).address() == field;
    });
  }

  void fill() {
    std::set<std::string_view> done{"train_batch_size", "train_micro_batch_size_per_gpu",
                                    "gradient_accumulation_steps"};
    for (const Automatic& rule : automatic_rules) {
      for (const auto& [key, origin] : notes_.automatic) {
        if (key->deepspeed != rule.path) continue;
        done.insert(key->deepspeed);
        const Field field = key->field(config_);
        if (said_.said(field.address())) continue;  // the other source sets it
        const Filled filled = rule.fill(config_);
        if (std::holds_alternative<std::monostate>(filled.value))
          reject("{} is 'auto', which cannot be resolved: {}", origin.text(), filled.why);
        said_.set(field, filled.value, {"auto", filled.why}, key->limits);
      }
    }
    for (const auto& [key, origin] : notes_.automatic)
      if (!done.contains(key->deepspeed))
        reject("{} is 'auto', but the key has no rule for it; give a value", origin.text());
  }

  void derive(const Field& field, std::int64_t value, const std::string& how) {
    if (value > std::numeric_limits<int>::max()) reject("{} ({}) is too large", value, how);
    said_.set(field, static_cast<double>(value), {"derived", how});
  }

  void degrees() {
    machine::Degrees& degrees = config_.degrees;
    if (!config_.tensor_parallel) degrees.tp = 1;
    const bool fpdt = config_.context.fpdt;
    const auto exchange_heads = [&](const Origin& origin) {
      for (const auto& [key, value] :
           {std::pair("cp-comm-type", "a2a"), {"cp-placement", fpdt ? "striped" : "contiguous"}})
        said_.set(find_key(key)->field(config_), std::string(value), origin);
    };
    if (const std::optional<int> ulysses = config_.sequence_parallel_size) {
      const Origin origin{said_.origin(&config_.sequence_parallel_size)->text(), "Ulysses"};
      said_.set(Field(degrees.cp), static_cast<double>(*ulysses), origin);
      if (*ulysses > 1) exchange_heads(origin);
    } else if (const Origin* const origin = said_.origin(&config_.context.fpdt); fpdt && origin) {
      exchange_heads({origin->text(), "FPDT"});
    }
    const std::int64_t gpus = sources_.gpus;
    const std::int64_t cut = std::int64_t{degrees.tp} * degrees.pp * degrees.cp;
    if (gpus < 1 || gpus % cut != 0)
      reject(
          "{} GPUs are not a multiple of {} = tensor-model-parallel-size {} x "
          "pipeline-model-parallel-size {} x context-parallel-size {}; the next multiple is {}",
          gpus, cut, degrees.tp, degrees.pp, degrees.cp,
          (std::max<std::int64_t>(gpus, 1) + cut - 1) / cut * cut);
    derive(
        Field(degrees.dp), gpus / cut,
        fmt::format("{} GPUs / (tp {} x pp {} x cp {})", gpus, degrees.tp, degrees.pp, degrees.cp));
    const TrainingConfig::Model& model = config_.model;
    divide("tensor-model-parallel-size", degrees.tp, "num-attention-heads", model.heads);
    divide("pipeline-model-parallel-size", degrees.pp, "num-layers", model.layers);
    divide("context-parallel-size", degrees.cp, "seq-length", model.sequence);
    virtual_stages();
  }

  void virtual_stages() {
    TrainingConfig::Pipeline& pipeline = config_.pipeline;
    const int of_a_stage = config_.model.layers / config_.degrees.pp;
    const Field field(pipeline.virtual_stages);
    if (const int each = pipeline.layers_per_virtual_stage; each > 0 && config_.degrees.pp > 1) {
      const std::string origin = said_.origin(&pipeline.layers_per_virtual_stage)->text();
      if (of_a_stage == 0) reject("{} requires a model's shape; give --num-layers", origin);
      if (of_a_stage % each != 0)
        reject(
            "{} is {}, which does not divide the {} layers of a stage; give "
            "--num-virtual-stages-per-pipeline-rank",
            origin, each, of_a_stage);
      const int stages = of_a_stage / each;
      if (!said_.said(field.address()))
        derive(field, stages, "layers of a stage / layers of a virtual stage");
      else if (pipeline.virtual_stages != stages)
        reject("{} is {}, which makes {} virtual stages of {} layers, and {} is {}", origin, each,
               stages, of_a_stage, said_.origin(field.address())->text(), field.text());
    }
    const int stages = pipeline.virtual_stages.value_or(1);
    if (stages == 1) return;
    const std::string origin = said_.origin(field.address())->text();
    if (config_.degrees.pp == 1)
      reject("{} is {}; virtual stages require --pipeline-model-parallel-size above 1", origin,
             stages);
    if (of_a_stage % stages != 0)
      reject("{} is {}, which does not divide the {} layers of a stage", origin, stages,
             of_a_stage);
    said_.set(Field(pipeline.schedule), std::string("interleaved_1f1b"), {origin, "the schedule"});
  }

  void batch() {
    TrainingConfig::Batch& b = config_.batch;
    const std::int64_t dp = config_.degrees.dp;
    const auto fixed = [&](const int& field) { return said_.said(&field); };
    const auto set = [&](int& field, double value, const Origin& origin) {
      said_.set(Field(field), value, origin);
    };
    const Origin trainers{"auto", "Hugging Face's TrainingArguments"};
    const bool nothing = !fixed(b.global_batch_size) && !fixed(b.micro_batch_size);
    if (nothing && !is_automatic(&b.micro_batch_size)) {
      if (!sources_.deepspeed_file.empty())
        reject(
            "{}: neither train_batch_size nor train_micro_batch_size_per_gpu is given; DeepSpeed "
            "requires one of them",
            sources_.deepspeed_file);
      set(b.micro_batch_size, 1, {"default", "of this program"});
    } else if (nothing) {
      set(b.micro_batch_size, 8, trainers);
    }
    if (!fixed(b.gradient_accumulation_steps) &&
        !(fixed(b.global_batch_size) && fixed(b.micro_batch_size)))
      set(b.gradient_accumulation_steps, 1,
          is_automatic(&b.gradient_accumulation_steps) ? trainers : Origin{"default", ""});
    const std::int64_t of_ranks = std::int64_t{b.micro_batch_size} * b.gradient_accumulation_steps;
    if (!fixed(b.global_batch_size))
      derive(Field(b.global_batch_size), of_ranks * dp,
             "micro-batch x accumulation x data-parallel size");
    else if (!fixed(b.micro_batch_size))
      derive(Field(b.micro_batch_size), b.global_batch_size / dp / b.gradient_accumulation_steps,
             "batch / data-parallel size / accumulation");
    else if (!fixed(b.gradient_accumulation_steps))
      derive(Field(b.gradient_accumulation_steps), b.global_batch_size / dp / b.micro_batch_size,
             "batch / data-parallel size / micro-batch");
    if (b.global_batch_size !=
        std::int64_t{b.micro_batch_size} * b.gradient_accumulation_steps * dp)
      disagree();
  }

  [[noreturn]] void disagree() const {
    const TrainingConfig::Batch& b = config_.batch;
    const machine::Degrees& d = config_.degrees;
    const auto with_origin = [&](std::string_view name, const int& field) {
      const Origin* origin = said_.origin(&field);
      if (!origin) return fmt::format("{} (not given)", name);
      return fmt::format("{} {} ({})", name, field, origin->text());
    };
    reject("{} is not {} x {} x data-parallel size {} (= {} GPUs / tp {} / pp {} / cp {})",
           with_origin("train_batch_size", b.global_batch_size),
           with_origin("train_micro_batch_size_per_gpu", b.micro_batch_size),
           with_origin("gradient_accumulation_steps", b.gradient_accumulation_steps), d.dp,
           sources_.gpus, d.tp, d.pp, d.cp);
  }

  // Sets the defaults that differ between the tools.
  void tools_own() {
    gradients();
    set_muon_defaults(config_, said_, !sources_.deepspeed_file.empty());
    std::int64_t& reuse = config_.zero.options.stage3_max_reuse_distance;
    if (!sources_.deepspeed_file.empty() && config_.zero.stage == 3 && !said_.said(&reuse))
      said_.set(Field(reuse), 1e9, {"DeepSpeed's default", ""});
    if (!sources_.deepspeed_file.empty()) return;
    if (!said_.said(&config_.optimizer.weight_decay))
      said_.set(Field(config_.optimizer.weight_decay), 0.01, {"Megatron-LM's default", ""});
  }

  // DeepSpeed adds gradients up in the dtype of the values, under bf16 only with ZeRO, and sends
  // them in that of the values. Megatron-LM adds up in float32 under bf16, but not under fp16.
  void gradients() {
    using machine::Dtype;
    TrainingConfig::Zero& z = config_.zero;
    const Dtype dtype = config_.precision.dtype;
    if (size_of(dtype) != 2) return;
    const bool deepspeed = !sources_.deepspeed_file.empty();
    const std::string own = dtype == Dtype::float16 ? "fp16" : "bf16";
    const auto set = [&](std::string& key, const std::string& value) {
      if (!said_.said(&key))
        said_.set(Field(key), value,
                  {deepspeed ? "DeepSpeed's default" : "Megatron-LM's default", ""});
    };
    if (deepspeed) {
      set(z.grad_accum_dtype, dtype == Dtype::float16 || z.stage > 0 ? own : "fp32");
      set(z.communication_data_type, own);
    } else if (!sources_.megatron_file.empty()) {
      set(z.grad_accum_dtype, dtype == Dtype::float16 ? own : "fp32");
    }
  }

  // Resets keys to their defaults if their needs are not met.
  void leave_out() {
    TrainingConfig fresh;
    std::set<const void*> seen;  // a pair has the address of its first number
    std::map<std::string_view, std::vector<std::string_view>> without;  // needs -> keys
    for (const Key& key : keys()) {
      if (!key.field || !key.needs || key.needs->met(config_)) continue;
      const Field field = key.field(config_), usual = key.field(fresh);
      not_in_force_.insert(&key);
      if (!seen.insert(field.address()).second) continue;
      const Origin* const origin = said_.origin(field.address());
      if (!origin) continue;
      const std::string value = field.text();
      if (value != usual.text() && !key.axis.empty() &&
          sources_.axes.contains(std::string(key.axis)))
        reject("--{} {} requires {}", key.axis, value, key.needs->what);
      const bool is_given = origin->source != "auto" && origin->source != of_model().source &&
                            origin->source != "derived";
      if (is_given)
        notes_.ignored.push_back({std::string(key.name()), value, origin->text(),
                                  fmt::format("it requires {}", key.needs->what)});
      if (is_given && value != usual.text()) without[key.needs->what].push_back(key.name());
      field.copy(usual);
    }
    for (const auto& [what, names] : without)
      notes_.warnings.push_back(
          fmt::format("{}: no effect, requires {}", fmt::join(names, ", "), what));
  }

  // Megatron-LM changes a dynamic scale by one rule, DeepSpeed by two others.
  void loss_scale() {
    TrainingConfig::Precision& precision = config_.precision;
    zero::LossScaleOptions& scale = precision.loss_scale;
    if (precision.dtype != machine::Dtype::float16) return;
    if (precision.constant_loss_scale > 0) {
      scale.initial_scale = precision.constant_loss_scale;
      return;
    }
    const bool megatron = sources_.deepspeed_file.empty();
    scale.scaling = megatron                  ? zero::LossScaling::megatron
                    : config_.zero.stage == 0 ? zero::LossScaling::deepspeed_fused
                                              : zero::LossScaling::deepspeed_zero;
    const double of_power = std::ldexp(1.0, precision.initial_scale_power);
    const Origin *power = said_.origin(&precision.initial_scale_power),
                 *first = said_.origin(&scale.initial_scale);
    const Field field(scale.initial_scale);
    if (!first && megatron && !power)
      field.set(4294967296.0);
    else if (!first)
      said_.set(field, of_power, {"derived", "2^initial_scale_power"});
    else if (power && of_power != scale.initial_scale)
      reject("{} is {}, which is 2^{}, but {} is {}", power->text(), precision.initial_scale_power,
             precision.initial_scale_power, first->text(), scale.initial_scale);
    if (megatron && !power) not_in_force_.insert(find_key("fp16.initial_scale_power"));
  }

  void check() {
    using zero::OffloadDevice;
    const TrainingConfig::Zero& z = config_.zero;
    try {
      config_.check_gradient_dtypes();
      if (config_.model.has_shape()) config_.model.validate_sparse();
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
    const OffloadDevice states = z.options.offload_optimizer.device,
                        values = z.options.offload_param.device;
    if (values != OffloadDevice::none && z.stage != 3)
      reject(
          "zero_optimization.offload_param.device is {}, but stage is {}; parameter offload "
          "requires stage 3",
          name(values), z.stage);
    if (states != OffloadDevice::none && z.stage == 0)
      reject(
          "zero_optimization.offload_optimizer.device is {}, but stage is 0; optimizer offload "
          "requires stage 1 or higher",
          name(states));
    const auto needs_path = [&](OffloadDevice device, const std::string& path,
                                std::string_view section) {
      if (device == OffloadDevice::nvme && !said_.said(&path))
        reject(
            "zero_optimization.{}.device is nvme, but there is no "
            "zero_optimization.{}.nvme_path",
            section, section);
    };
    needs_path(values, z.parameter_path, "offload_param");
    needs_path(states, z.optimizer_path, "offload_optimizer");
  }

  std::vector<Entry> entries() {
    std::vector<Entry> all;
    std::set<const void*> seen{&config_.optimizer.betas[1]};  // reported with the first
    for (const Key& key : keys()) {
      if (!key.field || not_in_force_.contains(&key)) continue;
      const Field field = key.field(config_);
      const Origin* origin = said_.origin(field.address());
      const bool is_of_a_tool = !key.deepspeed.empty() || !key.megatron.empty();
      if ((!origin && !is_of_a_tool && field.text() == "none") ||
          !seen.insert(field.address()).second)
        continue;
      all.push_back({std::string(key.name()), field.text(), origin ? origin->text() : "default",
                     origin ? std::string() : std::string(key.since), field.kind() == Kind::word});
    }
    const zero::LossScaling scaling = config_.precision.loss_scale.scaling;
    if (scaling != zero::LossScaling::constant)
      all.push_back(
          {"loss scale's automaton", std::string(zero::name(scaling)), "derived", "", true});
    return all;
  }

  const Sources& sources_;
  TrainingConfig config_;
  Assignments said_;
  Notes notes_;
  int own_sequence_ = 0;  // of the named model
  std::set<const Key*> not_in_force_;
};

}  // namespace

Resolved resolve(const Sources& sources) { return Resolution(sources).take(); }

std::string why_no_step(const TrainingConfig& config) {
  TrainingConfig copy = config;
  for (const Key& key : keys())
    if (key.in_step && !key.in_step(config))
      return fmt::format("{} {}: {}", key.name(), key.field(copy).text(), key.why);
  return "";
}

}  // namespace suite::configuration
