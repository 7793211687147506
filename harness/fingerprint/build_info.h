#pragma once
// The build of this program. The commit is read when the library is linked, not when it is
// configured, so it is the compiled one. It ends with "-dirty" if the tree differed from it.

#include <string_view>

namespace harness {

struct BuildInfo {
  std::string_view version;
  std::string_view commit;    // "unknown" outside a git tree
  std::string_view compiler;  // "GNU 12.2.0"
  std::string_view flags;
  std::string_view build_type;
  bool optimized;
  bool cuda;
  std::string_view nccl_header;  // "2.28.3", or "absent"
};
const BuildInfo& build_info();

}  // namespace harness
