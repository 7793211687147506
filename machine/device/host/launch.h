#pragma once
// How the host runs a kernel's body: loops on the calling thread, written so that they vectorize
// (32 partial sums, the same on every machine).

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "machine/device/device.h"
#include "machine/device/host/streaming.h"
#include "machine/device/kernels/fields.h"

namespace machine {

struct HostLanes {
  static constexpr int width = 32;  // of a warp: the host's sums are a warp's sums

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

  template <class A, class Body>
  A max(std::int64_t n, const Body& body) const {
    return fold<A>(n, -std::numeric_limits<A>::infinity(), body,
                   [](A a, A b) { return a < b ? b : a; });
  }

 private:
  template <class A, class Body, class Join>
  static A fold(std::int64_t n, A start, const Body& body, const Join& join) {
    A partial[width];
    std::fill_n(partial, width, start);
    std::int64_t c = 0;
    for (; c + width <= n; c += width) {
#pragma omp simd
      for (int lane = 0; lane < width; ++lane) {
        partial[lane] = join(partial[lane], body(c + lane));
      }
    }
    for (int lane = 0; c + lane < n; ++lane) partial[lane] = join(partial[lane], body(c + lane));
    for (int half = width / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        partial[lane] = join(partial[lane], partial[lane + half]);
      }
    }
    return partial[0];
  }
};

struct HostLaunch {
  static constexpr Device::Kind kind = Device::Kind::host;

  template <class Body, class... Fields>
  void each(std::int64_t count, Body body, Fields... fields) const {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) kernel::apply(body, Fields::slot(fields.data + i)...);
  }

  template <class Body, class... Fields>
  void each_at(std::int64_t count, Body body, Fields... fields) const {
    for (std::int64_t i = 0; i < count; ++i) {
      kernel::apply_at(body, i, Fields::slot(fields.data + i)...);
    }
  }

  // A cache line at a time, so that each line is written whole, once, to every target.
  template <class Body, class T>
  void join_to(std::int64_t count, Body body, kernel::In<T> a, kernel::In<T> b,
               std::span<void* const> outs, Store store) const {
    if (outs.size() == 1 && store == Store::cached) {
      each(count, body, a, b, kernel::Out<T>(outs[0]));
      return;
    }
    const auto join_line = [&](std::int64_t begin, std::int64_t size) {
      alignas(host::line_bytes) T line[host::line_bytes / sizeof(T)];
#pragma omp simd
      for (std::int64_t i = 0; i < size; ++i)
        kernel::apply(body, a.slot(a.data + begin + i), b.slot(b.data + begin + i),
                      kernel::Out<T>::slot(line + i));
      for (void* out : outs)
        std::memcpy(static_cast<T*>(out) + begin, line, static_cast<std::size_t>(size) * sizeof(T));
    };
    constexpr auto per_line = static_cast<std::int64_t>(host::line_bytes / sizeof(T));
    const auto past_line = [](const void* out) {
      return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % host::line_bytes /
                                       sizeof(T));
    };
    const std::int64_t phase = past_line(outs[0]);
    std::int64_t i = std::min(count, phase == 0 ? 0 : per_line - phase);
    join_line(0, i);
    const bool streams =
        store == Store::streaming &&
        std::ranges::all_of(outs, [&](const void* out) { return past_line(out) == phase; });
    for (; i + per_line <= count; i += per_line) {
      if (!streams) {
        join_line(i, per_line);
        continue;
      }
      alignas(host::line_bytes) T line[per_line];
#pragma omp simd  // or it is unrolled into branches
      for (std::int64_t j = 0; j < per_line; ++j)
        kernel::apply(body, a.slot(a.data + i + j), b.slot(b.data + i + j),
                      kernel::Out<T>::slot(line + j));
      for (void* out : outs) host::stream_line(static_cast<T*>(out) + i, line);
    }
    join_line(i, count - i);
    host::end_streaming();
  }

  template <class Body>
  void rows(std::int64_t rows, std::int64_t /*cols*/, Body body) const {
    for (std::int64_t row = 0; row < rows; ++row) body(row, HostLanes{});
  }

  // Rows in order, a block of columns at a time, whose sums stay in the first-level cache.
  template <int N, class Body, class O>
  void columns(std::int64_t rows, std::int64_t cols, Body body, std::array<O*, N> outs) const {
    using A = kernel::Value<O>;
    constexpr int width = 256;
    for (std::int64_t begin = 0; begin < cols; begin += width) {
      const int count = static_cast<int>(std::min<std::int64_t>(width, cols - begin));
      A sums[N][width] = {};
      for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC ivdep
        for (int c = 0; c < count; ++c) {
          const auto terms = body(row, begin + c);
          for (int k = 0; k < N; ++k) sums[k][c] += terms.of[k];
        }
      }
      for (int k = 0; k < N; ++k) {
        O* out = outs[k] + begin;
        for (int c = 0; c < count; ++c) {
          out[c] = kernel::narrow<O>(kernel::widen(out[c]) + sums[k][c]);
        }
      }
    }
  }

  template <class Body, class T>
  void total(std::int64_t count, Body body, const T* in, double* out) const {
    *out = HostLanes{}.sum<double>(
        count, [=](std::int64_t i) { return body(static_cast<double>(kernel::widen(in[i]))); });
  }

  template <class Body>
  void scatter_rows(const std::int32_t* /*tokens*/, std::int64_t rows, Body body) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      if (body.owns(row)) body(row, HostLanes{});
    }
  }
};

}  // namespace machine
