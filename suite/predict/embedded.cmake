# Writes the files of predict into a source of the program (embedded.h).
file(GLOB embedded_clusters CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/clusters/*.toml)
set(embedded_runs ${CMAKE_CURRENT_LIST_DIR}/published_runs.csv)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${embedded_clusters} ${embedded_runs})
set(embedded_rows "")
foreach(file ${embedded_clusters})
  file(READ ${file} content)
  get_filename_component(name ${file} NAME_WE)
  string(APPEND embedded_rows "    {\"${name}\", R\"embedded(${content})embedded\"},\n")
endforeach()
file(READ ${embedded_runs} content)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp @ONLY CONTENT [[
#include "suite/predict/embedded.h"
namespace suite::predict {
namespace {
constexpr EmbeddedFile clusters[] = {
@embedded_rows@};
constexpr std::string_view runs = R"embedded(@content@)embedded";
}  // namespace
std::span<const EmbeddedFile> embedded_clusters() { return clusters; }
std::string_view embedded_published_runs() { return runs; }
}  // namespace suite::predict
]])
target_sources(suite PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp)
