// Blockwise and block-sparse attention on the host. A thread processes one head at a time. It packs
// keys and values once, then processes tiles of queries with one block of keys after another.
// Products skip masked values by panels of tile_rows queries and vectors of keys. The order is that
// of host/attention_walk.h.

#include "machine/device/flash_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "machine/device/host/attention_packing.h"
#include "machine/device/host/attention_walk.h"
#include "machine/device/host/kernels.h"
#include "machine/device/host/threads.h"
#include "machine/device/kernels/attention_mask.h"
#include "machine/device/kernels/functions.h"
#include "machine/device/sparse/sparse_attention_host.h"

namespace machine::host {
namespace {

// Allots pieces of one allocation, each aligned to a vector. Without memory it only counts.
class Workspace {
 public:
  explicit Workspace(std::byte* memory) : memory_(memory) {}
  template <class E>
  E* take(std::int64_t count) {
    auto* piece = memory_ ? reinterpret_cast<E*>(memory_ + taken_) : nullptr;
    taken_ += round_up(count * std::int64_t{sizeof(E)}, vector_bytes);
    return piece;
  }
  std::int64_t taken() const { return taken_; }

 private:
  std::byte* memory_;
  std::int64_t taken_ = 0;
};

// Adds to sums [rows][width] the products of weights, which are a left operand of as_left, and the
// rows of right [keys / step][width] that belong to the first `seen` columns of a meeting.
template <class T>
inline void add_products(std::int64_t rows, Left<Element<T>> weights, const Meeting& meeting,
                         std::int64_t seen, const Element<T>* right, std::int64_t width,
                         Value<T>* sums) {
  for (const Meeting::Range& range : meeting) {
    const std::int64_t used = std::min(range.count, seen - range.column);
    if (used <= 0) return;
    const Left<Element<T>> of_range{weights.data + range.column / step<T>, weights.row_stride,
                                    weights.k_stride};
    multiply_rows<true>(rows, of_range, right + range.key / step<T> * width, width,
                        round_up(used, step<T>) / step<T>, sums, width, width);
  }
}

// Calls body(index) for every vector of `count` values, a multiple of lanes.
template <class A, class Body>
inline void each_vector(std::int64_t count, const Body& body) {
  for (std::int64_t c = 0; c < count; c += lanes<A>) body(c);
}

template <class A>
A largest(const A* values, std::int64_t count) {
  Vector<A> top = load(values);
  each_vector<A>(count, [&](std::int64_t c) {
    const Vector<A> next = load(values + c);
    top = next > top ? next : top;
  });
  A of[lanes<A>];
  store(of, top);
  for (int half = lanes<A> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) of[i] = of[i] < of[i + half] ? of[i + half] : of[i];
  return of[0];
}

template <class A>
A total(const A* of_lanes) {
  A sum = 0;
  for (int i = 0; i < lanes<A>; ++i) sum += of_lanes[i];
  return sum;
}

template <class T>
class Forward {
  using A = Value<T>;

 public:
  Forward(const AttentionForward& call, const Walk& walk, std::byte* memory)
      : call_(call), walk_(walk) {
    Workspace space(memory);
    width_ = round_up(call.q.cols, lanes<A>);
    depth_ = round_up(call.q.cols, step<T>) / step<T>;
    keys_ = space.take<Element<T>>(round_up(call.k.rows, block_keys) * depth_);
    values_ = space.take<Element<T>>(round_up(call.k.rows, step<T>) / step<T> * width_);
    q_ = space.take<Element<T>>(tile_queries * depth_);
    weights_ = space.take<Element<T>>(tile_rows * block_keys);
    p_ = space.take<A>(tile_rows * block_keys);
    sums_ = space.take<A>(tile_queries * width_);
    weight_ = space.take<A>(tile_queries * lanes<A>);
    top_ = space.take<A>(tile_queries);
    size_ = space.taken();
  }
  std::int64_t size() const { return size_; }

