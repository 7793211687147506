#pragma once
// The progress of one operation: the calls of a group on one communicator.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/nccl/communicator.h"

namespace machine::virtual_gpu::nccl {

// The end of a wait for peers, counted from now.
class Deadline {
 public:
  bool passed() const {
    return std::chrono::steady_clock::now() - start_ >
           std::chrono::duration<double>(configuration().nccl_wait_s);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Work final : public RemotePoint {
 public:
  Work(std::shared_ptr<Communicator> communicator, std::uint32_t number, std::vector<Task> tasks,
       std::vector<std::uint64_t> numbers)
      : on_(std::move(communicator)),
        number_(number),
        tasks_(std::move(tasks)),
        numbers_(std::move(numbers)) {}
  bool reached() override;
  void request() override;
  // Ends when the operation is complete, or when the communicator is aborted. If the peers do not
  // come in time or do another operation, the device breaks with a text that names them.
  void wait() override;

 private:
  void publish();
  void move(std::size_t index);
  void collect(std::size_t index);
  void receive(std::size_t index);
  std::vector<int> awaited(std::size_t index);
  // Returns why neither side can continue, or empty.
  std::string conflict(std::size_t index, int rank);
  bool meets(std::size_t index, int rank, const Part& other) const;
  bool is_awaited_by(int rank, const Part& part);
  Part* find(int rank, Kind kind, std::uint64_t number);
  Part& part(std::size_t index) { return on_->mine().parts[index]; }
  void end();
  void lost(int rank);
  // Returns whether the link to the rank is lost. If so, breaks the device.
  bool is_cut_off(int rank);
  void break_with(const std::string& text, cudaError_t status = cudaErrorLaunchFailure);

  std::shared_ptr<Communicator> on_;
  std::uint32_t number_;
  std::vector<Task> tasks_;
  std::vector<std::uint64_t> numbers_;
  bool published_ = false, complete_ = false;
};

}  // namespace machine::virtual_gpu::nccl
