# MPI::MPI_C is the library of SHARDMARK_MPI, not that of the system's alternatives. Debian's compiler
# wrappers (mpicc.mpich, mpicc.openmpi) and pkg-config files have its name. Elsewhere a plain mpicc is
# used if its mpi.h belongs to that library.

set(mpi_names mpich openmpi)
set_property(CACHE SHARDMARK_MPI PROPERTY STRINGS ${mpi_names})
if(NOT SHARDMARK_MPI IN_LIST mpi_names)
  message(FATAL_ERROR "SHARDMARK_MPI=${SHARDMARK_MPI} is not a known MPI library; known: mpich, openmpi")
endif()
if(SHARDMARK_MPI STREQUAL "mpich")
  set(mpi_title "MPICH")
  set(mpi_module mpich)
  set(mpi_macro MPICH_VERSION)
  set(mpi_package "libmpich-dev (scripts/install)")
else()
  set(mpi_title "Open MPI")
  set(mpi_module ompi-c)
  set(mpi_macro OPEN_MPI)
  set(mpi_package "libopenmpi-dev (scripts/install --for openmpi)")
endif()

# Forget the variables of the other library from an earlier configuration.
if(NOT SHARDMARK_MPI STREQUAL "${SHARDMARK_MPI_FOUND}")
  get_cmake_property(cached CACHE_VARIABLES)
  list(FILTER cached INCLUDE REGEX "^(MPI_|SHARDMARK_MPI_(HEADER|WRAPPER)|SHARDMARK_LAUNCHER|MPICONFIG_)")
  foreach(variable ${cached})
    unset(${variable} CACHE)
  endforeach()
endif()

find_program(SHARDMARK_MPI_WRAPPER NAMES mpicc.${SHARDMARK_MPI} mpicc NAMES_PER_DIR)
if(SHARDMARK_MPI_WRAPPER)
  set(MPI_C_COMPILER ${SHARDMARK_MPI_WRAPPER} CACHE FILEPATH "MPI's compiler wrapper" FORCE)
  find_package(MPI COMPONENTS C)
endif()
if(NOT MPI_C_FOUND)
  # Without a wrapper, try pkg-config.
  pkg_check_modules(${mpi_module} IMPORTED_TARGET ${mpi_module})
  if(${mpi_module}_FOUND)
    add_library(MPI::MPI_C INTERFACE IMPORTED)
    target_link_libraries(MPI::MPI_C INTERFACE PkgConfig::${mpi_module})
    set(MPI_C_FOUND TRUE)
  endif()
endif()
if(NOT MPI_C_FOUND)
  message(FATAL_ERROR "${mpi_title} is not installed (SHARDMARK_MPI=${SHARDMARK_MPI}): "
                      "no mpicc.${SHARDMARK_MPI}, no ${mpi_module}.pc; install ${mpi_package}")
endif()

include(CheckSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
check_symbol_exists(${mpi_macro} mpi.h SHARDMARK_MPI_HEADER)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT SHARDMARK_MPI_HEADER)
  unset(SHARDMARK_MPI_HEADER CACHE)
  message(FATAL_ERROR "${SHARDMARK_MPI_WRAPPER} does not belong to ${mpi_title} "
                      "(SHARDMARK_MPI=${SHARDMARK_MPI}); install ${mpi_package}")
endif()
if(SHARDMARK_MPI STREQUAL "openmpi")
  # Its mpi.h contains C++ bindings that need another library.
  target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX)
endif()
set(SHARDMARK_MPI_FOUND ${SHARDMARK_MPI} CACHE INTERNAL "The MPI library of the MPI_ variables")
message(STATUS "Shardmark: MPI ${mpi_title}, ${SHARDMARK_MPI_WRAPPER}")
