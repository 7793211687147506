#include "machine/device/profile_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SHARDMARK_NVTX 1
#endif

namespace machine {

#ifdef SHARDMARK_NVTX
void begin_profile_range(const std::string& name) { nvtxRangePushA(name.c_str()); }
void end_profile_range() { nvtxRangePop(); }
#else
void begin_profile_range(const std::string&) {}
void end_profile_range() {}
#endif

}  // namespace machine