  void head(std::int64_t sequence, std::int64_t head) {
    const Matrix& q = call_.q;
    const std::int64_t kv_head = head / (q.batch[1] / call_.k.batch[1]);
    pack_transposed<block_keys, T>({call_.k, sequence, kv_head}, keys_);
    pack_right<T>({call_.v, sequence, kv_head}, 0, call_.v.rows, width_, values_);
    const Head<T> out(call_.out, sequence, head);
    A* log_sum_exp = call_.log_sum_exp.as<A>() + (sequence * q.batch[1] + head) * q.rows;
    mask_ = Mask(call_, sequence);
    first_index_ = kept_.row(sequence, head, 0);
    const A factor = static_cast<A>(kept_.factor);
    for (std::int64_t begin = 0, count; begin < q.rows; begin += count) {
      count = walk_.tile_end(begin) - begin;
      pack_left<T>({q, sequence, head}, begin, round_up(count, 2), q_);
      attend(head, begin, count);
      for (std::int64_t row = 0; row < count; ++row) {
        const A weight = total(weight_ + row * lanes<A>);
        // A query without keys has no weight, and its sums are zero.
        unpack(sums_ + row * width_, width_, weight > 0 ? factor / weight : A(0), out, begin + row,
               1);
        log_sum_exp[begin + row] = top_[row] + std::log(weight);
      }
    }
  }

 private:
  void attend(std::int64_t head, std::int64_t begin, std::int64_t count) {
    // Not infinity: the difference of two maxima must be a number, also before the first score.
    std::fill_n(top_, tile_queries, std::numeric_limits<A>::lowest());
    std::fill_n(weight_, tile_queries * lanes<A>, A(0));
    std::fill_n(sums_, tile_queries * width_, A(0));
    walk_.each_meeting(head, begin, count, [&](const Meeting& meeting) {
      for (std::int64_t row = 0; row < count; row += tile_rows) {
        const std::int64_t rows = std::min<std::int64_t>(tile_rows, round_up(count - row, 2));
        const std::int64_t seen = mask_.seen_by(begin + row + rows - 1, meeting);
        if (seen > 0) meet(begin, row, rows, meeting, seen);
      }
    });
  }

  // Processes a panel of queries and a meeting of keys.
  void meet(std::int64_t begin, std::int64_t row, std::int64_t rows, const Meeting& meeting,
            std::int64_t seen) {
    const std::int64_t computed = round_up(seen, lanes<A>);
    multiply_keys(rows, Left<Element<T>>{q_ + row * depth_, depth_, 1}, keys_, depth_, meeting, p_,
                  computed);
    const A scale = static_cast<A>(call_.options.scale);
    A tops[lanes<A> < tile_rows ? 8 : lanes<A>] = {}, shrink[std::size(tops)] = {};
    for (std::int64_t i = 0; i < rows; ++i) {
      A* p = p_ + i * block_keys;
      each_vector<A>(computed, [&](std::int64_t c) { store(p + c, load(p + c) * scale); });
      std::fill(p + mask_.seen_by(begin + row + i, meeting), p + computed,
                -std::numeric_limits<A>::infinity());
      tops[i] = std::max(top_[row + i], largest(p, computed));
      shrink[i] = top_[row + i] - tops[i];
    }
#pragma omp simd
    for (std::size_t i = 0; i < std::size(shrink); ++i) shrink[i] = kernel::exponential(shrink[i]);
    for (std::int64_t i = 0; i < rows; ++i) {
      A *p = p_ + i * block_keys, *weight = weight_ + (row + i) * lanes<A>;
      const A top = tops[i];
      Vector<A> sum = load(weight) * shrink[i];
      each_vector<A>(computed, [&](std::int64_t c) {
#pragma omp simd
        for (int lane = 0; lane < lanes<A>; ++lane)
          p[c + lane] = kernel::exponential(p[c + lane] - top);
        sum += load(p + c);
      });
      store(weight, sum);
      if (kept_.drops()) drop(p, begin + row + i, meeting);
      if (tops[i] > top_[row + i]) {
        A* sums = sums_ + (row + i) * width_;
        each_vector<A>(width_,
                       [&](std::int64_t c) { store(sums + c, load(sums + c) * shrink[i]); });
        top_[row + i] = top;
      }
    }
    add_products<T>(rows, as_left<T>(p_, rows, computed, block_keys, weights_), meeting, seen,
                    values_, width_, sums_ + row * width_);
  }

  // Zeroes the weights that dropout drops. The factor of the others is in the division at the end.
  void drop(A* p, std::int64_t query, const Meeting& meeting) const {
    const std::int64_t row = first_index_ + query * kept_.keys;
    for (const Meeting::Range& range : meeting)
      for (std::int64_t c = 0; c < range.count; ++c)
        if (!kept_(row, range.key + c)) p[range.column + c] = 0;
  }

