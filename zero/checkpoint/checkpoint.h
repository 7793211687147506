#pragma once
// A checkpoint of the sharded training state in a folder: one file per rank, and an index of the
// elements of every tensor. It can be read at other parallel degrees (checkpoint_piece.h), with the
// same bits.
//
//   index.json                  last line: "crc32c " and the checksum of all text before it
//   SAVE-rank-3-of-8.part       a header of 64 bytes, then the pieces, each at a multiple of 64
//
// Every save is a set of new files. Renaming the new index makes it the checkpoint. So if a save is
// killed, the folder holds the previous or the new checkpoint, complete. Files and folder are
// synced first. Files of older and unfinished saves are removed afterwards.
//
// All errors are CheckpointError with one line that names the file. The causes are: a missing file,
// or one of another save or length; a wrong checksum of a piece or an index; an index with
// impossible numbers; a tensor that is missing or has another dtype or shape; elements that no file
// stores. An index is checked before it is used.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/tensor.h"
#include "zero/checkpoint/checkpoint_piece.h"
#include "zero/checkpoint/direct_reader.h"
#include "zero/checkpoint/direct_writer.h"
#include "zero/optimizers/optimizer.h"

namespace zero {

class CheckpointError : public machine::MachineError {
 public:
  using machine::MachineError::MachineError;
};

// Facts that are equal on all ranks: numbers, such as steps and the state of a loss scale (doubles
// are stored as their bits, std::bit_cast), and texts, such as the keys of the configuration.
using Numbers = std::map<std::string, std::uint64_t>;
using Texts = std::map<std::string, std::string>;
struct Facts {
  Numbers numbers = {};
  Texts texts = {};
};

// For tests: called with the name of each point at which a save could be killed.
using Reached = std::function<void(std::string_view)>;

struct StoredPiece {
  Piece piece;
  Dtype dtype{};
  std::uint64_t offset = 0;
  std::uint32_t checksum = 0;  // wide_checksum
};

// Takes the pieces of one rank's part of a save.
class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // Adds the elements of the piece, in order: piece.size() elements on any device.
  virtual void add(const Piece& piece, const Tensor& elements) = 0;
  // Adds all existing states of a range of the flat buffers.
  void add(const std::vector<FlatPiece>& pieces, const RangeStates& states) {
    for_each_state(pieces, states, [this](const auto&... of_piece) { add(of_piece...); });
  }
};

// A writer of one rank's file of a save. The name of a save is 16 hexadecimal digits.
class PartWriter final : public PieceSink {
 public:
  using PieceSink::add;
  PartWriter(const std::string& folder, const std::string& save, int rank, int ranks,
             const Reached& reached = {});
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;
  ~PartWriter() override = default;  // removes the file unless finish was called

  void add(const Piece& piece, const Tensor& elements) override;
  std::string finish();  // syncs the file; returns the text for commit

 private:
  // Calls use(data, bytes) for parts of the elements in order, while the next part is copied.
  void each_part(const Tensor& elements,
                 const std::function<void(const void* data, std::size_t bytes)>& use);
  Reached reached_;
  DirectWriter file_;
  std::vector<StoredPiece> stored_;
  machine::Device* staged_ = nullptr;      // the device whose elements pass through the parts
  std::unique_ptr<machine::Device> host_;  // its pinned memory
  std::array<machine::Memory, 2> parts_;
};

// Writes the index. One rank calls it after all ranks have finished. parts: the texts of finish, in
// rank order.
void commit(const std::string& folder, const std::string& save,
            const std::vector<std::string>& parts, const Facts& facts, const Reached& given = {});

// For one thread.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);
  Checkpoint(Checkpoint&&) = default;

  std::uint64_t number(const std::string& name) const;
  const Facts& facts() const { return facts_; }
  const std::string& index_path() const { return index_; }
  // Rows of the outermost dimension of a parameter's tensors beyond the first `rows` are padding.
  // The checkpoint may have another number of them. Padding that it lacks stays as it is.
  void set_rows(const std::string& parameter, std::int64_t rows) { rows_[parameter] = rows; }
  // Reads the elements of the wanted piece, in order. `into` must have the stored dtype. If this
  // throws, `into` may hold some of them.
  void read(const Piece& wanted, const Tensor& into) const;
  // The counterpart of PartWriter::add.
  void read(const std::vector<FlatPiece>& pieces, const RangeStates& states) const {
    for_each_state(pieces, states, [this](const auto&... of_piece) { read(of_piece...); });
  }
  // Reads every piece and compares its checksum.
  void verify() const;

  struct Stored {
    StoredPiece stored;
    std::size_t part = 0;  // rank of the save
  };
  // The pieces of each tensor, by its name.
  using Tensors = std::map<std::string, std::vector<Stored>, std::less<>>;
  const Tensors& tensors() const { return tensors_; }
  std::size_t parts() const { return paths_.size(); }  // ranks of the save
  std::uint64_t bytes() const { return bytes_; }       // of all parts
  const std::string& save_name() const { return save_; }

 private:
  const std::byte* bytes_of(const Stored& stored) const;
  const std::vector<Stored>& stored(const Piece& wanted) const;
  // Returns the rows of a tensor without padding, or -1 if it has no padding.
  std::int64_t rows_of(const std::string& tensor) const;

  std::string index_, save_;
  std::vector<std::string> paths_;
  Facts facts_;
  std::uint64_t bytes_ = 0;
  std::map<std::string, std::int64_t> rows_;
  Tensors tensors_;
  // The last piece that was read. Optimizers read one piece in several parts.
  mutable const Stored* last_ = nullptr;
  mutable const std::byte* last_bytes_ = nullptr;  // the reader's
  mutable DirectReader reader_;
};

}  // namespace zero
