# Writes CTest's entries of a test program: one for each suite and, so that they count, for each disabled test.
# A suite whose tests are all skipped counts as passed in CTest; scripts/test counts its tests as skipped. CTest's
# SKIP_REGULAR_EXPRESSION would hide the failure of a suite in which no test passes.
#   cmake -D PROGRAM=FILE -D FILTER=GTEST_FILTER -D LABEL=NAME -D OUT=FILE -P discover_suites.cmake
# With the memory events of MPICH's UCX, a program of Clang's address sanitizer crashes when it starts.
set(ENV{UCX_MEM_EVENTS} no)
execute_process(COMMAND ${PROGRAM} --gtest_list_tests --gtest_filter=${FILTER} OUTPUT_VARIABLE listed
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${listed}")
set(entries)
foreach(line ${lines})
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.")
    set(suite ${CMAKE_MATCH_1})
    string(APPEND entries
      "add_test([=[${suite}]=] [=[${PROGRAM}]=] --gtest_brief=1 [=[--gtest_filter=${suite}.*]=])\n"
      "set_tests_properties([=[${suite}]=] PROPERTIES LABELS ${LABEL})\n")
  elseif(line MATCHES "^  DISABLED_([A-Za-z0-9_]+)")
    string(APPEND entries
      "add_test([=[${suite}.${CMAKE_MATCH_1}]=] [=[${PROGRAM}]=])\n"
      "set_tests_properties([=[${suite}.${CMAKE_MATCH_1}]=] PROPERTIES LABELS ${LABEL} DISABLED TRUE)\n")
  endif()
endforeach()
file(WRITE ${OUT} "${entries}")
