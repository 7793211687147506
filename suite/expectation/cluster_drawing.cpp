#include "suite/expectation/cluster_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "harness/record/summary.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/kernel_time.h"

namespace suite {
namespace {

using predict::Cluster;

constexpr int most_drawn = 4;

// Repeats a text, and marks that GPUs are left out.
std::string row(int drawn, bool more, std::string_view text, std::string_view rest = "...") {
  std::string line = "  ";
  for (int i = 0; i < drawn; ++i) line += text;
  return line + (more ? std::string(rest) : "");
}

std::string with(const std::string& left, const std::string& right) {
  return fmt::format("{:<38}{}\n", left, right);
}

std::string percent(double part) { return fmt::format("{:.0f} % usable", 100 * part); }

std::string node(const Cluster& cluster) {
  const predict::Gpu& gpu = cluster.gpu;
  const int gpus = cluster.gpus_per_node, drawn = std::min(gpus, most_drawn);
  const bool more = gpus > drawn;
  std::string out =
      with(fmt::format("  host: {:.4g} GB, {:.4g} GB/s", cluster.host_memory / 1e9,
                       cluster.host_bandwidth / 1e9),
           cluster.nvme_read > 0 ? fmt::format("storage: reads {:.4g}, writes {:.4g} GB/s",
                                               cluster.nvme_read / 1e9, cluster.nvme_write / 1e9)
                                 : "no storage");
  out += with(row(drawn, more, "   |    "),
              fmt::format("PCIe: {:.4g} GB/s a GPU", cluster.pcie / 1e9));
  out += with(row(drawn, more, "+-----+ "), fmt::format("{} x {}", gpus, gpu.name));
  out += with(row(drawn, more, "| GPU | "),
              fmt::format("{:.4g} GB at {:.4g} GB/s, {}", gpu.memory / 1e9, gpu.bandwidth / 1e9,
                          percent(gpu.bandwidth_fraction)));
  out += with(row(drawn, more, "+-----+ "),
              fmt::format("{:.4g} TFLOP/s half, {:.4g} float32, {}", gpu.half / 1e12,
                          gpu.float32 / 1e12, percent(gpu.gemm_fraction)));
  if (gpus > 1)
    out += with(row(drawn, more, "===+====", "==="),
                fmt::format("{:.4g} GB/s a GPU, {}, {:.3g} us", cluster.node.bandwidth / 1e9,
                            percent(cluster.node.fraction), cluster.node.latency_s * 1e6));
  const int shared = std::min(cluster.network.shared_by, gpus);
  const int adapters = (gpus + shared - 1) / shared;
  std::string wires = "  ", boxes = "  ";
  for (int i = 0; i < drawn; ++i) {
    wires += i % shared == 0 ? "   |    " : "        ";
    boxes += i % shared == 0 ? "  NIC   " : "        ";
  }
  out += with(wires + (more ? "..." : ""),
              fmt::format("{} adapter{} of {:.4g} GB/s, {}, {:.3g} us", adapters,
                          adapters == 1 ? "" : "s", cluster.network.bandwidth / 1e9,
                          percent(cluster.network.fraction), cluster.network.latency_s * 1e6));
  out += with(boxes + (more ? "..." : ""),
              cluster.network.oversubscription > 1
                  ? fmt::format("tree above the nodes: {:.3g}:1", cluster.network.oversubscription)
                  : "tree above the nodes: full bisection");
  return out;
}

std::string products(const Cluster& cluster) {
  std::string out = "\nmatrix products [4096, k] x [k, 4096], TFLOP/s\n  k        ";
  const std::vector<int> extents{64, 256, 1024, 4096, 16384};
  for (const int k : extents) out += fmt::format("{:>10}", k);
  for (const machine::Dtype dtype : {machine::Dtype::bfloat16, machine::Dtype::float32}) {
    out += fmt::format("\n  {:<9}", machine::name(dtype));
    for (const int k : extents) {
      const predict::Gemm gemm{4096, 4096, static_cast<double>(k)};
      out += fmt::format("{:>10.4g}", gemm.flops() / gemm_s(cluster.gpu, gemm, dtype) / 1e12);
    }
  }
  return out + "\n";
}

std::string all_reduces(const Cluster& cluster) {
  struct Size {
    const char* name;
    double bytes;
  };
  const Size sizes[] = {
      {"8 KiB", 0x1p13}, {"1 MiB", 0x1p20}, {"64 MiB", 0x1p26}, {"1 GiB", 0x1p30}};
  std::string out = "\nall-reduce, time and bus bandwidth\n  GPUs     ";
  for (const Size& size : sizes) out += fmt::format("{:>20}", size.name);
  for (const int nodes : {1, 2, 16}) {
    const int ranks = cluster.gpus_per_node * nodes;
    if (ranks < 2) continue;
    out += fmt::format("\n  {:<9}", ranks);
    for (const Size& size : sizes) {
      const double seconds = collective_s(cluster, machine::Operation::all_reduce,
                                          spread(cluster, ranks, 1), size.bytes);
      const double bus = 2.0 * (ranks - 1) / ranks * size.bytes / seconds;
      out += fmt::format(
          "{:>20}", fmt::format("{} {:>6.3g} GB/s", harness::seconds_text(seconds), bus / 1e9));
    }
  }
  return out + "\n";
}

}  // namespace

std::string drawing(const Cluster& cluster) {
  return fmt::format("{}: {}\n\n{}{}{}", cluster.name, cluster.source, node(cluster),
                     products(cluster), all_reduces(cluster));
}

}  // namespace suite
