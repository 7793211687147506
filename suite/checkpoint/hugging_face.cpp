#include "suite/checkpoint/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "harness/json/json.h"
#include "suite/checkpoint/training_checkpoint.h"
#include "suite/files/safetensors.h"
#include "suite/trainer/gpt2_tensors.h"
#include "suite/trainer/gpt2_weights.h"

namespace suite {
namespace {

using harness::Json;
using machine::Dtype;

std::uint64_t extent(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::vector<HuggingFaceTensor> gpt2(const TrainingConfig::Model& model) {
  std::vector<HuggingFaceTensor> all;
  const std::int64_t heads = model.heads, size = model.hidden / heads;
  for (const Gpt2Tensor& row : gpt2_tensors(model)) {
    HuggingFaceTensor tensor{"transformer." + row.theirs, row.ours, row.shape, {}};
    for (const std::uint64_t one : row.shape)
      tensor.our_shape.push_back(static_cast<std::int64_t>(one));
    if (row.transposed) std::ranges::reverse(tensor.our_shape);
    tensor.transposed = row.transposed;
    if (row.by_head)  // theirs: part, head, column; ours: head, part, column
      tensor.our_row = [heads, size](std::int64_t theirs) {
        const std::int64_t part = theirs / (heads * size), head = theirs / size % heads;
        return (head * 3 + part) * size + theirs % size;
      };
    all.push_back(std::move(tensor));
  }
  return all;
}

std::vector<HuggingFaceTensor> llama(const TrainingConfig::Model& model) {
  const std::int64_t h = model.hidden, f = model.ffn(), d = model.head(),
                     groups = model.query_groups(), of_group = model.heads / groups;
  std::vector<HuggingFaceTensor> all;
  const auto add = [&](std::string theirs, std::string ours, std::vector<std::uint64_t> shape,
                       std::vector<std::int64_t> our_shape) -> HuggingFaceTensor& {
    all.push_back({std::move(theirs), std::move(ours), std::move(shape), std::move(our_shape)});
    return all.back();
  };
  const auto gain = [&](const std::string& theirs, const std::string& ours) {
    add(theirs, ours, {extent(h)}, {h});
  };
  const auto matrix = [&](const std::string& theirs, const std::string& ours, std::int64_t out,
                          std::int64_t in) {
    add(theirs, ours, {extent(out), extent(in)}, {out, in});
  };
  matrix("model.embed_tokens.weight", "embedding.token.weight", model.vocabulary, h);
  for (int block = 0; block < model.layers; ++block) {
    const std::string theirs = fmt::format("model.layers.{}.", block),
                      ours = fmt::format("blocks.{}.", block);
    gain(theirs + "input_layernorm.weight", ours + "norm1.gain");
    // A group is its queries, one head of keys and one of values.
    const auto qkv = [&](const char* part, std::int64_t heads, std::int64_t first) {
      const std::int64_t each = heads / groups;
      add(fmt::format("{}self_attn.{}_proj.weight", theirs, part), ours + "attention.qkv.weight",
          {extent(heads * d), extent(h)}, {std::int64_t{model.qkv()}, h})
          .our_row = [=](std::int64_t row) {
        const std::int64_t head = row / d;
        return (head / each * (of_group + 2) + first + head % each) * d + row % d;
      };
    };
    qkv("q", model.heads, 0);
    qkv("k", groups, of_group);
    qkv("v", groups, of_group + 1);
    matrix(theirs + "self_attn.o_proj.weight", ours + "attention.projection.weight", h, h);
    gain(theirs + "post_attention_layernorm.weight", ours + "norm2.gain");
    const auto inner = [&](const char* part, std::int64_t first) {
      add(fmt::format("{}mlp.{}_proj.weight", theirs, part), ours + "mlp.fc1.weight",
          {extent(f), extent(h)}, {2, f * h})
          .our_row = [=](std::int64_t row) { return first + row; };
    };
    inner("gate", 0);
    inner("up", f);
    matrix(theirs + "mlp.down_proj.weight", ours + "mlp.fc2.weight", h, f);
  }
  gain("model.norm.weight", "head.norm.gain");
  if (model.untie_embeddings_and_output_weights)
    matrix("lm_head.weight", "head.output.weight", model.vocabulary, h);
  return all;
}

bool is_llama(const TrainingConfig::Model& model) {
  return model.architecture == layers::Architecture::decoder &&
         model.normalization == layers::Normalization::rms_norm && model.swiglu && model.rotary() &&
         model.disable_bias_linear && !model.has_experts();
}

// Returns the model without padding rows.
TrainingConfig::Model unpadded(TrainingConfig::Model model) {
  if (model.tokens > 0) model.vocabulary = model.tokens;
  return model;
}

std::vector<double> doubles_of(const StoredTensor& tensor, const std::string& path) {
  const auto dtype = dtype_of_tensor(tensor.dtype);
  if (!dtype || !machine::has_every_kernel(*dtype))
    throw FileError("{}: dtype of tensor '{}' is {}; expected F32, F16, BF16 or F64", path,
                    tensor.name, tensor.dtype);
  std::vector<double> values(tensor.bytes.size() / machine::size_of(*dtype));
  machine::visit(*dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < values.size(); ++i) {
      T stored;
      std::memcpy(&stored, tensor.bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<double>(static_cast<machine::Accumulator<T>>(stored));
    }
  });
  return values;
}

// Calls visit(their index, our index) for each element of their tensor.
template <class Visit>
void each_element(const HuggingFaceTensor& tensor, const Visit& visit) {
  const bool vector = tensor.shape.size() == 1;
  const auto out = static_cast<std::int64_t>(tensor.transposed ? tensor.shape[1] : tensor.shape[0]);
  const std::int64_t in =
      vector ? 1 : static_cast<std::int64_t>(tensor.transposed ? tensor.shape[0] : tensor.shape[1]);
  for (std::int64_t row = 0; row < out; ++row) {
    const std::int64_t ours = tensor.our_row(row) * in;
    for (std::int64_t col = 0; col < in; ++col)
      visit(static_cast<std::size_t>(tensor.transposed ? col * out + row : row * in + col),
            static_cast<std::size_t>(ours + col));
  }
}

zero::Piece whole_piece(const std::string& name, const std::vector<std::int64_t>& shape) {
  zero::Piece piece{name + "/values", shape, std::vector<std::int64_t>(shape.size()), shape, {}};
  piece.range.end = 1;
  for (const std::int64_t one : shape) piece.range.end *= one;
  return piece;
}

// The tensors of all files of a folder.
class Files {
 public:
  explicit Files(const std::string& folder) : folder_(folder) {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
    std::ranges::sort(paths);
    for (const std::string& path : paths) files_.push_back(std::make_unique<Safetensors>(path));
    if (files_.empty()) throw FileError("{} has no file *.safetensors", folder);
  }
  std::pair<const StoredTensor*, std::string> find(const HuggingFaceTensor& wanted) const {
    for (const std::string& name :
         {wanted.theirs, wanted.theirs.substr(wanted.theirs.find('.') + 1)})
      for (const auto& file : files_)
        if (const StoredTensor* tensor = file->find(name)) {
          if (tensor->shape != wanted.shape)
            throw FileError("{}: shape of tensor '{}' is {}; expected {}", file->path(), name,
                            tensor->shape_text(), TensorEntry{"", "", wanted.shape}.shape_text());
          return {tensor, file->path()};
        }
    throw FileError("{} has no tensor '{}'", folder_, wanted.theirs);
  }

