#pragma once
// Host and CUDA devices behind one interface: counted memory, streams, events, kernels, GEMM.
//
//   Device& device = world.device();
//   Tensor x(device, Dtype::float32, {tokens, hidden}, Category::activations);
//   device.stream().kernels().gelu(x, y);
//
// A host stream runs each call before it returns, on device.threads() OpenMP threads, including the
// calling one. A CUDA stream queues it. A device belongs to one rank and is used by one thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "machine/device/memory.h"

namespace machine {

class HostMemory;
class Kernels;
struct Faults;

// A point in a stream's work. seconds_since requires that both events are recorded and reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;
  virtual double seconds_since(const Event& earlier) const = 0;
};

// Work that was captured once and is launched any number of times, in the stream that captured it.
// The memory that the work uses must exist while a launch runs; the graph keeps what was allocated
// or freed during the capture.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch() = 0;
};

class Stream {
 public:
  virtual ~Stream();
  Device& device() const { return device_; }
  Kernels& kernels() const { return *kernels_; }

  // Both pointers may be host memory or this device's memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // Copies rows of `bytes` bytes that begin `to_pitch` and `from_pitch` bytes apart.
  virtual void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t bytes, std::int64_t rows);
  virtual std::unique_ptr<Event> record() = 0;
  virtual void wait(const Event& event) = 0;  // later work of this stream starts after event
  virtual void synchronize() = 0;             // the caller waits for all work of this stream

  // Calls queue_work and captures the work that it queues: on this stream, and on other streams
  // that wait for an event of this one and for which this one waits at the end. The work does not
  // run. queue_work cannot wait for the device, and no captured work waits for an event that was
  // recorded before. It may allocate memory of the device that it frees again. What later calls
  // keep, a first call without capture must have made. Null, without a call, if the device has no
  // graphs.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& /*queue_work*/) {
    return nullptr;
  }

 protected:
  Stream(Device& device, std::unique_ptr<Kernels> kernels);

 private:
  Device& device_;
  std::unique_ptr<Kernels> kernels_;
};

// The compute units of a GPU.
struct ComputeUnits {
  std::string product;         // its name, as the driver reports it
  int compute_capability = 0;  // 90 for sm_90; 0: not a GPU
  int multiprocessors = 0;
  double clock_hz = 0;  // the highest, as the driver reports it
};

// Holds a stream back until every rank has queued its work. Work that is queued between close and
// open starts when the gate opens, or at the deadline, so a rank that never opens it hangs no rank.
class Gate {
 public:
  virtual ~Gate() = default;
  virtual void close() = 0;
  virtual void open() = 0;
  virtual bool held() = 0;  // after stream synchronization: the gate was opened before the deadline
};

class Device {
 public:
  enum class Kind { host, cuda };
  virtual ~Device();

  Kind kind() const { return kind_; }
  virtual std::string description() const = 0;  // for the fingerprint: model name and memory
  virtual bool readable_by_host() const { return kind_ == Kind::host; }
  // Returns the same value in every process that uses the GPU; 0 for the host.
  virtual std::uint64_t identity() const { return 0; }
  // Returns the GPU's PCI address in the driver's form: "00000000:3B:00.0". Empty for the host.
  virtual std::string pci_address() const { return ""; }
  // Waits for all work of the device. Returns the error that every later call would return, or
  // empty: after a failed kernel, a process cannot use its CUDA device any more.
  virtual std::string why_broken() { return ""; }
  virtual std::uint64_t memory_bytes() const { return 0; }  // of the GPU; 0 for the host
  virtual int compute_capability() const { return 0; }      // 90 for sm_90; 0 for the host
  virtual ComputeUnits compute_units() const { return {}; }

