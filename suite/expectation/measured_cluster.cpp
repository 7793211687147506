#include "suite/expectation/measured_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "harness/json/json.h"
#include "harness/measure/statistics.h"
#include "suite/expectation/least_squares.h"
#include "suite/expectation/record_values.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/kernel_time.h"

namespace suite {
namespace {

using harness::counter;
using harness::Record;
using machine::Dtype;
using predict::Cluster;

constexpr double large_set = 32 << 20;  // above the caches of most processors
constexpr std::string_view transports[] = {"nccl", "cuda_ipc", "shared_memory", "mpi"};

class Measuring {
 public:
  Measuring(const std::vector<harness::RunFile>& runs, const MeasuredMachine& machine,
            const Cluster& like)
      : machine_(machine), like_(like) {
    measured_.cluster = like;
    for (const harness::RunFile& run : runs) {
      for (const Record& record : run.records)
        if (shows_speed(record)) records_.push_back(&record);
      for (const auto& [name, rate] : run.context.rates) rates_[name] = rate;
    }
  }

  MeasuredCluster measured() {
    count_gpus();
    measure_memory();
    fit_gemm();
    fit_links();
    measure_host();
    for (const auto& [key, about, value] : predict::values(like_)) {
      if (key == "name" || key == "source") continue;
      const auto found = from_.find(std::string(key));
      const bool measured = found != from_.end();
      measured_.values.push_back(
          {std::string(key), measured ? found->second : like_.name, measured});
    }
    return std::move(measured_);
  }

 private:
  static bool shows_speed(const Record& record) {
    return record.verdict == harness::Ruling::pass && record.seconds > 0 &&
           !record.oversubscribed && !record.shares_cores;
  }
  std::vector<const Record*> of_unit(std::string_view unit) const {
    std::vector<const Record*> found;
    std::ranges::copy_if(records_, std::back_inserter(found),
                         [&](const Record* record) { return record->unit == unit; });
    return found;
  }
  void note(std::initializer_list<const char*> keys, const std::string& from) {
    for (const char* key : keys) from_[key] = from;
  }
  void miss(const std::string& what) { measured_.missing.push_back(what); }

  // A specification stays; the measured part of it is the fraction.
  void set_rate(double& bandwidth, double& fraction, double measured) const {
    if (!machine_.is_gpu() || bandwidth < measured) {
      bandwidth = measured;
      fraction = 1;
    } else {
      fraction = measured / bandwidth;
    }
  }

  const Record* matrix() const {
    const Record* largest = nullptr;
    for (const Record* record : of_unit("link_matrix"))
      if (!largest || record->link_matrix.ranks() > largest->link_matrix.ranks()) largest = record;
    return largest;
  }

  void count_gpus() {
    const Record* const all = matrix();
    if (!all) return miss("link_matrix (gpus_per_node): run link_matrix");
    std::map<std::string, int> ranks;
    for (const std::string& host : all->link_matrix.hosts) ++ranks[host];
    measured_.cluster.gpus_per_node =
        std::ranges::max_element(ranks, {}, [](const auto& one) { return one.second; })->second;
    note({"gpus_per_node"}, fmt::format("link_matrix of {} ranks", all->link_matrix.ranks()));
  }

  // ---- matrix products

  // A host multiplies small matrices from its caches, and an unmeasured bandwidth shows nothing.
  bool limited_by_memory(const predict::Gemm& gemm, Dtype dtype, double seconds) const {
    const double bytes =
        (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n) * static_cast<double>(size_of(dtype));
    if (!from_.contains("gpu.bandwidth_fraction") || (!machine_.is_gpu() && bytes < large_set))
      return false;
    return predict::streaming_s(measured_.cluster.gpu, bytes, 0) > seconds / 2;
  }

