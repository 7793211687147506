#include "layers/context_parallel/splits/head_split.h"

#include <algorithm>
#include <cstddef>

namespace layers {

using collectives::ChunkRange;

ChunkRange HeadSplit::queries(int rank) const { return collectives::part_of(heads, ranks, rank); }

ChunkRange HeadSplit::keys(int rank) const {
  const std::int64_t group = heads / kv_heads;
  const ChunkRange own = queries(rank);
  return {own.begin / group, (own.end + group - 1) / group};
}

std::vector<HeadSplit::Call> HeadSplit::calls(int rank) const {
  const std::int64_t group = heads / kv_heads;
  const ChunkRange own = queries(rank), used = keys(rank);
  if (own.begin % group == 0 && own.end % group == 0) return {{0, own.size(), 0, used.size()}};
  std::vector<Call> all;
  for (std::int64_t key = used.begin; key < used.end; ++key) {
    const std::int64_t begin = std::max(own.begin, key * group),
                       end = std::min(own.end, (key + 1) * group);
    all.push_back({begin - own.begin, end - begin, key - used.begin, 1});
  }
  return all;
}

std::vector<int> HeadSplit::layers() const {
  std::vector<int> layer_of;
  std::vector<std::int64_t> ends;  // of the heads of each layer's last rank
  for (int rank = 0; rank < ranks; ++rank) {
    const ChunkRange used = keys(rank);
    const auto free =
        std::find_if(ends.begin(), ends.end(), [&](std::int64_t end) { return end <= used.begin; });
    layer_of.push_back(static_cast<int>(free - ends.begin()));
    if (free == ends.end())
      ends.push_back(used.end);
    else
      *free = used.end;
  }
  return layer_of;
}

}  // namespace layers
