// Claim: a checkpoint stores each element of the states of AdamW exactly once, and gives back the
// same bits at any degree of dp, at the speed of the disk.
//
// The ranks are dp ranks with the shards of ZeRO stage 1. An element needs the bytes of its value,
// of a master copy if the value is narrow, and of two moments (optimizer.h). A rank's file adds a
// header of 64 bytes and less than 64 bytes for each piece. `write` is a whole save: parts,
// checksums, syncs and the index. `async` is the time that a training waits for a save that
// continues on a thread; the time until it is complete is not in the sample. `read` checks every
// checksum. Contents are numbers of a seed and a global index, so the reference knows them without
// the layout.
//
// The yardstick moves the same bytes between one file of each rank and memory through io_uring, as
// nvme_bandwidth does, and flushes nothing. disk_fraction is its time over that of the unit.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "machine/base/checksum.h"
#include "machine/device/random.h"
#include "suite/reference/unit.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/saving.h"
#include "zero/offload/io_ring.h"
#include "zero/states/layout.h"

namespace suite {
namespace {

struct CheckpointUnit {
  static constexpr std::string_view name = "checkpoint";
  static constexpr std::string_view about = "writes and reads the sharded states of AdamW";
  static constexpr Oracle oracles[] = {Oracle::numerics};
  static constexpr Counter counters[] = {
      {"checkpoint_bytes", "B", Better::lower, Nature::exact, "bytes of all files of a checkpoint"},
      {"checkpoint_GBps", "GB/s", Better::higher, Nature::measured,
       "bytes of all files over the time"},
      {"disk_fraction", "", Better::higher, Nature::measured,
       "time to move the same bytes through io_uring over the time"}};
  static constexpr bool yardstick_is_part = true;
  static constexpr bool uses_disk = true;

  struct Case {
    int ranks = 2;
    std::string operation;
    Dtype dtype{};
    int elements = 0;
    std::string nvme_path;

