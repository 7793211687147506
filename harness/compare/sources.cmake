# Two runs against each other: what became slower, and which numbers changed.
set(compare_headers
  compare/comparable.h
  compare/compare.h
  compare/launches.h
  compare/rank_tests.h)
set(compare_sources
  compare/comparable.cpp
  compare/compare.cpp
  compare/comparison_json.cpp
  compare/comparison_text.cpp
  compare/floors.cpp
  compare/launches.cpp
  compare/rank_tests.cpp)
