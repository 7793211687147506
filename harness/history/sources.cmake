# Runs over time, in one SQLite file.
set(history_headers
  history/change_points.h
  history/exports.h
  history/store.h
  history/track.h)
set(history_sources
  history/change_points.cpp
  history/exports.cpp
  history/store.cpp
  history/track.cpp)
