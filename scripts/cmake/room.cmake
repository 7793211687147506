# room(NAME HEADERS … SOURCES … TESTS … NEEDS … MAY_INCLUDE …)
#
# One call a room. HEADERS compile alone: x.h because x.cpp includes it first, which
# scripts/check_rooms sees to (and scripts/lint compiles: a unity build hides it), the others by the
# target all_verify_interface_header_sets. SOURCES make
# the library, each of TESTS (x_test.cpp) becomes one CTest program, NEEDS are link libraries, and
# MAY_INCLUDE lists the other rooms whose headers this one may include: scripts/check_rooms reads
# that list and fails on any other include.
#
# test_program(NAME FILE [NEEDS …] [LABELS …]) adds a test by itself.

# Vectorized and fused, but never reassociated: the order of a sum is part of what is judged.
set(shardmark_options -Wall -Wextra -Werror=return-type -fno-math-errno -fno-trapping-math)
if(SHARDMARK_MARCH)
  list(APPEND shardmark_options -march=${SHARDMARK_MARCH})
endif()
if(SHARDMARK_SANITIZE)
  list(APPEND shardmark_options -fsanitize=${SHARDMARK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SHARDMARK_SANITIZE})
  if(SHARDMARK_SANITIZE MATCHES thread)
    # GCC's thread sanitizer does not model fences; none of our code relies on one alone.
    list(APPEND shardmark_options -Wno-tsan)
  endif()
endif()

function(shardmark_compile_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${shardmark_options}>)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  # With checks of addresses and of undefined behaviour, optimizing takes three times as long as
  # compiling without it: only for the rooms that compute.
  if(SHARDMARK_SANITIZE MATCHES address AND NOT target MATCHES "^(machine|collectives|layers)$")
    target_compile_options(${target} PRIVATE -O0)
  endif()
  # Templates that many files use are then made once for several: half the time to compile. What is
  # large by itself gains nothing.
  if(SHARDMARK_UNITY AND target MATCHES "^(collectives|layers|zero|pipeline|harness|training_step|configuration|nccl_tests|zero_step_test|harness_run_json_test|suite_(inputs|configuration|step_units)_test)$")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  # Where no memory is cast, the check of addresses finds bad pointers; looking at each one's
  # alignment and type as well takes a third of the time to compile.
  if(SHARDMARK_SANITIZE MATCHES undefined AND target MATCHES "^(harness|suite|units|configuration|nccl_tests)")
    target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
endfunction()

function(test_program name file)
  cmake_parse_arguments(ARG "" "" "NEEDS;LABELS" ${ARGN})
  if(SHARDMARK_SANITIZE MATCHES thread)
    # Only what starts threads has anything to show here. Tests of layers, which start them through a
    # header, are left out: the units run the same layers on the same threads.
    file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/${file} threads LIMIT_COUNT 1
         REGEX "run_ranks|on_threads|std::thread|std::async|watchdog")
    if(NOT threads)
      return()
    endif()
  endif()
  add_executable(${name} ${file})
  shardmark_compile_options(${name})
  # What is tested is optimized; the tests themselves are compiled fast.
  target_compile_options(${name} PRIVATE -O0)
  target_link_libraries(${name} PRIVATE ${ARG_NEEDS} GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(ARG_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  # MPICH's UCX patches madvise, which the end of a thread calls after the thread sanitizer has let
  # it go: without UCX_MEM_EVENTS=no every test that ends a thread crashes under it.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/scripts/tsan_suppressions.txt;UBSAN_OPTIONS=print_stacktrace=1;UCX_MEM_EVENTS=no")
endfunction()

function(room name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;TESTS;NEEDS;MAY_INCLUDE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX POSITION_INDEPENDENT_CODE ON
                        VERIFY_INTERFACE_HEADER_SETS ON)
  set(alone ${ARG_HEADERS})
  foreach(source ${ARG_SOURCES})
    string(REGEX REPLACE "\\.(cpp|cu)$" ".h" own_header ${source})
    list(REMOVE_ITEM alone ${own_header})
  endforeach()
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${alone})
  shardmark_compile_options(${name})
  target_link_libraries(${name} PUBLIC ${ARG_MAY_INCLUDE} ${ARG_NEEDS})
  foreach(test ${ARG_TESTS})
    get_filename_component(test_name ${test} NAME_WE)
    test_program(${name}_${test_name} ${test} NEEDS ${name})
  endforeach()
endfunction()
