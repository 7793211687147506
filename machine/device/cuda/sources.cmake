# The CUDA device, added to target machine.
target_sources(machine PRIVATE
  device/cuda/device.cpp device/cuda/gate.cu device/cuda/gemm.cpp device/cuda/element_kernels.cu
  device/cuda/flash_attention.cu device/cuda/row_kernels.cu device/cuda/column_kernels.cu device/cuda/block_kernels.cu device/cuda/optimizer_kernels.cu device/cuda/scale.cu)
target_link_libraries(machine PUBLIC CUDA::cudart CUDA::cublasLt)
# --fmad=false: unfused, as the host's kernels are (device/sources.cmake); GEMM is cuBLASLt's own.
target_compile_options(machine PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --fmad=false>)
