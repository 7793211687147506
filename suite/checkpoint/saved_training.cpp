#include "suite/checkpoint/saved_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "machine/base/checksum.h"
#include "machine/world/mpi_world.h"
#include "suite/checkpoint/training_checkpoint.h"

namespace suite {
namespace {

constexpr std::int64_t usual_steps = 10;

std::int64_t last_step(const harness::TrainingOptions& options, const TrainingConfig& config,
                       std::int64_t begin) {
  if (options.train_iters > 0) return options.train_iters;
  return config.schedule.train_iters.value_or(begin + usual_steps);
}

// Passes pieces on, and remembers their bits.
class Remembered final : public zero::PieceSink {
 public:
  using PieceSink::add;
  struct Bits {
    zero::Piece piece;
    machine::Dtype dtype{};
    std::uint64_t hash = 0;
  };
  Remembered(zero::PieceSink& sink, std::vector<Bits>& bits) : sink_(sink), bits_(bits) {}
  void add(const zero::Piece& piece, const machine::Tensor& elements) override {
    bits_.push_back({piece, elements.dtype(), hash(elements)});
    sink_.add(piece, elements);
  }

 private:
  zero::PieceSink& sink_;
  std::vector<Bits>& bits_;
};

// The checkpoints of a training.
class Saves {
 public:
  Saves(harness::Judge& judge, Trainer& trainer, const harness::Context& context,
        const zero::Texts& keys)
      : judge_(judge), trainer_(trainer), context_(context), keys_(keys) {}

  // Collective, as all below.
  void save() {
    finish();
    step_ = trainer_.steps();
    bits_.clear();
    const zero::Facts facts = checkpoint_facts(trainer_, keys_);
    const zero::Fill fill = [this](zero::PieceSink& sink) {
      Remembered remembered(sink, bits_);
      add_states(trainer_, remembered);
    };
    ++count_;
    if (context_.training.async_save) {
      pending_.emplace(trainer_.world(), trainer_.group(), context_.save_file, facts, fill);
    } else {
      zero::save(trainer_.world(), trainer_.group(), context_.save_file, facts, fill);
      verify();
    }
  }
  void step_ended() {
    if (!pending_ || !pending_->try_finish()) return;
    pending_.reset();
    verify();
  }
  void finish() {
    if (!pending_) return;
    pending_->finish();
    pending_.reset();
    verify();
  }
  int count() const { return count_; }

 private:
  void verify() {
    const zero::Checkpoint checkpoint(context_.save_file);
    const auto host = machine::make_host_device();
    double changed = 0;
    for (const auto& [piece, dtype, bits] : bits_) {
      const machine::Tensor read(*host, dtype, {piece.size()}, machine::Category::buffers);
      checkpoint.read(piece, read);
      if (hash(read) != bits) ++changed;
    }
    judge_.exact(fmt::format("pieces of the checkpoint of step {} with other bits", step_),
                 std::vector{changed}, std::vector{0.0});
    judge_.exact("steps of the checkpoint",
                 std::vector{static_cast<double>(checkpoint.number("steps"))},
                 std::vector{static_cast<double>(step_)});
    trainer_.world().barrier(trainer_.group());  // before the next save removes the files
  }