 private:
  std::string folder_;
  std::vector<std::unique_ptr<Safetensors>> files_;
};

}  // namespace

std::vector<HuggingFaceTensor> hugging_face_tensors(const TrainingConfig::Model& model) {
  if (is_llama(model)) return llama(model);
  refuse_unlike_gpt2(model);
  return gpt2(model);
}

std::string hugging_face_config(const TrainingConfig::Model& given, Dtype dtype) {
  const TrainingConfig::Model model = unpadded(given);
  Json config;
  if (is_llama(model)) {
    config = {{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"vocab_size", model.vocabulary},
              {"hidden_size", model.hidden},
              {"intermediate_size", model.ffn()},
              {"num_hidden_layers", model.layers},
              {"num_attention_heads", model.heads},
              {"num_key_value_heads", model.query_groups()},
              {"max_position_embeddings", model.sequence},
              {"rms_norm_eps", model.layer_norm_epsilon},
              {"rope_theta", model.rotary_base},
              {"hidden_act", "silu"},
              {"attention_bias", false},
              {"mlp_bias", false},
              {"tie_word_embeddings", !model.untie_embeddings_and_output_weights}};
  } else {
    config = {{"architectures", {"GPT2LMHeadModel"}},
              {"model_type", "gpt2"},
              {"vocab_size", model.vocabulary},
              {"n_positions", model.sequence},
              {"n_embd", model.hidden},
              {"n_inner", model.ffn()},
              {"n_layer", model.layers},
              {"n_head", model.heads},
              {"layer_norm_epsilon", model.layer_norm_epsilon},
              {"activation_function", "gelu_new"}};
  }
  config["torch_dtype"] = dtype == Dtype::float16    ? "float16"
                          : dtype == Dtype::bfloat16 ? "bfloat16"
                          : dtype == Dtype::float64  ? "float64"
                                                     : "float32";
  return config.dump(2) + "\n";
}

TrainingConfig::Model read_hugging_face_config(const std::string& path) {
  const MappedFile file(path);
  TrainingConfig::Model model;
  try {
    const Json config = Json::parse(file.text());
    const std::string type = config.at("model_type").get<std::string>();
    const auto number = [&](const char* key) {
      const Json& value = config.at(key);
      if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
          value.get<std::int64_t>() > 1 << 30)
        throw FileError("{}: {} is {}; expected a number from 1", path, key, value.dump());
      return value.get<int>();
    };
    const auto expect = [&](const char* key, const Json& wanted) {
      if (const Json value = config.value(key, wanted); value != wanted)
        throw FileError("{}: {} is {}; expected {}", path, key, value.dump(), wanted.dump());
    };
    model.vocabulary = model.tokens = number("vocab_size");
    if (type == "gpt2") {
      model.layers = number("n_layer");
      model.hidden = number("n_embd");
      model.heads = number("n_head");
      model.sequence = number("n_positions");
      if (config.contains("n_inner") && !config["n_inner"].is_null())
        model.ffn_hidden_size = number("n_inner");
      model.layer_norm_epsilon = config.value("layer_norm_epsilon", 1e-5);
      expect("activation_function", "gelu_new");
    } else if (type == "llama") {
      model.layers = number("num_hidden_layers");
      model.hidden = number("hidden_size");
      model.heads = number("num_attention_heads");
      model.sequence = number("max_position_embeddings");
      model.ffn_hidden_size = number("intermediate_size");
      model.num_query_groups =
          config.contains("num_key_value_heads") ? number("num_key_value_heads") : model.heads;
      model.group_query_attention = true;
      model.normalization = layers::Normalization::rms_norm;
      model.position_embedding_type = layers::PositionEmbedding::rope;
      model.swiglu = model.disable_bias_linear = true;
      model.layer_norm_epsilon = config.value("rms_norm_eps", 1e-6);
      model.rotary_base = config.value("rope_theta", 10000.0);
      model.untie_embeddings_and_output_weights = !config.value("tie_word_embeddings", false);
      expect("hidden_act", "silu");
      expect("attention_bias", false);
      expect("mlp_bias", false);
      expect("rope_scaling", nullptr);
      if (config.contains("head_dim") && !config["head_dim"].is_null())
        expect("head_dim", model.hidden / model.heads);
    } else {
      throw FileError("{}: model_type is '{}'; expected gpt2 or llama", path, type);
    }
    model.validate();
  } catch (const harness::JsonError& error) {
    throw FileError("{}: {}", path, error.what());
  } catch (const std::invalid_argument& error) {
    throw FileError("{}: {}", path, error.what());
  }
  return model;
}