    bool writes() const { return operation != "read"; }
    Dtype wide() const { return collectives::gradient_dtype(dtype); }
    bool has_master() const { return size_of(wide()) > size_of(dtype); }
    std::int64_t bytes_of_states() const {
      const std::size_t wide_states = has_master() ? 3 : 2;
      return std::int64_t{elements} *
             static_cast<std::int64_t>(size_of(dtype) + wide_states * size_of(wide()));
    }
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const std::vector<std::string> all{"write", "async", "read"};
    return Sweep<Case>()
        .axis("operation", &Case::operation, "write", all)
        .axis("ranks", &Case::ranks, 2)
        .axis("dtype", &Case::dtype, Dtype::bfloat16,
              {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
        .axis("elements", &Case::elements, 1 << 20)
        .axis("nvme_path", &Case::nvme_path, ".")
        .only([](const Case& c) {
          return c.elements < 1000
                     ? fmt::format("elements is {}; expected at least 1000", c.elements)
                     : std::string();
        })
        .slice({quick}, "operations", {vary(&Case::operation, all)})
        .slice({quick}, "edges",
               {vary(&Case::ranks, {3}), vary(&Case::dtype, {Dtype::float32}),
                vary(&Case::elements, {100'003})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::operation, all), vary(&Case::ranks, {1, 2, 4}),
                vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
                vary(&Case::elements, {1 << 20, 8 << 20})})
        .slice({smoke}, "smoke",
               {vary(&Case::operation, all), vary(&Case::ranks, {1, 3}),
                vary(&Case::elements, {1'009})});
  }

  static std::string why_not(const Case&, const Context&) { return zero::IoRing::why_not(); }

  CheckpointUnit(const Case& c, Context& context)
      : case_(c), context_(context), host_(machine::make_host_device_beside(context.device)) {
    const machine::Group& group = context.group;
    folder_ = context.world.broadcast(
        group, 0, fmt::format("{}/shardmark-checkpoint-{}", c.nvme_path, ::getpid()));
    declare();
    for (const auto& [range, states] : shards_of(c.ranks, group.index)) {
      fill(c.ranks, range, states);
      shards_.push_back({range, states});
    }
    zero::save(context.world, group, folder_, {}, [this](auto& sink) { add(sink); });
    const std::size_t bytes =
        (static_cast<std::size_t>(c.bytes_of_states() / c.ranks) / zero::io_alignment + 1) *
        zero::io_alignment;
    file_.emplace(zero::IoFile::unnamed(c.nvme_path, bytes, group.index));
    memory_ = zero::aligned_memory(*host_, Dtype::uint8, bytes, Category::buffers);
    zero::IoOptions io;
    io.rank = group.index;
    ring_.emplace(io);
    ring_->register_memory({memory_});
    ring_->wait(ring_->write(*file_, 0, memory_));
  }
  CheckpointUnit(const CheckpointUnit&) = delete;
  CheckpointUnit& operator=(const CheckpointUnit&) = delete;
  ~CheckpointUnit() {
    pending_.reset();
    std::error_code ignored;
    if (context_.group.index == 0) std::filesystem::remove_all(folder_, ignored);
  }

  static constexpr bool repeatable = false;  // a save must be complete before the next one
  void prepare() {
    if (!pending_) return;
    pending_->finish();
    pending_.reset();
  }
  void run() {
    const zero::Fill fill = [this](zero::PieceSink& sink) { add(sink); };
    if (case_.operation == "write") {
      zero::save(context_.world, context_.group, folder_, {}, fill);
    } else if (case_.operation == "async") {
      pending_.emplace(context_.world, context_.group, folder_, zero::Facts{}, fill);
    } else {
      const zero::Checkpoint checkpoint(folder_);
      for (const auto& [range, states] : shards_)
        checkpoint.read(pieces(case_.ranks, range), states);
    }
  }
  void yardstick() {
    ring_->wait(case_.writes() ? ring_->write(*file_, 0, memory_)
                               : ring_->read(*file_, 0, memory_));
  }

  void judge(Judge& judge) {
    prepare();
    if (case_.writes()) {  // other contents than those of the constructor
      ++version_;
      for (const auto& [range, states] : shards_) fill(case_.ranks, range, states);
    } else {
      for (const auto& [range, states] : shards_) clear(states);
    }
    run();
    if (case_.operation == "async")  // a step goes on
      for (const auto& [range, states] : shards_) clear(states);
    prepare();
    context_.world.barrier(context_.group);
    const zero::Checkpoint checkpoint(folder_);
    judge_bytes(judge, checkpoint);
    if (!case_.writes())
      for (const auto& [range, states] : shards_) compare(judge, case_.ranks, range, states);
    // As ranks of other degrees. Every rank reads one of their shards.
    for (const int ranks : {case_.ranks, 1, case_.ranks + 1}) {
      const int rank = std::min(context_.group.index, ranks - 1);
      for (const auto& [range, states] : shards_of(ranks, rank)) {
        checkpoint.read(pieces(ranks, range), states);
        compare(judge, ranks, range, states);
      }
    }
    bytes_ = checkpoint.bytes();
    context_.world.barrier(context_.group);
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    description.set("checkpoint_bytes", static_cast<double>(bytes_));
    if (description.seconds <= 0) return;
    description.set("checkpoint_GBps", static_cast<double>(bytes_) / description.seconds / 1e9);
    if (description.yardstick_s > 0)
      description.set("disk_fraction", description.yardstick_s / description.seconds);
    description.note = file_->note();
  }

 private:
  struct Shard {
    zero::Range range;
    zero::RangeStates states;
  };

  // Matrices, vectors and prime sizes; their elements add up to `elements`.
  void declare() {
    const std::int64_t elements = case_.elements;
    std::int64_t left = elements;
    const auto add = [&](const char* what, machine::Shape shape) {
      collectives::Parameter& parameter = parameters_.emplace_back();
      parameter.name = what;
      parameter.global_shape = shape;
      left -= shape.size();
    };
    add("matrix", {elements / 2 / 33, 33});
    add("wide", {7, elements / 5 / 7});
    add("vector", {13});
    add("rest", {left});
  }
  std::vector<collectives::Parameter*> list() {
    std::vector<collectives::Parameter*> all;
    for (collectives::Parameter& parameter : parameters_) all.push_back(&parameter);
    return all;
  }
  zero::Layout layout_at(int ranks) {
    return zero::layout(
        zero::gradient_plan(list(), case_.dtype, machine::Grid({.dp = ranks}, 0), 1));
  }
  std::vector<zero::FlatPiece> pieces(int ranks, zero::Range range) {
    return zero::flat_pieces(list(), layout_at(ranks).offsets, 1, 0, range);
  }
  std::vector<Shard> shards_of(int ranks, int rank) {
    std::vector<Shard> all;
    for (const zero::Range range : zero::owned_ranges(layout_at(ranks), ranks > 1, rank)) {
      const auto make = [&](Dtype dtype) {
        const Tensor made(context_.device, dtype, {range.size()}, Category::optimizer);
        context_.device.stream().kernels().fill(made, 0);
        return made;
      };
      const Tensor values = make(case_.dtype);
      all.push_back({range,
                     {values, case_.has_master() ? make(case_.wide()) : values, make(case_.wide()),
                      make(case_.wide())}});
    }
    return all;
  }

  // Returns the element of a state, before it is rounded to the dtype of the state.
  double content(std::uint64_t tensor, std::int64_t index) const {
    return 2 * machine::uniform(context_.seed + 97 * version_ + tensor,
                                static_cast<std::uint64_t>(index)) -
           1;
  }
  static std::uint64_t key(const std::string& tensor) {
    return zero::crc32c(tensor.data(), tensor.size());
  }
  // Returns the contents of a piece, rounded to its dtype.
  std::vector<double> contents(const zero::Piece& piece, Dtype dtype) const {
    std::vector<double> numbers;
    for (std::int64_t i = piece.range.begin; i < piece.range.end; ++i)
      numbers.push_back(content(key(piece.name), i));
    const Tensor rounded(*host_, dtype, {piece.size()}, Category::buffers);
    from_doubles(rounded, numbers);
    return to_doubles(rounded);
  }
  void fill(int ranks, zero::Range range, const zero::RangeStates& states) {
    for_each_state(pieces(ranks, range), states, [&](const zero::Piece& piece, const Tensor& part) {
      from_doubles(part, contents(piece, part.dtype()));
    });
  }
  void clear(const zero::RangeStates& states) {
    for (const Tensor& state :
         {states.values, states.master, states.first_moment, states.second_moment})
      context_.device.stream().kernels().fill(state, 0);
  }
  void compare(Judge& judge, int ranks, zero::Range range, const zero::RangeStates& states) {
    for_each_state(pieces(ranks, range), states, [&](const zero::Piece& piece, const Tensor& part) {
      judge.exact(fmt::format("{} from {}, read at dp {}", piece.name, piece.range.begin, ranks),
                  to_doubles(part), contents(piece, part.dtype()));
    });
  }
  void add(zero::PieceSink& sink) {
    for (const auto& [range, states] : shards_) sink.add(pieces(case_.ranks, range), states);
  }

  void judge_bytes(Judge& judge, const zero::Checkpoint& checkpoint) const {
    std::int64_t states = 0, count = 0;
    for (const auto& [tensor, stored] : checkpoint.tensors())
      for (const auto& one : stored) {
        states +=
            one.stored.piece.size() * static_cast<std::int64_t>(machine::size_of(one.stored.dtype));
        ++count;
      }
    judge.exact("bytes of the states", std::vector{static_cast<double>(states)},
                std::vector{static_cast<double>(case_.bytes_of_states())});
    // Headers and alignment.
    const auto more = static_cast<std::int64_t>(checkpoint.bytes()) - case_.bytes_of_states() -
                      64 * std::int64_t{case_.ranks};
    judge.exact("files with more or fewer bytes than states, headers and alignment",
                std::vector{more >= 0 && more < 64 * count ? 0.0 : 1.0}, std::vector{0.0});
  }

  Case case_;
  Context& context_;
  std::unique_ptr<machine::Device> host_;
  std::string folder_;
  std::vector<collectives::Parameter> parameters_;
  std::vector<Shard> shards_;
  std::optional<zero::PendingSave> pending_;
  std::optional<zero::IoFile> file_;
  Tensor memory_;
  std::optional<zero::IoRing> ring_;
  std::uint64_t version_ = 0, bytes_ = 0;
};

const bool registered = harness::add<CheckpointUnit>();

}  // namespace
}  // namespace suite