  const AttentionForward& call_;
  const Walk walk_;
  const kernel::KeptProbabilities kept_{call_};
  Mask mask_{call_, 0};
  std::int64_t width_, depth_, size_, first_index_ = 0;
  Element<T>*keys_, *values_, *q_, *weights_;
  A *p_, *sums_, *weight_, *top_;
};

template <class T>
class Backward {
  using A = Value<T>;

 public:
  Backward(const AttentionBackward& call, const Walk& walk, std::byte* memory)
      : call_(call), walk_(walk) {
    Workspace space(memory);
    const Matrix& k = call.forward.k;
    width_ = round_up(k.cols, lanes<A>);
    depth_ = round_up(k.cols, step<T>) / step<T>;
    const std::int64_t padded = round_up(k.rows, block_keys);
    keys_ = space.take<Element<T>>(padded * depth_);
    values_ = space.take<Element<T>>(padded * depth_);
    key_rows_ = space.take<Element<T>>(padded / step<T> * width_);
    for (Element<T>** tile : {&q_, &d_out_}) *tile = space.take<Element<T>>(tile_queries * depth_);
    for (Element<T>** tile : {&q_rows_, &d_out_rows_})
      *tile = space.take<Element<T>>(tile_queries / step<T> * width_);
    for (Element<T>** tile : {&p_left_, &d_s_left_, &panel_})
      *tile = space.take<Element<T>>(tile_queries * block_keys);
    d_keys_ = space.take<A>(padded * width_);
    d_values_ = space.take<A>(padded * width_);
    d_q_ = space.take<A>(tile_queries * width_);
    p_ = space.take<A>(tile_queries * block_keys);
    d_s_ = space.take<A>(tile_queries * block_keys);
    log_sum_exp_ = space.take<A>(tile_queries);
    delta_ = space.take<A>(tile_queries);
    size_ = space.taken();
  }
  std::int64_t size() const { return size_; }

  // Processes one head of k and v, and all heads of q that use it, in ascending order.
  void kv_head(std::int64_t sequence, std::int64_t head) {
    const Matrix& k = call_.forward.k;
    mask_ = Mask(call_.forward, sequence);
    pack_transposed<block_keys, T>({k, sequence, head}, keys_);
    pack_transposed<block_keys, T>({call_.forward.v, sequence, head}, values_);
    const std::int64_t padded = round_up(k.rows, block_keys);
    pack_right<T>({k, sequence, head}, 0, k.rows, width_, key_rows_);
    std::fill_n(d_keys_, padded * width_, A(0));
    std::fill_n(d_values_, padded * width_, A(0));
    const std::int64_t group = call_.forward.q.batch[1] / k.batch[1];
    for (std::int64_t member = 0; member < group; ++member)
      query_head(sequence, head * group + member);
    unpack(d_keys_, width_, scale_, Head<T>(call_.d_k, sequence, head), 0, k.rows);
    unpack(d_values_, width_, A(1), Head<T>(call_.d_v, sequence, head), 0, k.rows);
  }

 private:
  void query_head(std::int64_t sequence, std::int64_t head) {
    const Matrix& q = call_.forward.q;
    const Head<const T> queries(q, sequence, head), d_outs(call_.d_out, sequence, head),
        outs(call_.forward.out, sequence, head);
    const A* log_sum_exp =
        call_.forward.log_sum_exp.template as<A>() + (sequence * q.batch[1] + head) * q.rows;
    first_index_ = kept_.row(sequence, head, 0);
    for (std::int64_t begin = 0, count; begin < q.rows; begin += count) {
      count = walk_.tile_end(begin) - begin;
      const std::int64_t rows = round_up(count, 2);
      pack_left(queries, begin, rows, q_);
      pack_left(d_outs, begin, rows, d_out_);
      pack_right(queries, begin, rows, width_, q_rows_);
      pack_right(d_outs, begin, rows, width_, d_out_rows_);
      std::fill_n(d_q_, rows * width_, A(0));
      // In padding rows, q and d_out are zero, so the gradients are zero: p is at most 1.
      for (std::int64_t row = 0; row < rows; ++row) {
        A sum = 0;
        for (std::int64_t c = 0; row < count && c < q.cols; ++c)
          sum += widen(d_outs.row(begin + row)[c]) * widen(outs.row(begin + row)[c]);
        delta_[row] = sum;
        log_sum_exp_[row] = row < count ? log_sum_exp[begin + row] : A(0);
      }
      walk_.each_meeting(head, begin, count,
                         [&](const Meeting& meeting) { meet(begin, rows, meeting); });
      unpack(d_q_, width_, scale_, Head<T>(call_.d_q, sequence, head), begin, count);
    }
  }

