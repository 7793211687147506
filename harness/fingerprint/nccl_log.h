#pragma once
// The network and the paths between GPUs that NCCL chose, from its own messages. NCCL falls back to
// slower ones without an error, for example to sockets if a library of the network does not fit.

#include <filesystem>
#include <istream>
#include <set>
#include <string>

namespace harness {

// Empty members: NCCL did not report them.
struct NcclChoice {
  std::string network;          // "IB", "Socket", "AWS Libfabric"
  std::string adapters;         // of that network: "mlx5_0:1/IB mlx5_1:1/RoCE"
  std::set<std::string> paths;  // "P2P/CUMEM", "SHM/direct/direct", "NET/IB/GDRDMA", "NVLS"
  bool empty() const { return network.empty() && adapters.empty() && paths.empty(); }
};

// Reads the messages of NCCL_DEBUG=INFO. Ignores other lines.
NcclChoice read_nccl_log(std::istream& log);

// Lets NCCL write its messages to a file of this process. Create it before NCCL starts. Does
// nothing if the user has set NCCL_DEBUG or NCCL_DEBUG_FILE, which then work as usual.
class NcclLog {
 public:
  explicit NcclLog(const std::filesystem::path& folder = std::filesystem::temp_directory_path());
  ~NcclLog();  // removes the file and the variables
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;
  // Returns what NCCL has reported until now. Restores the environment, so that a later fingerprint
  // has the user's variables only. NCCL has read them by then, or is not used.
  NcclChoice end();

 private:
  void restore();
  std::filesystem::path file_;  // empty: the user's variables are in force, or after end()
  bool set_ = false;
};

}  // namespace harness
