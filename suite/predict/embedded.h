#pragma once
// Files that are part of the program: clusters/*.toml and published_runs.csv. The build generates
// their text (suite/CMakeLists.txt).

#include <span>
#include <string_view>

namespace suite::predict {

struct EmbeddedFile {
  std::string_view name, text;  // "dgx_a100", without folder and ending
};
std::span<const EmbeddedFile> embedded_clusters();
std::string_view embedded_published_runs();

}  // namespace suite::predict
