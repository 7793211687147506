#include "suite/testing/inputs/readers.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "harness/compare/comparable.h"
#include "harness/history/track.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/testing/example_records.h"
#include "harness/testing/example_runs.h"
#include "machine/base/checksum.h"
#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "suite/checkpoint/training_checkpoint.h"
#include "suite/configuration/resolve.h"
#include "suite/files/hostfile.h"
#include "suite/files/indexed_tokens.h"
#include "suite/files/safetensors.h"
#include "suite/files/stored_curve.h"
#include "suite/files/traffic.h"
#include "suite/recipes/recipe.h"

namespace suite::inputs {
namespace {

using testing::append;
using testing::Folder;
using testing::read_bytes;
using testing::write_bytes;
using Seeds = std::vector<std::string>;

void expect(bool same, const char* what) {
  if (!same) throw std::logic_error(fmt::format("read in two ways, {} differ", what));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// --- Configurations

std::string fixture(const std::string& name) {
  return read_bytes(fmt::format("{}/{}", SHARDMARK_FIXTURES, name));
}

void read_deepspeed(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("ds_config.json");
  write_bytes(path, bytes);
  const auto run = configuration::resolve({.deepspeed_file = path,
                                           .words = {"--hidden-size", "64"},
                                           .gpus = 32,
                                           .ignore_unknown = true});
  configuration::text(run);
  configuration::json(run);
}

void read_recipe(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("recipe.json");
  write_bytes(path, bytes);
  const recipes::Recipe recipe = recipes::read_recipe_file(path);
  expect(!recipe.about.empty() && !recipe.sources.empty(), "texts");
  // The shrunk form's changes apply to any file. The others remove keys that a file must have.
  recipes::changed_json("ds_config.json", R"({"zero_optimization": {"stage": 1}})",
                        recipe.small.changed);
  recipes::changed_arguments("arguments.txt", "--num-layers 2 --fp16", recipe.small.changed);
}

std::string example_recipe() {
  return read_bytes(SHARDMARK_FIXTURES "/../../recipes/gpt2_10b_zero2_offload/recipe.json");
}

void read_megatron(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("arguments");
  write_bytes(path, bytes);
  configuration::json(
      configuration::resolve({.megatron_file = path, .gpus = 1024, .ignore_unknown = true}));
}

// --- Runs and histories

std::string example_samples() {
  std::string bytes;
  for (int i = 0; i < 3; ++i)
    for (const double seconds : harness::example_record(i).samples.seconds) append(bytes, seconds);
  return bytes;
}

harness::RunFile run_of(const Folder& folder, const std::string& run, const std::string& samples) {
  write_bytes(folder.path("run.json"), run);
  write_bytes(folder.path("samples.bin"), samples);
  harness::RunFile file = harness::read_run(folder.path(""));
  for (const harness::Record& record : file.records)
    for (const double seconds : record.samples.seconds)
      expect(samples.find(std::string(reinterpret_cast<const char*>(&seconds), sizeof seconds)) !=
                 std::string::npos,
             "samples");
  return file;
}

void read_run_json(const Folder& folder, const std::string& bytes) {
  static const std::string samples = example_samples();
  const harness::RunFile run = run_of(folder, bytes, samples);
  harness::junit_xml(run);
  harness::report_html(run, {}, "");
  write_bytes(folder.path("environment.json"), std::string(harness::example_environment));
  harness::read_fields(folder.path(""), run);
}

void read_samples(const Folder& folder, const std::string& bytes) {
  static const std::string run = harness::example_run();
  harness::junit_xml(run_of(folder, run, bytes));
}

void read_environment(const Folder& folder, const std::string& bytes) {
  write_bytes(folder.path("environment.json"), bytes);
  static const harness::RunFile run = run_of(folder, harness::example_run(), example_samples());
  harness::read_fields(folder.path(""), run);
}

std::string example_history() {
  const Folder folder;
  const std::string path = folder.path("history.sqlite");
  {
    harness::History history(path);
    for (int day = 1; day < 16; ++day) {
      harness::Launch launch;
      launch.date = fmt::format("2026-11-{:02}T10:00:00+00:00", day);
      launch.path = "run";
      launch.fields = {{"software.nccl.loaded", day < 14 ? "2.28" : "2.29"}};
      for (const char* bytes : {"8", "64"})
        launch.records.push_back(harness::timed_case(bytes, 1e-6 * (day < 8 ? day : 2 * day)));
      history.add(launch);
    }
  }
  return read_bytes(path);
}

void read_history(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("history.sqlite");
  write_bytes(path, bytes);
  try {
    const harness::History history(path);
    std::vector<harness::Track> tracks;
    for (const std::string& name : history.cases()) {
      tracks.push_back(harness::track_of(history, name));
      harness::text(tracks.back());
    }
    harness::json(tracks);
  } catch (const machine::MachineError& error) {
    throw harness::UsageError(error.what());  // SQLite rejects many bad files this way
  }
}

// --- Inputs of units

void read_traffic(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("traffic");
  write_bytes(path, bytes);
  expect(read_traffic_file(path).ranks() > 0, "ranks");
}

void read_hosts(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("hosts");
  write_bytes(path, bytes);
  for (const HostSlots& host : read_hostfile(path)) expect(host.slots > 0, "slots");
}

// Returns an index of three sequences and two documents, with tokens of this type.
std::string example_index(std::uint8_t type, const std::vector<std::int32_t>& sizes) {
  std::string text("MMIDIDX\0\0", 9);
  append(text, std::uint64_t{1});
  append(text, type);
  append(text, std::uint64_t{3});
  append(text, std::uint64_t{3});
  for (const std::int32_t size : sizes) append(text, size);
  for (const std::int64_t pointer : {0, 4, 4}) append(text, pointer);
  for (const std::int64_t end : {0, 2, 3}) append(text, end);
  return text;
}
const std::string example_tokens{"\1\0\2\0\3\0\4\0\xff\xff", 10};

// Decodes the format with substr, which throws if a position is outside the file.
std::vector<std::int64_t> decoded(const std::string& index, const std::string& bin) {
  const auto number = [](const std::string& bytes, std::uint64_t at, std::size_t size, bool sign) {
    const std::string part = bytes.substr(at, size);
    if (part.size() != size) throw std::out_of_range("outside");
    std::uint64_t value = sign && (part.back() & 0x80) ? ~std::uint64_t{0} : 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[i]);
    return static_cast<std::int64_t>(value);
  };
  const std::array<int, 9> widths{0, 1, -1, -2, -4, -8, 0, 0, 2};
  const int code = static_cast<int>(number(index, 17, 1, false));
  const int signed_width = widths.at(static_cast<std::size_t>(code));
  const auto width = static_cast<std::size_t>(std::abs(signed_width));
  const auto sequences = static_cast<std::uint64_t>(number(index, 18, 8, false));
  std::vector<std::int64_t> tokens;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const std::int64_t size = number(index, 34 + 4 * i, 4, true);
    const std::int64_t pointer = number(index, 34 + 4 * sequences + 8 * i, 8, true);
    for (std::int64_t j = 0; j < size; ++j)
      tokens.push_back(
          number(bin, static_cast<std::uint64_t>(pointer) + static_cast<std::uint64_t>(j) * width,
                 width, signed_width < 0));
  }
  return tokens;
}

void read_tokens(const Folder& folder, const std::string& index, const std::string& data) {
  write_bytes(folder.path("pair.idx"), index);
  write_bytes(folder.path("pair.bin"), data);
  const IndexedTokens tokens(folder.path("pair"));
  std::vector<std::int64_t> all(tokens.tokens());
  tokens.read(0, all.size(), all.data());
  expect(all == decoded(index, data), "tokens");
  for (std::uint64_t i = 0; i < tokens.documents(); ++i)
    expect(tokens.begin(tokens.document(i)) <= tokens.begin(tokens.document(i + 1)), "documents");
}

void read_token_index(const Folder& folder, const std::string& bytes) {
  read_tokens(folder, bytes, example_tokens);
}

void read_token_data(const Folder& folder, const std::string& bytes) {
  read_tokens(folder, example_index(8, {2, 0, 3}), bytes);
}

std::string example_curve() {
  const Folder folder;
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) losses.push_back(5.5 / (1 + 0.01 * step));
  write_curve(folder.path("curve.json"),
              {.configuration = {{"--hidden-size", "32"}, {"--seed", "1234"}},
               .dtype = "float",
               .judged = Against::cpu,
               .losses = losses,
               .skipped = {2},
               .tolerance = {{"float", 1e-5}, {"bfloat16", 0.01}, {"half", 0.001}, {"double", 0}}});
  return read_bytes(folder.path("curve.json"));
}

