#include "suite/configuration/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "suite/configuration/model_shape.h"
#include "suite/configuration/sources.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

using harness::UsageError;

// What an "auto" becomes: the value, and why.
struct Filled {
  Value value;
  std::string why;
};
struct Automatic {
  std::string_view path;
  Filled (*fill)(const Training& training, const Assignments& said);
};

Filled trainers(double value) { return {value, "Hugging Face's TrainingArguments"}; }

// Of a width; without one there is nothing to say.
Filled of_width(const Training& training, double value, std::string_view rule) {
  if (training.model.hidden_size > 0)
    return {std::floor(value), fmt::format("{}, as Hugging Face's Trainer has it", rule)};
  return {std::monostate{},
          fmt::format("it is {}, and no --hidden-size or --model is given", rule)};
}

double width(const Training& training) { return static_cast<double>(training.model.hidden_size); }

// In this order; the batch's three are seen to apart.
constexpr Automatic rules[] = {
    {"fp16.enabled",
     [](const Training&, const Assignments&) -> Filled {
       return {false, "Hugging Face's TrainingArguments"};
     }},
    {"bf16.enabled",
     [](const Training&, const Assignments&) -> Filled {
       return {false, "Hugging Face's TrainingArguments"};
     }},
    {"optimizer.params.lr", [](const Training&, const Assignments&) { return trainers(5e-5); }},
    {"optimizer.params.betas",
     [](const Training&, const Assignments&) -> Filled {
       return {std::vector<double>{0.9, 0.999}, "Hugging Face's TrainingArguments"};
     }},
    {"optimizer.params.eps", [](const Training&, const Assignments&) { return trainers(1e-8); }},
    {"optimizer.params.weight_decay",
     [](const Training&, const Assignments&) { return trainers(0); }},
    {"gradient_clipping", [](const Training&, const Assignments&) { return trainers(1); }},
    {"scheduler.params.warmup_min_lr",
     [](const Training&, const Assignments&) { return trainers(0); }},
    {"scheduler.params.warmup_max_lr",
     [](const Training& training, const Assignments&) -> Filled {
       return {training.optimizer.learning_rate, "the optimizer's learning rate"};
     }},
    {"scheduler.params.warmup_num_steps",
     [](const Training& training, const Assignments&) -> Filled {
       if (training.scheduler.lr_warmup_iters)
         return {static_cast<double>(*training.scheduler.lr_warmup_iters), "--lr-warmup-iters"};
       return trainers(0);
     }},
    {"scheduler.params.total_num_steps",
     [](const Training& training, const Assignments&) -> Filled {
       if (training.scheduler.train_iters)
         return {static_cast<double>(*training.scheduler.train_iters), "--train-iters"};
       return {std::monostate{}, "it is the steps of the run, and no --train-iters is given"};
     }},
    {"zero_optimization.reduce_bucket_size",
     [](const Training& t, const Assignments&) {
       return of_width(t, width(t) * width(t), "hidden² of the model");
     }},
    {"zero_optimization.stage3_prefetch_bucket_size",
     [](const Training& t, const Assignments&) {
       return of_width(t, 0.9 * width(t) * width(t), "0.9 hidden² of the model");
     }},
    {"zero_optimization.stage3_param_persistence_threshold",
     [](const Training& t, const Assignments&) {
       return of_width(t, 10 * width(t), "10 hidden of the model");
     }},
    {"pipeline.stages",
     [](const Training& t, const Assignments&) -> Filled {
       return {static_cast<double>(t.degrees.pipeline), "--pipeline-model-parallel-size"};
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
    batch();
    automaton();
    check();
    std::optional<std::uint64_t> seed;
    if (said_.said(&training_.seed)) seed = static_cast<std::uint64_t>(training_.seed);
    return {training_, entries(), std::move(notes_.warnings), seed};
  }

 private:
  void read() {
    if (!sources_.model.empty()) take_model();
    training_.model.parameters = sources_.parameters;
    if (!sources_.deepspeed_file.empty())
      read_deepspeed(sources_.deepspeed_file, read_leaves(sources_.deepspeed_file), training_,
                     said_, notes_);
    if (!sources_.megatron_file.empty())
      read_megatron(sources_.megatron_file, read_words(sources_.megatron_file), training_, said_,
                    notes_);
    read_megatron("command line", sources_.words, training_, said_, notes_);
    if (sources_.deepspeed_file.empty()) megatron_defaults();
  }

  // The sequence may be another than the model's own, whose positions stay.
  void take_model() {
    Training fresh;
    training_.model = named_shape(sources_.model);
    Model& model = training_.model;
    own_sequence_ = std::exchange(model.seq_length, 0);
    model.max_position_embeddings = own_sequence_;
    const Origin origin{"--model " + sources_.model, ""};
    for (const NamedField& named : megatron_fields()) {
      const Field field = named.field(training_), usual = named.field(fresh);
      if (configuration::text(field) != configuration::text(usual)) said_.note(field, origin);
    }
  }

  // Of what both have a word for, where DeepSpeed has said nothing at all.
  void megatron_defaults() {
    const Origin origin{"Megatron-LM's default", ""};
    const auto set = [&](const Field& field, double value) {
      if (!said_.said(address(field))) said_.set(field, value, origin);
    };
    set(&training_.optimizer.weight_decay, 0.01);
    set(&training_.fp16.initial_loss_scale, 4294967296);
  }

  // Each tool moves a dynamic scale in its own way, DeepSpeed in two.
  void automaton() {
    Fp16& fp16 = training_.fp16;
    if (sources_.deepspeed_file.empty())
      said_.set(&fp16.automaton, "megatron", {"derived", "Megatron-LM's own"});
    else if (training_.zero.stage == 0)
      said_.set(&fp16.automaton, "deepspeed_fused", {"derived", "DeepSpeed's below stage 1"});
    const double of_power = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power));
    const Origin *power = said_.origin(&fp16.initial_scale_power),
                 *scale = said_.origin(&fp16.initial_loss_scale);
    if (!scale)
      said_.set(&fp16.initial_loss_scale, of_power, {"derived", "2^initial_scale_power"});
    else if (power && of_power != fp16.initial_loss_scale)
      throw UsageError(fmt::format("{} is {}, which is 2^{}, but {} is {}", power->text(),
                                   fp16.initial_scale_power, fp16.initial_scale_power,
                                   scale->text(), fp16.initial_loss_scale));
  }

  void shape() {
    Model& model = training_.model;
    if (model.parameters > 0 && model.num_layers > 0)
      throw UsageError(
          fmt::format("--parameters {} and a model's shape ({} layers): give one of the two",
                      model.parameters, model.num_layers));
    if (own_sequence_ > 0 && !said_.said(&model.seq_length))
      said_.set(&model.seq_length, static_cast<double>(own_sequence_),
                {"--model " + sources_.model, ""});
    if (has_shape(model) && model.vocabulary_size == 0) {
      said_.set(&model.vocabulary_size, 50257.0, {"assumed", "GPT-2's"});
      notes_.warnings.emplace_back("no --vocab-size is given: GPT-2's 50257 is assumed");
    }
    if (has_shape(model)) check_shape(model);
  }

  bool is_automatic(const void* field) {
    return std::ranges::any_of(notes_.automatic, [&](const auto& one) {
      return address(one.first->field(training_)) == field;
    });
  }

  void fill() {
    std::set<std::string_view> done{"train_batch_size", "train_micro_batch_size_per_gpu",
                                    "gradient_accumulation_steps"};
    for (const Automatic& rule : rules) {
      for (const auto& [key, origin] : notes_.automatic) {
        if (key->path != rule.path) continue;
        done.insert(key->path);
        const Field field = key->field(training_);
        if (said_.said(address(field))) continue;  // by the other source
        const Filled filled = rule.fill(training_, said_);
        if (std::holds_alternative<std::monostate>(filled.value))
          throw UsageError(
              fmt::format("{} is 'auto', which can't be resolved: {}", origin.text(), filled.why));
        said_.set(field, filled.value, {"auto", filled.why}, key->limits);
      }
    }
    for (const auto& [key, origin] : notes_.automatic)
      if (!done.contains(key->path))
        throw UsageError(
            fmt::format("{} is 'auto', which nothing resolves; give a value", origin.text()));
  }

  void degrees() {
    Degrees& degrees = training_.degrees;
    if (!degrees.tensor_parallel) degrees.tensor = 1;
    degrees.gpus = sources_.gpus;
    const std::int64_t cut = degrees.tensor * degrees.pipeline * degrees.context;
    if (degrees.gpus < 1 || degrees.gpus % cut != 0)
      throw UsageError(fmt::format(
          "{} GPUs are no multiple of {} = tensor-model-parallel-size {} x "
          "pipeline-model-parallel-size {} x context-parallel-size {}; the next multiple is {}",
          degrees.gpus, cut, degrees.tensor, degrees.pipeline, degrees.context,
          (std::max<std::int64_t>(degrees.gpus, 1) + cut - 1) / cut * cut));
    degrees.data = degrees.gpus / cut;
    const Model& model = training_.model;
    const auto divide = [](std::string_view what, std::int64_t number, std::string_view of,
                           std::int64_t whole) {
      if (whole > 0 && whole % number != 0)
        throw UsageError(fmt::format("{} {} does not divide {} {}", what, number, of, whole));
    };
    divide("tensor-model-parallel-size", degrees.tensor, "num-attention-heads",
           model.num_attention_heads);
    divide("pipeline-model-parallel-size", degrees.pipeline, "num-layers", model.num_layers);
    divide("context-parallel-size", degrees.context, "seq-length", model.seq_length);
    virtual_stages();
  }

  void virtual_stages() {
    Degrees& degrees = training_.degrees;
    const std::int64_t of_a_stage = training_.model.num_layers / degrees.pipeline;
    if (const std::int64_t each = degrees.layers_per_virtual_stage; each > 0) {
      const std::string origin = said_.origin(&degrees.layers_per_virtual_stage)->text();
      if (of_a_stage == 0)
        throw UsageError(fmt::format("{} needs a model's shape: give --num-layers", origin));
      if (of_a_stage % each != 0)
        throw UsageError(
            fmt::format("{} is {}, which does not divide the {} layers of a stage; give "
                        "--num-virtual-stages-per-pipeline-rank",
                        origin, each, of_a_stage));
      const std::int64_t stages = of_a_stage / each;
      if (!said_.said(&degrees.virtual_stages))
        said_.set(&degrees.virtual_stages, static_cast<double>(stages),
                  {"derived", "layers of a stage / layers of a virtual stage"});
      else if (degrees.virtual_stages != stages)
        throw UsageError(
            fmt::format("{} is {}, which makes {} virtual stages of {} layers, and {} is {}",
                        origin, each, stages, of_a_stage,
                        said_.origin(&degrees.virtual_stages)->text(), degrees.virtual_stages));
    }
    if (degrees.virtual_stages == 1) return;
    const std::string origin = said_.origin(&degrees.virtual_stages)->text();
    if (degrees.pipeline == 1)
      throw UsageError(fmt::format(
          "{} is {}: there are virtual stages only with --pipeline-model-parallel-size above 1",
          origin, degrees.virtual_stages));
    if (of_a_stage % degrees.virtual_stages != 0)
      throw UsageError(fmt::format("{} is {}, which does not divide the {} layers of a stage",
                                   origin, degrees.virtual_stages, of_a_stage));
  }

  struct Member {
    std::int64_t* value;
    std::string_view name;
  };

  void batch() {
    Batch& b = training_.batch;
    const std::int64_t dp = training_.degrees.data;
    const auto fixed = [&](const std::int64_t& field) { return said_.said(&field); };
    const auto derive = [&](std::int64_t& field, std::int64_t value, const std::string& how) {
      said_.set(&field, static_cast<double>(value), {"derived", how});
    };
    const bool nothing = !fixed(b.train_batch_size) && !fixed(b.train_micro_batch_size_per_gpu);
    if (nothing && !is_automatic(&b.train_micro_batch_size_per_gpu)) {
      if (!sources_.deepspeed_file.empty())
        throw UsageError(fmt::format(
            "{}: neither train_batch_size nor train_micro_batch_size_per_gpu is given; DeepSpeed "
            "needs one of them",
            sources_.deepspeed_file));
      said_.set(&b.train_micro_batch_size_per_gpu, 1.0, {"default", "of this program"});
    } else if (nothing) {
      said_.set(&b.train_micro_batch_size_per_gpu, 8.0,
                {"auto", "Hugging Face's TrainingArguments"});
    }
    if (!fixed(b.gradient_accumulation_steps) &&
        !(fixed(b.train_batch_size) && fixed(b.train_micro_batch_size_per_gpu)))
      said_.set(&b.gradient_accumulation_steps, 1.0,
                is_automatic(&b.gradient_accumulation_steps)
                    ? Origin{"auto", "Hugging Face's TrainingArguments"}
                    : Origin{"default", ""});
    if (!fixed(b.train_batch_size))
      derive(b.train_batch_size,
             b.train_micro_batch_size_per_gpu * b.gradient_accumulation_steps * dp,
             "micro-batch x accumulation x data-parallel size");
    else if (!fixed(b.train_micro_batch_size_per_gpu))
      derive(b.train_micro_batch_size_per_gpu,
             b.train_batch_size / dp / b.gradient_accumulation_steps,
             "batch / data-parallel size / accumulation");
    else if (!fixed(b.gradient_accumulation_steps))
      derive(b.gradient_accumulation_steps,
             b.train_batch_size / dp / b.train_micro_batch_size_per_gpu,
             "batch / data-parallel size / micro-batch");
    if (b.train_batch_size != b.train_micro_batch_size_per_gpu * b.gradient_accumulation_steps * dp)
      disagree();
  }

  [[noreturn]] void disagree() const {
    const Batch& b = training_.batch;
    const Degrees& d = training_.degrees;
    const auto with_origin = [&](std::string_view name, const std::int64_t& field) {
      const Origin* origin = said_.origin(&field);
      if (!origin) return fmt::format("{} (not given)", name);
      return fmt::format("{} {} ({})", name, field, origin->text());
    };
    throw UsageError(
        fmt::format("{} is not {} x {} x data-parallel size {} (= {} GPUs / tp {} / pp {} / cp {})",
                    with_origin("train_batch_size", b.train_batch_size),
                    with_origin("train_micro_batch_size_per_gpu", b.train_micro_batch_size_per_gpu),
                    with_origin("gradient_accumulation_steps", b.gradient_accumulation_steps),
                    d.data, d.gpus, d.tensor, d.pipeline, d.context));
  }

  void check() {
    const Training& t = training_;
    if (t.fp16.enabled && t.bf16.enabled)
      throw UsageError(fmt::format("fp16 and bf16 are both enabled ({}; {}); a model has one type",
                                   said_.origin(&t.fp16.enabled)->text(),
                                   said_.origin(&t.bf16.enabled)->text()));
    if (t.zero.offload_param.device != "none" && t.zero.stage != 3)
      throw UsageError(fmt::format(
          "zero_optimization.offload_param.device is {}, but stage is {}: parameters are whole "
          "below stage 3",
          t.zero.offload_param.device, t.zero.stage));
    if (t.zero.offload_optimizer.device != "none" && t.zero.stage == 0)
      throw UsageError(fmt::format(
          "zero_optimization.offload_optimizer.device is {}, but stage is 0: there is none below "
          "stage 1",
          t.zero.offload_optimizer.device));
    const auto needs_path = [](const std::string& device, const std::string& path,
                               std::string_view section) {
      if (device == "nvme" && path.empty())
        throw UsageError(
            fmt::format("zero_optimization.{}.device is nvme, but there is no "
                        "zero_optimization.{}.nvme_path",
                        section, section));
    };
    needs_path(t.zero.offload_param.device, t.zero.offload_param.nvme_path, "offload_param");
    needs_path(t.zero.offload_optimizer.device, t.zero.offload_optimizer.nvme_path,
               "offload_optimizer");
    if (t.gradients.allreduce_op == "sum" && t.zero.stage == 3)
      throw UsageError("gradient_allreduce_op is sum, which DeepSpeed refuses in stage 3");
    const Activations& a = t.activations;
    if (a.contiguous_memory_optimization && !(a.partition_activations && a.number_checkpoints))
      throw UsageError(
          "activation_checkpointing.contiguous_memory_optimization needs partition_activations "
          "and number_checkpoints");
    if (t.degrees.sequence_parallel && t.degrees.tensor == 1)
      notes_.warnings.emplace_back(
          "--sequence-parallel cuts nothing where tensor-model-parallel-size is 1");
  }

  std::vector<Entry> entries() {
    std::vector<Entry> all;
    std::set<const void*> seen;
    // A default that something else stands in for.
    if (const void* power = &training_.fp16.initial_scale_power;
        !said_.said(power) && sources_.deepspeed_file.empty())
      seen.insert(power);
    const auto add = [&](std::string_view name, FieldOf field_of, std::string_view since) {
      const Field field = field_of(training_);
      if (!seen.insert(address(field)).second) return;
      const void* place = address(field);
      const Origin* origin = said_.origin(place);
      all.push_back({std::string(name), configuration::text(field),
                     origin ? origin->text() : "default",
                     origin ? std::string() : std::string(since),
                     std::holds_alternative<std::string*>(field)});
    };
    for (const Key& key : deepspeed_keys())
      if (key.field) add(key.path, key.field, key.since);
    // A pair of numbers was added under the first one's address.
    seen.insert(&training_.optimizer.betas[1]);
    for (const NamedField& named : megatron_fields()) add(named.name, named.field, "");
    if (training_.fp16.enabled && training_.fp16.loss_scale == 0)
      add(
          "loss scale's automaton", +[](Training& t) -> Field { return &t.fp16.automaton; }, "");
    return all;
  }

  const Sources& sources_;
  Training training_;
  Assignments said_;
  Notes notes_;
  std::int64_t own_sequence_ = 0;  // of a model by name
};

}  // namespace

Resolved resolve(const Sources& sources) { return Resolution(sources).take(); }

}  // namespace suite::configuration