  // Zero bytes give an empty Memory with null data. Throws MachineError if memory is exhausted,
  // naming the category, the requested bytes and the allocated bytes.
  // Memory is used in the order of stream(). Another stream waits for an event of stream() before
  // it uses the memory. Freeing waits for no stream: memory is used again after the work that all
  // streams have queued before.
  Memory allocate(std::size_t bytes, Category category);
  // Memory of this device that other code allocated and release() frees. It is counted like the
  // memory of allocate. release() is called when all work of stream() has ended, and does not
  // throw.
  Memory adopt(void* data, std::size_t bytes, Category category, std::function<void()> release);
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }

  Stream& stream() { return *stream_; }
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Makes a gate of stream(). Null if a stream never runs behind its caller.
  virtual std::unique_ptr<Gate> make_gate(double /*deadline_s*/) { return nullptr; }

  // Host memory that this device copies while the host continues: pinned, if the device is a GPU.
  // Freed memory is used again after the copies that all streams have queued before.
  virtual HostMemory& pinned_memory();
  // Pins memory that the host already has, while the result exists. Null if there is nothing to
  // pin. data and bytes are multiples of a page, and no other code pins the pages. No stream uses
  // the memory when the result is destroyed.
  virtual std::shared_ptr<void> pin(void* /*data*/, std::size_t /*bytes*/) { return nullptr; }

  // CPU threads that a kernel of this rank may use; results do not depend on it.
  int threads() const { return threads_; }
  void set_threads(int threads) { threads_ = threads; }

  // Returns the faults of the rank that owns the device; null: no faults. Must outlive the device.
  Faults* faults() const { return faults_; }
  void set_faults(Faults* faults) { faults_ = faults; }
  // Returns the counter of threads that wait for the device (DeviceWait); null: waits are not
  // counted.
  std::atomic<std::uint32_t>* wait_count() const { return wait_count_; }
  void count_waits_in(std::atomic<std::uint32_t>* count) { wait_count_ = count; }

 protected:
  explicit Device(Kind kind);
  std::unique_ptr<Stream> stream_;

 private:
  friend class Memory;
  virtual void* do_allocate(std::size_t bytes) = 0;  // null when exhausted; aligned to 64 bytes
  virtual void do_free(void* data, std::size_t bytes) = 0;
  void take_back(void* data, std::size_t bytes);

  Kind kind_;
  int threads_ = 1;
  Faults* faults_ = nullptr;
  std::atomic<std::uint32_t>* wait_count_ = nullptr;
  Ledger ledger_;
  std::map<void*, std::function<void()>> adopted_;  // release() by address
};

// The source of a host device's memory, aligned to 64 bytes: the heap, a segment that peers map, …
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual void* allocate(std::size_t bytes) = 0;  // if exhausted: null, or throws MachineError
  virtual void free(void* data, std::size_t bytes) = 0;
};

HostMemory& process_heap();
// memory must outlive the device.
std::unique_ptr<Device> make_host_device(HostMemory& memory = process_heap());
// Copies between a GPU and pageable memory pass through a buffer of the driver, and the host waits.
enum class Pages : unsigned char { pinned, pageable };
// Host memory with a separate ledger, for the rank that owns `device`, which outlives it. It has
// the same faults. pinned: device.pinned_memory().
std::unique_ptr<Device> make_host_device_beside(Device& device, Pages pages = Pages::pinned);

// CUDA devices, if the build has CUDA. Otherwise built() is false and count() is 0.
namespace cuda {
bool built();
bool is_virtual();  // the devices are those of machine/virtual_gpu

struct Present {
  int count = 0;         // of the devices that this process sees
  std::string why_none;  // the reason if count is 0, in CUDA's words
};
// Asks CUDA at the first call.
const Present& present();
inline int count() { return present().count; }
// Returns whether this process called present(), or its parent did before the fork. CUDA does not
// work in a process that was forked after its parent had used CUDA.
bool used();
// A device that this process sees.
struct Gpu {
  std::uint64_t identity = 0;  // Device::identity
  std::string bus_id;          // PCI: "0000:1b:00.0". The instances of a partitioned GPU share it.
  static auto members(auto& self) { return std::tie(self.identity, self.bus_id); }
};
// In CUDA's order. Throws MachineError if CUDA cannot describe a device.
const std::vector<Gpu>& gpus();
std::unique_ptr<Device> make_device(int index);  // throws MachineError naming index and count

Present ask();  // for present() only
}  // namespace cuda

}  // namespace machine
