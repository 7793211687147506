# What people and other programs read of a run: console, junit.xml, report.html.
set(report_headers
  report/console.h
  report/junit.h
  report/summary.h)
set(report_sources
  report/console.cpp
  report/escape.cpp
  report/junit.cpp
  report/summary.cpp)
set(report_tests
  report/console_test.cpp
  report/junit_test.cpp)
