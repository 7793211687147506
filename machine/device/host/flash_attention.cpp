// Blockwise attention on the host. A thread takes a head at a time: keys and values are packed
// once, in the accumulator's type, then a tile of queries meets one block of keys after another.
// Products skip what is masked, by panels of tile_rows queries and vectors of keys.

#include "machine/device/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>

#include "machine/device/host/kernels.h"
#include "machine/device/host/threads.h"
#include "machine/device/host/tile.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/functions.h"

namespace machine::host {
namespace {

using kernel::narrow;
using kernel::Value;
using kernel::widen;

constexpr std::int64_t block_keys = 48;               // of a block; a multiple of every lanes
constexpr std::int64_t tile_queries = 4 * tile_rows;  // with a block, within the first-level cache
static_assert(block_keys % tile_rows == 0);

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

template <class T>
T* head_of(const Matrix& matrix, std::int64_t sequence, std::int64_t head) {
  return static_cast<T*>(matrix.data) + sequence * matrix.batch_stride[0] +
         head * matrix.batch_stride[1];
}

// Rows [begin, begin + count) to [count, to_stride], columns and rows beyond the matrix zero.
template <class T>
void pack(const T* from, const Matrix& shape, std::int64_t begin, std::int64_t count,
          Value<T> factor, Value<T>* to, std::int64_t to_stride) {
  using A = Value<T>;
  for (std::int64_t row = 0; row < count; ++row) {
    A* out = to + row * to_stride;
    const bool inside = begin + row < shape.rows;
    const T* in = from + (begin + row) * shape.row_stride;
    const std::int64_t cols = inside ? shape.cols : 0;
    for (std::int64_t c = 0; c < cols; ++c) out[c] = factor * widen(in[c]);
    for (std::int64_t c = cols; c < to_stride; ++c) out[c] = 0;
  }
}

// Blocks of block_keys rows, each transposed: [blocks][cols][block_keys]; rows beyond are zero.
template <class T>
void pack_transposed(const T* from, const Matrix& shape, Value<T>* to) {
  using A = Value<T>;
  for (std::int64_t begin = 0; begin < shape.rows; begin += block_keys) {
    for (std::int64_t row = 0; row < block_keys; ++row) {
      const bool inside = begin + row < shape.rows;
      const T* in = from + (begin + row) * shape.row_stride;
      for (std::int64_t c = 0; c < shape.cols; ++c)
        to[c * block_keys + row] = inside ? widen(in[c]) : A(0);
    }
    to += shape.cols * block_keys;
  }
}

template <class T>
void unpack(const Value<T>* from, std::int64_t from_stride, Value<T> factor, const Matrix& shape,
            std::int64_t begin, std::int64_t count, T* to) {
  for (std::int64_t row = 0; row < count; ++row) {
    T* out = to + (begin + row) * shape.row_stride;
    for (std::int64_t c = 0; c < shape.cols; ++c)
      out[c] = narrow<T>(from[row * from_stride + c] * factor);
  }
}

// What a thread owns: pieces of one allocation, each aligned to a cache line.
template <class A>
class Workspace {
 public:
  explicit Workspace(A* data) : data_(data) {}
  A* take(std::int64_t count) {
    A* piece = data_;
    data_ += round_up(count, vector_bytes);
    return piece;
  }
  std::int64_t taken_since(const A* begin) const { return data_ - begin; }

 private:
  A* data_;
};

struct Mask {
  bool causal;
  // Of keys [begin, begin + count).
  std::int64_t seen_by(std::int64_t query, std::int64_t begin, std::int64_t count) const {
    return causal ? std::clamp<std::int64_t>(query + 1 - begin, 0, count) : count;
  }
};

template <class A>
A largest(const A* values, std::int64_t count) {
  Vector<A> top;
  __builtin_memcpy(&top, values, sizeof top);
  for (std::int64_t i = lanes<A>; i < count; i += lanes<A>) {
    Vector<A> next;
    __builtin_memcpy(&next, values + i, sizeof next);
    top = next > top ? next : top;
  }
  A result = top[0];
  for (int i = 1; i < lanes<A>; ++i) result = std::max(result, top[i]);
  return result;
}

template <class A>
A total(const A* values, std::int64_t count) {
  Vector<A> sum{};
  for (std::int64_t i = 0; i < count; i += lanes<A>) {
    Vector<A> next;
    __builtin_memcpy(&next, values + i, sizeof next);
    sum += next;
  }
  A result = 0;
  for (int i = 0; i < lanes<A>; ++i) result += sum[i];
  return result;
}

template <class T>
class Forward {
  using A = Value<T>;