  harness::Judge& judge_;
  Trainer& trainer_;
  const harness::Context& context_;
  const zero::Texts& keys_;
  std::optional<zero::PendingSave> pending_;
  std::vector<Remembered::Bits> bits_;
  std::int64_t step_ = 0;
  int count_ = 0;
};

}  // namespace

void choose_one_training(const std::vector<std::string>& units, harness::PlanRequest& request) {
  if (units.size() != 1 || units[0].find('/') != std::string::npos) return;
  harness::AxisFlags& flags = request.flags;
  const auto number = [&](const std::string& name) {
    const auto found = flags.find(name);
    const bool whole = found != flags.end() && !found->second.empty() && found->second.size() < 8 &&
                       found->second.find_first_not_of("0123456789") == std::string::npos;
    return whole ? std::stoll(found->second) : 1;
  };
  const std::string replicas = "data-parallel-size";
  const bool replicas_said = flags.contains(replicas);
  std::int64_t degrees = 1;
  for (const harness::AxisInfo& axis : harness::families(units).front()->axes(request)) {
    if (axis.name != "ranks") flags.try_emplace(axis.name, axis.usual);
    if (axis.name.ends_with("-parallel-size") && axis.name != replicas)
      degrees *= std::max(1ll, number(axis.name));
  }
  if (!flags.contains("ranks"))
    flags["ranks"] = std::to_string(degrees * number(replicas));
  else if (!replicas_said)
    flags[replicas] = std::to_string(std::max<std::int64_t>(1, number("ranks") / degrees));
}

void check_saved_training(const harness::Files& files, const TrainingConfig& config,
                          const std::function<Corpus()>& corpus) {
  const std::string& compression = config.zero.options.gradient_compression.algorithm;
  const bool compresses = config.shards() > 1 && !compression.empty();
  for (const auto& [option, named] : {std::pair("--save", saves_checkpoint(files.save)),
                                      {"--load", loads_checkpoint(files.load)}})
    if (compresses && named)
      throw FileError(
          "{} of a folder requires gradient-compression none (got {}), because checkpoints do not "
          "store residuals",
          option, compression);
  for (const auto& [option, named] : {std::pair("--save", saves_checkpoint(files.save)),
                                      {"--load", loads_checkpoint(files.load)}})
    if (named && !config.frozen.empty())
      throw FileError(
          "{} of a folder requires freeze none (got {}), because checkpoints store trained "
          "parameters "
          "only",
          option, config.frozen);
  for (const auto& [option, named] : {std::pair("--save", saves_checkpoint(files.save)),
                                      {"--load", loads_checkpoint(files.load)}})
    if (named && config.fp8.on() && config.fp8.recipe == layers::Fp8Recipe::delayed)
      throw FileError(
          "{} of a folder requires fp8-recipe tensorwise, blockwise or mxfp8 (got delayed), "
          "because "
          "checkpoints do not store histories of amaxes",
          option);
  for (const auto& [option, file] : {std::pair("--save", files.save), {"--load", files.load}})
    if (!file.empty() && config.over_grid())
      throw FileError(
          "{} requires tensor-parallel-mode 1d (got {}), because files do not store blocks of a "
          "grid",
          option, name(config.tensor_grid.mode));
  if (saves_checkpoint(files.save)) {
    std::error_code error;
    std::filesystem::create_directories(files.save, error);
    if (error) throw FileError("cannot create folder {}: {}", files.save, error.message());
    check_writable(files.save + "/index.json.new");
  }
  if (!loads_checkpoint(files.load)) return;
  const zero::Checkpoint checkpoint = open_checkpoint(files.load);
  check_checkpoint(checkpoint, config, corpus());
  const auto steps = static_cast<std::int64_t>(checkpoint.number("steps"));
  if (const std::int64_t last = last_step(files.training, config, steps); last <= steps)
    throw FileError("--train-iters is {}; expected more than the {} steps of checkpoint {}", last,
                    steps, files.load);
  if (machine::under_launcher()) return;
  try {
    checkpoint.verify();
  } catch (const zero::CheckpointError& error) {
    throw FileError("{}", error.what());
  }
}

SavedTraining train_saved(harness::Judge& judge, Trainer& trainer, const harness::Context& context,
                          const zero::Texts& keys,
                          const std::function<void(std::int64_t)>& after_step) {
  SavedTraining training;
  if (loads_checkpoint(context.load_file)) load_checkpoint(context.load_file, trainer);
  training.begin = trainer.steps();
  after_step(trainer.steps());
  const std::int64_t last = last_step(context.training, trainer.config(), training.begin);
  const std::int64_t interval = context.training.save_interval;
  const bool saves = saves_checkpoint(context.save_file);
  Saves all(judge, trainer, context, keys);
  while (trainer.steps() < last) {
    trainer.forward_backward();
    training.losses.push_back(trainer.mean_loss());
    trainer.reduce();
    trainer.update();
    context.world.board().mine().progress.fetch_add(1);
    const std::int64_t step = trainer.steps();
    if (!std::isfinite(training.losses.back()))
      judge.numerics(fmt::format("loss of saved step {}, which must be finite", step),
                     training.losses.back(), std::numeric_limits<double>::max());
    after_step(step);
    all.step_ended();
    if (saves && (step == last || (interval > 0 && step % interval == 0))) all.save();
  }
  all.finish();
  training.saves = all.count();
  return training;
}

}  // namespace suite
