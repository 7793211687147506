#pragma once
// The launch of a kernel: its arguments are copied and checked, and it is queued in a stream.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace machine::virtual_gpu {

// The value of one parameter. Any of its 8-byte words may be an address.
struct Argument {
  const void* value;
  std::size_t bytes;
};
constexpr std::size_t largest_alignment = 16;
// Calls the kernel with the values of its parameters.
using Thread = void (*)(const void* kernel, const void* const* values);

// Copies the arguments. Sets the error that cudaGetLastError returns.
void queue_kernel(const char* name, const void* kernel, dim3 grid, dim3 block,
                  std::size_t shared_bytes, cudaStream_t stream,
                  std::initializer_list<Argument> arguments, Thread thread);

template <class Indices, class... Parameters>
struct ThreadOf;
template <std::size_t... i, class... Parameters>
struct ThreadOf<std::index_sequence<i...>, Parameters...> {
  static void run(const void* kernel, const void* const* values) {
    reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel))(
        *static_cast<const Parameters*>(values[i])...);
  }
};

// Padding holds old values of the stack, which may be addresses.
template <class T>
Argument without_padding(T& parameter) {
  static_assert(std::is_trivially_copyable_v<T>, "a kernel's argument is copied as bytes");
  static_assert(alignof(T) <= largest_alignment);
  __builtin_clear_padding(&parameter);
  return {&parameter, sizeof(T)};
}

// Little code, because thousands of kernels instantiate it.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, cudaStream_t stream,
            std::type_identity_t<Parameters>... arguments) {
  queue_kernel(name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
               {without_padding(arguments)...},
               ThreadOf<std::index_sequence_for<Parameters...>, Parameters...>::run);
}

}  // namespace machine::virtual_gpu