void read_loss_curve(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("curve.json");
  write_bytes(path, bytes);
  const StoredCurve curve = read_curve(path);
  for (const double loss : curve.losses) expect(loss >= 0, "losses");
  for (const int step : curve.skipped)
    expect(step >= 1 && static_cast<std::size_t>(step) <= curve.losses.size(), "skipped steps");
  expect(curve.tolerance.size() == 4, "tolerances");
}

std::string example_weights() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("none":{"dtype":"F16","shape":[0],"data_offsets":[24,24]},)"
      R"("x":{"dtype":"I8","shape":[],"data_offsets":[24,25]},)"
      R"("y":{"dtype":"BF16","shape":[1,1,7],"data_offsets":[25,39]}} )";
  std::string bytes;
  append(bytes, std::uint64_t{header.size()});
  return bytes + header + "0123456789abcdef0123456789ABCDEF0123456";
}

// Compares accepted tensors with the header of another parser and with the bytes from substr.
void read_safetensors(const Folder& folder, const std::string& bytes) {
  const std::string path = folder.path("a.safetensors");
  write_bytes(path, bytes);
  const Safetensors file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  auto header = nlohmann::json::parse(bytes.substr(8, length));
  header.erase("__metadata__");
  expect(header.size() == file.tensors().size(), "tensors");
  std::uint64_t sum = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    const auto offsets = header.at(tensor.name).at("data_offsets");
    const std::uint64_t begin = offsets[0], size = offsets[1].get<std::uint64_t>() - begin;
    expect(text_of(tensor.bytes) == bytes.substr(8 + length + begin, size), "bytes of a tensor");
    sum += size;
  }
  expect(8 + length + sum == bytes.size(), "sizes");
}

