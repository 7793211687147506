#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "machine/base/names.h"
#include "suite/configuration/sources.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

using harness::UsageError;

#define AT(member) (+[](Training& t) -> Field { return &t.member; })

struct Argument {
  std::string_view name;
  FieldOf field = nullptr;  // null: not honoured
  Limits limits{};
  std::string_view word{};  // a switch, which stands for this
  std::string_view why{}, instead{};
  std::string_view inert{};  // not honoured, but taken with this value
};

constexpr Limits extent{.least = 1, .most = 1e7};
constexpr Limits degree{.least = 1, .most = 1e5};

Argument on(std::string_view name, FieldOf field, std::string_view word = "true") {
  return {.name = name, .field = field, .word = word};
}
Argument unused(std::string_view name, std::string_view why, std::string_view instead = {},
                std::string_view inert = {}) {
  return {.name = name, .why = why, .instead = instead, .inert = inert};
}

constexpr std::string_view only_dense = "models here are dense";
constexpr std::string_view files = "it is about files; the program has its own options";

const std::vector<Argument>& arguments() {
  static const std::vector<Argument> arguments{
      {"--num-layers", AT(model.num_layers), {.least = 1, .most = 1e5}},
      {"--hidden-size", AT(model.hidden_size), {.least = 1, .most = 1e6}},
      {"--ffn-hidden-size", AT(model.ffn_hidden_size), extent},
      {"--num-attention-heads", AT(model.num_attention_heads), {.least = 1, .most = 1e6}},
      {"--num-query-groups", AT(model.num_query_groups), {.least = 1, .most = 1e6}},
      {"--seq-length", AT(model.seq_length), extent},
      {"--max-position-embeddings", AT(model.max_position_embeddings), extent},
      {"--vocab-size", AT(model.vocabulary_size), extent},
      {"--make-vocab-size-divisible-by", AT(model.make_vocab_size_divisible_by), extent},
      on("--swiglu", AT(model.swiglu)),
      on("--disable-bias-linear", AT(model.disable_bias_linear)),
      on("--untie-embeddings-and-output-weights", AT(model.untie_embeddings_and_output_weights)),
      {"--normalization", AT(model.normalization), {.choices = {"LayerNorm", "RMSNorm"}}},
      {"--position-embedding-type",
       AT(model.position_embedding_type),
       {.choices = {"learned_absolute", "rope", "none"}}},
      {"--hidden-dropout", AT(model.hidden_dropout), {.most = 1 - 0x1p-53}},
      {"--attention-dropout", AT(model.attention_dropout), {.most = 1 - 0x1p-53}},
      {"--tensor-model-parallel-size", AT(degrees.tensor), degree},
      {"--pipeline-model-parallel-size", AT(degrees.pipeline), degree},
      {"--num-virtual-stages-per-pipeline-rank", AT(degrees.virtual_stages), degree},
      {"--num-layers-per-virtual-pipeline-stage", AT(degrees.layers_per_virtual_stage), degree},
      {"--context-parallel-size", AT(degrees.context), degree},
      on("--sequence-parallel", AT(degrees.sequence_parallel)),
      {"--micro-batch-size", AT(batch.train_micro_batch_size_per_gpu), {.least = 1, .most = 1e5}},
      {"--global-batch-size", AT(batch.train_batch_size), {.least = 1, .most = 1e9}},
      {"--train-iters", AT(scheduler.train_iters), {.least = 1}},
      {"--lr-decay-iters", AT(scheduler.lr_decay_iters), {.least = 1}},
      {"--lr-warmup-iters", AT(scheduler.lr_warmup_iters)},
      {"--lr", AT(optimizer.learning_rate), {.most = 1e6}},
      {"--min-lr", AT(scheduler.min_lr), {.most = 1e6}},
      {"--lr-decay-style",
       AT(scheduler.lr_decay_style),
       {.choices = {"constant", "linear", "cosine", "inverse-square-root"}}},
      {"--optimizer",
       AT(optimizer.type),
       {.choices = {"AdamW", "SGD"}, .synonyms = {{"adam", "AdamW"}}}},
      {"--sgd-momentum", AT(optimizer.momentum), {.most = 1 - 0x1p-53}},
      {"--adam-beta1", AT(optimizer.betas[0]), {.most = 1 - 0x1p-53}},
      {"--adam-beta2", AT(optimizer.betas[1]), {.most = 1 - 0x1p-53}},
      {"--adam-eps", AT(optimizer.epsilon), {.least = 1e-300, .most = 1}},
      {"--weight-decay", AT(optimizer.weight_decay), {.most = 1e6}},
      {"--clip-grad", AT(gradients.clipping), {.most = 1e30}},
      {"--seed", AT(seed), {.most = 9.3e18}},
      on("--fp16", AT(fp16.enabled)),
      on("--bf16", AT(bf16.enabled)),
      {"--loss-scale", AT(fp16.loss_scale), {.least = 1e-300, .most = 1e30}},
      {"--min-loss-scale", AT(fp16.min_loss_scale), {.least = 1e-300, .most = 1e30}},
      {"--loss-scale-window", AT(fp16.loss_scale_window), {.least = 1}},
      {"--hysteresis", AT(fp16.hysteresis), {.least = 1}},
      {"--initial-loss-scale", AT(fp16.initial_loss_scale), {.least = 1e-300, .most = 1e30}},
      on("--accumulate-allreduce-grads-in-fp32", AT(gradients.accumulation_dtype), "fp32"),
      on("--overlap-grad-reduce", AT(zero.overlap_comm)),
      on("--overlap-param-gather", AT(zero.overlap_comm)),
      {"--ddp-bucket-size", AT(zero.reduce_bucket_size), {.least = 1}},
      on("--optimizer-cpu-offload", AT(zero.offload_optimizer.device), "cpu"),
      {"--optimizer-offload-fraction", AT(zero.offload_optimizer.ratio), {.most = 1}},
      {"--data-parallel-sharding-strategy",
       AT(zero.stage),
       {.choices = {"no_shard", "optim", "optim_grads", "optim_grads_params"}}},
      {"--recompute-granularity",
       AT(activations.recompute_granularity),
       {.choices = {"selective", "full"}}},
      {"--recompute-method", AT(activations.recompute_method), {.choices = {"uniform", "block"}}},
      {"--recompute-num-layers", AT(activations.recompute_num_layers), {.least = 1, .most = 1e5}},
      on("--recompute-activations", AT(activations.recompute_granularity), "selective"),
      on("--distribute-saved-activations", AT(activations.partition_activations)),
      on("--use-flash-attn", AT(activations.use_flash_attn)),
      {"--log-interval", AT(reports.log_interval), {.least = 1}},
      on("--use-distributed-optimizer", AT(zero.stage), "1"),
      unused("--use-megatron-fsdp", "stages say it", "--data-parallel-sharding-strategy", "switch"),
      unused("--group-query-attention", "the number of groups says it", "--num-query-groups",
             "switch"),
      unused("--num-experts", only_dense),
      unused("--expert-model-parallel-size", only_dense, {}, "1"),
      unused("--expert-tensor-parallel-size", only_dense, {}, "1"),
      unused("--rampup-batch-size", "batches have one size", "--global-batch-size"),
      unused("--fp8-format", "there are no products in 8 bits here", "--bf16"),
      unused("--fp8-recipe", "there are no products in 8 bits here", "--bf16"),
      unused("--grad-reduce-in-bf16", "gradients are float32 under bfloat16",
             "communication_data_type"),
      unused("--tp-comm-overlap", "it is not implemented", "--overlap-grad-reduce"),
      unused("--moe-router-topk", only_dense),
      unused("--moe-token-dispatcher-type", only_dense),
      unused("--data-path", files, "--data of shardmark run"),
      unused("--tokenizer-type", files, "--data of shardmark run"),
      unused("--vocab-file", files, "--vocab-size"),
      unused("--merge-file", files, "--vocab-size"),
      unused("--save", files, "--save of shardmark run"),
      unused("--load", files, "--load of shardmark run"),
      unused("--save-interval", files, "--save of shardmark run"),
      unused("--eval-iters", "nothing is evaluated", {}, "0"),
      unused("--eval-interval", "nothing is evaluated"),
      unused("--deterministic-mode", "every step is deterministic", {}, "switch"),
  };
  return arguments;
}
#undef AT

