// A CUDA device: memory from arenas (which other processes can map), streams, events.

#include "machine/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/memory/freed_blocks.h"
#include "machine/device/cuda/memory/graph_memory.h"
#include "machine/device/cuda/memory/pinned_memory.h"
#include "machine/device/cuda/runtime.h"
#include "machine/device/device_wait.h"
#include "machine/device/gpu_health.h"

namespace machine {
namespace cuda {

namespace {

const char* advice_on(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "use a smaller case or more ranks, or end other processes on the device";
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorNoKernelImageForDevice:
      return "install a driver for this CUDA Toolkit and build for this device's architecture";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
      return "an earlier kernel failed; run again under compute-sanitizer to find it";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureUnjoined:
      return "this work cannot be part of a CUDA graph; run it without graphs";
    default:
      return "see nvidia-smi and the kernel log for the state of the device";
  }
}

// "initialization error (cudaErrorInitializationError)". Clears the error, so that the next call
// does not report it again.
std::string text_of(cudaError_t status) {
  const std::string text =
      fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  cudaGetLastError();
  return text;
}

}  // namespace

void fail(int device, const char* call, cudaError_t status) {
  throw MachineError(fmt::format("{} failed on CUDA device {}: {}; {}", call, device,
                                 text_of(status), advice_on(status)),
                     status == cudaErrorMemoryAllocation ? Failure::Kind::out_of_memory
                                                         : Failure::Kind::exception);
}

Scratch::~Scratch() { cudaFree(data_); }

void* Scratch::at_least(std::size_t bytes) {
  if (bytes > bytes_) {
    const int device = queue_.device;
    make_current(device);
    const DeviceWait waits(queue_.owner);
    SHARDMARK_CUDA(device, cudaStreamSynchronize(queue_.stream));
    SHARDMARK_CUDA(device, cudaFree(data_));
    data_ = nullptr;
    bytes_ = 0;
    SHARDMARK_CUDA(device, cudaMalloc(&data_, bytes));
    bytes_ = bytes;
  }
  return data_;
}

namespace {

class CudaEvent final : public Event {
 public:
  // number: GraphMemory::record().
  CudaEvent(const Queue& queue, std::uint64_t number)
      : owner_(queue.owner), device_(queue.device), stream_(queue.stream), number_(number) {
    make_current(device_);
    SHARDMARK_CUDA(device_, cudaEventCreate(&event_));
    const cudaError_t status = cudaEventRecord(event_, queue.stream);
    if (status != cudaSuccess) {
      cudaEventDestroy(event_);
      fail(device_, "cudaEventRecord", status);
    }
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void synchronize() override {
    const DeviceWait waits(owner_);
    SHARDMARK_CUDA(device_, cudaEventSynchronize(event_));
  }
  double seconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    SHARDMARK_CUDA(
        device_, cudaEventElapsedTime(&milliseconds, dynamic_cast<const CudaEvent&>(earlier).event_,
                                      event_));
    return milliseconds * 1e-3;
  }
  cudaEvent_t get() const { return event_; }
  cudaStream_t stream() const { return stream_; }
  std::uint64_t number() const { return number_; }

