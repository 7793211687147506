#pragma once
// The launch of a kernel: its arguments are copied and checked, and it is queued in a stream.

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace machine::virtual_gpu {

// `words`: the 8-byte words of the arguments. Any of them may be an address. Sets the error that
// cudaGetLastError returns.
void queue_kernel(const char* name, const void* kernel, dim3 grid, dim3 block,
                  std::size_t shared_bytes, cudaStream_t stream,
                  const std::vector<std::uint64_t>& words, std::function<void()> thread);

// Padding holds old values of the stack, which may be addresses.
template <class T>
void append_words(std::vector<std::uint64_t>& words, const T& argument) {
  static_assert(std::is_trivially_copyable_v<T>, "a kernel's argument is copied as bytes");
  if constexpr (!std::is_empty_v<T> && sizeof(T) >= sizeof(std::uint64_t)) {
    T copy = argument;
    __builtin_clear_padding(&copy);
    const std::size_t first = words.size(), count = sizeof(T) / sizeof(std::uint64_t);
    words.resize(first + count);
    std::memcpy(words.data() + first, static_cast<const void*>(&copy),
                count * sizeof(std::uint64_t));
  }
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  std::tuple<Parameters...> values{static_cast<Parameters>(arguments)...};
  std::vector<std::uint64_t> words;
  std::apply([&](const auto&... value) { (append_words(words, value), ...); }, values);
  queue_kernel(name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
               words, [kernel, values] { std::apply(kernel, values); });
}

}  // namespace machine::virtual_gpu
