// Claim: bytes pass unchanged between host memory and a GPU, one way or both ways at once. All
// ranks copy at once, each with its own GPU (or its share of one).
//
// direction: up is to the GPU, down is to the host, both is two copies in two streams. pages:
// pinned host memory is copied by the GPU while the host continues. Pageable memory passes through
// a buffer of the driver, and the host waits, so each direction of `both` has its own thread.
// numa_node: of the host memory; -1 is the kernel's choice, usually the node that the rank runs on,
// which is the one nearest to its GPU. --numa_node 0:7 measures eight nodes. The note of a case of
// a node names the node of rank 0's GPU. bytes: of each copy. host_device_GBps counts the bytes of
// one rank in all directions.
//
// The limit is the rate of the GPU's memory, in which each byte is read or written once. The link
// between host and GPU is slower, and its rate is what this unit measures.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <vector>

#include "machine/device/random.h"
#include "machine/world/binding.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

using harness::Bytes;

struct HostDeviceBandwidth {
  static constexpr std::string_view name = "host_device_bandwidth";
  static constexpr std::string_view about = "copies between host memory and a GPU";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {{"host_device_GBps", "GB/s", Better::higher,
                                          Nature::measured,
                                          "bytes copied over the time, both directions together"}};
  static constexpr bool equal_work = true;

  struct Case {
    int ranks = 1;
    std::string direction, pages;
    int numa_node = -1;
    Bytes bytes;

    bool up() const { return direction != "down"; }
    bool down() const { return direction != "up"; }
    bool pinned() const { return pages == "pinned"; }
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    const auto directions = vary(&Case::direction, {"up", "down", "both"});
    const auto pages = vary(&Case::pages, {"pinned", "pageable"});
    const auto ranks = vary(&Case::ranks, {1, 2, 4, 8});
    return Sweep<Case>()
        .axis("direction", &Case::direction, "up", {"up", "down", "both"})
        .axis("pages", &Case::pages, "pinned", {"pinned", "pageable"})
        .axis("numa_node", &Case::numa_node, -1)
        .axis("ranks", &Case::ranks, 1)
        .axis("bytes", &Case::bytes, Bytes{64 << 20})
        .only([](const Case& c) {
          return c.bytes.value > 0 ? ""
                                   : fmt::format("bytes is {}; expected at least 1", c.bytes.value);
        })
        .slice({quick}, "directions", {directions, pages})
        .slice({acceptance, paper}, "matrix",
               {directions, pages, ranks,
                vary(&Case::bytes, {{4 << 10}, {1 << 20}, {64 << 20}, {512 << 20}})})
        .slice({acceptance, paper}, "nodes", {directions, pages, vary(&Case::numa_node, {0, 1})})
        .launch_slice(request, {quick, acceptance, paper}, {directions, pages})
        // Neither whole pages nor whole words.
        .slice({quick, smoke}, "edges",
               {directions, pages, vary(&Case::ranks, {3}), vary(&Case::bytes, {{1}, {60035}})})
        .slice({quick, smoke}, "node",
               {directions, pages, vary(&Case::numa_node, {0}), vary(&Case::bytes, {{60035}})});
  }

  static std::string why_not(const Case& c, const Context& context) {
    if (context.device.readable_by_host())
      return "host_device_bandwidth requires --device cuda (got host)";
    return c.numa_node < 0 ? "" : machine::why_not_numa_node(c.numa_node);
  }

  HostDeviceBandwidth(const Case& c, Context& context)
      : case_(c),
        context_(context),
        node_(c.numa_node < 0 ? nullptr
                              : std::make_unique<machine::NumaMemory>(
                                    c.numa_node, c.pinned() ? &context.device : nullptr)),
        host_(node_ ? machine::make_host_device(*node_)
                    : machine::make_host_device_beside(
                          context.device,
                          c.pinned() ? machine::Pages::pinned : machine::Pages::pageable)),
        second_(c.up() && c.down() ? context.device.make_stream() : nullptr) {
    const auto tensor = [&](machine::Device& on) {
      return Tensor(on, Dtype::uint8, {c.bytes.value}, Category::buffers);
    };
    for (Tensor* here : {&sent_, &received_, &inverted_}) *here = tensor(*host_);
    for (Tensor* there : {&up_, &down_}) *there = tensor(context.device);
    for (std::size_t i = 0; i < sent_.bytes(); i += 16) {
      const auto random = machine::philox(context.seed, i / 16);
      std::memcpy(sent_.as<std::uint8_t>() + i, &random,
                  std::min(sizeof random, sent_.bytes() - i));
    }
    for (std::size_t i = 0; i < sent_.bytes(); ++i)
      inverted_.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(~sent_.as<std::uint8_t>()[i]);
    clear();
    stream().synchronize();
  }

