// Claim: io_uring moves every byte between a file and memory unchanged and without the page cache.
// It uses one request per block and keeps the queue as full as requested.
//
// Every rank has a file of `bytes` in the folder nvme_path. All ranks read or write their whole
// file in order, at once. block_size, queue_depth and single_submit are DeepSpeed's `aio`.
// nvme_GBps is the rate of one rank. No data is flushed, so the rate includes the cache of a drive.
// If the file system rejects O_DIRECT, the note reports this, and the rate is that of memory.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "machine/base/error.h"
#include "machine/device/random.h"
#include "suite/reference/shared_counters.h"
#include "suite/reference/unit.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

using harness::Bytes;

struct NvmeBandwidth {
  static constexpr std::string_view name = "nvme_bandwidth";
  static constexpr std::string_view about = "reads and writes of a file through io_uring";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::schedule};
  static constexpr Counter counters[] = {nvme_GBps_counter,
                                         {"requests_per_second", "1/s", Better::higher,
                                          Nature::measured, "requests to the file per second"}};
  static constexpr bool equal_work = true;
  static constexpr bool uses_disk = true;

  struct Case {
    int ranks = 1;
    std::string operation;
    Bytes block_size;
    int queue_depth = 8;
    bool single_submit = false;
    Bytes bytes;
    std::string nvme_path;

    zero::IoOptions io() const {
      return {.block_size = static_cast<std::size_t>(block_size.value),
              .queue_depth = queue_depth,
              .single_submit = single_submit};
    }
    std::int64_t requests() const {
      return (bytes.value + block_size.value - 1) / block_size.value;
    }
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const auto operations = vary(&Case::operation, {"read", "write"});
    return Sweep<Case>()
        .axis("operation", &Case::operation, "read", {"read", "write"})
        .axis("ranks", &Case::ranks, 1)
        .axis("block_size", &Case::block_size, Bytes{1 << 20})
        .axis("queue_depth", &Case::queue_depth, 8)
        .axis("single_submit", &Case::single_submit, false)
        .axis("bytes", &Case::bytes, Bytes{64 << 20})
        .axis("nvme_path", &Case::nvme_path, ".")
        .only([](const Case& c) {
          if (c.bytes.value < 1 || c.bytes.value % std::int64_t{zero::io_alignment} != 0)
            return fmt::format("--bytes: {} is not a multiple of {}", c.bytes.value,
                               zero::io_alignment);
          try {
            zero::check(c.io());
          } catch (const std::invalid_argument& error) {
            return fmt::format("--{}", error.what());
          }
          return std::string();
        })
        .slice({quick}, "both ways", {operations})
        // The last request is shorter than the others.
        .slice({quick}, "edges",
               {vary(&Case::operation, {"write"}), vary(&Case::bytes, {{(3 << 20) + 4096}})})
        .slice({acceptance, paper}, "matrix",
               {operations, vary(&Case::ranks, {1, 2}),
                vary(&Case::block_size, {{16 << 10}, {128 << 10}, {1 << 20}}),
                vary(&Case::queue_depth, {1, 8, 32})})
        .slice({smoke}, "smoke",
               {operations, vary(&Case::ranks, {1, 3}),
                vary(&Case::block_size, {{8 << 10}, {1 << 20}}), vary(&Case::queue_depth, {1, 8}),
                vary(&Case::bytes, {{36 << 10}})});
  }

  static std::string why_not(const Case&, const Context&) { return zero::IoRing::why_not(); }

  NvmeBandwidth(const Case& c, Context& context)
      : case_(c),
        file_(zero::IoFile::unnamed(c.nvme_path, static_cast<std::uint64_t>(c.bytes.value),
                                    context.group.index)),
        host_(machine::make_host_device_beside(context.device)),
        memory_(allocate()),
        expected_(allocate()) {
    const auto key = context.seed + static_cast<std::uint64_t>(context.group.index);
    for (std::size_t i = 0; i < expected_.bytes() / 16; ++i) {
      const auto random = machine::philox(key, i);
      std::memcpy(expected_.as<std::uint8_t>() + 16 * i, &random, 16);
    }
    std::memcpy(memory_.data(), expected_.data(), memory_.bytes());
    // Writes without io_uring, because the unit judges io_uring.
    move_plainly("writing", ::pwrite, expected_);
    zero::IoOptions io = c.io();
    io.rank = context.group.index;
    ring_.emplace(io);
    why_not_mapped_ = ring_->register_memory({memory_});
  }

  void prepare() {}
  void run() {
    ring_->wait(case_.operation == "read" ? ring_->read(file_, 0, memory_)
                                          : ring_->write(file_, 0, memory_));
  }

  void judge(Judge& judge) {
    const bool reads = case_.operation == "read";
    auto *const memory = memory_.as<std::uint8_t>(), *const expected = expected_.as<std::uint8_t>();
    if (reads)
      std::memset(memory, 0, memory_.bytes());
    else  // bytes that differ from those in the file
      for (std::size_t i = 0; i < expected_.bytes(); ++i) memory[i] = expected[i] ^= 0xff;
    const zero::IoCounts before = ring_->counts();
    run();
    const zero::IoCounts after = ring_->counts();
    judge.schedule("requests of reads", static_cast<std::int64_t>(after.reads - before.reads),
                   reads ? case_.requests() : 0);
    judge.schedule("requests of writes", static_cast<std::int64_t>(after.writes - before.writes),
                   reads ? 0 : case_.requests());
    judge.schedule("most pending requests", after.most_under_way,
                   std::min<std::int64_t>(case_.queue_depth, case_.requests()));
    if (!reads) {
      std::memset(memory, 0, memory_.bytes());
      move_plainly("reading", ::pread, memory_);
    }
    constexpr std::size_t piece = 1 << 20;
    for (std::size_t at = 0; at < memory_.bytes(); at += piece) {
      const std::size_t end = std::min(memory_.bytes(), at + piece);
      judge.exact(fmt::format("bytes from {}", at), std::vector<double>(memory + at, memory + end),
                  std::vector<double>(expected + at, expected + end));
    }
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    if (description.seconds > 0) {
      description.set("nvme_GBps",
                      static_cast<double>(case_.bytes.value) / description.seconds / 1e9);
      description.set("requests_per_second",
                      static_cast<double>(case_.requests()) / description.seconds);
    }
    description.note = file_.note().empty() ? why_not_mapped_ : file_.note();
  }

 private:
  Tensor allocate() const {
    return zero::aligned_memory(*host_, Dtype::uint8, static_cast<std::size_t>(case_.bytes.value),
                                Category::buffers);
  }
  template <class Call>
  void move_plainly(std::string_view what, const Call& call, const Tensor& memory) const {
    for (std::size_t at = 0; at < memory.bytes();) {
      const ssize_t moved = call(file_.descriptor(), memory.as<std::uint8_t>() + at,
                                 memory.bytes() - at, static_cast<off_t>(at));
      if (moved <= 0)
        throw machine::MachineError(
            fmt::format("{} {}: {}", what, file_.name(),
                        moved < 0 ? std::strerror(errno) : "unexpected end of file"),
            machine::kind_of_errno(moved < 0 ? errno : 0));
      at += static_cast<std::size_t>(moved);
    }
  }

  Case case_;
  zero::IoFile file_;
  std::unique_ptr<machine::Device> host_;  // as in a step, because shared memory has no huge pages
  Tensor memory_, expected_;
  std::optional<zero::IoRing> ring_;
  std::string why_not_mapped_;
};

const bool registered = harness::add<NvmeBandwidth>();

}  // namespace
}  // namespace suite
