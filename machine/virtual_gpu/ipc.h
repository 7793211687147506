#pragma once
// Events that other processes see. The events of a process have slots in one segment, which peers
// map. A process whose stream waits for a slot requests it; a thread of the other process then runs
// its queue up to the record.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "machine/virtual_gpu/streams.h"

namespace machine::virtual_gpu {

class SharedSlot {
 public:
  struct Words {
    std::atomic<std::uint32_t> recorded, reached, requested;  // numbers of records
    std::uint32_t unused;
  };
  SharedSlot(std::shared_ptr<std::byte> segment, std::uint32_t index);

  void record(std::uint32_t number) { words_->recorded = number; }
  void reach(std::uint32_t number);
  std::uint32_t recorded() const { return words_->recorded; }
  std::uint32_t reached() const { return words_->reached; }
  void start();  // for a new event; an earlier event may have used the slot
  std::uint32_t requested() const { return words_->requested; }
  void request(std::uint32_t number);
  void wait(std::uint32_t number);
  std::uint32_t index() const { return index_; }

 private:
  std::shared_ptr<std::byte> segment_;
  std::uint32_t index_;
  Words* words_;
  std::atomic<std::uint32_t>* bell_;
};

// Returns the point of the event's last record, or null if it was never recorded.
std::shared_ptr<RemotePoint> last_record(const std::shared_ptr<SharedSlot>& slot);

}  // namespace machine::virtual_gpu