void to_hugging_face(const std::string& source, const std::string& target,
                     std::optional<Dtype> wanted) {
  const zero::Checkpoint checkpoint = open_checkpoint(source);
  const TrainingConfig::Model model = model_of(checkpoint);
  const std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(unpadded(model));
  std::error_code failed;
  std::filesystem::create_directories(target, failed);
  if (failed) throw FileError("cannot create folder {}: {}", target, failed.message());
  const auto first = checkpoint.tensors().find(tensors.front().ours + "/values");
  const Dtype stored = first->second.front().stored.dtype, dtype = wanted.value_or(stored);
  std::vector<TensorEntry> entries;
  for (const HuggingFaceTensor& tensor : tensors)
    entries.push_back({tensor.theirs, std::string(tensor_dtype_name(dtype)), tensor.shape});
  SafetensorsWriter writer(target + "/model.safetensors", std::move(entries));
  const auto host = machine::make_host_device();
  std::string read;  // the parameter in `ours`
  std::vector<double> ours;
  try {
    for (const HuggingFaceTensor& tensor : tensors) {
      if (tensor.ours != read) {
        const auto found = checkpoint.tensors().find(tensor.ours + "/values");
        std::vector<std::int64_t> shape = tensor.our_shape;
        zero::Piece piece = whole_piece(tensor.ours, shape);
        // The first rows of a padded table.
        if (found != checkpoint.tensors().end())
          piece.global = found->second.front().stored.piece.global;
        if (!why_no_piece(piece).empty() || piece.global.size() != shape.size())
          throw FileError("{}: the shape of tensor {} does not match the model",
                          checkpoint.index_path(), piece.name);
        const machine::Tensor values(*host, stored, {piece.size()}, machine::Category::buffers);
        checkpoint.read(piece, values);
        ours = to_doubles(values);
        read = tensor.ours;
      }
      std::uint64_t size = 1;
      for (const std::uint64_t one : tensor.shape) size *= one;
      std::vector<double> theirs(size);
      each_element(tensor, [&](std::size_t to, std::size_t from) { theirs[to] = ours[from]; });
      const machine::Tensor out(*host, dtype, {static_cast<std::int64_t>(size)},
                                machine::Category::buffers);
      from_doubles(out, theirs);
      writer.add({static_cast<const std::byte*>(out.data()), out.bytes()});
    }
  } catch (const zero::CheckpointError& error) {
    throw FileError("{}", error.what());
  }
  writer.finish();
  const std::string config = hugging_face_config(model, dtype);
  NewFile file(target + "/config.json");
  file.write(config.data(), config.size());
  file.commit();
}

