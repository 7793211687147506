#pragma once
// Where the values that a rank owns are while nobody uses them: DeepSpeed's `offload_param`, with
// its `device` none, cpu or nvme; nvme_path, buffer_count, buffer_size and max_in_cpu have its
// names, too. ZeRO-Infinity's parameter offload (Rajbhandari et al. 2021, arXiv:2104.07857): of
// stage 3 alone, and there of the buckets that are gathered for their use.
//
// A rank's shard of a bucket is copied up to its place in the gathered bucket, whose others gather
// it from there; the device holds no other copy. With cpu the shards lie in host memory. With nvme
// so do the first ones, in the layout's order, up to max_in_cpu elements; the others lie in a file,
// in slots of at most buffer_size elements (a longer shard is cut), and come and go through
// buffer_count buffers: what is expected next is read while the caller goes on. An update finds the
// values in host memory, whichever optimizer makes it, slot after slot; they stay there or are
// written while the next are updated.
//
// What a file changes or loses is an error (swap_file.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zero/offload/offload.h"
#include "zero/offload/owned_optimizer.h"
#include "zero/offload/swap_file.h"
#include "zero/states/layout.h"

namespace zero {

// Names and defaults are DeepSpeed's. Sizes are elements.
struct ValueOptions {
  OffloadDevice device = OffloadDevice::none;
  SwapOptions swap = {};
  int buffer_count = 5;
  std::int64_t buffer_size = 100'000'000;
  std::int64_t max_in_cpu = 1'000'000'000;

  bool offloads() const { return device != OffloadDevice::none; }
};
// Throws std::invalid_argument naming the option that is out of range, or does not go with the
// stage or with where the states are.
void check(const ValueOptions& options, int stage, const StateOptions& states);

// What comes and goes at once: a shard, or a part of one.
struct ValueSlot {
  int bucket = 0;
  Range in_shard;
  std::optional<std::int64_t> in_host;  // its first element in host memory; none: in the file
  bool trained = true;
};
// None where nothing is offloaded.
std::vector<ValueSlot> value_slots(const Layout& layout, const ValueOptions& options);

// What a rank of dp updates where values are offloaded: its shard of each trained bucket, cut where
// slots are.
struct OwnedPart {
  Range range;  // of the flat buffers
  std::size_t bucket = 0;
  std::optional<std::size_t> slot;  // of value_slots; none: the values are on the device
};
std::vector<OwnedPart> owned_parts(const Layout& layout, int dp_rank,
                                   const std::vector<ValueSlot>& slots);

// Bytes: of the values in host memory; of a slot in the file, and of all buffers for them.
struct ValueBytes {
  std::size_t host = 0, slot = 0, buffers = 0;
};
ValueBytes value_bytes(const std::vector<ValueSlot>& slots, Dtype value,
                       const ValueOptions& options);
std::size_t file_bytes(const ValueSlot& slot, Dtype value);  // that a read or write moves

class OffloadedValues final : public ValueHome {
 public:
  // device: where values are used. host: whose memory is taken. Throws what SwapFile says.
  OffloadedValues(const Layout& layout, const ValueOptions& options, Dtype dtype,
                  machine::Device& device, machine::Device& host);

  Dtype dtype() const override { return dtype_; }
  machine::Device& device() const override { return device_; }
  Tensor open(std::size_t slot, bool loaded) override;
  void close(std::size_t slot, bool changed) override;

  const std::vector<ValueSlot>& slots() const { return slots_; }
  // Shard: [the rank's shard of the bucket], on the device.
  void put(int bucket, const Tensor& shard);
  // The shard's values are in `to` when what is returned has run. It may run on another thread,
  // before the next update.
  std::function<void()> bring(int bucket, const Tensor& to);
  // In this order buckets will be brought next; what was expected before is not any more.
  void expect(const std::vector<int>& buckets);

  OffloadTraffic moved() const { return moved_; }  // so far, but for what puts wrote
  std::string note() const { return swap_ ? swap_->note() : ""; }
  SwapFile* swap_file() { return swap_.get(); }  // for tests; null: there is none

 private:
  std::vector<std::size_t> slots_of(int bucket) const;
  Tensor on_host(std::size_t slot) const;
  Tensor buffered(std::size_t slot, std::size_t buffer) const;
  Tensor transferred(std::size_t slot, std::size_t buffer) const;
  void clear(std::size_t buffer);
  void expect_slots(std::vector<std::size_t> order, std::size_t ahead);
  void read_ahead();
  std::size_t arrive(std::size_t slot);
  void leave();

  machine::Device& device_;
  Dtype dtype_;
  std::vector<ValueSlot> slots_;
  std::vector<std::int64_t> in_file_;  // of a slot: which of the file
  Tensor host_;
  std::vector<Tensor> buffers_;
  std::unique_ptr<SwapFile> swap_;
  std::vector<std::optional<std::size_t>> in_buffer_;  // the slot that is under way there
  // What is expected: read k goes to buffer k modulo their number.
  std::vector<std::size_t> order_;
  std::size_t begun_ = 0, taken_ = 0, ahead_ = 1;
  std::size_t next_write_ = 0, open_buffer_ = 0;
  bool open_read_ = false;
  OffloadTraffic moved_;
};

}  // namespace zero
