#include "machine/virtual_gpu/block.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/memory.h"

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace machine::virtual_gpu {
namespace {

namespace context = boost::context::detail;

// Continues the context `to`. Jumps instead of calling: jump_fcontext does not return by `ret`, so
// the processor would keep the call's address and predict every later return of the continued fiber
// wrongly. noipa: the compiler must not conclude from these lines which registers stay unchanged.
[[gnu::noipa]] context::transfer_t jump(context::fcontext_t to, void* data) {
#ifdef __x86_64__
  context::fcontext_t from = nullptr;
  void* given = nullptr;
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"  // the red zone stays as it is
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "jmp jump_fcontext@PLT\n"
      "1:\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "=a"(from), "=d"(given), "+D"(to), "+S"(data)
      :
      : "memory", "cc", "rcx", "r8", "r9", "r10", "r11");
  return {from, given};
#else
  return context::jump_fcontext(to, data);
#endif
}

constexpr std::size_t stack_bytes = std::size_t{128} << 10, page = 4096;
constexpr std::size_t most_dynamic = std::size_t{228} << 10;

// A stack with a page below it that faults. Stacks begin at different lines of a page, because a
// level-1 cache has few places for the lines of all lanes at one address within a page.
class Stack {
 public:
  explicit Stack(std::size_t number)
      : offset_(number % warp_lanes * 128),
        base_(static_cast<std::byte*>(::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    ::mprotect(base_, page, PROT_NONE);
  }
  ~Stack() { ::munmap(base_, stack_bytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  std::byte* top() const { return base_ + stack_bytes - offset_; }
  std::size_t bytes() const { return stack_bytes - page - offset_; }

 private:
  std::size_t offset_;
  std::byte* base_;
};

struct Fiber {
  explicit Fiber(std::size_t number) : stack(number) {}
  Stack stack;
  context::fcontext_t context = nullptr;  // null: not started
};

enum class Phase : unsigned char { fresh, ready, at_barrier, in_warp, ended };

struct Thread {
  Phase phase;
  Fiber* fiber;  // of a thread that waits
};

struct Warp {
  Meeting meeting;
  const char* operation;
  unsigned mask, arrived, ended;  // bits of lanes; those beyond the block have ended
};

class Runner {
 public:
  Runner()
      : shared_(static_cast<std::byte*>(::mmap(nullptr, most_dynamic + page, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    ::mprotect(shared_ + most_dynamic, page, PROT_NONE);
    stack_t present{};
    ::sigaltstack(nullptr, &present);
    if (!(present.ss_flags & SS_DISABLE)) return;
    // A handler cannot run on a stack that has overflowed.
    handlers_.resize(std::size_t{64} << 10);
    stack_t mine{};
    mine.ss_sp = handlers_.data();
    mine.ss_size = handlers_.size();
    ::sigaltstack(&mine, nullptr);
  }
  ~Runner() {
    ::munmap(shared_, most_dynamic + page);
    if (handlers_.empty()) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Outcome run(const Grid& grid, const std::function<void()>& thread);
  const std::byte* meet(const char* operation, unsigned mask, const void* in, std::size_t bytes,
                        Complete complete);
  void sync_threads();
  [[noreturn]] void fail(cudaError_t status, const std::string& text);
  std::byte* dynamic() const { return shared_ + most_dynamic - dynamic_bytes_; }
  bool is_dynamic(const void* address, std::size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= dynamic() && at + bytes <= shared_ + most_dynamic;
  }
  BlockNumber block_number() const { return block_number_; }
  [[noreturn]] void fault(int signal, const void* address) {
    fault_signal_ = signal;
    fault_address_ = address;
    siglongjmp(before_, 1);
  }

 private:
  static void enter_fiber(context::transfer_t transfer);
  void run_block();
  void resume(Fiber& fiber);
  void wait(Phase phase);  // of the current thread
  void give_way();
  void came_from(const context::transfer_t& transfer);
  int next_ready();
  void release_barrier();
  int next_fresh();
  void select(int thread);
  std::string where() const {
    return fmt::format("{}, block ({}, {}, {}), thread ({}, {}, {})", grid_->kernel, blockIdx.x,
                       blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  }

  std::byte* shared_;
  std::vector<std::byte> handlers_;  // the stack of signal handlers
  std::size_t dynamic_bytes_ = 0;
  BlockNumber block_number_ = 0;  // of all kernels
  const Grid* grid_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  enum class Turns { by_warp, in_rounds, reversed };
  // Threads that an operation of their warp lets go on: before the threads that are ready already,
  // so that the stacks of one warp stay in the cache, or after them. Reversed: the last one first.
  Turns turns_ = Turns::by_warp;
  Outcome outcome_;
  sigjmp_buf before_;
  volatile int fault_signal_ = 0;
  const void* volatile fault_address_ = nullptr;

  std::vector<Thread> threads_;
  std::vector<uint3> indices_;  // threadIdx of each; computed once, because divisions are slow
  std::vector<std::unique_ptr<Warp>> warps_;
  int count_ = 0, fresh_ = 0, ended_ = 0, at_barrier_ = 0, current_ = 0;
  std::deque<int> ready_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* active_ = nullptr;
  context::fcontext_t scheduler_ = nullptr;
};

// One per thread of the host: the fibers of a block never change it.
Runner& runner() {
  thread_local Runner of_thread;
  return of_thread;
}
thread_local bool kernel_runs = false;

struct sigaction previous_segv, previous_ill;

void on_fault(int signal, siginfo_t* info, void* ucontext) {
  if (signal == SIGSEGV && make_accessible(info->si_addr)) return;
  if (kernel_runs) runner().fault(signal, info->si_addr);
  if (signal == SIGSEGV) {
    const std::string text =
        fmt::format("virtual GPU: host code accesses {}\n", describe(info->si_addr));
    [[maybe_unused]] const auto written = ::write(2, text.data(), text.size());
  }
  const struct sigaction& previous = signal == SIGSEGV ? previous_segv : previous_ill;
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, ucontext);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(signal);
  ::sigaction(signal, &previous, nullptr);  // the instruction faults again
}

}  // namespace

void install_fault_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    ::sigaction(SIGSEGV, &action, &previous_segv);
    ::sigaction(SIGILL, &action, &previous_ill);
  });
}

namespace {

Outcome Runner::run(const Grid& grid, const std::function<void()>& thread) {
  install_fault_handlers();
  grid_ = &grid;
  body_ = &thread;
  outcome_ = {};
  count_ = static_cast<int>(grid.block.x * grid.block.y * grid.block.z);
  threads_.resize(static_cast<std::size_t>(count_));
  while (warps_.size() * warp_lanes < threads_.size()) warps_.push_back(std::make_unique<Warp>());
  dynamic_bytes_ = (grid.shared_bytes + 15) / 16 * 16;
  turns_ = configuration().order != Order::random ? Turns::by_warp
           : random_number() % 2 == 1             ? Turns::reversed
                                                  : Turns::in_rounds;
  gridDim = {grid.grid.x, grid.grid.y, grid.grid.z};
  blockDim = {grid.block.x, grid.block.y, grid.block.z};
  indices_.clear();
  for (unsigned z = 0; z < blockDim.z; ++z)
    for (unsigned y = 0; y < blockDim.y; ++y)
      for (unsigned x = 0; x < blockDim.x; ++x) indices_.push_back({x, y, z});
  kernel_runs = true;
  if (sigsetjmp(before_, 1) == 0) {
    const std::uint64_t blocks = std::uint64_t{grid.grid.x} * grid.grid.y * grid.grid.z;
    for (std::uint64_t i = 0; i < blocks && outcome_.status == cudaSuccess; ++i) {
      const std::uint64_t block = turns_ == Turns::reversed ? blocks - 1 - i : i;
      blockIdx = {static_cast<unsigned>(block % grid.grid.x),
                  static_cast<unsigned>(block / grid.grid.x % grid.grid.y),
                  static_cast<unsigned>(block / grid.grid.x / grid.grid.y)};
      run_block();
    }
  } else if (fault_signal_ == SIGILL) {
    outcome_ = {cudaErrorMisalignedAddress, where() + ": an address is not aligned"};
  } else {
    outcome_ = {cudaErrorIllegalAddress,
                where() + ": access to " + describe(const_cast<const void*>(fault_address_))};
  }
  kernel_runs = false;
  if (outcome_.status != cudaSuccess) {
    // The stacks of the block's threads hold no objects that need their destructors.
    idle_.clear();
    for (const auto& fiber : fibers_) {
      fiber->context = nullptr;
      idle_.push_back(fiber.get());
    }
  }
  return outcome_;
}

void Runner::run_block() {
  std::memset(dynamic(), 0xff, dynamic_bytes_);
  ++block_number_;
  for (Thread& thread : threads_) thread = {Phase::fresh, nullptr};
  int first = 0;
  for (auto& warp : warps_) {
    warp->arrived = warp->mask = 0;
    const int lanes = std::clamp(count_ - first, 0, warp_lanes);
    warp->ended = lanes == warp_lanes ? 0 : ~0u << lanes;
    first += warp_lanes;
  }
  fresh_ = ended_ = at_barrier_ = 0;
  ready_.clear();
  while (ended_ < count_ && outcome_.status == cudaSuccess) {
    if (fresh_ < count_) {
      if (idle_.empty()) {
        fibers_.push_back(std::make_unique<Fiber>(fibers_.size()));
        idle_.push_back(fibers_.back().get());
      }
      Fiber* fiber = idle_.back();
      idle_.pop_back();
      resume(*fiber);
    } else if (!ready_.empty()) {
      resume(*threads_[static_cast<std::size_t>(next_ready())].fiber);
    } else {
      int in_warps = 0;
      for (const Thread& thread : threads_) in_warps += thread.phase == Phase::in_warp;
      outcome_ = {cudaErrorLaunchFailure,
                  fmt::format("{}: deadlock: {} threads wait at __syncthreads, {} in a warp's "
                              "operation, {} have ended",
                              where(), at_barrier_, in_warps, ended_)};
    }
  }
}

void Runner::select(int thread) {
  current_ = thread;
  threadIdx = indices_[static_cast<std::size_t>(thread)];
}

void Runner::resume(Fiber& fiber) {
  active_ = &fiber;
  if (!fiber.context)
    fiber.context = context::make_fcontext(fiber.stack.top(), fiber.stack.bytes(), enter_fiber);
  const context::transfer_t back = jump(fiber.context, this);
  active_->context = back.fctx;
}

// A fiber runs fresh threads one after another. It becomes idle if no thread is fresh.
void Runner::enter_fiber(context::transfer_t transfer) {
  auto& self = *static_cast<Runner*>(transfer.data);
  self.scheduler_ = transfer.fctx;
  for (;;) {
    for (int thread = self.next_fresh(); thread >= 0; thread = self.next_fresh()) {
      (*self.body_)();
      self.threads_[static_cast<std::size_t>(self.current_)].phase = Phase::ended;
      self.warps_[static_cast<std::size_t>(self.current_ / warp_lanes)]->ended |=
          1u << self.current_ % warp_lanes;
      ++self.ended_;
      self.release_barrier();
    }
    self.idle_.push_back(self.active_);
    self.give_way();
  }
}

int Runner::next_fresh() {
  if (fresh_ == count_) return -1;
  const int thread = turns_ == Turns::reversed ? count_ - 1 - fresh_ : fresh_;
  ++fresh_;
  select(thread);
  return thread;
}

void Runner::wait(Phase phase) {
  Thread& thread = threads_[static_cast<std::size_t>(current_)];
  thread = {phase, active_};
  give_way();
}

// Continues the next ready thread without the scheduler, which halves the switches. The scheduler
// starts fresh threads.
void Runner::give_way() {
  if (fresh_ < count_ || ready_.empty()) return came_from(jump(scheduler_, nullptr));
  Fiber* const mine = active_;
  active_ = threads_[static_cast<std::size_t>(next_ready())].fiber;
  if (active_ != mine) came_from(jump(active_->context, mine));
}

// Keeps the context of the fiber, or of the scheduler, that continued this one.
void Runner::came_from(const context::transfer_t& transfer) {
  if (transfer.data == this)
    scheduler_ = transfer.fctx;
  else
    static_cast<Fiber*>(transfer.data)->context = transfer.fctx;
}

int Runner::next_ready() {
  const bool last = turns_ == Turns::reversed;
  const int thread = last ? ready_.back() : ready_.front();
  last ? ready_.pop_back() : ready_.pop_front();
  select(thread);
  return thread;
}

// Threads that have ended do not take part.
void Runner::release_barrier() {
  if (at_barrier_ == 0 || at_barrier_ + ended_ < count_) return;
  at_barrier_ = 0;
  for (int i = 0; i < count_; ++i) {
    Thread& thread = threads_[static_cast<std::size_t>(i)];
    if (thread.phase != Phase::at_barrier) continue;
    thread.phase = Phase::ready;
    ready_.push_back(i);
  }
}

void Runner::sync_threads() {
  ++at_barrier_;
  if (at_barrier_ + ended_ == count_) {
    const int self = current_;
    threads_[static_cast<std::size_t>(self)].phase = Phase::ready;
    release_barrier();
    if (!ready_.empty()) {
      // The last thread also gives way, so the order of threads after a barrier is that of ready_.
      ready_.push_back(self);
      wait(Phase::ready);
    }
    return;
  }
  wait(Phase::at_barrier);
}

const std::byte* Runner::meet(const char* operation, unsigned mask, const void* in,
                              std::size_t bytes, Complete complete) {
  const int lane = current_ % warp_lanes, first = current_ - lane;
  Warp& warp = *warps_[static_cast<std::size_t>(current_ / warp_lanes)];
  if (!(mask >> lane & 1))
    fail(cudaErrorIllegalInstruction,
         fmt::format("{} without its lane in mask {:#x}", operation, mask));
  if (warp.arrived == 0) {
    warp.operation = operation;
    warp.mask = mask;
  } else if (warp.mask != mask ||
             (warp.operation != operation &&  // a string may have two addresses
              std::strcmp(warp.operation, operation) != 0)) {
    fail(cudaErrorLaunchFailure,
         fmt::format("{} of mask {:#x} while lanes {:#x} wait in {} of mask {:#x}", operation, mask,
                     warp.arrived, warp.operation, warp.mask));
  }
  warp.arrived |= 1u << lane;
  std::memcpy(warp.meeting.in[lane], in, bytes);
  if (const unsigned missing = mask & warp.ended)
    fail(cudaErrorLaunchFailure, fmt::format("{} of mask {:#x}, but lane {} has ended", operation,
                                             mask, std::countr_zero(missing)));
  if (warp.arrived != mask) {
    wait(Phase::in_warp);
    return warp.meeting.out[lane];
  }
  complete(warp.meeting, mask);
  warp.arrived = 0;
  for (int i = 0; i < warp_lanes; ++i) {
    const bool before = turns_ == Turns::by_warp;
    const int thread = first + (before ? warp_lanes - 1 - i : i);
    if (!(mask >> (thread - first) & 1) || thread == current_) continue;
    threads_[static_cast<std::size_t>(thread)].phase = Phase::ready;
    before ? ready_.push_front(thread) : ready_.push_back(thread);
  }
  return warp.meeting.out[lane];
}

void Runner::fail(cudaError_t status, const std::string& text) {
  outcome_ = {status, where() + ": " + text};
  jump(scheduler_, nullptr);
  std::abort();  // the fiber is never resumed
}

}  // namespace

const std::byte* meet(const char* operation, unsigned mask, const void* in, std::size_t bytes,
                      Complete complete) {
  return runner().meet(operation, mask, in, bytes, complete);
}
void sync_threads() { runner().sync_threads(); }
void fail_kernel(cudaError_t status, const std::string& text) { runner().fail(status, text); }
unsigned char* dynamic_shared_memory() {
  return reinterpret_cast<unsigned char*>(runner().dynamic());
}
void start_shared(BlockNumber& last, void* data, std::size_t bytes) {
  if (last == runner().block_number()) return;
  last = runner().block_number();
  std::memset(data, 0xff, bytes);
}
void check_shared(const char* operation, const void* address, std::size_t bytes) {
  if (!runner().is_dynamic(address, bytes))
    runner().fail(cudaErrorInvalidAddressSpace,
                  fmt::format("{} at {}, which is not dynamic shared memory of the block",
                              operation, address));
}
Outcome run_grid(const Grid& grid, const std::function<void()>& thread) {
  return runner().run(grid, thread);
}
}  // namespace machine::virtual_gpu
