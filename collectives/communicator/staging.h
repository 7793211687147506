#pragma once
// Host memory through which tensors pass whose device the host cannot read. It is memory of a host
// device, so peers can map it, and is pinned for the tensors' device. Pinning takes longer than a
// copy, so the memory is kept until a larger tensor or another device needs it.
//
//   const Tensor on_host = staging.down(0, in);     // the host can read it now
//   staging.up(1, on_host, out);                    // queued on the stream of out's device

#include <map>
#include <memory>
#include <utility>

#include "machine/device/tensor.h"

namespace collectives {

class Staging {
 public:
  explicit Staging(machine::Device& host) : host_(host) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Returns memory for the elements of `tensor`, valid until the next call with this slot. Waits
  // for copies that still use the memory.
  machine::Tensor memory(int slot, const machine::Tensor& tensor);
  // Returns this memory with a copy of the elements of `tensor`. Waits for the work of its device's
  // stream.
  machine::Tensor down(int slot, const machine::Tensor& tensor);
  // Copies memory of this slot to `tensor` in the order of its device's stream. Does not wait.
  void up(int slot, const machine::Tensor& from, const machine::Tensor& tensor);

 private:
  struct Held {
    machine::Device* device = nullptr;
    machine::Tensor pages;
    std::shared_ptr<void> pinned;          // for the device; ends before the memory is freed
    std::unique_ptr<machine::Event> used;  // the last copy
    void wait();
  };
  machine::Device& host_;
  std::map<std::pair<int, machine::Dtype>, Held> held_;
};

}  // namespace collectives