 private:
  const Device& owner_;
  int device_;
  cudaStream_t stream_;
  std::uint64_t number_;
  cudaEvent_t event_ = nullptr;
};

cudaStream_t create_stream(int device) {
  make_current(device);
  cudaStream_t stream = nullptr;
  SHARDMARK_CUDA(device, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

class CudaStream final : public Stream {
 public:
  // Is in the list while it exists.
  CudaStream(Device& device, int index, std::vector<cudaStream_t>& list, GraphMemory& graphs)
      : CudaStream(device, index, create_stream(index), list, graphs) {}
  ~CudaStream() override {
    const DeviceWait waits(device());
    std::erase(list_, stream_);
    cudaSetDevice(index_);
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    make_current(index_);
    SHARDMARK_CUDA(index_, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                 std::size_t bytes, std::int64_t rows) override {
    if (bytes == 0 || rows == 0) return;
    make_current(index_);
    SHARDMARK_CUDA(index_,
                   cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes,
                                     static_cast<std::size_t>(rows), cudaMemcpyDefault, stream_));
  }
  std::unique_ptr<Event> record() override {
    return std::make_unique<CudaEvent>(queue(), graphs_.record());
  }
  void wait(const Event& event) override {
    make_current(index_);
    const auto& other = dynamic_cast<const CudaEvent&>(event);
    SHARDMARK_CUDA(index_, cudaStreamWaitEvent(stream_, other.get(), 0));
    graphs_.wait(stream_, other.stream(), other.number());
  }
  void synchronize() override {
    const DeviceWait waits(device());
    make_current(index_);
    SHARDMARK_CUDA(index_, cudaStreamSynchronize(stream_));
  }
  std::unique_ptr<Graph> capture(const std::function<void()>& queue_work) override {
    return cuda::capture(queue(), graphs_, queue_work);
  }
  cudaStream_t get() const { return stream_; }
  Queue queue() const { return {device(), index_, stream_}; }

 private:
  CudaStream(Device& device, int index, cudaStream_t stream, std::vector<cudaStream_t>& list,
             GraphMemory& graphs)
      : Stream(device, make_kernels({device, index, stream})),
        index_(index),
        stream_(stream),
        list_(list),
        graphs_(graphs) {
    list.push_back(stream);
  }
  int index_;
  cudaStream_t stream_;
  std::vector<cudaStream_t>& list_;
  GraphMemory& graphs_;
};

// Never 0, which means the host.
std::uint64_t identity_of(const cudaDeviceProp& properties) {
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof properties.uuid.bytes);
  std::memcpy(halves, properties.uuid.bytes, sizeof halves);
  return (halves[0] ^ (halves[1] * 0x9e3779b97f4a7c15u)) | 1;
}

#ifdef SHARDMARK_VIRTUAL_GPU
constexpr std::size_t arena_bytes = 0;  // a guard page follows each tensor
#else
constexpr std::size_t arena_bytes = std::size_t{256} << 20;
#endif

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index)
      : Device(Kind::cuda),
        index_(index),
        arenas_(
            arena_bytes, [index](std::size_t bytes) { return take(index, bytes); },
            [this](void* data) { give(data); }),
        freed_(index),
        graphs_(index, arena_bytes,
                {.make_room = [this] { make_room(); },
                 .take = [index](std::size_t bytes) { return take(index, bytes); },
                 .give = [this](void* data) { give(data); },
                 .free = [this](void* data, std::size_t bytes) { do_free(data, bytes); }}),
        pinned_(*this, index, streams_) {
    make_current(index);
    cudaDeviceProp properties;
    SHARDMARK_CUDA(index, cudaGetDeviceProperties(&properties, index));
    identity_ = identity_of(properties);
    pci_address_ = fmt::format("{:08X}:{:02X}:{:02X}.0", properties.pciDomainID,
                               properties.pciBusID, properties.pciDeviceID);
    memory_bytes_ = properties.totalGlobalMem;
    compute_capability_ = properties.major * 10 + properties.minor;
    int clock_kHz = 0;
    SHARDMARK_CUDA(index, cudaDeviceGetAttribute(&clock_kHz, cudaDevAttrClockRate, index));
    compute_units_ = {properties.name, compute_capability_, properties.multiProcessorCount,
                      1e3 * clock_kHz};
    description_ = fmt::format(
        "cuda:{}: {}, {:.1f} GiB, compute capability {}.{}, {} SM at {} MHz", index,
        properties.name, static_cast<double>(properties.totalGlobalMem) / 0x1p30, properties.major,
        properties.minor, properties.multiProcessorCount, clock_kHz / 1000);
    stream_ = std::make_unique<CudaStream>(*this, index_, streams_, graphs_);
  }
  // Destroys the stream first. This ends all work that reads or writes the arenas.
  ~CudaDevice() override { stream_.reset(); }
  std::string description() const override { return description_; }
  std::uint64_t identity() const override { return identity_; }
  std::string pci_address() const override { return pci_address_; }
  std::string why_broken() override {
    const DeviceWait waits(*this);
    cudaSetDevice(index_);
    if (cudaDeviceSynchronize() == cudaSuccess) return "";
    cudaGetLastError();  // an error that this clears does not break the device
    const cudaError_t status = cudaDeviceSynchronize();
    if (status == cudaSuccess) return "";
    const std::string trouble = trouble_of(read_gpu(pci_address_));
    return (trouble.empty() ? "" : "the driver reports: " + trouble + "; ") +
           "cudaDeviceSynchronize: " + text_of(status);
  }
  std::uint64_t memory_bytes() const override { return memory_bytes_; }
  int compute_capability() const override { return compute_capability_; }
  ComputeUnits compute_units() const override { return compute_units_; }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CudaStream>(*this, index_, streams_, graphs_);
  }
  std::unique_ptr<Gate> make_gate(double deadline_s) override {
    return cuda::make_gate(static_cast<CudaStream&>(*stream_).queue(), deadline_s);
  }
  HostMemory& pinned_memory() override { return pinned_; }
  std::shared_ptr<void> pin(void* data, std::size_t bytes) override {
    make_current(index_);
    SHARDMARK_CUDA(index_, cudaHostRegister(data, bytes, cudaHostRegisterPortable));
    return {data, [](void* pinned) { cudaHostUnregister(pinned); }};
  }
  int index() const { return index_; }
  const Arenas& arenas() const { return arenas_; }

