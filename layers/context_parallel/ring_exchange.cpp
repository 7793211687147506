#include "layers/context_parallel/ring_exchange.h"

#include "machine/world/step_clock.h"

namespace layers {

using machine::Category;
using machine::Tensor;

RingExchange::RingExchange(collectives::Communicator& cp, machine::Device& device)
    : cp_(cp),
      device_(device),
      next_((cp.rank() + 1) % cp.size()),
      previous_((cp.rank() + cp.size() - 1) % cp.size()) {}

// Other messages of the group may have changed the label since the last call.
void RingExchange::count_as(machine::Dtype dtype) {
  cp_.link().count_as({machine::Operation::send_receive, dtype});
}

void RingExchange::start(const Tensor& out, const Tensor& in) {
  const machine::During during(machine::Part::communication, cp_.group().name);
  machine::Link& link = cp_.link();
  count_as(out.dtype());
  in_ = in;
  if (link.is_rendezvous()) {
    const machine::Transfer transfers[] = {{true, next_, out.data(), out.bytes()},
                                           {false, previous_, in.data(), in.bytes()}};
    return link.exchange(transfers);
  }
  const Tensor* sent = &out;
  if (link.stages(device_)) {
    host_out_ = Tensor(cp_.device(), out.dtype(), out.shape(), Category::buffers);
    host_in_ = Tensor(cp_.device(), in.dtype(), in.shape(), Category::buffers);
    device_.stream().copy(host_out_.data(), out.data(), out.bytes());
    device_.stream().synchronize();
    sent = &host_out_;
  }
  number_ = link.send(next_, sent->data(), sent->bytes());
}

void RingExchange::finish() {
  machine::Link& link = cp_.link();
  if (link.is_rendezvous()) return;
  const machine::During during(machine::Part::communication, cp_.group().name);
  count_as(in_.dtype());
  const bool staged = link.stages(device_);
  const Tensor& into = staged ? host_in_ : in_;
  link.receive(previous_, into.data(), into.bytes());
  if (staged) {
    device_.stream().copy(in_.data(), host_in_.data(), in_.bytes());
    device_.stream().synchronize();
  }
  link.wait_sent(next_, number_);
}

}  // namespace layers
