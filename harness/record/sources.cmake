# Records of a launch: run.json, the fingerprint, and the watchdog that closes them when a rank is lost.
set(record_headers
  record/build_info.h
  record/diagnosis.h
  record/fingerprint.h
  record/machine_context.h
  record/record_json.h
  record/run_json.h
  record/running_case.h
  record/supervisor.h
  record/trace.h
  record/watchdog.h)
set(record_sources
  record/diagnosis.cpp
  record/fingerprint.cpp
  record/machine_context.cpp
  record/record_json.cpp
  record/redaction.cpp
  record/run_json.cpp
  record/running_case.cpp
  record/supervisor.cpp
  record/trace.cpp
  record/watchdog.cpp)
set(record_tests
  record/diagnosis_test.cpp
  record/fingerprint_test.cpp
  record/run_json_test.cpp
  record/running_case_test.cpp
  record/schema_test.cpp)

# The commit is looked up in every build; the file changes, and is compiled, only when its text does.
set(build_info_cpp ${CMAKE_CURRENT_BINARY_DIR}/record/build_info.cpp)
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
    -P ${CMAKE_CURRENT_LIST_DIR}/build_info.cmake
  VERBATIM)
list(APPEND record_sources ${build_info_cpp})

set_source_files_properties(record/schema_test.cpp PROPERTIES
  COMPILE_DEFINITIONS SHARDMARK_SCHEMA="${CMAKE_SOURCE_DIR}/results/run.schema.json")

# Its ranks are processes, which the thread sanitizer's presets leave out.
test_program(harness_watchdog_test record/watchdog_test.cpp NEEDS harness LABELS processes)
