#pragma once
// The sharded state of a training in a folder: a file a rank, and an index that says which elements
// of which tensor lie where. It can be read at any other degrees (checkpoint_piece.h), to the same
// bits.
//
//   index.json                  last line: "crc32c " and the checksum of all before it
//   SAVE-rank-3-of-8.part       64 bytes that name it, then the pieces, each from a multiple of 64
//
// Every save is a set of new files; the index, written beside and renamed, is what makes it the
// checkpoint. So whenever a save is killed, the folder holds the one before it or the new one,
// whole. Files and folder are synced first. What older and unfinished saves left is removed after.
//
// All errors are CheckpointError, one line that names the file: one that is missing, of another
// save, shorter or longer than it was; a piece or an index whose checksum is wrong; an index with
// numbers that cannot be; a tensor that is not there or has another dtype or shape, or elements
// that no file has. Nothing of an index is believed before it was checked.

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

// What is the same on all ranks: steps, the state of a loss scale. Of doubles, the bits
// (std::bit_cast).
using Numbers = std::map<std::string, std::uint64_t>;

// For tests: called where a save could be killed, with a name of the point.
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
             Reached reached = {});
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;
  ~PartWriter();  // without finish: removes the file

  // The tensor's elements, in order; as many as the piece has, on any device.
  void add(const Piece& piece, const Tensor& elements);
  // Adds the states that there are of a range of the flat buffers.
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

// By one rank, when all have finished: parts in the order of the ranks.
void commit(const std::string& folder, const std::string& save,
            const std::vector<std::string>& parts, const Numbers& numbers,
            const Reached& reached = {});

// All ranks of the group together; fill adds what this rank has. Every rank throws when any fails,
// and the checkpoint before stays. The folder is made where it is not there.
void save(machine::World& world, const machine::Group& group, const std::string& folder,
          const Numbers& numbers, const std::function<void(PartWriter&)>& fill);

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  std::uint64_t number(const std::string& name) const;
  // The elements of the piece, in order, of its dtype.
  void read(const Piece& piece, const Tensor& into) const;
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
