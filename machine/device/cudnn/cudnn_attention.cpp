#include "machine/device/cudnn/cudnn_attention.h"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/cuda/internals.h"
#include "machine/device/tensor.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // cudnn_frontend declares it, and looks functions up there
}

namespace machine {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;

// The tensors of a graph.
enum Uid : std::int64_t { of_q = 1, of_k, of_v, of_out, of_sums, of_d_out, of_d_q, of_d_k, of_d_v };

void check(fe::error_t error) {
  if (error.is_bad()) throw MachineError(error.get_message());
}

// cuDNN reports each engine in lines of its own.
std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Returns why cuDNN cannot be loaded, or empty.
const std::string& why_not_loaded() {
  static const std::string why = [] {
    constexpr const char* library = "libcudnn.so.9";
    // Else cudnn_frontend searches, and may load another runtime than the program has.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME",
           fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(), 0);
    fe::cudnn_dlhandle = dlopen(library, RTLD_NOW);
    return fe::cudnn_dlhandle ? std::string()
                              : fmt::format("cuDNN cannot be loaded: {}", dlerror());
  }();
  return why;
}

// Returns why cuDNN's graphs do not describe the call, or empty.
std::string why_another_call(const AttentionForward& call) {
  if (call.q.dtype != Dtype::bfloat16 && call.q.dtype != Dtype::float16)
    return fmt::format("cuDNN's attention requires bfloat16 or half (got {})", name(call.q.dtype));
  if (call.options.dropout.probability > 0 || call.options.lengths)
    return "cuDNN's attention is compared without dropout and with all keys";
  return {};
}

std::shared_ptr<Tensor_attributes> input(Graph& graph, const Matrix& matrix, Uid uid) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({matrix.batch[0], matrix.batch[1], matrix.rows, matrix.cols})
                          .set_stride({matrix.batch_stride[0], matrix.batch_stride[1],
                                       matrix.row_stride, matrix.col_stride}));
}

void output(Tensor_attributes& tensor, const Matrix& matrix, Uid uid) {
  tensor.set_output(true)
      .set_uid(uid)
      .set_dim({matrix.batch[0], matrix.batch[1], matrix.rows, matrix.cols})
      .set_stride(
          {matrix.batch_stride[0], matrix.batch_stride[1], matrix.row_stride, matrix.col_stride});
}

