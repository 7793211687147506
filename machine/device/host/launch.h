#pragma once
// Runs kernel bodies on the host, in loops over the device's threads that vectorize. Sums are split
// by shapes only (32 partial sums, a column, a chunk), so their bits do not depend on the number of
// threads.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/host/fetch.h"
#include "machine/device/host/streaming.h"
#include "machine/device/host/threads.h"
#include "machine/device/host/update.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/pattern.h"

namespace machine {

// Some of a row's columns, for bodies that call only `each`.
struct HostColumns {
  std::int64_t begin, end;
  template <class Body>
  void each(std::int64_t /*n*/, const Body& body) const {
#pragma GCC ivdep
    for (std::int64_t c = begin; c < end; ++c) body(c);
  }
};

struct HostLanes {
  static constexpr int width = 32;  // of a warp, so the host's sums equal a warp's sums

  bool leads() const { return true; }

  template <class Body>
  void each(std::int64_t n, const Body& body) const {
#pragma GCC ivdep
    for (std::int64_t c = 0; c < n; ++c) body(c);
  }

  template <class A, class Body>
  A sum(std::int64_t n, const Body& body) const {
    return fold<A>(n, A(0), body, [](A a, A b) { return a + b; });
  }

  // The same sum, of an array `in` that the body reads and that mostly exceeds the caches.
  template <class A, class T, class Body>
  A sum_of(const T* in, std::int64_t n, const Body& body) const {
    constexpr std::int64_t of_line = host::line_bytes / sizeof(T);
    return fold<A>(
        n, A(0), body, [](A a, A b) { return a + b; },
        [=](std::int64_t c) {
          for (std::int64_t i = 0; i < width; i += of_line) host::fetch_ahead(in + c + i);
        });
  }

  template <class A, class Body>
  A max(std::int64_t n, const Body& body) const {
    return fold<A>(n, -std::numeric_limits<A>::infinity(), body,
                   [](A a, A b) { return a < b ? b : a; });
  }

  template <class Body, class Put>
  std::int32_t sums_before(std::int64_t n, const Body& body, const Put& put) const {
    std::int32_t before = 0;
    for (std::int64_t c = 0; c < n; ++c) {
      const std::int32_t own = body(c);
      put(c, before);
      before += own;
    }
    return before;
  }

  // Listed elements are expected to be few: a vectorized comparison writes the bytes of a run, of
  // which eight are read at once.
  template <class Is, class Put>
  void list(std::int64_t n, const Is& is, const Put& put) const {
    static_assert(std::endian::native == std::endian::little);
    constexpr int run = 256, together = 8;
    std::int64_t place = 0, c = 0;
    for (; c + run <= n; c += run) {
      std::uint8_t found[run];
      for (int i = 0; i < run; ++i) found[i] = is(c + i) ? 1 : 0;
      for (int first = 0; first < run; first += together) {
        std::uint64_t left;
        std::memcpy(&left, found + first, together);
        for (; left != 0; left &= left - 1) put(place++, c + first + std::countr_zero(left) / 8);
      }
    }
    for (; c < n; ++c)
      if (is(c)) put(place++, c);
  }

  template <class A, class Body, class Use>
  void remember(std::int64_t n, const Body& body, const Use& use) const {
    constexpr std::int64_t most = 4096;  // fits next to a row in the L1 cache
    if (n > most) return use(body);
    A kept[most];
    A* const values = kept;
    each(n, [=](std::int64_t c) { values[c] = body(c); });
    use([=](std::int64_t c) { return values[c]; });
  }

 private:
  struct Nothing {
    void operator()(std::int64_t) const {}
  };
  // Calls before(c) before each `width` elements.
  template <class A, class Body, class Join, class Before = Nothing>
  static A fold(std::int64_t n, A start, const Body& body, const Join& join,
                const Before& before = {}) {
    if constexpr (std::is_integral_v<A>) {  // equal in any order
      for (std::int64_t c = 0; c < n; ++c) start = join(start, body(c));
      return start;
    }
    A partial[width];
    std::fill_n(partial, width, start);
    std::int64_t c = 0;
    for (; c + width <= n; c += width) {
      before(c);
#pragma omp simd
      for (int lane = 0; lane < width; ++lane) partial[lane] = join(partial[lane], body(c + lane));
    }
    for (int lane = 0; c + lane < n; ++lane) partial[lane] = join(partial[lane], body(c + lane));
    for (int half = width / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane)
        partial[lane] = join(partial[lane], partial[lane + half]);
    return partial[0];
  }
};

class HostLaunch {
 public:
  static constexpr Device::Kind kind = Device::Kind::host;

  explicit HostLaunch(const Device& device) : device_(&device) {}

