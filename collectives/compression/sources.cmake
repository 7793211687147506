set(compression_headers
  compression/code.h compression/compressed_all_reduce.h compression/int_block.h
  compression/magnitude.h compression/quadratic.h compression/quantized_all_gather.h
  compression/quantized_reduce_scatter.h compression/threshold.h compression/top_k.h
  compression/volume.h compression/wire_dtype.h)
set(compression_sources
  compression/compressed_all_reduce.cpp compression/int_block.cpp compression/quadratic.cpp
  compression/quantized_all_gather.cpp compression/quantized_reduce_scatter.cpp
  compression/threshold.cpp compression/top_k.cpp compression/volume.cpp)
set(compression_tests
  compression/code_test.cpp compression/compressed_all_reduce_test.cpp
  compression/quadratic_test.cpp compression/top_k_test.cpp)