  struct Products {
    std::vector<const Record*> records;  // of one dtype, the most ranks of each shape
    std::size_t shapes() const { return records.size(); }
    std::size_t areas() const {
      std::set<double> all;
      for (const Record* record : records) all.insert(gemm_of(*record)->m * gemm_of(*record)->n);
      return all.size();
    }
  };
  Products products_of(bool half) const {
    std::map<std::string, const Record*> by_shape;
    for (const Record* record : of_unit("gemm")) {
      const std::optional<predict::Gemm> gemm = gemm_of(*record);
      const std::optional<Dtype> dtype = dtype_of(*record);
      if (!gemm || !dtype || *dtype == Dtype::float64) continue;
      if (half ? size_of(*dtype) != 2 : *dtype != Dtype::float32) continue;
      if (limited_by_memory(*gemm, *dtype, record->seconds)) continue;
      const Record*& kept = by_shape[harness::axis(*record, "shape")];
      if (!kept || ranks_of(*record) > ranks_of(*kept)) kept = record;
    }
    Products products;
    for (const auto& [shape, record] : by_shape) products.records.push_back(record);
    return products;
  }
  // a: one kernel. b: the product's time at 1 FLOP/s.
  std::vector<TimedCost> costs_of(const Products& products, double depth) const {
    predict::Gpu gpu = measured_.cluster.gpu;
    gpu.half = gpu.float32 = gpu.gemm_fraction = 1;
    gpu.bandwidth = std::numeric_limits<double>::infinity();
    gpu.gemm_depth = depth;
    gpu.kernel_s = 0;
    std::vector<TimedCost> costs;
    for (const Record* record : products.records)
      costs.push_back({1, gemm_s(gpu, *gemm_of(*record), *dtype_of(*record)), record->seconds});
    return costs;
  }
  double peak_of(const char* dtype, double otherwise) const {
    const auto found = rates_.find(fmt::format("peak_GFLOPs/dtype:{}", dtype));
    return found == rates_.end() ? otherwise : found->second * 1e9;
  }

  void fit_gemm() {
    predict::Gpu& gpu = measured_.cluster.gpu;
    const Products half = products_of(true), single = products_of(false);
    const bool main_is_half = half.shapes() > 0 && (machine_.is_gpu() || single.shapes() == 0 ||
                                                    half.shapes() >= single.shapes());
    const Products& main = main_is_half ? half : single;
    if (main.shapes() == 0) return miss("gemm (gpu.*_tflops, gemm_fraction): run gemm");
    // Three shapes determine the depth. Over products of one m x n, the time between kernels adds
    // the same as the depth.
    const bool determined = main.shapes() >= 3, separate = determined && main.areas() >= 2;
    double best = std::numeric_limits<double>::infinity(), depth = gpu.gemm_depth;
    TwoFactors factors = fit_second(costs_of(main, depth), gpu.kernel_s);
    for (double tried = 0; determined && tried <= 2048; tried = tried == 0 ? 8 : tried * 1.25) {
      const std::vector<TimedCost> costs = costs_of(main, tried);
      const TwoFactors with = separate ? fit_two(costs) : fit_second(costs, gpu.kernel_s);
      const double error = mean_error(costs, with);
      if (with.second <= 0 || error >= best) continue;
      best = error;
      depth = tried;
      factors = with;
    }
    if (factors.second <= 0) return miss("gemm of larger shapes (gpu.*): run gemm --shape MxNxK");
    gpu.gemm_depth = depth;
    gpu.kernel_s = factors.first;
    const auto source = [&](const Products& products, const TwoFactors& with) {
      return fmt::format("{} shapes of gemm, error {:.0f} %", products.shapes(),
                         100 * mean_error(costs_of(products, depth), with));
    };
    const std::string from = source(main, factors);
    if (determined) note({"gpu.gemm_depth"}, from);
    if (separate) note({"gpu.kernel_us"}, from);
    if (!determined)
      miss(
          fmt::format("gemm with {} more shapes (gpu.gemm_depth, gpu.kernel_us): run gemm "
                      "--shape MxNxK",
                      3 - main.shapes()));
    set_peak(main_is_half, 1 / factors.second, from, true);
    const Products& other = main_is_half ? single : half;
    if (other.shapes() == 0)
      return miss(fmt::format("gemm in {0} (gpu.{1}_tflops): run gemm --dtype {0}",
                              main_is_half ? "float" : "bfloat16",
                              main_is_half ? "float32" : "half"));
    const TwoFactors with = fit_second(costs_of(other, depth), gpu.kernel_s);
    if (with.second > 0) set_peak(!main_is_half, 1 / with.second, source(other, with), false);
  }

  void set_peak(bool half, double measured, const std::string& from, bool is_main) {
    predict::Gpu& gpu = measured_.cluster.gpu;
    double& peak = half ? gpu.half : gpu.float32;
    const char* key = half ? "gpu.half_tflops" : "gpu.float32_tflops";
    if (machine_.is_gpu() && is_main) {
      peak = peak_of(half ? "bfloat16" : "float", peak);
      set_rate(peak, gpu.gemm_fraction, measured);
      note({"gpu.gemm_fraction"}, from);
    } else if (is_main) {
      peak = measured;
      gpu.gemm_fraction = 1;
      note({key, "gpu.gemm_fraction"}, from);
    } else {  // one fraction holds for both dtypes
      peak = measured / gpu.gemm_fraction;
      note({key}, from);
    }
  }

