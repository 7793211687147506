#pragma once
// Collective saves of a checkpoint (checkpoint.h), at once or while the training goes on.
//
//   save(world, group, folder, facts, fill);                // returns when the checkpoint is
//   usable
//
//   PendingSave pending(world, group, folder, facts, fill); // returns when fill's pieces are
//   copied trainer.step();                                         // may change the states if
//   (pending.try_finish()) …                             // all ranks have written: committed
//
// A pending save copies the pieces to host memory of their size. A thread writes the copies. So the
// checkpoint has the states of the moment of the save, whatever happens to them later.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "machine/world/world.h"
#include "zero/checkpoint/checkpoint.h"

namespace zero {

// Adds the pieces of this rank.
using Fill = std::function<void(PieceSink&)>;

// Collective over the group. If any rank fails, every rank throws and the previous checkpoint
// stays. Creates the folder if it is missing.
void save(machine::World& world, const machine::Group& group, const std::string& folder,
          const Facts& facts, const Fill& fill);

class PendingSave {
 public:
  // Collective over the group. An error of a rank is reported by try_finish and finish.
  // before_write: called by the thread, for tests.
  PendingSave(
      machine::World& world, const machine::Group& group, std::string folder, Facts facts,
      const Fill& fill, std::function<void()> before_write = [] {});
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;
  // Waits for the thread. Without finish the previous checkpoint stays.
  ~PendingSave();

  // Collective over the group; throw as save. Call neither after one has returned true or thrown.
  bool try_finish();  // finishes if all ranks have written
  void finish();

 private:
  struct Copy {
    Piece piece;
    Tensor elements;  // in host memory
  };
  class Copies;
  void write();

  machine::World& world_;
  const machine::Group group_;
  const std::string folder_;
  const Facts facts_;
  const std::function<void()> before_write_;
  std::string save_;
  std::vector<std::unique_ptr<machine::Device>> hosts_;  // outlive the copies
  std::vector<Copy> copies_;
  std::string written_;  // the text for commit, or the error
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace zero
