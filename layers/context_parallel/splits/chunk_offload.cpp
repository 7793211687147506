#include "layers/context_parallel/splits/chunk_offload.h"

#include <algorithm>

#include "machine/base/error.h"

namespace layers {

using machine::Category;
using machine::Tensor;

ChunkOffload::ChunkOffload(machine::Device& device, machine::Device* host)
    : device_(device), host_(host) {
  if (host_) copies_ = device_.make_stream();
}

void ChunkOffload::store(const Tensor& tensor, const Tensor& kept) {
  if (!host_) return;
  copies_->wait(*device_.stream().record());
  copies_->copy(kept.data(), tensor.data(), tensor.bytes());
  copied_.to_host += tensor.bytes();
}

void ChunkOffload::fetch(const Tensor& kept, const Tensor& tensor) {
  copies_->wait(*device_.stream().record());  // its earlier use ends first
  copies_->copy(tensor.data(), kept.data(), kept.bytes());
  copied_.to_device += kept.bytes();
}

void ChunkOffload::join() {
  if (host_) device_.stream().wait(*copies_->record());
}

ChunkReader::ChunkReader(ChunkOffload& offload, int chunks, const std::vector<Buffer>& largest)
    : offload_(offload) {
  if (!offload.on()) return;
  sets_.resize(static_cast<std::size_t>(std::min(chunks, 2)));
  for (std::vector<Tensor>& set : sets_)
    for (const Buffer& buffer : largest)
      set.emplace_back(offload.device(), buffer.dtype, machine::Shape{buffer.elements},
                       Category::buffers);
}

void ChunkReader::start(const std::vector<Piece>& pieces) {
  SHARDMARK_CHECK(started_.size(), <, 2U);
  Started& chunk = started_.emplace_back();
  if (!offload_.on()) {
    for (const Piece& piece : pieces) chunk.tensors.push_back(piece.kept);
    return;
  }
  const std::vector<Tensor>& set = sets_[next_set_++ % sets_.size()];
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    chunk.tensors.push_back(set[i].slice(0, pieces[i].kept.shape()));
    if (pieces[i].has_values) offload_.fetch(pieces[i].kept, chunk.tensors.back());
  }
  chunk.copied = offload_.record();
}

std::vector<Tensor> ChunkReader::finish() {
  Started chunk = std::move(started_.front());
  started_.pop_front();
  if (chunk.copied) offload_.device().stream().wait(*chunk.copied);
  return std::move(chunk.tensors);
}

}  // namespace layers
