#include "zero/offload/io_ring.h"

#include <fmt/format.h>
#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/faults.h"

namespace zero {

using machine::MachineError;
using Clock = std::chrono::steady_clock;

namespace {

// user_data of submissions that are not blocks.
constexpr std::uint64_t wake = ~std::uint64_t{0};

struct Transfer {
  Tensor memory;
  std::string file;
  int descriptor = -1;
  bool write = false, direct = true, awaited = false;
  std::size_t blocks = 0;                   // not done
  std::optional<machine::Failure> failure;  // the first one
};

struct Block {
  IoRing::Ticket ticket = 0;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // remaining
  std::size_t asked = 0;  // in the current request
  bool continued = false;
};

// The system may map a ring where one of another thread was. This orders the two, because the
// thread sanitizer does not see the system's calls.
std::atomic<int> rings{0};

struct Registered {
  const std::byte *begin, *end;
};

}  // namespace

// The mutex protects all members, except during the wait in the kernel. Only the thread submits and
// completes blocks, so the kernel never interrupts the caller's computation. While the thread waits
// in the kernel, the caller submits only requests that end this wait.
struct IoRing::Engine {
  explicit Engine(const IoOptions& given);
  ~Engine();
  Ticket start(const IoFile& file, std::uint64_t offset, const Tensor& memory, bool write);
  void wait(Ticket ticket);
  void work();
  void submit_blocks();
  void submit();
  void prepare(std::size_t slot);
  std::deque<Block>::iterator next();
  void take_back(std::size_t slot, int result);
  void fail(Ticket ticket, machine::Failure failure);
  void wake_thread();

  const IoOptions options;
  io_uring ring{};
  std::vector<Registered> registered;
  std::mutex mutex;
  std::condition_variable to_do, done;
  std::map<Ticket, Transfer> transfers;
  std::deque<Block> queue;
  std::vector<Block> slots;
  std::vector<std::size_t> free_slots;
  Ticket last = 0;
  IoCounts counts;
  Clock::time_point came_back = Clock::now();  // time of the last completed block
  bool in_kernel = false, stopping = false;
  std::thread thread;

  std::size_t under_way() const { return slots.size() - free_slots.size(); }
};

IoRing::Engine::Engine(const IoOptions& given)
    : options(given), slots(static_cast<std::size_t>(given.queue_depth)) {
  // One more entry, for the submission that wakes the thread.
  if (const int error =
          io_uring_queue_init(static_cast<unsigned>(options.queue_depth) + 1, &ring, 0);
      error < 0)
    throw MachineError(fmt::format("cannot create an io_uring of queue_depth {} on rank {}: {}",
                                   options.queue_depth, options.rank, std::strerror(-error)));
  rings.fetch_add(1, std::memory_order_acq_rel);
  if ((ring.features & IORING_FEAT_EXT_ARG) == 0) {  // a wait with a timeout that submits nothing
    io_uring_queue_exit(&ring);
    throw MachineError("io_uring of this kernel is too old: Linux 5.11 or newer is needed");
  }
  for (std::size_t slot = slots.size(); slot > 0; --slot) free_slots.push_back(slot - 1);
  thread = std::thread([this] { work(); });
}

IoRing::Engine::~Engine() {
  bool lost = false;
  {
    std::unique_lock lock(mutex);
    queue.clear();
    const auto idle = [this] { return under_way() == 0; };
    const auto timeout = std::chrono::duration<double>(options.timeout_s);
    if (!done.wait_until(lock, came_back + std::chrono::duration_cast<Clock::duration>(timeout),
                         idle)) {
      io_uring_sqe* const sqe = in_kernel ? io_uring_get_sqe(&ring) : nullptr;
      if (sqe) {
        io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
        io_uring_sqe_set_data64(sqe, wake);
        io_uring_submit(&ring);
      }
      lost = !done.wait_for(lock, std::chrono::seconds(1), idle);
    }
    stopping = true;
    wake_thread();
  }
  thread.join();
  rings.fetch_sub(1, std::memory_order_acq_rel);
  io_uring_queue_exit(&ring);
  // The kernel may still write to this memory, so no other code may get it. If the allocation
  // fails, the process ends here, which is also safe.
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
  if (lost) new std::map<Ticket, Transfer>(std::move(transfers));
}

void IoRing::Engine::wake_thread() {
  to_do.notify_one();
  if (!in_kernel) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
  if (!sqe) return;
  io_uring_prep_nop(sqe);
  io_uring_sqe_set_data64(sqe, wake);
  submit();
}

IoRing::Ticket IoRing::Engine::start(const IoFile& file, std::uint64_t offset, const Tensor& memory,
                                     bool write) {
  auto* data = static_cast<std::byte*>(memory.data());
  SHARDMARK_CHECK(reinterpret_cast<std::uintptr_t>(data) % io_alignment, ==, std::uintptr_t{0});
  SHARDMARK_CHECK(memory.bytes() % io_alignment, ==, std::size_t{0});
  SHARDMARK_CHECK(offset % io_alignment, ==, std::uint64_t{0});
  const std::lock_guard lock(mutex);
  const Ticket ticket = ++last;
  Transfer& transfer = transfers[ticket];
  transfer = {memory, file.name(), file.descriptor(), write, file.direct(), false, 0, {}};
  for (std::size_t at = 0; at < memory.bytes(); at += options.block_size) {
    queue.push_back({.ticket = ticket,
                     .offset = offset + at,
                     .data = data + at,
                     .bytes = std::min(options.block_size, memory.bytes() - at)});
    ++transfer.blocks;
  }
  if (under_way() < slots.size()) wake_thread();
  return ticket;
}

void IoRing::Engine::wait(Ticket ticket) {
  std::unique_lock lock(mutex);
  const auto found = transfers.find(ticket);
  SHARDMARK_CHECK((found != transfers.end()), ==, true);
  found->second.awaited = true;
  if (options.late_writes) wake_thread();
  const auto timeout =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_s));
  const auto began = Clock::now();
  while (found->second.blocks > 0) {
    const auto until = std::max(began, came_back) + timeout;
    if (done.wait_until(lock, until) == std::cv_status::no_timeout || found->second.blocks == 0 ||
        Clock::now() < std::max(began, came_back) + timeout)
      continue;
    throw machine::Timeout(fmt::format("{} {}: no block completed for {} s, {} blocks are pending",
                                       found->second.write ? "writing" : "reading",
                                       found->second.file, options.timeout_s, under_way()));
  }
  const std::optional<machine::Failure> failure = std::move(found->second.failure);
  transfers.erase(found);
  if (failure) throw MachineError(failure->text, failure->kind);
}

