# room(NAME FOLDERS … PUBLIC … [NEEDS …] [MAY_INCLUDE …] [WITHOUT …] [UNSANITIZED …]
#      [OPTIMIZE LEVEL] [OBJECTS])
#
# One call per room. Its sources and tests are the *.cpp files below FOLDERS; *_test.cpp files become
# the program NAME_test, whose suites CTest lists under the label NAME. scripts/check_rooms
# reads the call and checks the includes:
#   FOLDERS      the room's layers, lowest first: a file includes only its own and earlier ones.
#                "." is the room itself. A folder that is not listed belongs to the one above it.
#   PUBLIC       the headers that other rooms may include.
#   MAY_INCLUDE  the rooms whose public headers this room may include.
# WITHOUT lists sources and tests that the caller adds under a condition. UNSANITIZED lists tests that
# asan and tsan leave out, and asan_full has: formulas, proofs and rates, whose memory the other tests
# cover. OPTIMIZE is the level of release builds, default 3: text and JSON compile three times as long
# with 3 as with 1. OBJECTS links the room as objects, because an archive drops units without callers.
#
# Each header compiles alone: x.h because x.cpp includes it first (scripts/check_rooms), the others
# by the target all_verify_interface_header_sets (scripts/test --full).

# Code is vectorized and fused, but not reassociated, because the order of a sum is checked.
set(shardmark_options -Wall -Wextra -Werror=return-type -fno-math-errno -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -fpch-preprocess: ccache then sees changes of the precompiled header.
  # GCC collects its garbage after 1 GB (in KiB) instead of some 100 MB: an eighth of the time.
  list(APPEND shardmark_options -fpch-preprocess --param=ggc-min-heapsize=1000000)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Without its time, ccache sees an equal precompiled header as equal. Products and sums are fused in all code, as
  # by GCC. Clang does not know GCC's ivdep.
  list(APPEND shardmark_options "SHELL:-Xclang -fno-pch-timestamp" -ffp-contract=fast -Wno-unknown-pragmas)
endif()
if(SHARDMARK_MARCH)
  list(APPEND shardmark_options -march=${SHARDMARK_MARCH})
endif()
if(SHARDMARK_SANITIZE)
  list(APPEND shardmark_options -fsanitize=${SHARDMARK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(SHARDMARK_NO_SANITIZE)
    list(APPEND shardmark_options -fno-sanitize=${SHARDMARK_NO_SANITIZE})
  endif()
  add_link_options(-fsanitize=${SHARDMARK_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Clang defines GCC's macros of sanitizers only from version 21 on.
    string(REGEX MATCH "address|thread" checked ${SHARDMARK_SANITIZE})
    if(checked)
      string(TOUPPER ${checked} checked)
      list(APPEND shardmark_options -D__SANITIZE_${checked}__=1)
    endif()
  endif()
endif()

if(SHARDMARK_ODR)
  add_link_options(-fno-lto)
endif()

function(shardmark_compile_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${shardmark_options}>)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
endfunction()

# Appends to `result` the files below `folders` that match `pattern`; "." is the room's own folder only.
function(files_below result pattern)
  set(found)
  foreach(folder ${ARGN})
    if(folder STREQUAL ".")
      file(GLOB here CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${pattern})
    else()
      file(GLOB_RECURSE here CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${folder}/${pattern})
    endif()
    list(APPEND found ${here})
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Sets the optimization of all but debug builds of the sources below some folders. They can't use the
# room's precompiled headers then: GCC 12 crashes on those of another level.
function(optimize_folders level)
  files_below(sources "*.cpp" ${ARGN})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  set_source_files_properties(${sources} PROPERTIES
    COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O${level}> SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# Optimizes compute-bound tests. They can't use headers precompiled without optimization.
function(optimize_tests)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# Precompiles headers for a target. Targets with the same headers and optimization share them: the first
# one compiles them.
function(precompile target level)
  string(SHA1 key "${level} ${ARGN}")
  get_property(owner GLOBAL PROPERTY precompiled_${key})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY precompiled_${key} ${target})
  endif()
endfunction()

# Lists the suites of a room's tests that `filter` lets pass. A process for each test would take three times as long:
# most tests are shorter than the start of a program, which takes 0.2 s with sanitizers.
function(discover_suites name filter)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  add_custom_command(TARGET ${name}_test POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${name}_test> -D FILTER=${filter} -D LABEL=${name} -D OUT=${file}
            -P ${CMAKE_SOURCE_DIR}/scripts/cmake/discover_suites.cmake)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites_if_built.cmake
    "if(EXISTS [=[${file}]=])\n  include([=[${file}]=])\nelse()\n  add_test(${name}_test_NOT_BUILT ${name}_test_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites_if_built.cmake)
endfunction()

# BUSY: a filter of tests whose ranks keep all cores busy. They run without other tests, because with another busy
# program each message waits for its time slice.
function(room_tests name tests busy)
  if(SHARDMARK_SANITIZE MATCHES thread)
    # Only tests that start threads are useful there.
    set(threaded)
    foreach(test ${tests})
      file(STRINGS ${test} lines LIMIT_COUNT 1 REGEX "run_ranks|on_threads|std::thread|std::async|watchdog")
      if(lines)
        list(APPEND threaded ${test})
      endif()
    endforeach()
    set(tests ${threaded})
  endif()
  if(NOT tests)
    return()
  endif()
  add_executable(${name}_test ${tests})
  shardmark_compile_options(${name}_test)
  # The tested code is optimized; the tests compile without optimization.
  target_compile_options(${name}_test PRIVATE -O0)
  precompile(${name}_test 0 <gtest/gtest.h> ${shardmark_precompiled})
  target_link_libraries(${name}_test PRIVATE ${name} GTest::gtest GTest::gtest_main)
  if(busy)
    gtest_discover_tests(${name}_test NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 TEST_LIST busy_tests TEST_FILTER ${busy}
                         PROPERTIES LABELS ${name} PROCESSORS 2)
  endif()
  discover_suites(${name} "-${busy}")
endfunction()

# Runs tests in the orders of streams that are not the default (preset virtual-gpu): CI in two of them,
# scripts/test --full in all. The number of a random order is its seed.
function(test_in_stream_orders name)
  cmake_parse_arguments(ARG "" "" "LABELS;COMMAND;ENVIRONMENT" ${ARGN})
  set(orders eager random:1)
  foreach(seed RANGE 2 20)
    list(APPEND orders random:${seed})
  endforeach()
  foreach(order ${orders})
    set(labels ${ARG_LABELS})
    if(NOT order MATCHES "^(eager|random:1)$")
      list(APPEND labels full)
    endif()
    set(environment ${ARG_ENVIRONMENT} SHARDMARK_VIRTUAL_STREAMS=${order})
    add_test(NAME ${name}_${order} COMMAND ${ARG_COMMAND})
    set_tests_properties(${name}_${order} PROPERTIES LABELS "${labels}" ENVIRONMENT "${environment}" TIMEOUT 300)
  endforeach()
endfunction()

# Runs a suite of a room's tests on four virtual GPUs, in all orders of streams.
function(test_on_virtual_gpus name suite)
  if(SHARDMARK_CUDA STREQUAL "VIRTUAL")
    test_in_stream_orders(${suite} LABELS ${name} virtual_gpu COMMAND ${name}_test --gtest_filter=*${suite}*
                          ENVIRONMENT SHARDMARK_VIRTUAL_GPUS=4)
  endif()
endfunction()

function(room name)
  cmake_parse_arguments(ARG "OBJECTS" "OPTIMIZE;BUSY" "FOLDERS;PUBLIC;NEEDS;MAY_INCLUDE;WITHOUT;UNSANITIZED" ${ARGN})
  files_below(sources "*.cpp" ${ARG_FOLDERS})
  files_below(headers "*.h" ${ARG_FOLDERS})
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(REMOVE_ITEM sources ${tests})
  if(ARG_UNSANITIZED AND (SHARDMARK_NO_SANITIZE OR SHARDMARK_SANITIZE MATCHES thread))
    list(REMOVE_ITEM tests ${ARG_UNSANITIZED})
  endif()
  if(ARG_WITHOUT)
    list(REMOVE_ITEM sources ${ARG_WITHOUT})
    list(REMOVE_ITEM tests ${ARG_WITHOUT})
    list(REMOVE_ITEM headers ${ARG_WITHOUT})
  endif()
  if(ARG_OBJECTS)
    add_library(${name} OBJECT ${sources})
  else()
    add_library(${name} STATIC ${sources})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON VERIFY_INTERFACE_HEADER_SETS ON)
  foreach(source ${sources})
    string(REGEX REPLACE "\\.cpp$" ".h" own_header ${source})
    list(REMOVE_ITEM headers ${own_header})
  endforeach()
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${headers})
  shardmark_compile_options(${name})
  if(ARG_OPTIMIZE AND SHARDMARK_SANITIZE MATCHES address)
    # Optimizing checked code takes three times as long as compiling it.
    target_compile_options(${name} PRIVATE -O0)
  elseif(ARG_OPTIMIZE)
    target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O${ARG_OPTIMIZE}>)
  endif()
  if(SHARDMARK_ODR)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-flto=auto -ffat-lto-objects>)
  endif()
  precompile(${name} "${ARG_OPTIMIZE}" ${shardmark_precompiled})
  target_link_libraries(${name} PUBLIC ${ARG_MAY_INCLUDE} ${ARG_NEEDS})
  room_tests(${name} "${tests}" "${ARG_BUSY}")
endfunction()