  // Processes a tile of queries and a meeting of keys.
  void meet(std::int64_t begin, std::int64_t rows, const Meeting& meeting) {
    if (mask_.seen_by(begin + rows - 1, meeting) == 0) return;
    const std::int64_t columns = round_up(meeting.count, chunk);
    for (std::int64_t row = 0; row < rows; row += tile_rows) {
      A *p = p_ + row * block_keys, *d_s = d_s_ + row * block_keys;
      const std::int64_t some = std::min<std::int64_t>(tile_rows, rows - row);
      const std::int64_t seen = mask_.seen_by(begin + row + some - 1, meeting);
      if (seen == 0) {
        std::fill_n(p, some * block_keys, A(0));
        std::fill_n(d_s, some * block_keys, A(0));
        continue;
      }
      const std::int64_t computed = round_up(seen, lanes<A>);
      multiply_keys(some, Left<Element<T>>{q_ + row * depth_, depth_, 1}, keys_, depth_, meeting, p,
                    computed);
      multiply_keys(some, Left<Element<T>>{d_out_ + row * depth_, depth_, 1}, values_, depth_,
                    meeting, d_s, computed);
      for (std::int64_t i = 0; i < some; ++i)
        differentiate(p + i * block_keys, d_s + i * block_keys, row + i, begin + row + i, meeting,
                      columns, mask_.seen_by(begin + row + i, meeting));
      add_products<T>(some, as_left<T>(d_s, some, columns, block_keys, panel_), meeting, seen,
                      key_rows_, width_, d_q_ + row * width_);
    }
    const Left<Element<T>> p = as_transposed_left<T>(p_, rows, columns, block_keys, p_left_);
    const Left<Element<T>> d_s = as_transposed_left<T>(d_s_, rows, columns, block_keys, d_s_left_);
    for (const Meeting::Range& range : meeting)
      for (std::int64_t j = 0; j < range.count; j += tile_rows) {
        const std::int64_t key = range.key + j;
        const std::int64_t some = std::min<std::int64_t>(tile_rows, round_up(range.count - j, 2));
        // Rows before the first row that sees one of these keys are zero.
        const std::int64_t first =
            mask_.causal ? std::clamp<std::int64_t>(key - begin, 0, rows) / step<T> : 0;
        const std::int64_t depth = rows / step<T> - first;
        const auto from = [&](Left<Element<T>> whole) {
          whole.data += first * whole.k_stride + range.column + j;
          return whole;
        };
        multiply_rows<true>(some, from(p), d_out_rows_ + first * width_, width_, depth,
                            d_values_ + key * width_, width_, width_);
        multiply_rows<true>(some, from(d_s), q_rows_ + first * width_, width_, depth,
                            d_keys_ + key * width_, width_, width_);
      }
  }

  // Replaces scores by probabilities, and gradients of probabilities by gradients of scores. Both
  // become zero from `seen` to `columns`.
  void differentiate(A* p, A* d_s, std::int64_t row, std::int64_t query, const Meeting& meeting,
                     std::int64_t columns, std::int64_t seen) {
    const A log_sum_exp = log_sum_exp_[row], delta = delta_[row], scale = scale_;
    if (kept_.drops()) return differentiate_kept(p, d_s, row, query, meeting, seen);
    for (std::int64_t first = 0; first < columns; first += chunk) {
#pragma omp simd
      for (std::int64_t c = first; c < first + chunk; ++c) {
        const bool visible = c < seen;
        const A probability = kernel::exponential(visible ? p[c] * scale - log_sum_exp : A(0));
        const A slope = probability * (d_s[c] - delta);
        p[c] = visible ? probability : A(0);
        d_s[c] = visible ? slope : A(0);
      }
    }
  }

