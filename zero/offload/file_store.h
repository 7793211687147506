#pragma once
// States in a file (swap_file.h): ZeRO-Infinity's optimizer offload (Rajbhandari et al. 2021,
// arXiv:2104.07857). A piece is a sub-group of DeepSpeed's.
//
// The states of a piece are contiguous in the file, so a piece needs one read and one write. With
// buffer_count buffers, the next pieces are read and the previous ones written while one is used. A
// pass reads and writes every state once: 12 bytes an element each way for Adam over bfloat16, and
// the padding of a piece to io_alignment. Values that are their own master have no master here.
//
// The host holds the buffers, whose size does not depend on the ranges, and the decay mask as runs,
// expanded to bytes for one piece.

#include <memory>
#include <vector>

#include "zero/offload/state_store.h"
#include "zero/offload/swap_file.h"

namespace zero {

StoreCost file_store_cost(const Rule& rule, Dtype value, const StreamPieces& pieces,
                          const NvmeOptions& options);

class FileStore final : public StateStore {
 public:
  // `pieces` must outlive the store. decay_mask: a byte for each of their elements. Throws the
  // exceptions of SwapFile.
  FileStore(const Rule& rule, Dtype value, const StreamPieces& pieces,
            const std::vector<std::uint8_t>& decay_mask, machine::Device& host,
            const NvmeOptions& options);
  void pass(Access access, const Use& use) override;
  IoCounts counts() const override { return swap_ ? swap_->counts() : IoCounts{}; }
  std::string note() const override { return swap_ ? swap_->note() : ""; }
  SwapFile* swap_file() { return swap_.get(); }  // for tests; null without states

 private:
  Tensor transferred(std::int64_t index) const;
  PieceStates views(std::int64_t index);
  Decay set_mask(const StreamPiece& piece);

  const StreamPieces& pieces_;
  const KeptStates kept_;
  std::vector<Range> decayed_;  // the elements of all pieces with weight decay
  machine::Memory decay_mask_;  // of the current piece
  std::vector<Tensor> buffers_;
  std::unique_ptr<SwapFile> swap_;
};

}  // namespace zero
