# What keeps states in files. Where liburing was not found, the ring says so when it is asked for.
target_sources(zero PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES
  checkpoint.h checkpoint_index.h checkpoint_piece.h checksum.h io_file.h io_ring.h offload.h offload_device.h offload_nvme.h offload_param.h swap_file.h)
target_sources(zero PRIVATE checkpoint.cpp checkpoint_index.cpp checkpoint_piece.cpp checkpoint_reading.cpp checksum.cpp
  io_file.cpp io_options.cpp offload.cpp offload_nvme.cpp offload_param.cpp swap_file.cpp)
target_link_libraries(zero PRIVATE nlohmann_json::nlohmann_json)
if(liburing_FOUND)
  target_sources(zero PRIVATE io_ring.cpp)
  target_link_libraries(zero PRIVATE PkgConfig::liburing)
else()
  target_sources(zero PRIVATE io_ring_absent.cpp)
endif()
if(TARGET zero_step_test)
  target_sources(zero_step_test PRIVATE checkpoint_test.cpp io_ring_test.cpp offload_nvme_test.cpp offload_param_test.cpp)
endif()
