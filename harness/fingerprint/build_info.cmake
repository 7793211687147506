# Included by harness/CMakeLists.txt: adds the target build_info, which writes build_info.cpp from
# build_info.cpp.in. Run at build time (cmake -P): writes the file when its text changed.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE SHARDMARK_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE
                  RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    set(SHARDMARK_COMMIT unknown)
  else()
    execute_process(COMMAND git -C ${SOURCE_DIR} --no-optional-locks status --porcelain --untracked-files=no
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND SHARDMARK_COMMIT "-dirty")
    endif()
  endif()
  configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
  return()
endif()

set(build_info_cpp ${CMAKE_CURRENT_BINARY_DIR}/fingerprint/build_info.cpp)
set(build_info_nccl absent)
if(SHARDMARK_CUDA AND NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers . build_info_nccl)
endif()
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
string(JOIN " " build_info_flags ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}} ${shardmark_options})
set(build_info_cuda false)
if(SHARDMARK_CUDA)
  set(build_info_cuda true)
endif()
add_custom_target(build_info
  BYPRODUCTS ${build_info_cpp}
  COMMAND ${CMAKE_COMMAND}
    -D SOURCE_DIR=${CMAKE_SOURCE_DIR} -D TEMPLATE=${CMAKE_CURRENT_LIST_DIR}/build_info.cpp.in
    -D OUTPUT=${build_info_cpp} -D VERSION=${PROJECT_VERSION}
    -D "COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -D "FLAGS=${build_info_flags}"
    -D BUILD_TYPE=${CMAKE_BUILD_TYPE} -D CUDA=${build_info_cuda} -D NCCL_HEADER=${build_info_nccl}
    -P ${CMAKE_CURRENT_LIST_FILE}
  VERBATIM)