 private:
  static void* take(int index, std::size_t bytes) {
    make_current(index);
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(index, "cudaMalloc", status);
    return data;
  }
  // An error is from an earlier call. A destructor cannot report it.
  void give(void* data) {
    const DeviceWait waits(*this);
    cudaSetDevice(index_);
    cudaDeviceSynchronize();
    cudaFree(data);
  }
  void make_room() {
    freed_.give_in_order_of(streams_.front(),
                            [this](void* data, std::size_t bytes) { arenas_.free(data, bytes); });
    arenas_.release_unused();
  }
  // Memory whose users have not ended is used again only if nothing else is left.
  void* do_allocate(std::size_t bytes) override {
    if (graphs_.captures()) return graphs_.allocate(bytes);
    const auto reuse = [this](void* data, std::size_t freed) { arenas_.free(data, freed); };
    freed_.give_ended(reuse);
    void* data = arenas_.allocate(bytes);
    if (!data && !freed_.empty()) {
      freed_.give_in_order_of(streams_.front(), reuse);
      data = arenas_.allocate(bytes);
    }
    if (!data && arenas_.release_unused()) data = arenas_.allocate(bytes);
    return data;
  }
  // The next user of the memory is queued in stream(), after earlier work there. Other streams may
  // still use it.
  void do_free(void* data, std::size_t bytes) override {
    if (graphs_.free(data, bytes)) return;
    if (!freed_.keep(data, bytes, std::span(streams_).subspan(1))) arenas_.free(data, bytes);
  }

  int index_;
  Arenas arenas_;
  FreedBlocks freed_;
  GraphMemory graphs_;
  std::vector<cudaStream_t> streams_;  // the first is that of stream()
  PinnedMemory pinned_;
  std::uint64_t identity_ = 0, memory_bytes_ = 0;
  int compute_capability_ = 0;
  ComputeUnits compute_units_;
  std::string description_, pci_address_;
};

}  // namespace

Internals internals(Device& device) {
  auto& ours = dynamic_cast<CudaDevice&>(device);
  return {ours.index(), dynamic_cast<CudaStream&>(ours.stream()).get(), &ours.arenas()};
}

cudaStream_t handle_of(Stream& stream) { return dynamic_cast<CudaStream&>(stream).get(); }

int index_of(std::uint64_t identity) {
  const auto found = std::ranges::find(gpus(), identity, &Gpu::identity);
  return found == gpus().end() ? -1 : static_cast<int>(found - gpus().begin());
}

// Asks once, because asking for the properties of a device takes milliseconds.
const std::vector<Gpu>& gpus() {
  static const std::vector<Gpu> all = [] {
    std::vector<Gpu> found;
    for (int index = 0; index < count(); ++index) {
      cudaDeviceProp properties;
      SHARDMARK_CUDA(index, cudaGetDeviceProperties(&properties, index));
      found.push_back(
          {identity_of(properties), fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                                properties.pciBusID, properties.pciDeviceID)});
    }
    return found;
  }();
  return all;
}

bool built() { return true; }

bool is_virtual() {
#ifdef SHARDMARK_VIRTUAL_GPU
  return true;
#else
  return false;
#endif
}

Present ask() {
  Present found;
  const cudaError_t status = cudaGetDeviceCount(&found.count);
  if (status == cudaSuccess && found.count > 0) return found;
  found.count = 0;
  found.why_none = status == cudaSuccess ? "cudaGetDeviceCount finds no device"
                                         : fmt::format("cudaGetDeviceCount: {}; {}",
                                                       text_of(status), advice_on(status));
  return found;
}

std::unique_ptr<Device> make_device(int index) {
  const int devices = count();
  if (index < 0 || index >= devices) {
    const std::string why = present().why_none;
    throw MachineError(
        fmt::format("CUDA device {} does not exist: {} present{}; use fewer ranks on this host, or "
                    "--device host",
                    index, devices == 1 ? "1 is" : fmt::format("{} are", devices),
                    why.empty() ? "" : fmt::format(" ({})", why)));
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace cuda
}  // namespace machine