 public:
  Forward(const AttentionForward& call, A* memory) : call_(call) {
    Workspace<A> space(memory);
    width_ = round_up(call.q.cols, lanes<A>);
    keys_ = space.take(round_up(call.k.rows, block_keys) * call.k.cols);
    values_ = space.take(call.k.rows * width_);
    q_ = space.take(tile_queries * width_);
    sums_ = space.take(tile_queries * width_);
    p_ = space.take(tile_rows * block_keys);
    top_ = space.take(tile_queries);
    weight_ = space.take(tile_queries);
    size_ = space.taken_since(memory);
  }
  std::int64_t size() const { return size_; }

  void head(std::int64_t sequence, std::int64_t head) {
    const Matrix& q = call_.q;
    const std::int64_t kv_head = head / (q.batch[1] / call_.k.batch[1]);
    pack_transposed(head_of<const T>(call_.k, sequence, kv_head), call_.k, keys_);
    pack(head_of<const T>(call_.v, sequence, kv_head), call_.v, 0, call_.v.rows, A(1), values_,
         width_);
    const T* queries = head_of<const T>(q, sequence, head);
    T* out = head_of<T>(call_.out, sequence, head);
    A* log_sum_exp = call_.log_sum_exp.as<A>() + (sequence * q.batch[1] + head) * q.rows;
    for (std::int64_t begin = 0; begin < q.rows; begin += tile_queries) {
      const std::int64_t count = std::min(tile_queries, q.rows - begin);
      pack(queries, q, begin, round_up(count, tile_rows), static_cast<A>(call_.options.scale), q_,
           width_);
      attend(begin, count);
      for (std::int64_t row = 0; row < count; ++row) {
        unpack(sums_ + row * width_, width_, 1 / weight_[row], call_.out, begin + row, 1, out);
        log_sum_exp[begin + row] = top_[row] + std::log(weight_[row]);
      }
    }
  }

 private:
  void attend(std::int64_t begin, std::int64_t count) {
    std::fill_n(top_, tile_queries, -std::numeric_limits<A>::infinity());
    std::fill_n(weight_, tile_queries, A(0));
    std::fill_n(sums_, tile_queries * width_, A(0));
    for (std::int64_t key = 0; key < call_.k.rows; key += block_keys) {
      const std::int64_t keys = std::min(block_keys, call_.k.rows - key);
      for (std::int64_t row = 0; row < count; row += tile_rows) {
        const std::int64_t seen = mask_.seen_by(begin + row + tile_rows - 1, key, keys);
        if (seen > 0) meet(begin, row, key, keys, seen);
      }
    }
  }

  // A panel of queries and a block of keys.
  void meet(std::int64_t begin, std::int64_t row, std::int64_t key, std::int64_t keys,
            std::int64_t seen) {
    const std::int64_t computed = round_up(seen, lanes<A>);
    multiply_rows<false>(Left<A>{q_ + row * width_, width_, 1}, keys_ + key * call_.k.cols,
                         block_keys, call_.k.cols, p_, block_keys, computed);
    for (std::int64_t i = 0; i < tile_rows; ++i) {
      A* p = p_ + i * block_keys;
      std::fill(p + mask_.seen_by(begin + row + i, key, keys), p + computed,
                -std::numeric_limits<A>::infinity());
      A& top = top_[row + i];
      const A new_top = std::max(top, largest(p, computed));
#pragma GCC ivdep
      for (std::int64_t c = 0; c < computed; ++c) p[c] = kernel::exponential(p[c] - new_top);
      const A shrink = kernel::exponential(top - new_top);
      weight_[row + i] = weight_[row + i] * shrink + total(p, computed);
      if (new_top > top) {
        A* sums = sums_ + (row + i) * width_;
        for (std::int64_t c = 0; c < width_; ++c) sums[c] *= shrink;
        top = new_top;
      }
    }
    multiply_rows<true>(Left<A>{p_, block_keys, 1}, values_ + key * width_, width_, seen,
                        sums_ + row * width_, width_, width_);
  }

  const AttentionForward& call_;
  const Mask mask_{call_.options.causal};
  std::int64_t width_, size_;
  A *keys_, *values_, *q_, *sums_, *p_, *top_, *weight_;
};

template <class T>
class Backward {
  using A = Value<T>;

