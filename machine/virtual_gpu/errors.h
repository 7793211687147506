#pragma once
// Errors of the virtual runtime. A call sets the error of its thread, with a text that
// cudaGetErrorString returns. A failed kernel breaks its device: all later calls return its error.

#include <cuda_runtime_api.h>

#include <string>

namespace machine::virtual_gpu {

// Sets the error and the text of this thread, and returns the error.
cudaError_t failed(cudaError_t status, std::string text);

// Makes an error of a device sticky, and prints it. Only the first error of a device counts.
void break_device(int device, cudaError_t status, const std::string& text);
cudaError_t sticky_error(int device);  // cudaSuccess if the device works
// Returns the sticky error of the device, and sets it with its text as the error of this thread.
cudaError_t failed_device(int device);
// Clears the sticky error of a device. Only for tests.
void mend_device(int device);

// Starts a call of the runtime. Returns cudaErrorInitializationError in a child of fork() whose
// parent used CUDA, and the sticky error of the thread's device.
cudaError_t enter();
// Starts a call that a broken device still allows: freeing, destroying. A lost device allows none.
cudaError_t enter_to_release();

// Returns the device of this thread's calls.
int current_device();
void set_current_device(int device);

}  // namespace machine::virtual_gpu

// Returns from a function of the runtime if it cannot start.
#define VIRTUAL_GPU_ENTER                                                                  \
  if (const cudaError_t entered = ::machine::virtual_gpu::enter(); entered != cudaSuccess) \
  return entered
#define VIRTUAL_GPU_ENTER_TO_RELEASE                                          \
  if (const cudaError_t entered = ::machine::virtual_gpu::enter_to_release(); \
      entered != cudaSuccess)                                                 \
  return entered