void IoRing::Engine::work() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    submit_blocks();
    if (under_way() == 0) {
      done.notify_all();
      to_do.wait(lock, [this] { return stopping || next() != queue.end(); });
      continue;
    }
    in_kernel = true;
    lock.unlock();
    __kernel_timespec soon{.tv_sec = 1, .tv_nsec = 0};
    io_uring_cqe* cqe = nullptr;
    io_uring_wait_cqe_timeout(&ring, &cqe, &soon);
    lock.lock();
    in_kernel = false;
    while (io_uring_peek_cqe(&ring, &cqe) == 0 && cqe) {
      const std::uint64_t slot = io_uring_cqe_get_data64(cqe);
      const int result = cqe->res;
      io_uring_cqe_seen(&ring, cqe);
      if (slot != wake) take_back(slot, result);
    }
  }
}

// Returns the next block that may start.
std::deque<Block>::iterator IoRing::Engine::next() {
  return std::ranges::find_if(queue, [&](const Block& block) {
    const Transfer& transfer = transfers.at(block.ticket);
    return !options.late_writes || !transfer.write || transfer.awaited;
  });
}

void IoRing::Engine::submit_blocks() {
  bool any = false;
  while (!free_slots.empty()) {
    const auto block = next();
    if (block == queue.end()) break;
    const std::size_t slot = free_slots.back();
    slots[slot] = *block;
    queue.erase(block);
    free_slots.pop_back();
    prepare(slot);
    any = true;
    if (options.single_submit) submit();
  }
  counts.most_under_way = std::max(counts.most_under_way, static_cast<int>(under_way()));
  if (any && !options.single_submit) submit();
}

void IoRing::Engine::prepare(std::size_t slot) {
  Block& block = slots[slot];
  const Transfer& transfer = transfers.at(block.ticket);
  if (!block.continued) {
    ++(transfer.write ? counts.writes : counts.reads);
    (transfer.write ? counts.bytes_written : counts.bytes_read) += block.bytes;
  }
  block.asked = options.most_bytes == 0 ? block.bytes : std::min(block.bytes, options.most_bytes);
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
  SHARDMARK_CHECK((sqe != nullptr), ==, true);
  const auto fixed = std::ranges::find_if(registered, [&](const Registered& range) {
    return block.data >= range.begin && block.data + block.asked <= range.end;
  });
  const auto asked = static_cast<unsigned>(block.asked);
  const auto buffer = static_cast<int>(fixed - registered.begin());
  if (fixed != registered.end())
    (transfer.write ? io_uring_prep_write_fixed(sqe, transfer.descriptor, block.data, asked,
                                                block.offset, buffer)
                    : io_uring_prep_read_fixed(sqe, transfer.descriptor, block.data, asked,
                                               block.offset, buffer));
  else
    (transfer.write
         ? io_uring_prep_write(sqe, transfer.descriptor, block.data, asked, block.offset)
         : io_uring_prep_read(sqe, transfer.descriptor, block.data, asked, block.offset));
  io_uring_sqe_set_data64(sqe, slot);
}