 public:
  Backward(const AttentionBackward& call, A* memory) : call_(call) {
    Workspace<A> space(memory);
    const Matrix& k = call.forward.k;
    width_ = round_up(k.cols, lanes<A>);
    const std::int64_t padded = round_up(k.rows, block_keys);
    keys_ = space.take(padded * k.cols);
    values_ = space.take(padded * k.cols);
    key_rows_ = space.take(k.rows * width_);
    d_keys_ = space.take(padded * width_);
    d_values_ = space.take(padded * width_);
    q_ = space.take(tile_queries * width_);
    d_out_ = space.take(tile_queries * width_);
    d_q_ = space.take(tile_queries * width_);
    p_ = space.take(tile_queries * block_keys);
    d_s_ = space.take(tile_queries * block_keys);
    log_sum_exp_ = space.take(tile_queries);
    delta_ = space.take(tile_queries);
    size_ = space.taken_since(memory);
  }
  std::int64_t size() const { return size_; }

  // One head of k and v, and all of q that attend to it, in ascending order.
  void kv_head(std::int64_t sequence, std::int64_t head) {
    const Matrix &k = call_.forward.k, &v = call_.forward.v;
    const T* key_head = head_of<const T>(k, sequence, head);
    pack_transposed(key_head, k, keys_);
    pack_transposed(head_of<const T>(v, sequence, head), v, values_);
    pack(key_head, k, 0, k.rows, A(1), key_rows_, width_);
    const std::int64_t padded = round_up(k.rows, block_keys);
    std::fill_n(d_keys_, padded * width_, A(0));
    std::fill_n(d_values_, padded * width_, A(0));
    const std::int64_t group = call_.forward.q.batch[1] / k.batch[1];
    for (std::int64_t member = 0; member < group; ++member)
      query_head(sequence, head * group + member);
    unpack(d_keys_, width_, A(1), call_.d_k, 0, k.rows, head_of<T>(call_.d_k, sequence, head));
    unpack(d_values_, width_, A(1), call_.d_v, 0, k.rows, head_of<T>(call_.d_v, sequence, head));
  }

 private:
  void query_head(std::int64_t sequence, std::int64_t head) {
    const Matrix &q = call_.forward.q, &out = call_.forward.out;
    const T *queries = head_of<const T>(q, sequence, head),
            *d_outs = head_of<const T>(call_.d_out, sequence, head),
            *outs = head_of<const T>(out, sequence, head);
    T* d_queries = head_of<T>(call_.d_q, sequence, head);
    const A* log_sum_exp =
        call_.forward.log_sum_exp.template as<A>() + (sequence * q.batch[1] + head) * q.rows;
    const A scale = static_cast<A>(call_.forward.options.scale);
    for (std::int64_t begin = 0; begin < q.rows; begin += tile_queries) {
      const std::int64_t count = std::min(tile_queries, q.rows - begin);
      const std::int64_t rows = round_up(count, tile_rows);
      pack(queries, q, begin, rows, scale, q_, width_);
      pack(d_outs, call_.d_out, begin, rows, A(1), d_out_, width_);
      std::fill_n(d_q_, rows * width_, A(0));
      // Of a row that is padding, q and d_out are zero, so its gradients are: p is at most 1.
      for (std::int64_t row = 0; row < rows; ++row) {
        A sum = 0;
        if (row < count) {
          const T* o = outs + (begin + row) * out.row_stride;
          for (std::int64_t c = 0; c < q.cols; ++c) sum += d_out_[row * width_ + c] * widen(o[c]);
        }
        delta_[row] = sum;
        log_sum_exp_[row] = row < count ? log_sum_exp[begin + row] : A(0);
      }
      for (std::int64_t key = 0; key < call_.forward.k.rows; key += block_keys)
        meet(begin, rows, key, std::min(block_keys, call_.forward.k.rows - key));
      unpack(d_q_, width_, scale, call_.d_q, begin, count, d_queries);
    }
  }

