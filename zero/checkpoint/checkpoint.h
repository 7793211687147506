#pragma once
// The sharded state of a training in a folder: one file for each rank, and an index of the elements
// of every tensor. It can be read at any other degrees (checkpoint_piece.h), with the same bits.
//
//   index.json                  last line: "crc32c " and the checksum of all before it
//   SAVE-rank-3-of-8.part       64 bytes that name it, then the pieces, each from a multiple of 64
//
// Every save is a set of new files. Renaming the new index makes it the checkpoint. So if a save is
// killed, the folder holds the previous or the new checkpoint, complete. Files and folder are
// synced first. Files of older and unfinished saves are removed afterwards.
//
// All errors are CheckpointError, one line that names the file: a file that is missing, of another
// save, or of another length; a wrong checksum of a piece or an index; an index with impossible
// numbers; a tensor that is missing or has another dtype or shape, or elements that no file has.
// An index is checked before it is used.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/tensor.h"
#include "machine/world/world.h"
#include "zero/checkpoint/checkpoint_piece.h"
#include "zero/optimizers/optimizer.h"

namespace zero {

class CheckpointError : public machine::MachineError {
 public:
  using machine::MachineError::MachineError;
};

// Numbers that are the same on all ranks: steps, the state of a loss scale. Doubles as their bits
// (std::bit_cast).
using Numbers = std::map<std::string, std::uint64_t>;

// For tests: called at the points where a save could be killed, with the name of the point.
using Reached = std::function<void(std::string_view)>;

struct StoredPiece {
  Piece piece;
  Dtype dtype{};
  std::uint64_t offset = 0;
  std::uint32_t checksum = 0;  // wide_checksum
};

// One rank's file of a save, which has a name of 16 hexadecimal digits.
class PartWriter {
 public:
  PartWriter(const std::string& folder, const std::string& save, int rank, int ranks,
             const Reached& reached = {});
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;
  ~PartWriter();  // without finish: removes the file

  // The tensor's elements, in order; as many as the piece has, on any device.
  void add(const Piece& piece, const Tensor& elements);
  // Adds the states that exist of a range of the flat buffers.
  void add(const std::vector<FlatPiece>& pieces, const RangeStates& states) {
    for_each_state(pieces, states, [this](const auto&... of_piece) { add(of_piece...); });
  }
  std::string finish();  // synced; the text that commit takes

 private:
  void write(const void* data, std::size_t bytes);
  std::string path_;
  Reached reached_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
  std::vector<StoredPiece> stored_;
};

// Called by one rank when all have finished; parts in the order of the ranks.
void commit(const std::string& folder, const std::string& save,
            const std::vector<std::string>& parts, const Numbers& numbers,
            const Reached& given = {});

// Collective over the group; fill adds the pieces of this rank. If any rank fails, every rank
// throws and the previous checkpoint stays. Makes the folder if it is missing.
void save(machine::World& world, const machine::Group& group, const std::string& folder,
          const Numbers& numbers, const std::function<void(PartWriter&)>& fill);

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  std::uint64_t number(const std::string& name) const;
  // The elements of the wanted piece, in order, of its dtype.
  void read(const Piece& wanted, const Tensor& into) const;
  // The counterpart of PartWriter::add.
  void read(const std::vector<FlatPiece>& pieces, const RangeStates& states) const {
    for_each_state(pieces, states, [this](const auto&... of_piece) { read(of_piece...); });
  }

 private:
  struct Stored {
    StoredPiece stored;
    std::size_t part = 0;
  };
  std::vector<std::byte> bytes_of(const Stored& stored) const;
  std::string folder_, index_;
  std::vector<std::string> paths_;
  Numbers numbers_;
  std::map<std::string, std::vector<Stored>, std::less<>> tensors_;
};

}  // namespace zero
