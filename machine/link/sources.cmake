set(link_headers link/link.h link/mpi.h link/shared_memory.h link/wait.h)
set(link_sources link/link.cpp link/mpi.cpp link/shared_memory.cpp link/wait.cpp)
set(link_tests link/link_test.cpp)