  template <class Body, class... Fields>
  void each(std::int64_t count, Body body, Fields... fields) const {
    constexpr std::int64_t bytes = (0 + ... + std::int64_t{sizeof(typename Fields::Element)});
    split(count, bytes,
          [=](std::int64_t begin, std::int64_t end) { each_of(begin, end, body, fields...); });
  }

  // Bypasses the cache if the array exceeds it: a line that is written whole needs no reading.
  template <class Body, class T>
  void fill(std::int64_t count, Body body, kernel::Out<T> out) const {
    const T value = kernel::narrow<T>(body.value);
    const bool streams = exceeds_cache(count * std::int64_t{sizeof(T)}) && starts_line(out.data);
    split(count, sizeof(T), [=](std::int64_t begin, std::int64_t end) {
      if (streams)
        host::stream_fill(out.data + begin, out.data + end, value);
      else
        std::fill(out.data + begin, out.data + end, value);
    });
  }

  // An optimizer's pass. body.step: rounds the master, its first state, to the first field.
  template <class Body, class First, class... Fields>
  void update(std::int64_t count, Body body, First first, Fields... fields) const {
    constexpr std::int64_t bytes = (std::int64_t{sizeof(typename First::Element)} + ... +
                                    std::int64_t{sizeof(typename Fields::Element)});
    if constexpr (requires { body.step; }) {
      const bool streams = exceeds_cache(count * bytes) && starts_line(first.data);
      split(count, bytes, [=](std::int64_t begin, std::int64_t end) {
        if (streams)
          host::update_rounded<true>(begin, end, body.step, first, fields...);
        else
          host::update_rounded<false>(begin, end, body.step, first, fields...);
      });
    } else {
      split(count, bytes, [=](std::int64_t begin, std::int64_t end) {
        host::update(begin, end, body, first, fields...);
      });
    }
  }

  template <class Body, class... Fields>
  void each_at(std::int64_t rows, const kernel::GlobalIndex& index, Body body,
               Fields... fields) const {
    constexpr std::int64_t work = 64;  // cost of a random number, in bytes moved in the same time
    host::parallel(device_->threads(), rows, work * index.cols, 1,
                   [=](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row)
                       each_index(index.cols, index(row * index.cols), body,
                                  kernel::shifted(fields, row * index.cols)...);
                   });
  }

