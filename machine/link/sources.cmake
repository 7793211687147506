set(link_headers link/channel.h link/cuda_links.h link/faulty_link.h link/link.h link/mpi.h link/shared_memory.h link/streamed.h
    link/wait.h link/waited.h)
set(link_sources link/channel.cpp link/faulty_link.cpp link/link.cpp link/mpi.cpp link/shared_memory.cpp link/streamed.cpp
    link/wait.cpp)
if(NOT SHARDMARK_CUDA)
  list(APPEND link_sources link/cuda_absent.cpp)
endif()
set(link_tests link/link_test.cpp)