void describe_sums(Tensor_attributes& sums, const Matrix& q) {
  const std::int64_t heads = q.batch[1];
  sums.set_uid(of_sums)
      .set_dim({q.batch[0], heads, q.rows, 1})
      .set_stride({heads * q.rows, q.rows, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

template <class Attributes>
Attributes options(Attributes attributes, const AttentionOptions& options) {
  attributes.set_attn_scale(static_cast<float>(options.scale));
  if (options.causal)
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
  return attributes;
}

// The GPU of a graph, if it is not the one that the handle has. Nodes copy it when they are made.
struct Target {
  std::shared_ptr<const fe::DeviceProperties> properties{};
  int compute_capability = 0;
};

std::unique_ptr<Graph> empty_graph(Dtype dtype, const Target& target) {
  auto graph = std::make_unique<Graph>();
  graph
      ->set_io_data_type(dtype == Dtype::bfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (target.properties)
    graph->set_device_properties(target.properties).set_sm_version(target.compute_capability);
  return graph;
}

std::unique_ptr<Graph> forward_graph(const AttentionForward& call, const Target& target = {}) {
  auto graph = empty_graph(call.q.dtype, target);
  const auto [out, sums] = graph->sdpa(
      input(*graph, call.q, of_q), input(*graph, call.k, of_k), input(*graph, call.v, of_v),
      options(fe::graph::SDPA_attributes().set_name("forward").set_generate_stats(true),
              call.options));
  output(*out, call.out, of_out);
  describe_sums(sums->set_output(true), call.q);
  return graph;
}

std::unique_ptr<Graph> backward_graph(const AttentionBackward& call, const Target& target = {}) {
  const AttentionForward& forward = call.forward;
  auto graph = empty_graph(forward.q.dtype, target);
  Tensor_attributes sums;
  describe_sums(sums, forward.q);
  const auto [d_q, d_k, d_v] = graph->sdpa_backward(
      input(*graph, forward.q, of_q), input(*graph, forward.k, of_k),
      input(*graph, forward.v, of_v), input(*graph, forward.out, of_out),
      input(*graph, call.d_out, of_d_out), graph->tensor(sums),
      options(fe::graph::SDPA_backward_attributes().set_name("backward"), forward.options));
  output(*d_q, call.d_q, of_d_q);
  output(*d_k, call.d_k, of_d_k);
  output(*d_v, call.d_v, of_d_v);
  return graph;
}

void find_kernels(Graph& graph) {
  check(graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
  check(graph.check_support());
}

// A graph that is ready to run, and its workspace.
class Pass {
 public:
  Pass(cudnnHandle_t handle, std::unique_ptr<Graph> graph, Device& device)
      : handle_(handle), graph_(std::move(graph)) {
    check(graph_->validate());
    check(graph_->build_operation_graph(handle_));
    find_kernels(*graph_);
    check(graph_->build_plans());
    std::int64_t bytes = 0;
    check(graph_->get_workspace_size(bytes));
    workspace_ = device.allocate(static_cast<std::size_t>(bytes), Category::buffers);
  }
  void run(std::unordered_map<std::int64_t, void*> memory) const {
    check(graph_->execute(handle_, memory, workspace_.data()));
  }

 private:
  cudnnHandle_t handle_;
  std::unique_ptr<Graph> graph_;
  Memory workspace_;
};

struct Destroys {
  void operator()(cudnnHandle_t handle) const { fe::detail::destroy_handle(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, Destroys>;

Handle handle_for(Stream& stream) {
  cudnnHandle_t made = nullptr;
  if (fe::detail::create_handle(&made) != CUDNN_STATUS_SUCCESS)
    throw MachineError("cudnnCreate failed");
  Handle handle(made);
  if (fe::detail::set_stream(made, cuda::handle_of(stream)) != CUDNN_STATUS_SUCCESS)
    throw MachineError("cudnnSetStream failed");
  return handle;
}

struct Passes {
  Passes(Stream& stream, const AttentionBackward& call)
      : handle(handle_for(stream)),
        forward(handle.get(), forward_graph(call.forward), stream.device()),
        backward(handle.get(), backward_graph(call), stream.device()) {}
  Handle handle;
  Pass forward, backward;
};

}  // namespace

CudnnAttention cudnn_attention(Stream& stream, const AttentionBackward& call) {
  const AttentionForward& forward = call.forward;
  if (std::string why = why_another_call(forward); !why.empty()) return {{}, {}, why};
  if (!why_not_loaded().empty()) return {{}, {}, why_not_loaded()};
  try {
    const auto passes = std::make_shared<const Passes>(stream, call);
    return {[passes, forward] {
              passes->forward.run({{of_q, forward.q.data},
                                   {of_k, forward.k.data},
                                   {of_v, forward.v.data},
                                   {of_out, forward.out.data},
                                   {of_sums, forward.log_sum_exp.data()}});
            },
            [passes, call] {
              passes->backward.run({{of_q, call.forward.q.data},
                                    {of_k, call.forward.k.data},
                                    {of_v, call.forward.v.data},
                                    {of_out, call.forward.out.data},
                                    {of_sums, call.forward.log_sum_exp.data()},
                                    {of_d_out, call.d_out.data},
                                    {of_d_q, call.d_q.data},
                                    {of_d_k, call.d_k.data},
                                    {of_d_v, call.d_v.data}});
            },
            {}};
  } catch (const std::exception& error) {  // also cudnn_frontend's, for functions that it lacks
    return {{}, {}, fmt::format("cuDNN's attention is not timed: {}", first_line(error.what()))};
  }
}

std::string why_not_cudnn_attention(const AttentionBackward& call, int compute_capability,
                                    const std::string& properties) {
  if (std::string why = why_another_call(call.forward); !why.empty()) return why;
  if (!why_not_loaded().empty()) return why_not_loaded();
  try {
    const auto device = std::make_shared<fe::DeviceProperties>();
    check(device->deserialize({properties.begin(), properties.end()}));
    const Target target{device, compute_capability};
    for (const bool back : {false, true}) {
      const auto graph = back ? backward_graph(call, target) : forward_graph(call.forward, target);
      check(graph->validate());
      check(graph->build_operation_graph());
      find_kernels(*graph);
    }
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
  return {};
}

}  // namespace machine