// Two ranks with the rows of a matrix and a scalar.
const std::string example_save = "00112233445566ff";
std::string write_example_checkpoint(const std::string& folder) {
  const auto device = machine::make_host_device();
  const machine::Tensor half(*device, machine::Dtype::bfloat16, {6}, machine::Category::buffers);
  const machine::Tensor one(*device, machine::Dtype::float64, {1}, machine::Category::buffers);
  for (const machine::Tensor& tensor : {half, one}) device->stream().kernels().fill(tensor, 3);
  std::vector<std::string> parts;
  for (const int rank : {0, 1}) {
    zero::PartWriter part(folder, example_save, rank, 2);
    part.add({"w/values", {4, 3}, {2 * rank, 0}, {2, 3}, {0, 6}}, half);
    if (rank == 1) part.add({"s", {}, {}, {}, {0, 1}}, one);
    parts.push_back(part.finish());
  }
  zero::commit(folder, example_save, parts,
               {.numbers = {{"steps", 7}}, .texts = {{"--dtype", "bfloat16"}}});
  const std::string index = read_bytes(folder + "/index.json");
  return index.substr(0, index.rfind("crc32c "));
}
std::string example_checkpoint() { return write_example_checkpoint(Folder().path("")); }

// The reader adds the right checksum of the index, because damage would always change it. The
// checksums of the pieces stay.
void read_checkpoint(const Folder& folder, const std::string& bytes) {
  std::filesystem::create_directories(folder.path("checkpoint"));
  if (!std::filesystem::exists(folder.path("checkpoint/index.json")))
    write_example_checkpoint(folder.path("checkpoint"));
  write_bytes(folder.path("checkpoint/index.json"),
              bytes + fmt::format("crc32c {:08x}\n", zero::crc32c(bytes.data(), bytes.size())));
  const zero::Checkpoint checkpoint = open_checkpoint(folder.path("checkpoint"));
  try {
    checkpoint.verify();
  } catch (const zero::CheckpointError& error) {
    throw harness::UsageError(error.what());
  }
  const auto index = nlohmann::json::parse(bytes);
  expect(index.at("numbers").get<zero::Numbers>() == checkpoint.facts().numbers, "numbers");
  expect(index.at("texts").get<zero::Texts>() == checkpoint.facts().texts, "texts");
  std::size_t pieces = 0;
  for (const auto& [name, of_name] : checkpoint.tensors()) pieces += of_name.size();
  std::size_t listed = 0;
  for (const auto& part : index.at("parts")) listed += part.at("pieces").size();
  expect(pieces == listed, "pieces");
}

}  // namespace

const std::vector<Reader>& readers() {
  static const std::vector<Reader> all{
      {"deepspeed", read_deepspeed,
       [] {
         return Seeds{fixture("t5_zero3_offload.json"), fixture("t5_zero2_offload.json"),
                      fixture("megatron_deepspeed.json"), fixture("tensor_parallel_zero2.json")};
       }},
      {"megatron", read_megatron, [] { return Seeds{fixture("megatron_arguments.txt")}; }},
      {"recipe", read_recipe, [] { return Seeds{example_recipe()}; }},
      {"run_json", read_run_json, [] { return Seeds{harness::example_run()}; }},
      {"samples", read_samples, [] { return Seeds{example_samples()}; }},
      {"environment", read_environment,
       [] { return Seeds{std::string(harness::example_environment)}; }},
      {"history", read_history, [] { return Seeds{example_history()}; }},
      {"traffic", read_traffic, [] { return Seeds{"# bytes\n0 64 8\n8 0 1e3\n\n4 4 0 # self\n"}; }},
      {"hostfile", read_hosts,
       [] {
         return Seeds{
             "# hosts\nworker-1 slots=4\nworker-2:4\nnode[01-03,07].lan slots=8\n\na\na\n"};
       }},
      {"token_index", read_token_index,
       [] {
         return Seeds{example_index(8, {2, 0, 3}), example_index(3, {2, 0, 3}),
                      example_index(1, {4, 0, 6})};
       }},
      {"token_data", read_token_data, [] { return Seeds{example_tokens}; }},
      {"safetensors", read_safetensors, [] { return Seeds{example_weights()}; }},
      {"loss_curve", read_loss_curve, [] { return Seeds{example_curve()}; }},
      {"checkpoint", read_checkpoint, [] { return Seeds{example_checkpoint()}; }},
  };
  return all;
}

bool accepts(const Reader& reader, const std::string& bytes) {
  static const Folder folder;
  try {
    reader.read(folder, bytes);
    return true;
  } catch (const harness::UsageError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos)
      throw std::logic_error(fmt::format("refused in more than a line: {}", error.what()));
    return false;
  }
}

}  // namespace suite::inputs