  void prepare() {}
  bool only_queues() const { return case_.pinned(); }
  void run() {
    const auto copy_up = [&](machine::Stream& in) {
      in.copy(up_.data(), sent_.data(), sent_.bytes());
    };
    const auto copy_down = [&](machine::Stream& in) {
      in.copy(received_.data(), down_.data(), down_.bytes());
    };
    if (!second_) return case_.up() ? copy_up(stream()) : copy_down(stream());
    const auto begin = stream().record();
    second_->wait(*begin);
    if (case_.pinned()) {
      copy_up(*second_);
      copy_down(stream());
    } else {
      auto other = std::async(std::launch::async, [&] { copy_up(*second_); });
      copy_down(stream());
      other.get();
    }
    const auto end = second_->record();
    stream().wait(*end);
  }

  void judge(Judge& judge) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      clear();
      run();
      stream().synchronize();
      if (case_.up()) compare(judge, "the GPU", up_);
      if (case_.down()) compare(judge, "the host", received_);
    }
  }

  Cost cost() const { return {.memory_bytes = moved(), .working_set_bytes = moved()}; }

  void describe(Description& description) {
    const machine::Place* const place = context_.world.place();
    if (node_ && place && place->numa_node >= 0)
      description.note = fmt::format("the GPU of rank 0 is next to NUMA node {}", place->numa_node);
    if (description.seconds > 0)
      description.set("host_device_GBps", moved() / description.seconds / 1e9);
  }

 private:
  machine::Stream& stream() const { return context_.device.stream(); }
  double moved() const {
    return static_cast<double>(case_.bytes.value) * (case_.up() + case_.down());
  }
  // Also touches the memory before it is timed. run() must wait for the copies.
  void clear() {
    std::memcpy(received_.data(), inverted_.data(), inverted_.bytes());
    stream().copy(up_.data(), inverted_.data(), inverted_.bytes());
    stream().copy(down_.data(), sent_.data(), sent_.bytes());
  }
  void compare(Judge& judge, std::string_view where, const Tensor& got) const {
    std::vector<std::uint8_t> piece(std::size_t{1} << 20);
    std::size_t wrong = 0, first = 0;
    for (std::size_t begin = 0; begin < got.bytes(); begin += piece.size()) {
      const std::size_t bytes = std::min(piece.size(), got.bytes() - begin);
      machine::Stream& its = got.device().stream();
      its.copy(piece.data(), got.as<std::uint8_t>() + begin, bytes);
      its.synchronize();
      const std::uint8_t* const expected = sent_.as<std::uint8_t>() + begin;
      if (std::memcmp(piece.data(), expected, bytes) == 0) continue;
      for (std::size_t i = 0; i < bytes; ++i)
        if (piece[i] != expected[i] && wrong++ == 0) first = begin + i;
    }
    judge.numerics(wrong == 0 ? fmt::format("wrong bytes on {}", where)
                              : fmt::format("wrong bytes on {}, the first at {}", where, first),
                   static_cast<double>(wrong), 0);
    judge.same_bits(where, hash(got));
  }

  Case case_;
  Context& context_;
  std::unique_ptr<machine::NumaMemory> node_;  // null: the memory is not of a selected node
  std::unique_ptr<machine::Device> host_;
  std::unique_ptr<machine::Stream> second_;  // of both directions at once
  Tensor sent_, received_, inverted_;        // on the host
  Tensor up_, down_;                         // on the GPU
};

const bool registered = harness::add<HostDeviceBandwidth>();

}  // namespace
}  // namespace suite
