#pragma once
// The optimizer of the elements that a rank owns. Its states are on the values' device (here), in
// host memory or in a file (streamed_optimizer.h). All three give the values the same bits, also if
// the values are offloaded (offload_param.h). offload.h selects the storage.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "zero/optimizers/optimizer.h"
#include "zero/states/layout.h"

namespace zero {

// Storage of values outside the device that uses them.
class ValueHome {
 public:
  virtual ~ValueHome() = default;
  virtual Dtype dtype() const = 0;
  virtual machine::Device& device() const = 0;  // that uses the values
  // Returns a slot's values in host memory, valid until close. If not `loaded`, the content is
  // undefined. Only one slot may be open.
  virtual Tensor open(std::size_t slot, bool loaded) = 0;
  virtual void close(std::size_t slot, bool changed) = 0;
};

struct OwnedRange {
  Range range;                           // of the flat buffers
  Tensor values;                         // [range]; empty if they have a home
  std::vector<std::uint8_t> decay_mask;  // a byte for each element
  ValueHome* home = nullptr;
  std::size_t slot = 0;  // of the home

  std::int64_t size() const { return range.size(); }
  Dtype dtype() const { return home ? home->dtype() : values.dtype(); }
  machine::Device& device() const { return home ? home->device() : values.device(); }
  Tensor open(bool loaded) const { return home ? home->open(slot, loaded) : values; }
  void close(bool changed) const {
    if (home) home->close(slot, changed);
  }
};
// Returns one range of all elements of a tensor.
inline std::vector<OwnedRange> one_range(Tensor values,
                                         const std::vector<std::uint8_t>& decay_mask) {
  const std::int64_t size = values.size();
  std::vector<OwnedRange> all(1);
  all[0].range = {0, size};
  all[0].values = std::move(values);
  all[0].decay_mask = decay_mask;
  return all;
}

// Bytes moved: gradients and values to host memory (down), values from host memory (up), states and
// values from and to a file.
struct OffloadTraffic {
  std::size_t down = 0, up = 0, nvme_read = 0, nvme_written = 0;
  bool operator==(const OffloadTraffic&) const = default;
  friend OffloadTraffic operator+(const OffloadTraffic& a, const OffloadTraffic& b) {
    return {a.down + b.down, a.up + b.up, a.nvme_read + b.nvme_read,
            a.nvme_written + b.nvme_written};
  }
  friend OffloadTraffic operator-(const OffloadTraffic& a, const OffloadTraffic& b) {
    return {a.down - b.down, a.up - b.up, a.nvme_read - b.nvme_read,
            a.nvme_written - b.nvme_written};
  }
};

// The phases of a piece, in this order.
enum class OffloadPhase : unsigned char { down, update, up };

class OwnedOptimizer {
 public:
  virtual ~OwnedOptimizer() = default;

  // Updates like Optimizer::update. gradients: one tensor for each range, in order. Calls
  // updated(i) once for each range, the last first, when the range has its new values. If ranges
  // are updated one by one, the calls come between the updates.
  using Updated = std::function<void(std::size_t range)>;
  virtual void update(const std::vector<Tensor>& gradients, double gradient_scale,
                      const Updated& updated) = 0;
  void update(const std::vector<Tensor>& gradients, double gradient_scale) {
    update(gradients, gradient_scale, [](std::size_t) {});
  }
  // Applies a delayed update.
  virtual void drain() {}
  virtual void values_changed() = 0;

  Rule& rule() { return rule_; }
  std::int64_t steps() const { return steps_; }
  virtual void set_steps(std::int64_t steps) { steps_ = steps; }  // for loaded states

  // Calls `call` for runs of the flat buffers that cover all elements in order. The views of their
  // states are valid during the call. Changes are kept if `writes`. The views do not depend on the
  // storage of the states, so any optimizer can read the checkpoint of another. Values that are
  // their own master are also passed as master. Throws std::logic_error while an update is pending.
  using Visit = std::function<void(Range, const RangeStates&)>;
  virtual void visit(bool writes, const Visit& call) = 0;

  virtual OffloadTraffic moved() const { return {}; }  // so far
  virtual std::string note() const { return {}; }      // for the record

 protected:
  explicit OwnedOptimizer(const Rule& rule) : rule_(rule) {}
  Rule rule_;
  std::int64_t steps_ = 0;
};

// An optimizer with states on the values' device. Values that have a home are updated in a staging
// buffer and copied back. They are copied to the buffer first if they are their own master.
class InMemoryOptimizer final : public OwnedOptimizer {
 public:
  // Requires at least one range, and all ranges on one device.
  InMemoryOptimizer(const Rule& rule, std::vector<OwnedRange> owned);
  // After an error of a home the values are undefined: later calls throw std::logic_error.
  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  using OwnedOptimizer::update;
  void values_changed() override;
  void set_steps(std::int64_t steps) override;
  void visit(bool writes, const Visit& call) override;
  OffloadTraffic moved() const override { return moved_; }

 private:
  // Calls `work` while the values of the range are on the device.
  void with_values(std::size_t owned, bool load, bool store, const std::function<void()>& work);
  Tensor on_device(std::size_t owned) const;

  std::vector<OwnedRange> owned_;  // without their masks
  Tensor staging_;                 // [the longest range that has a home]
  std::vector<Optimizer> optimizers_;
  bool any_home_ = false, own_masters_ = false, broken_ = false;
  OffloadTraffic moved_;
};

}  // namespace zero
