// A CUDA device: memory from arenas (which other processes can map), streams, events.

#include "machine/device/device.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "machine/base/error.h"
#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/runtime.h"
#include "machine/device/device_wait.h"

namespace machine {
namespace cuda {

void fail(int device, const char* call, cudaError_t status) {
  cudaGetLastError();  // clears the error so that the next call does not report it again
  const char* advice = "see nvidia-smi and the kernel log for the state of the device";
  switch (status) {
    case cudaErrorMemoryAllocation:
      advice = "use a smaller case or more ranks, or end other processes on the device";
      break;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorNoKernelImageForDevice:
      advice = "install a driver for this CUDA Toolkit and build for this device's architecture";
      break;
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
      advice = "an earlier kernel failed; run again under compute-sanitizer to find it";
      break;
    default:
      break;
  }
  throw MachineError(fmt::format("{} failed on CUDA device {}: {} ({}); {}", call, device,
                                 cudaGetErrorString(status), cudaGetErrorName(status), advice),
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
  explicit CudaEvent(const Queue& queue) : owner_(queue.owner), device_(queue.device) {
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

 private:
  const Device& owner_;
  int device_;
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
  CudaStream(Device& device, int index) : CudaStream(device, index, create_stream(index)) {}
  ~CudaStream() override {
    const DeviceWait waits(device());
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
  std::unique_ptr<Event> record() override { return std::make_unique<CudaEvent>(queue()); }
  void wait(const Event& event) override {
    make_current(index_);
    SHARDMARK_CUDA(index_,
                   cudaStreamWaitEvent(stream_, dynamic_cast<const CudaEvent&>(event).get(), 0));
  }
  void synchronize() override {
    const DeviceWait waits(device());
    make_current(index_);
    SHARDMARK_CUDA(index_, cudaStreamSynchronize(stream_));
  }
  cudaStream_t get() const { return stream_; }
  Queue queue() const { return {device(), index_, stream_}; }

 private:
  CudaStream(Device& device, int index, cudaStream_t stream)
      : Stream(device, make_kernels({device, index, stream})), index_(index), stream_(stream) {}
  int index_;
  cudaStream_t stream_;
};

// Never 0, which means the host.
std::uint64_t identity_of(const cudaDeviceProp& properties) {
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof properties.uuid.bytes);
  std::memcpy(halves, properties.uuid.bytes, sizeof halves);
  return (halves[0] ^ (halves[1] * 0x9e3779b97f4a7c15u)) | 1;
}

constexpr std::size_t arena_bytes = std::size_t{256} << 20;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index)
      : Device(Kind::cuda),
        index_(index),
        arenas_(
            arena_bytes, [index](std::size_t bytes) { return take(index, bytes); },
            [index](void* data) {
              cudaSetDevice(index);
              cudaFree(data);  // an error is from an earlier call; a destructor cannot report it
            }) {
    make_current(index);
    cudaDeviceProp properties;
    SHARDMARK_CUDA(index, cudaGetDeviceProperties(&properties, index));
    description_ =
        fmt::format("cuda:{}: {}, {:.1f} GiB, compute capability {}.{}", index, properties.name,
                    static_cast<double>(properties.totalGlobalMem) / 0x1p30, properties.major,
                    properties.minor);
    identity_ = identity_of(properties);
    stream_ = std::make_unique<CudaStream>(*this, index_);
  }
  // Destroys the stream first. This ends all work that reads or writes the arenas.
  ~CudaDevice() override { stream_.reset(); }
  std::string description() const override { return description_; }
  std::uint64_t identity() const override { return identity_; }
  std::unique_ptr<Stream> make_stream() override {
    one_stream_ = false;
    return std::make_unique<CudaStream>(*this, index_);
  }
  std::unique_ptr<Gate> make_gate(double deadline_s) override {
    return cuda::make_gate(static_cast<CudaStream&>(*stream_).queue(), deadline_s);
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
  void* do_allocate(std::size_t bytes) override { return arenas_.allocate(bytes); }
  // With one stream, the next user of the memory is queued after earlier work. With more streams,
  // wait for that work. An error here is from an earlier call. The next call reports it.
  void do_free(void* data, std::size_t bytes) override {
    if (!one_stream_) {
      const DeviceWait waits(*this);
      cudaSetDevice(index_);
      cudaDeviceSynchronize();
    }
    arenas_.free(data, bytes);
  }

  int index_;
  Arenas arenas_;
  bool one_stream_ = true;
  std::uint64_t identity_ = 0;
  std::string description_;
};

}  // namespace

Internals internals(Device& device) {
  auto& ours = dynamic_cast<CudaDevice&>(device);
  return {ours.index(), dynamic_cast<CudaStream&>(ours.stream()).get(), &ours.arenas()};
}

int index_of(std::uint64_t identity) {
  for (int index = 0; index < count(); ++index) {
    cudaDeviceProp properties;
    SHARDMARK_CUDA(index, cudaGetDeviceProperties(&properties, index));
    if (identity_of(properties) == identity) return index;
  }
  return -1;
}

bool built() { return true; }

int count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return devices;
}

std::unique_ptr<Device> make_device(int index) {
  const int devices = count();
  if (index < 0 || index >= devices) {
    throw MachineError(
        fmt::format("CUDA device {} does not exist: {} present; use fewer ranks on this host, or "
                    "--device host",
                    index, devices == 1 ? "1 is" : fmt::format("{} are", devices)));
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace cuda
}  // namespace machine
