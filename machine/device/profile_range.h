#pragma once
// Named ranges of a thread that a GPU's profiler shows above its kernels (NVTX). Costs a check of a
// pointer without a profiler, and nothing in builds without the CUDA Toolkit's header.
//
//   const ProfileRange range(plan.name);   // until the end of the scope

#include <string>

namespace machine {

// Ranges of a thread are a stack.
void begin_profile_range(const std::string& name);
void end_profile_range();

class ProfileRange {
 public:
  explicit ProfileRange(const std::string& name) { begin_profile_range(name); }
  ~ProfileRange() { end_profile_range(); }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace machine