  // Differentiates with dropout: probabilities that are used, and gradients of those before
  // dropout.
  void differentiate_kept(A* p, A* d_s, std::int64_t row, std::int64_t query,
                          const Meeting& meeting, std::int64_t seen) {
    const A factor = static_cast<A>(kept_.factor);
    const std::int64_t first = first_index_ + query * kept_.keys;
    for (const Meeting::Range& range : meeting)
      for (std::int64_t c = range.column; c < std::min(range.column + range.count, seen); ++c) {
        const A probability = kernel::exponential(p[c] * scale_ - log_sum_exp_[row]);
        const A kept = kept_(first, range.key + c - range.column) ? factor : A(0);
        p[c] = probability * kept;
        d_s[c] = probability * (d_s[c] * kept - delta_[row]);
      }
    std::fill(p + seen, p + block_keys, A(0));
    std::fill(d_s + seen, d_s + block_keys, A(0));
  }

  const AttentionBackward& call_;
  const Walk walk_;
  const kernel::KeptProbabilities kept_{call_.forward};
  Mask mask_{call_.forward, 0};
  const A scale_ = static_cast<A>(call_.forward.options.scale);
  std::int64_t width_, depth_, size_, first_index_ = 0;
  Element<T>*keys_, *values_, *key_rows_;          // of all keys
  Element<T>*q_, *d_out_, *q_rows_, *d_out_rows_;  // of a tile
  Element<T>*p_left_, *d_s_left_, *panel_;         // of a tile and a block
  A *d_keys_, *d_values_, *d_q_, *p_, *d_s_, *log_sum_exp_, *delta_;
};

// Runs every head on the next free thread, each with a Worker on separate memory.
template <class Worker, class Call, class Each>
void share(const Call& call, const Walk& walk, std::int64_t heads, int threads, Scratch& scratch,
           const Each& each) {
#ifdef __SANITIZE_THREAD__
  threads = 1;  // the OpenMP runtime's own synchronization is invisible to the thread sanitizer
#endif
  const std::int64_t workers = std::min<std::int64_t>(threads, heads);
  const std::int64_t size = Worker(call, walk, nullptr).size();
  auto* const memory = static_cast<std::byte*>(scratch.at_least(workers * size));
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(static_cast <int>(workers)) if (workers > 1)
  for (std::int64_t head = 0; head < heads; ++head) {
    Worker worker(call, walk, memory + thread_index() * size);
    each(worker, head);
  }
}

void run(const AttentionForward& call, const Walk& walk, int threads, Scratch& scratch) {
  visit(call.q.dtype, [&]<class T>(T) {
    const std::int64_t heads = call.q.batch[1];
    share<Forward<T>>(
        call, walk, call.q.batch[0] * heads, threads, scratch,
        [=](Forward<T>& worker, std::int64_t i) { worker.head(i / heads, i % heads); });
  });
}

void run(const AttentionBackward& call, const Walk& walk, int threads, Scratch& scratch) {
  visit(call.forward.q.dtype, [&]<class T>(T) {
    const std::int64_t heads = call.forward.k.batch[1];
    share<Backward<T>>(
        call, walk, call.forward.k.batch[0] * heads, threads, scratch,
        [=](Backward<T>& worker, std::int64_t i) { worker.kv_head(i / heads, i % heads); });
  });
}

class SparseKernels final : public kernel::SparseKernels {
 public:
  SparseKernels(const Device& device, kernel::BlockLists lists)
      : device_(device), lists_(std::move(lists)) {}
  void forward(const AttentionForward& call) override {
    run(call, walk(call), device_.threads(), scratch_);
  }
  void backward(const AttentionBackward& call) override {
    run(call, walk(call.forward), device_.threads(), scratch_);
  }
  std::optional<std::int64_t> scores() const override { return scores_.load(); }

 private:
  Walk walk(const AttentionForward& call) { return {call.q.rows, call.k.rows, &lists_, &scores_}; }
  const Device& device_;
  const kernel::BlockLists lists_;
  std::atomic<std::int64_t> scores_ = 0;
  Scratch scratch_;
};

}  // namespace

void attend(const AttentionForward& call, int threads, Scratch& scratch) {
  run(call, {call.q.rows, call.k.rows}, threads, scratch);
}

void attend_backward(const AttentionBackward& call, int threads, Scratch& scratch) {
  run(call, {call.forward.q.rows, call.forward.k.rows}, threads, scratch);
}

std::unique_ptr<kernel::SparseKernels> make_sparse_kernels(const Device& device,
                                                           kernel::BlockLists lists) {
  return std::make_unique<SparseKernels>(device, std::move(lists));
}

}  // namespace machine::host