void from_hugging_face(const std::string& source, const std::string& target,
                       std::optional<Dtype> wanted) {
  const TrainingConfig::Model model = read_hugging_face_config(source + "/config.json");
  const std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(model);
  const Files files(source);
  for (const HuggingFaceTensor& tensor : tensors) files.find(tensor);  // before anything is written
  const auto stored = dtype_of_tensor(files.find(tensors.front()).first->dtype);
  const Dtype dtype = wanted.value_or(stored.value_or(Dtype::float32));
  const auto host = machine::make_host_device();
  const auto now =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const std::string save = fmt::format("{:016x}", now);
  try {
    std::filesystem::create_directories(target);
    zero::PartWriter part(target, save, 0, 1);
    for (std::size_t i = 0; i < tensors.size();) {
      const zero::Piece piece = whole_piece(tensors[i].ours, tensors[i].our_shape);
      std::vector<double> ours(static_cast<std::size_t>(piece.size()));
      for (const std::string name = tensors[i].ours; i < tensors.size() && tensors[i].ours == name;
           ++i) {
        const auto [tensor, path] = files.find(tensors[i]);
        const std::vector<double> theirs = doubles_of(*tensor, path);
        each_element(tensors[i],
                     [&](std::size_t from, std::size_t to) { ours[to] = theirs[from]; });
      }
      const machine::Tensor values(*host, dtype, {piece.size()}, machine::Category::buffers);
      from_doubles(values, ours);
      part.add(piece, values);
    }
    zero::commit(target, save, {part.finish()}, weights_facts(model, dtype));
  } catch (const zero::CheckpointError& error) {
    throw FileError("{}", error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    throw FileError("cannot create folder {}: {}", target, error.code().message());
  }
}

}  // namespace suite