constexpr std::pair<std::string_view, std::string_view> short_names[] = {
    {"--tp", "--tensor-model-parallel-size"},
    {"--pp", "--pipeline-model-parallel-size"},
    {"--cp", "--context-parallel-size"}};

std::optional<double> number_of(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return {};
  return value;
}

class ArgumentReader {
 public:
  ArgumentReader(const std::string& source, const std::vector<std::string>& words,
                 Training& training, Assignments& said, Notes& notes)
      : source_(source), words_(words), training_(training), said_(said), notes_(notes) {}

  void read() {
    while (next_ < words_.size()) argument();
  }

 private:
  bool has_value() const { return inline_value_ || (next_ < words_.size() && !is_name()); }
  bool is_name() const { return words_[next_].starts_with("--"); }
  std::string take_value() {
    if (inline_value_) return *std::exchange(inline_value_, {});
    return words_[next_++];
  }

  void argument() {
    std::string word = words_[next_++];
    if (!word.starts_with("--"))
      throw UsageError(
          fmt::format("{}: {} is no argument and no value of one", source_, in_quotes(word)));
    inline_value_.reset();
    if (const std::size_t sign = word.find('='); sign != std::string::npos) {
      inline_value_ = word.substr(sign + 1);
      word.resize(sign);
    }
    std::string_view name = word;
    for (const auto& [brief, whole] : short_names)
      if (word == brief) name = whole;
    const auto found = std::ranges::find(arguments(), name, &Argument::name);
    if (found == arguments().end()) {
      notes_.refuse(fmt::format("{}: {}", source_,
                                machine::unknown("argument", printable(word), near_names(word))));
      while (has_value()) take_value();
    } else if (found->field) {
      set(*found, word);
    } else {
      not_honoured(*found);
    }
  }