  template <class Body, class... Fields>
  void each_strided(std::int64_t rows, std::int64_t cols, Body body,
                    kernel::Strided<Fields>... fields) const {
    constexpr std::int64_t bytes = (0 + ... + std::int64_t{sizeof(typename Fields::Element)});
    host::parallel(device_->threads(), rows, bytes * cols, 1,
                   [=](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row)
                       each_of(0, cols, body, fields.row(row)...);
                   });
  }

  // Computes sine and cosine of a position once for all heads.
  template <class Rotation>
  void rotate(Rotation rotation) const {
    host::parallel(device_->threads(), rotation.positions,
                   16 * rotation.pairs * (rotation.matrices() + 8), 1,
                   [=](std::int64_t begin, std::int64_t end) { rotate_of(begin, end, rotation); });
  }

  // Runs on the calling thread, because collectives use the others. Works on one cache line at a
  // time, so each line is written whole, once, to every target.
  template <class T, class Body>
  void join_to(std::int64_t count, Body body, std::span<const void* const> ins,
               std::span<void* const> outs, Store store) const {
    if (count == 0) return;
    const auto join = [&](std::int64_t begin, std::int64_t size, T* out) {
      std::array<const T*, most_joined> some{};
      std::size_t joined = 0;
      for (auto left = ins; !left.empty(); joined = 1, some[0] = out) {
        for (; joined < joined_at_once<T> && !left.empty(); left = left.subspan(1))
          some[joined++] = static_cast<const T*>(left[0]) + begin;
        of_number(joined, [&]<std::size_t n>() { join_few<n>(some, 0, size, body, out); });
      }
    };
    if (ins.size() <= joined_at_once<T> && outs.size() == 1 && store == Store::cached)
      return join(0, count, static_cast<T*>(outs[0]));
    constexpr auto per_line = static_cast<std::int64_t>(host::line_bytes / sizeof(T));
    alignas(host::line_bytes) T line[per_line];
    const auto write_part = [&](std::int64_t begin, std::int64_t size) {
      join(begin, size, line);
      for (void* out : outs)
        std::memcpy(static_cast<T*>(out) + begin, line, static_cast<std::size_t>(size) * sizeof(T));
    };
    const auto past_line = [](const void* out) {
      return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % host::line_bytes /
                                       sizeof(T));
    };
    const std::int64_t phase = past_line(outs[0]);
    std::int64_t i = std::min(count, phase == 0 ? 0 : per_line - phase);
    write_part(0, i);
    const bool streams =
        store == Store::streaming &&
        std::ranges::all_of(outs, [&](const void* out) { return past_line(out) == phase; });
    const std::int64_t end = i + (count - i) / per_line * per_line;
    if (streams && ins.size() <= joined_at_once<T>) {
      std::array<const T*, most_joined> some{};
      std::ranges::transform(ins, some.begin(), [](auto in) { return static_cast<const T*>(in); });
      of_number(ins.size(), [&]<std::size_t n>() { stream_few<n>(some, i, end, body, outs); });
      i = end;
    }
    for (; i < end; i += per_line) {
      if (!streams) {
        write_part(i, per_line);
        continue;
      }
      join(i, per_line, line);
      for (void* out : outs) host::stream_line(static_cast<T*>(out) + i, line);
    }
    write_part(i, count - i);
    if (streams) host::end_streaming();
  }

  template <class Body>
  void rows(std::int64_t rows, std::int64_t cols, Body body) const {
    host::parallel(device_->threads(), rows, 8 * cols, 1,
                   [=](std::int64_t begin, std::int64_t end) { rows_of(begin, end, body); });
  }

  // Processes rows in order, a block of columns at a time. The block's sums stay in the L1 cache.
  template <int N, class Body, class O>
  void columns(std::int64_t rows, std::int64_t cols, Body body, std::array<O*, N> outs) const {
    host::parallel(
        device_->threads(), cols, 4 * rows, host::line_bytes,
        [=](std::int64_t begin, std::int64_t end) { columns_of<N>(begin, end, rows, body, outs); });
  }

  template <class Body, class T>
  void total(std::int64_t count, Body body, const T* in, double* out) const {
    constexpr std::int64_t chunk = 1 << 16;
    const std::int64_t chunks = (count + chunk - 1) / chunk;
    std::vector<double> sums(chunks);
    double* to = sums.data();
    host::parallel(device_->threads(), chunks, chunk * std::int64_t{sizeof(T)}, 1,
                   [=](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const T* from = in + i * chunk;
                       to[i] = HostLanes{}.sum_of<double>(
                           from, std::min(chunk, count - i * chunk), [=](std::int64_t c) {
                             return body(static_cast<double>(kernel::widen(from[c])));
                           });
                     }
                   });
    *out = HostLanes{}.sum<double>(chunks, [=](std::int64_t i) { return to[i]; });
  }

  template <class Body>
  void find_errors(std::int64_t count, Body body, PatternErrors* errors) const {
    constexpr std::int64_t chunk = 1 << 20, work = 32;  // cost of an element, as of bytes moved
    const std::int64_t chunks = (count + chunk - 1) / chunk;
    std::vector<PatternErrors> found(static_cast<std::size_t>(chunks), PatternErrors{});
    PatternErrors* const to = found.data();
    host::parallel(device_->threads(), chunks, chunk * work, 1,
                   [=](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i)
                       for (std::int64_t j = i * chunk; j < std::min(count, (i + 1) * chunk); ++j)
                         body(j, to[i]);
                   });
    for (const PatternErrors& one : found) errors->add(one);
  }

  template <class Body>
  void scatter_rows(const std::int32_t* /*tokens*/, std::int64_t rows, Body body) const {
    host::parallel(device_->threads(), body.cols, 8 * rows, host::line_bytes,
                   [=](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = 0; row < rows; ++row)
                       if (body.owns(row)) body(row, HostColumns{begin, end});
                   });
  }

 private:
  bool exceeds_cache(std::int64_t bytes) const {
    return bytes > device_->threads() * host::cached_by_thread;
  }
  static bool starts_line(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % host::line_bytes == 0;
  }
  template <class Part>
  void split(std::int64_t count, std::int64_t bytes, const Part& part) const {
    host::parallel(device_->threads(), count, bytes, host::line_bytes, part);
  }

  // Not inlined, else they would be compiled for the calling thread and for the others.
  template <class Body>
  [[gnu::noinline]] static void rows_of(std::int64_t begin, std::int64_t end, Body body) {
    for (std::int64_t row = begin; row < end; ++row) body(row, HostLanes{});
  }

  static constexpr std::size_t most_joined = 4;  // values in one expression
  // Compilers vectorize no more than one rounding to half or to FP8 in an expression.
  template <class T>
  static constexpr std::size_t joined_at_once =
      std::is_same_v<Accumulator<T>, T> || std::is_same_v<T, Bfloat16> ? most_joined : 2;

  // 2 … most_joined.
  template <class Call>
  static void of_number(std::size_t n, Call call) {
    if (n == 2) return call.template operator()<2>();
    if (n == 3) return call.template operator()<3>();
    call.template operator()<most_joined>();
  }
  template <std::size_t n, class Body, class T>
  static void stream_few(std::array<const T*, most_joined> ins, std::int64_t begin,
                         std::int64_t end, Body body, std::span<void* const> outs) {
    constexpr auto per_line = static_cast<std::int64_t>(host::line_bytes / sizeof(T));
    for (std::int64_t i = begin; i < end; i += per_line) {
      alignas(host::line_bytes) T line[per_line];
      for (std::size_t k = 0; k < n; ++k) host::fetch_ahead(ins[k] + i);
      join_few<n>(ins, i, per_line, body, line);
      for (void* out : outs) host::stream_line(static_cast<T*>(out) + i, line);
    }
  }
  // out[i] = elements begin + i of the first n ins, joined from the first to the last.
  template <std::size_t n, class Body, class T>
  [[gnu::always_inline]] static void join_few(const std::array<const T*, most_joined>& ins,
                                              std::int64_t begin, std::int64_t size, Body body,
                                              T* out) {
    const std::array<const T*, most_joined> from = ins;  // bytes of `out` cannot change it
#pragma omp simd  // without it, the compiler unrolls the loop into branches
    for (std::int64_t i = 0; i < size; ++i) {
      kernel::Value<T> joined = kernel::widen(from[0][begin + i]);
      for (std::size_t k = 1; k < n; ++k) {
        kernel::Value<T> next{};
        body(joined, kernel::widen(from[k][begin + i]), next);
        joined = k + 1 < n ? kernel::widen(kernel::narrow<T>(next)) : next;
      }
      out[i] = kernel::narrow<T>(joined);
    }
  }

  template <class Body, class... Fields>
  [[gnu::noinline]] static void each_of(std::int64_t begin, std::int64_t end, Body body,
                                        Fields... fields) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i)
      kernel::apply(body, Fields::slot(fields.data + i)...);
  }

  template <class Body, class... Fields>
  [[gnu::noinline]] static void each_index(std::int64_t count, std::uint64_t first, Body body,
                                           Fields... fields) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i)
      kernel::apply_at(body, first + static_cast<std::uint64_t>(i),
                       Fields::slot(fields.data + i)...);
  }

  template <class Rotation>
  [[gnu::noinline]] static void rotate_of(std::int64_t begin, std::int64_t end, Rotation rotation) {
    constexpr std::int64_t width = 64;
    using A = typename Rotation::A;
    double frequencies[width];
    A cosines[width], sines[width];
    for (std::int64_t first = 0; first < rotation.pairs; first += width) {
      const std::int64_t count = std::min(width, rotation.pairs - first);
      for (std::int64_t i = 0; i < count; ++i) frequencies[i] = rotation.frequency(first + i);
      for (std::int64_t position = begin; position < end; ++position) {
        for (std::int64_t i = 0; i < count; ++i) {
          const auto turn = rotation.turn(position, frequencies[i]);
          cosines[i] = turn.cosine;
          sines[i] = turn.sine;
        }
        for (std::int64_t matrix = 0; matrix < rotation.matrices(); ++matrix) {
          const auto row = rotation.row(matrix, position);
#pragma GCC ivdep
          for (std::int64_t i = 0; i < count; ++i) row.turn(first + i, {cosines[i], sines[i]});
        }
      }
    }
  }

  template <int N, class Body, class O>
  [[gnu::noinline]] static void columns_of(std::int64_t from, std::int64_t to, std::int64_t rows,
                                           Body body, std::array<O*, N> outs) {
    using A = kernel::Value<O>;
    constexpr int width = 1024;
    constexpr std::int64_t together = 4;  // rows per read and write of the sums
    const auto add = [&]<std::int64_t num_rows>(std::int64_t row, std::int64_t begin, int count,
                                                A(&sums)[N][width]) {
#pragma GCC ivdep
      for (int c = 0; c < count; ++c) {
#pragma GCC unroll 4
        for (std::int64_t next = 0; next < num_rows; ++next) {
          const auto terms = body(row + next, begin + c);
#pragma GCC unroll 2
          for (int k = 0; k < N; ++k) sums[k][c] += terms.of[k];
        }
      }
    };
    for (std::int64_t begin = from; begin < to; begin += width) {
      const int count = static_cast<int>(std::min<std::int64_t>(width, to - begin));
      A sums[N][width] = {};
      std::int64_t row = 0;
      for (; row + together <= rows; row += together)
        add.template operator()<together>(row, begin, count, sums);
      for (; row < rows; ++row) add.template operator()<1>(row, begin, count, sums);
      for (int k = 0; k < N; ++k) {
        O* out = outs[k] + begin;
        for (int c = 0; c < count; ++c)
          out[c] = kernel::narrow<O>(kernel::widen(out[c]) + sums[k][c]);
      }
    }
  }

  const Device* device_;
};

}  // namespace machine
