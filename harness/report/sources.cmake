# What people and other programs read of a run: console, junit.xml, report.html.
set(report_headers
  report/console.h
  report/figures.h
  report/findings.h
  report/health.h
  report/html.h
  report/junit.h
  report/summary.h)
set(report_sources
  report/bits_table.cpp
  report/case_tables.cpp
  report/console.cpp
  report/escape.cpp
  report/figures.cpp
  report/findings.cpp
  report/health.cpp
  report/html.cpp
  report/junit.cpp
  report/page_style.cpp
  report/slowness.cpp
  report/summary.cpp)
set(report_tests
  report/console_test.cpp
  report/html_test.cpp
  report/junit_test.cpp)

# The page in a real browser; skipped where there is none.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND BUILD_TESTING)
  add_executable(harness_report_example report/report_example.cpp)
  shardmark_compile_options(harness_report_example)
  target_link_libraries(harness_report_example PRIVATE harness)
  add_test(NAME harness_browser_test
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/browser_test.py $<TARGET_FILE:harness_report_example>)
  set_tests_properties(harness_browser_test PROPERTIES LABELS browser SKIP_RETURN_CODE 77)
endif()