  static std::vector<std::string> near_names(const std::string& word) {
    std::vector<std::string> names = megatron_names();
    if (!machine::nearest(word, names).empty()) return names;
    return {"Megatron-LM's names for the model, the degrees, batches and the optimizer"};
  }

  void set(const Argument& argument, const std::string& word) {
    const Field field = argument.field(training_);
    const Origin origin{source_, word};
    if (!argument.word.empty()) {
      if (inline_value_ || (next_ < words_.size() && !is_name()))
        throw UsageError(fmt::format("{} is a switch; {} stands after it", origin.text(),
                                     in_quotes(inline_value_ ? *inline_value_ : words_[next_])));
      if (std::holds_alternative<std::int64_t*>(field))
        return said_.set(field, *number_of(std::string(argument.word)), origin);
      if (std::holds_alternative<std::string*>(field))
        return said_.set(field, std::string(argument.word), origin);
      return said_.set(field, true, origin);
    }
    if (!has_value())
      throw UsageError(
          fmt::format("{} has no value; expected {}", origin.text(), type_name(field)));
    const std::string value = take_value();
    if (std::holds_alternative<std::string*>(field))
      return said_.set(field, value, origin, argument.limits);
    if (!argument.limits.choices.empty()) {  // a number by name
      std::string chosen;
      Assignments{}.set(&chosen, value, origin, argument.limits);
      const auto place = std::ranges::find(argument.limits.choices, chosen);
      return said_.set(field, static_cast<double>(place - argument.limits.choices.begin()), origin);
    }
    if (const auto number = number_of(value))
      return said_.set(field, *number, origin, argument.limits);
    said_.set(field, value, origin, argument.limits);  // says what was expected
  }

  void not_honoured(const Argument& argument) {
    std::vector<std::string> values;
    while (has_value()) values.push_back(take_value());
    const bool harmless = values.size() == 1 && number_of(values[0]) &&
                          number_of(values[0]) == number_of(std::string(argument.inert));
    if (harmless || argument.inert == "switch") return;
    notes_.refuse(
        fmt::format("{}: {} is not honoured: {}{}", source_, argument.name, argument.why,
                    argument.instead.empty() ? "" : fmt::format("; see {}", argument.instead)));
  }

  const std::string& source_;
  const std::vector<std::string>& words_;
  Training& training_;
  Assignments& said_;
  Notes& notes_;
  std::size_t next_ = 0;
  std::optional<std::string> inline_value_;
};

}  // namespace

void read_megatron(const std::string& source, const std::vector<std::string>& words,
                   Training& training, Assignments& said, Notes& notes) {
  ArgumentReader(source, words, training, said, notes).read();
}

std::vector<std::string> words_of(const std::string& file, std::string_view text) {
  constexpr std::size_t most = 100'000;
  std::vector<std::string> words;
  std::string word;
  bool open = false, comment = false;
  char quote = 0;
  const auto end_word = [&] {
    if (open) words.push_back(std::exchange(word, {}));
    open = false;
    if (words.size() > most) throw FileError(fmt::format("{} has more than {} words", file, most));
  };
  for (const char letter : text) {
    if (comment) {
      comment = letter != '\n';
    } else if (quote) {
      if (letter == quote)
        quote = 0;
      else
        word += letter;
    } else if (letter == '\'' || letter == '"') {
      quote = letter;
      open = true;
    } else if (letter == '#' && !open) {
      comment = true;
    } else if (letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r' ||
               letter == '\\') {
      end_word();
    } else {
      word += letter;
      open = true;
    }
  }
  if (quote) throw FileError(fmt::format("{}: a quote {} is not closed", file, quote));
  end_word();
  return words;
}

std::vector<std::string> read_words(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes(0, file.size());
  return words_of(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

const std::vector<NamedField>& megatron_fields() {
  static const std::vector<NamedField> fields = [] {
    std::vector<NamedField> all;
    for (const Argument& argument : arguments())
      if (argument.field) all.push_back({argument.name, argument.field});
    return all;
  }();
  return fields;
}

std::vector<std::string> megatron_names() {
  std::vector<std::string> names;
  for (const Argument& argument : arguments()) names.emplace_back(argument.name);
  return names;
}

}  // namespace suite::configuration
