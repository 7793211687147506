set(device_headers
  device/arenas.h device/clock.h device/contiguous_arena.h device/device.h device/disk_fault.h device/dtype.h device/error.h device/flash_attention.h device/free_list.h device/gemm.h device/gemm_fault.h device/kernels.h device/memory.h device/memory_block.h device/memory_limit.h device/names.h
  device/random.h device/reduction.h device/tensor.h)
set(device_sources
  device/arenas.cpp device/contiguous_arena.cpp device/device.cpp device/flash_attention.cpp device/free_list.cpp device/gemm.cpp device/memory.cpp device/memory_block.cpp device/names.cpp device/tensor.cpp device/kernels/checks.cpp
  device/host/block_kernels.cpp device/host/device.cpp device/host/double_gemm.cpp device/host/flash_attention.cpp
  device/host/gemm.cpp device/host/kernels.cpp device/host/optimizer_kernels.cpp device/host/stream_copy.cpp)
if(NOT SHARDMARK_CUDA)
  list(APPEND device_sources device/cuda_absent.cpp)
endif()
set(device_tests
  device/kernels/row_kernels_test.cpp device/kernels/block_kernels_test.cpp device/kernels/column_kernels_test.cpp
  device/kernels/element_kernels_test.cpp device/kernels/reduce_test.cpp device/random_test.cpp
  device/dtype_test.cpp device/flash_attention_test.cpp device/gemm_test.cpp device/memory_test.cpp device/names_test.cpp
  device/tensor_test.cpp)

# Unfused, so that an element has the same bits in a vector loop and in its remainder, on every
# processor and (cuda/sources.cmake) on the GPU. These kernels wait for memory, not for arithmetic.
set_source_files_properties(device/host/kernels.cpp device/host/block_kernels.cpp device/host/optimizer_kernels.cpp
  PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
