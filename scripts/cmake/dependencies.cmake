# Dependencies. Required libraries come from Debian's packages (scripts/install). The CUDA Toolkit,
# NCCL and liburing are optional, and the program reports them.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
include(mpi)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
# Not find_package(dnnl): Debian's requires the OpenCL headers, which only its GPU engine needs.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
pkg_check_modules(liburing IMPORTED_TARGET liburing>=2.2)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(benchmark REQUIRED)
find_package(GTest REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(fmt REQUIRED)
find_package(SQLite3 REQUIRED)

# nvcc may not be in PATH; look in the toolkit's default folder.
find_program(SHARDMARK_NVCC nvcc HINTS /usr/local/cuda/bin)
if(SHARDMARK_CUDA STREQUAL "AUTO")
  if(SHARDMARK_NVCC)
    set(SHARDMARK_CUDA ON)
  else()
    set(SHARDMARK_CUDA OFF)
  endif()
endif()
if(SHARDMARK_CUDA STREQUAL "VIRTUAL")
  # The headers of the toolkit. machine/virtual_gpu replaces its libraries, and g++ compiles the kernels.
  find_package(CUDAToolkit 13 REQUIRED)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  set(NCCL_LIBRARY virtual_gpu)
elseif(SHARDMARK_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  endif()
  set(CMAKE_CUDA_COMPILER ${SHARDMARK_NVCC})
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one runtime for the kernels and for libraries that link cudart
  # CMake 3.25 does not know nvcc's option for C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit 13 REQUIRED)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  # cuDNN's attention is a yardstick. PyPI's nvidia-cudnn-frontend has the second of these headers.
  execute_process(COMMAND python3 -c "import sysconfig; print(sysconfig.get_path('purelib'))"
                  OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${site_packages}/nvidia/cudnn/include)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${site_packages}/include)
endif()
message(STATUS "Shardmark: CUDA ${SHARDMARK_CUDA}, NCCL ${NCCL_LIBRARY}, cuDNN ${CUDNN_FRONTEND_INCLUDE_DIR}, liburing ${liburing_VERSION}")