  // ---- memory

  void measure_memory() {
    const Record* best = nullptr;
    for (const Record* record : of_unit("memory_bandwidth")) {
      if (number_of<double>(harness::axis(*record, "bytes")).value_or(0) < large_set) continue;
      if (ranks_of(*record) > measured_.cluster.gpus_per_node) continue;
      const auto key = [](const Record* one) {
        return std::pair(ranks_of(*one), counter(*one, "memory_GBps"));
      };
      if (!best || key(record) > key(best)) best = record;
    }
    if (!best)
      return miss("memory_bandwidth (gpu.bandwidth_gb_s): run memory_bandwidth --bytes 64M");
    const double rate = counter(*best, "memory_GBps") * 1e9;
    const std::string from = fmt::format("memory_bandwidth {} of {} ranks at once",
                                         harness::axis(*best, "kernel"), ranks_of(*best));
    set_rate(measured_.cluster.gpu.bandwidth, measured_.cluster.gpu.bandwidth_fraction, rate);
    note({"gpu.bandwidth_fraction"}, from);
    if (machine_.is_gpu()) return;
    measured_.cluster.host_bandwidth = rate * ranks_of(*best);
    note({"gpu.bandwidth_gb_s", "host.bandwidth_gb_s"}, from);
  }

  void measure_host() {
    if (machine_.memory) {
      measured_.cluster.host_memory = *machine_.memory;
      note({"host.memory_gb"}, "environment.json");
    }
    if (!machine_.is_gpu()) return;
    double best = 0;
    for (const Record* record : of_unit("host_device_bandwidth"))
      if (harness::axis(*record, "pages") == "pinned" &&
          harness::axis(*record, "direction") != "both")
        best = std::max(best, counter(*record, "host_device_GBps"));
    if (best == 0) return miss("host_device_bandwidth (host.pcie_gb_s): run host_device_bandwidth");
    measured_.cluster.pcie = best * 1e9;
    note({"host.pcie_gb_s"}, "host_device_bandwidth, pinned");
  }

  // ---- links

  // Returns the records of collectives within a node or between nodes, over one transport.
  std::vector<const Record*> collectives(bool between_nodes) const {
    for (const std::string_view transport : transports) {
      std::vector<const Record*> found;
      for (const Record* record : records_) {
        const std::optional<machine::Operation> operation = operation_of(record->unit);
        if (!operation || harness::axis(*record, "transport") != transport) continue;
        if (harness::axis(*record, "graph") == "on" || counter(*record, "bytes") <= 0) continue;
        const int ranks = ranks_of(*record);
        if (ranks < 2 || (ranks > measured_.cluster.gpus_per_node) != between_nodes) continue;
        if (!charges_of(*record).empty()) found.push_back(record);
      }
      if (!found.empty()) return found;
    }
    return {};
  }

  // Fits latency and 1/rate. A library's algorithm is the fastest of the usual ones.
  TwoFactors fit(const std::vector<const Record*>& records, predict::Connection link,
                 std::vector<TimedCost>& costs) const {
    TwoFactors factors;
    for (int round = 0; round < 5; ++round) {
      costs.clear();
      for (const Record* record : records) {
        const double bytes = counter(*record, "bytes");
        const std::vector<predict::Charge> charges = charges_of(*record);
        const predict::Charge& used = *std::ranges::min_element(
            charges, {}, [&](const predict::Charge& one) { return one.seconds(link, bytes); });
        costs.push_back({used.messages, used.sent * bytes, record->seconds});
      }
      factors = fit_two(costs);
      if (factors.second > 0) link = {factors.first, 1 / factors.second};
    }
    return factors;
  }

  // Returns the medians over the pairs of the link matrix.
  std::optional<predict::Connection> pairs(bool between_nodes) const {
    const Record* const record = matrix();
    if (!record) return {};
    const harness::LinkMatrix& all = record->link_matrix;
    std::vector<double> rates, latencies;
    const auto ranks = static_cast<std::size_t>(all.ranks());
    for (std::size_t from = 0; from < ranks; ++from)
      for (std::size_t to = 0; to < ranks; ++to) {
        if (from == to || (all.hosts[from] != all.hosts[to]) != between_nodes) continue;
        rates.push_back(all.bandwidth_GBps[from * ranks + to] * 1e9);
        latencies.push_back(all.latency_us[from * ranks + to] * 1e-6);
      }
    if (rates.empty()) return {};
    return predict::Connection{harness::median(latencies), harness::median(rates)};
  }

