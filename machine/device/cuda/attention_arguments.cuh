#pragma once
// Arguments of the attention kernels, passed by value.

#include <cstdint>

#include "machine/device/cuda/runtime.h"
#include "machine/device/flash_attention.h"
#include "machine/device/kernels/attention_mask.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/functions.h"

namespace machine::cuda {

// The heads of a batch of matrices.
template <class T>
struct HeadView {
  T* data = nullptr;
  std::int64_t row = 0, outer = 0, inner = 0;  // strides

  HeadView() = default;
  explicit HeadView(const Matrix& matrix)
      : data(static_cast<T*>(matrix.data)),
        row(matrix.row_stride),
        outer(matrix.batch_stride[0]),
        inner(matrix.batch_stride[1]) {}
  __device__ T* at(std::int64_t sequence, std::int64_t head, std::int64_t index) const {
    return data + sequence * outer + head * inner + index * row;
  }
  // Returns whether every row can be read and written 16 bytes at a time.
  bool packed() const {
    const std::int64_t width = 16 / sizeof(T);
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row % width == 0 &&
           outer % width == 0 && inner % width == 0;
  }
};

template <class T>
struct AttentionArguments {
  using A = kernel::Value<T>;
  HeadView<const T> q, k, v, out_read, d_out;
  HeadView<T> out, d_q, d_k, d_v;
  A *log_sum_exp, *delta = nullptr;  // [sequences * heads, queries]
  std::int64_t sequences, heads, kv_heads, queries, keys;
  int head;  // columns per head
  A scale;
  bool causal;
  const std::int32_t* lengths;
  kernel::KeptProbabilities kept;
  bool packed = false;  // all inputs

  explicit AttentionArguments(const AttentionForward& call)
      : q(call.q),
        k(call.k),
        v(call.v),
        out_read(call.out),
        out(call.out),
        log_sum_exp(call.log_sum_exp.as<A>()),
        sequences(call.q.batch[0]),
        heads(call.q.batch[1]),
        kv_heads(call.k.batch[1]),
        queries(call.q.rows),
        keys(call.k.rows),
        head(static_cast<int>(call.q.cols)),
        scale(static_cast<A>(call.options.scale)),
        causal(call.options.causal),
        lengths(call.options.lengths),
        kept(call),
        packed(q.packed() && k.packed() && v.packed()) {}
  AttentionArguments(const AttentionBackward& call, void* delta_memory)
      : AttentionArguments(call.forward) {
    d_out = HeadView<const T>(call.d_out);
    d_q = HeadView<T>(call.d_q);
    d_k = HeadView<T>(call.d_k);
    d_v = HeadView<T>(call.d_v);
    delta = static_cast<A*>(delta_memory);
    packed = packed && d_out.packed();
  }
  // Return the number of keys of a sequence, and whether a query sees a key.
  __device__ std::int64_t keys_of(std::int64_t sequence) const {
    return kernel::keys_of(lengths, sequence, keys);
  }
  template <class Index>
  __device__ bool sees(Index query, Index key, Index its_keys) const {
    return key < its_keys && query < static_cast<Index>(queries) && (!causal || key <= query);
  }
};

// The tile, sequence and head of a block.
struct AttentionTile {
  std::int64_t begin, sequence, head;
  __device__ AttentionTile(std::int64_t block, std::int64_t rows, std::int64_t tile_rows,
                           std::int64_t heads) {
    const std::int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    begin = block % tiles * tile_rows;
    sequence = block / tiles / heads;
    head = block / tiles % heads;
  }
};

}  // namespace machine::cuda