// Retries if the kernel rejects the submission for a temporary lack of resources.
void IoRing::Engine::submit() {
  while (io_uring_sq_ready(&ring) > 0) {
    const int error = io_uring_submit(&ring);
    if (error == -EINTR || error == -EAGAIN || error == -EBUSY)
      std::this_thread::yield();
    else if (error < 0)
      break;  // wait() times out and names the file
  }
}

void IoRing::Engine::fail(Ticket ticket, machine::Failure failure) {
  Transfer& transfer = transfers.at(ticket);
  if (!transfer.failure) transfer.failure = std::move(failure);
  transfer.blocks -= std::erase_if(queue, [&](const Block& b) { return b.ticket == ticket; });
}

void IoRing::Engine::take_back(std::size_t slot, int result) {
  came_back = Clock::now();
  Block block = slots[slot];
  free_slots.push_back(slot);
  Transfer& transfer = transfers.at(block.ticket);
  if (const machine::Faults* faults = transfer.memory.device().faults(); faults && faults->disk)
    result = static_cast<int>(faults->disk->result(result, transfer.write));
  const auto refuse = [&](std::string_view why) {
    fail(block.ticket,
         {.kind = machine::kind_of_errno(-result),
          .text = fmt::format("{} {} bytes at {} of {}: {}", transfer.write ? "writing" : "reading",
                              block.asked, block.offset, transfer.file, why)});
  };
  const bool again = result == -EINTR || result == -EAGAIN;
  const std::size_t moved = result > 0 ? static_cast<std::size_t>(result) : 0;
  if (result < 0 && !again) {
    refuse(std::strerror(-result));
  } else if (result == 0) {
    refuse(transfer.write ? "nothing was written" : "the file ends there");
  } else if (moved < block.bytes && moved % io_alignment != 0 && transfer.direct) {
    refuse(fmt::format("only {} bytes arrived", moved));
  } else if (moved < block.bytes && !transfer.failure) {
    block.offset += moved;
    block.data += moved;
    block.bytes -= moved;
    block.continued = true;
    queue.push_front(block);
    return;
  }
  if (--transfer.blocks == 0) done.notify_all();
}

std::string IoRing::why_not() {
  io_uring ring{};
  if (const int error = io_uring_queue_init(1, &ring, 0); error < 0)
    return fmt::format("io_uring is not available: {}", std::strerror(-error));
  const bool new_enough = (ring.features & IORING_FEAT_EXT_ARG) != 0;
  io_uring_queue_exit(&ring);
  return new_enough ? "" : "io_uring of this kernel is older than Linux 5.11";
}

IoRing::IoRing(const IoOptions& options) : options_(options) {
  check(options);
  engine_ = std::make_unique<Engine>(options);
}
IoRing::~IoRing() = default;

std::string IoRing::register_memory(const std::vector<Tensor>& memory) {
  std::vector<iovec> ranges;
  std::size_t largest = 0;
  for (const Tensor& tensor : memory) {
    ranges.push_back({tensor.data(), tensor.bytes()});
    largest = std::max(largest, tensor.bytes());
  }
  if (const int error = io_uring_register_buffers(&engine_->ring, ranges.data(),
                                                  static_cast<unsigned>(ranges.size()));
      error != 0) {
    rlimit locked{};
    ::getrlimit(RLIMIT_MEMLOCK, &locked);
    return why_not_mapped(-error, largest, locked.rlim_cur);
  }
  const std::lock_guard lock(engine_->mutex);
  for (const Tensor& tensor : memory) {
    const auto* begin = static_cast<const std::byte*>(tensor.data());
    engine_->registered.push_back({begin, begin + tensor.bytes()});
  }
  return "";
}

IoRing::Ticket IoRing::read(const IoFile& file, std::uint64_t offset, const Tensor& into) {
  return engine_->start(file, offset, into, false);
}
IoRing::Ticket IoRing::write(const IoFile& file, std::uint64_t offset, const Tensor& from) {
  return engine_->start(file, offset, from, true);
}
void IoRing::wait(Ticket ticket) { engine_->wait(ticket); }

IoCounts IoRing::counts() const {
  const std::lock_guard lock(engine_->mutex);
  return engine_->counts;
}

}  // namespace zero