  void fit_links() {
    for (const bool between_nodes : {false, true}) {
      Cluster& cluster = measured_.cluster;
      predict::Links& links = between_nodes ? cluster.network : cluster.node;
      const std::vector<const Record*> records = collectives(between_nodes);
      const std::optional<predict::Connection> pair = pairs(between_nodes);
      const int in_node = between_nodes ? cluster.gpus_per_node : 1;
      // The rate of a group is that of all adapters of its ranks of a node.
      const double share = links.shared_by * links.oversubscription / in_node;
      std::string from;
      if (!records.empty()) {
        std::vector<TimedCost> costs;
        const TwoFactors factors = fit(records, {links.latency_s, links.rate() * in_node}, costs);
        if (factors.second > 0) {
          links.latency_s = factors.first > 0 || !pair ? factors.first : pair->latency_s;
          set_rate(links.bandwidth, links.fraction, share / factors.second);
          from = fmt::format("{} collectives over {}, error {:.0f} %", records.size(),
                             harness::axis(*records[0], "transport"),
                             100 * mean_error(costs, factors));
        }
      }
      if (from.empty() && pair) {
        links.latency_s = pair->latency_s;
        set_rate(links.bandwidth, links.fraction, pair->rate * links.shared_by);
        from = "median pair of link_matrix";
      }
      const std::string name = between_nodes ? "network" : "node";
      if (from.empty()) {
        miss(fmt::format("all_reduce or link_matrix {} ({}.*): run all_reduce link_matrix{}",
                         between_nodes ? "between nodes" : "within a node", name,
                         between_nodes ? " --hostfile FILE" : ""));
        continue;
      }
      from_[name + ".latency_us"] = from_[name + ".fraction"] = from;
      if (!machine_.is_gpu()) from_[name + ".bandwidth_gb_s"] = from;
    }
  }

  const MeasuredMachine& machine_;
  const Cluster& like_;
  MeasuredCluster measured_;
  std::vector<const Record*> records_;
  std::map<std::string, double> rates_;      // of run.json
  std::map<std::string, std::string> from_;  // key -> its records
};

}  // namespace

MeasuredMachine machine_of(const std::string& run_directory) {
  const std::string path = run_directory + "/environment.json";
  try {
    const auto all = harness::Json::parse(harness::file_text(path));
    const auto find = [&](const std::string& fact) {
      const harness::Json* const same = all.find_path("/same_on_all_ranks/hardware/" + fact);
      return same != nullptr ? same : all.find_path("/ranks/0/hardware/" + fact);
    };
    MeasuredMachine found;
    if (const auto* device = find("device"); device != nullptr && device->is_string())
      found.device = device->text();
    if (const auto* memory = find("memory_bytes"); memory != nullptr && memory->is_number())
      found.memory = memory->get<double>();
    return found;
  } catch (const harness::JsonError&) {
    throw FileError("{} is missing or not the environment of a run", path);
  }
}

std::string nearest_cluster(const std::string& device) {
  if (!device.starts_with("cuda")) return "two_cores";
  for (const std::string& name : predict::cluster_names()) {
    const std::string gpu = predict::read_cluster(name).gpu.name;  // "H100-SXM5-80GB"
    if (device.find(gpu.substr(0, gpu.find('-'))) != std::string::npos) return name;
  }
  return {};
}

MeasuredCluster measure_cluster(const std::vector<harness::RunFile>& runs,
                                const MeasuredMachine& machine, const Cluster& like) {
  return Measuring(runs, machine, like).measured();
}

std::string text(const MeasuredCluster& measured) {
  std::string out;
  const std::vector<predict::ClusterValue> values = predict::values(measured.cluster);
  for (const MeasuredCluster::Value& one : measured.values) {
    const auto value = std::ranges::find(values, one.key, &predict::ClusterValue::key);
    out += fmt::format("{:<26} {:>10}  {}{}\n", one.key, value->value,
                       one.measured ? "" : "not measured: ", one.from);
  }
  for (const std::string& what : measured.missing) out += fmt::format("missing: {}\n", what);
  return out;
}

}  // namespace suite
