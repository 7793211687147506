#include <algorithm>
#include <cctype>
#include <regex>

#include "harness/fingerprint/fingerprint.h"

namespace harness {
namespace {

constexpr std::string_view prefixes[] = {"NCCL_", "CUDA_",   "UCX_",   "MPICH_",
                                         "MPIR_", "OMPI_",   "FI_",    "OMP_",
                                         "DNNL_", "ONEDNN_", "SLURM_", "SHARDMARK_"};
// What Open MPI's launcher tells each rank of this one launch, addresses and a key among it.
constexpr std::string_view left_out[] = {"OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_COMM_WORLD_",
                                         "OMPI_FILE_LOCATION"};
constexpr std::string_view whole_names[] = {"LD_PRELOAD"};
constexpr std::string_view secret_names[] = {"TOKEN", "KEY",        "SECRET", "PASSW",
                                             "AUTH",  "CREDENTIAL", "COOKIE", "JWT"};
constexpr const char* replacement = "[redacted]";

}  // namespace

std::string redacted(std::string_view name, std::string_view value) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const std::string_view word : secret_names)
    if (upper.find(word) != std::string::npos) return replacement;
  // user:password@host, and a user alone, which may be a token.
  static const std::regex in_url(R"((://)[^/@\s]*@)");
  static const std::regex in_option(
      R"(((?:passw\w*|pwd|secret|token|api_?key|jwt)\s*[=:]\s*)[^\s,;&]+)", std::regex::icase);
  static const std::regex bearer(R"((bearer\s+)\S+)", std::regex::icase);
  std::string text = std::regex_replace(std::string(value), in_url, "$1[redacted]@");
  text = std::regex_replace(text, in_option, "$1[redacted]");
  return std::regex_replace(text, bearer, "$1[redacted]");
}

std::map<std::string, std::string> kept_environment(const char* const* environment) {
  std::map<std::string, std::string> kept;
  for (; environment && *environment; ++environment) {
    const std::string_view entry(*environment);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
    const bool wanted =
        (std::ranges::any_of(prefixes, starts) && std::ranges::none_of(left_out, starts)) ||
        std::ranges::find(whole_names, name) != std::end(whole_names);
    if (wanted) kept[std::string(name)] = redacted(name, entry.substr(equals + 1));
  }
  return kept;
}

}  // namespace harness