  // A tile of queries and a block of keys.
  void meet(std::int64_t begin, std::int64_t rows, std::int64_t key, std::int64_t keys) {
    if (mask_.seen_by(begin + rows - 1, key, keys) == 0) return;
    const std::int64_t depth = call_.forward.k.cols;
    for (std::int64_t row = 0; row < rows; row += tile_rows) {
      const std::int64_t seen = mask_.seen_by(begin + row + tile_rows - 1, key, keys);
      if (seen == 0) continue;
      const std::int64_t computed = round_up(seen, lanes<A>);
      A *p = p_ + row * block_keys, *d_s = d_s_ + row * block_keys;
      multiply_rows<false>(Left<A>{q_ + row * width_, width_, 1}, keys_ + key * depth, block_keys,
                           depth, p, block_keys, computed);
      multiply_rows<false>(Left<A>{d_out_ + row * width_, width_, 1}, values_ + key * depth,
                           block_keys, depth, d_s, block_keys, computed);
      for (std::int64_t i = 0; i < tile_rows; ++i)
        differentiate(p + i * block_keys, d_s + i * block_keys, row + i,
                      mask_.seen_by(begin + row + i, key, keys));
      multiply_rows<true>(Left<A>{d_s, block_keys, 1}, key_rows_ + key * width_, width_, seen,
                          d_q_ + row * width_, width_, width_);
    }
    for (std::int64_t j = 0; j < keys; j += tile_rows) {
      // Rows before the first that sees one of these keys hold nothing.
      const std::int64_t first =
          mask_.causal ? std::clamp<std::int64_t>(key + j - begin, 0, rows) : 0;
      const A *p = p_ + first * block_keys + j, *d_s = d_s_ + first * block_keys + j;
      const std::int64_t at = (key + j) * width_;
      multiply_rows<true>(Left<A>{p, 1, block_keys}, d_out_ + first * width_, width_, rows - first,
                          d_values_ + at, width_, width_);
      multiply_rows<true>(Left<A>{d_s, 1, block_keys}, q_ + first * width_, width_, rows - first,
                          d_keys_ + at, width_, width_);
    }
  }

  // Scores become probabilities, their gradients the scores'; both zero from `seen` on.
  void differentiate(A* p, A* d_s, std::int64_t row, std::int64_t seen) {
    const A log_sum_exp = log_sum_exp_[row], delta = delta_[row];
#pragma GCC ivdep
    for (std::int64_t c = 0; c < block_keys; ++c) {
      const bool visible = c < seen;
      const A probability = kernel::exponential(visible ? p[c] - log_sum_exp : A(0));
      const A slope = probability * (d_s[c] - delta);
      p[c] = visible ? probability : A(0);
      d_s[c] = visible ? slope : A(0);
    }
  }

  const AttentionBackward& call_;
  const Mask mask_{call_.forward.options.causal};
  std::int64_t width_, size_;
  A *keys_, *values_, *key_rows_, *d_keys_, *d_values_, *q_, *d_out_, *d_q_, *p_, *d_s_;
  A *log_sum_exp_, *delta_;
};

// Every head on the next free thread, each with a Worker on memory of its own.
template <class A, class Worker, class Call, class Each>
void share(const Call& call, std::int64_t heads, int threads, Scratch& scratch, const Each& each) {
#ifdef __SANITIZE_THREAD__
  threads = 1;  // the OpenMP runtime's own synchronization is invisible to the thread sanitizer
#endif
  const std::int64_t workers = std::min<std::int64_t>(threads, heads);
  const std::int64_t size = Worker(call, nullptr).size();
  A* const memory =
      static_cast<A*>(scratch.at_least(static_cast<std::size_t>(workers * size) * sizeof(A)));
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(static_cast <int>(workers)) if (workers > 1)
  for (std::int64_t head = 0; head < heads; ++head) {
    Worker worker(call, memory + thread_index() * size);
    each(worker, head);
  }
}

}  // namespace

void attend(const AttentionForward& call, int threads, Scratch& scratch) {
  visit(call.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t heads = call.q.batch[1];
    share<Value<T>, Forward<T>>(
        call, call.q.batch[0] * heads, threads, scratch,
        [=](Forward<T>& worker, std::int64_t i) { worker.head(i / heads, i % heads); });
  });
}

void attend_backward(const AttentionBackward& call, int threads, Scratch& scratch) {
  visit(call.forward.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t heads = call.forward.k.batch[1];
    share<Value<T>, Backward<T>>(
        call, call.forward.k.batch[0] * heads, threads, scratch,
        [=](Backward<T>& worker, std::int64_t i) { worker.kv_head(i / heads, i % heads); });
  });
}

}  // namespace machine::host
