#pragma once
// The storage of a rank's values between uses: DeepSpeed's `offload_param`, with its `device` none,
// cpu or nvme. nvme_path, buffer_count, buffer_size and max_in_cpu also have DeepSpeed's names. It
// is ZeRO-Infinity's parameter offload (Rajbhandari et al. 2021, arXiv:2104.07857), for stage 3
// only, and only for buckets that are gathered for their use.
//
// A rank's shard of a bucket is copied to its place in the gathered bucket, and the other ranks
// gather it from there. The device holds no other copy. With cpu the shards are in host memory.
// With nvme host memory holds the first shards in the layout's order, up to max_in_cpu elements.
// The other shards are in a file, in slots of at most buffer_size elements (a longer shard is
// split). They move through buffer_count buffers, and the next slots are read while the caller
// continues. Every optimizer updates the values in host memory, slot after slot. They stay there,
// or are written to the file while the next slots are updated.
//
// A file that changes or loses data is an error (swap_file.h).

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
  bool pin_memory = true;  // see StateOptions

  bool offloads() const { return device != OffloadDevice::none; }
};
// Throws std::invalid_argument that names the option that is out of range, or that does not support
// the stage or the storage of the states.
void check(const ValueOptions& options, int stage, const StateOptions& states);

// Elements that move together: a shard, or a part of a shard.
struct ValueSlot {
  int bucket = 0;
  Range in_shard;
  std::optional<std::int64_t> in_host;  // its first element in host memory; empty: in the file
  bool trained = true;
};
// Returns an empty list if nothing is offloaded.
std::vector<ValueSlot> value_slots(const Layout& layout, const ValueOptions& options);

// The parts that a rank of dp updates if values are offloaded: its shard of each trained bucket,
// split like the slots.
struct OwnedPart {
  Range range;  // of the flat buffers
  std::size_t bucket = 0;
  std::optional<std::size_t> slot;  // of value_slots; empty: the values are on the device
};
std::vector<OwnedPart> owned_parts(const Layout& layout, int dp_rank,
                                   const std::vector<ValueSlot>& slots);

// Bytes of the values in host memory, of a slot in the file, and of all buffers for slots.
struct ValueBytes {
  std::size_t host = 0, slot = 0, buffers = 0;
};
ValueBytes value_bytes(const std::vector<ValueSlot>& slots, Dtype value,
                       const ValueOptions& options);
std::size_t file_bytes(const ValueSlot& slot, Dtype value);  // per read or write

class OffloadedValues final : public ValueHome {
 public:
  // device: uses the values. host: stores them. Throws the exceptions of SwapFile.
  OffloadedValues(const Layout& layout, const ValueOptions& options, Dtype dtype,
                  machine::Device& device, machine::Device& host);

  Dtype dtype() const override { return dtype_; }
  machine::Device& device() const override { return device_; }
  Tensor open(std::size_t slot, bool loaded) override;
  void close(std::size_t slot, bool changed) override;

  const std::vector<ValueSlot>& slots() const { return slots_; }
  // Stores the rank's shard of a bucket. shard: [elements of the shard], on the device.
  void put(int bucket, const Tensor& shard);
  // Returns a function that completes the copy of the shard's values to `to`. It may run on another
  // thread, before the next update.
  std::function<void()> bring(int bucket, const Tensor& to);
  // Announces the order of the next calls of bring. Replaces the previous order.
  void expect(const std::vector<int>& buckets);

  OffloadTraffic moved() const { return moved_; }  // so far, without puts
  std::string note() const { return swap_ ? swap_->note() : ""; }
  SwapFile* swap_file() { return swap_.get(); }  // for tests; null without a file

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
  std::vector<std::int64_t> in_file_;  // by slot: its index in the file
  Tensor host_;
  std::vector<Tensor> buffers_;
  std::unique_ptr<SwapFile> swap_;
  std::vector<std::optional<std::size_t>> in_buffer_;  // by buffer: its pending slot
  // The expected slots. Read k uses buffer k modulo the number of buffers.
  std::vector<std::size_t> order_;
  std::size_t begun_ = 0, taken_ = 0, ahead_ = 1;
  std::size_t next_write_ = 0, open_buffer_ = 0;
  bool open_read_ = false;
  OffloadTraffic moved_;
};

}  // namespace zero
