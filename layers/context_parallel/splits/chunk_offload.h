#pragma once
// Tensors of the chunks of a sequence, which are in host memory while no chunk uses them, and are
// read through two sets of buffers on the device: while a chunk is used, the next one is copied.
// Copies have a stream of their own.
//
//   ChunkOffload offload(device, &host);
//   Tensor kept = offload.make(k.dtype(), k.shape(), Category::activations);
//   offload.store(k, kept);                                 // then k may be freed
//   ChunkReader reader(offload, chunks, {largest});
//   reader.start({{kept}});
//   const std::vector<Tensor> chunk = reader.finish();      // valid until the second next start()
//
// Without a host, kept tensors are on the device: the caller writes them in place, and nothing is
// copied.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/tensor.h"

namespace layers {

// Bytes that are copied between a device and the host.
struct HostCopies {
  std::size_t to_host = 0, to_device = 0;
  HostCopies operator-(const HostCopies& before) const {
    return {to_host - before.to_host, to_device - before.to_device};
  }
};

class ChunkOffload {
 public:
  // host: memory that the device copies (machine::make_host_device_beside), or null. Outlives the
  // object and all kept tensors.
  ChunkOffload(machine::Device& device, machine::Device* host);

  bool on() const { return host_ != nullptr; }
  machine::Device& device() const { return device_; }

  // Returns memory for a tensor that is kept.
  machine::Tensor make(machine::Dtype dtype, machine::Shape shape,
                       machine::Category category) const {
    return {host_ ? *host_ : device_, dtype, shape, category};
  }
  // Copy behind the work that the device's stream has queued.
  void store(const machine::Tensor& tensor, const machine::Tensor& kept);
  void fetch(const machine::Tensor& kept, const machine::Tensor& tensor);
  // Returns an event behind all copies that were queued.
  std::unique_ptr<machine::Event> record() { return copies_->record(); }
  // The device's stream waits for all copies that were queued.
  void join();

  const HostCopies& copied() const { return copied_; }  // so far

 private:
  machine::Device& device_;
  machine::Device* const host_;
  std::unique_ptr<machine::Stream> copies_;  // null without a host
  HostCopies copied_;
};

class ChunkReader {
 public:
  // chunks: that are read; one needs one set of buffers. largest: one for each tensor of a chunk.
  struct Buffer {
    machine::Dtype dtype;
    std::int64_t elements;
  };
  ChunkReader(ChunkOffload& offload, int chunks, const std::vector<Buffer>& largest);

  struct Piece {
    machine::Tensor kept;
    bool has_values = true;  // false: its buffer is not filled
  };
  // Begins to read the tensors of the next chunk, in the order of `largest`. At most two chunks may
  // be started before finish().
  void start(const std::vector<Piece>& pieces);
  // Returns the tensors of the chunk that was started first. Later work of the device's stream
  // waits until they are there.
  std::vector<machine::Tensor> finish();

 private:
  struct Started {
    std::vector<machine::Tensor> tensors;
    std::unique_ptr<machine::Event> copied;
  };
  ChunkOffload& offload_;
  std::vector<std::vector<machine::Tensor>> sets_;
  std::size_t next_set_ = 0;
  std::deque<Started> started_;
};

}  // namespace layers
