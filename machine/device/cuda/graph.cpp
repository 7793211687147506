// CUDA graphs by stream capture (CUDA C++ Programming Guide, "Creating a Graph Using Stream
// Capture").

#include <utility>

#include "machine/device/cuda/memory/graph_memory.h"
#include "machine/device/cuda/runtime.h"
#include "machine/device/device_wait.h"

namespace machine::cuda {
namespace {

class CudaGraph final : public Graph {
 public:
  CudaGraph(const Queue& queue, cudaGraphExec_t executable, std::shared_ptr<void> memory)
      : memory_(std::move(memory)), queue_(queue), executable_(executable) {}
  // Waits, because a launch may still run.
  ~CudaGraph() override {
    const DeviceWait waits(queue_.owner);
    cudaSetDevice(queue_.device);
    cudaStreamSynchronize(queue_.stream);
    cudaGraphExecDestroy(executable_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch() override {
    make_current(queue_.device);
    SHARDMARK_CUDA(queue_.device, cudaGraphLaunch(executable_, queue_.stream));
  }

 private:
  std::shared_ptr<void> memory_;
  Queue queue_;
  cudaGraphExec_t executable_;
};

}  // namespace

// Thread-local, because other threads of the process (other ranks in tests, NCCL's proxies) may
// allocate memory meanwhile.
std::unique_ptr<Graph> capture(const Queue& queue, GraphMemory& memory,
                               const std::function<void()>& queue_work) {
  make_current(queue.device);
  std::shared_ptr<void> kept = memory.begin(queue.stream);
  const struct Ends {
    GraphMemory& memory;
    ~Ends() { memory.end(); }
  } ends{memory};
  SHARDMARK_CUDA(queue.device,
                 cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    queue_work();
  } catch (...) {
    cudaStreamEndCapture(queue.stream, &graph);  // else the stream stays captured
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  make_current(queue.device);
  SHARDMARK_CUDA(queue.device, cudaStreamEndCapture(queue.stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiateWithFlags(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(queue.device, "cudaGraphInstantiateWithFlags", status);
  return std::make_unique<CudaGraph>(queue, executable, std::move(kept));
}

}  // namespace machine::cuda
