#include "suite/nccl_tests/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "collectives/communicator/choose.h"
#include "collectives/communicator/communicator.h"
#include "collectives/plan.h"
#include "harness/unit/sweep.h"
#include "machine/base/names.h"
#include "suite/collectives/collective_unit.h"
#include "suite/files/traffic.h"
#include "suite/options/options.h"

namespace suite::nccl_tests {

using collectives::has_root;
using collectives::reduces;
using harness::UsageError;
using machine::Dtype;
using machine::Operation;
using machine::Reduction;

namespace {

constexpr Operation operations[] = {Operation::all_reduce,     Operation::all_gather,
                                    Operation::reduce_scatter, Operation::broadcast,
                                    Operation::reduce,         Operation::gather,
                                    Operation::scatter,        Operation::all_to_all,
                                    Operation::all_to_all_v,   Operation::send_receive};

std::string their_name(Operation operation) {
  if (operation == Operation::all_to_all) return "alltoall";
  if (operation == Operation::all_to_all_v) return "alltoallv";
  if (operation == Operation::send_receive) return "sendrecv";
  return std::string(name(operation));
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const Operation operation : operations) {
    names.emplace_back(name(operation));
    if (names.back() != their_name(operation)) names.push_back(their_name(operation));
  }
  return names;
}

// Accepts our name of an operation, that of nccl-tests, and that of its program.
Operation parse_operation(const std::string& word) {
  for (const Operation operation : operations)
    if (word == name(operation) || word == their_name(operation) || word == program_of(operation))
      return operation;
  throw UsageError(machine::unknown("operation", word, operation_names()));
}

std::int64_t parse_size(std::string_view flag, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, static_cast<const char*>(text.data() + text.size()));
  for (char& letter : unit) letter = static_cast<char>(std::toupper(letter));
  static const std::map<std::string, double> units{{"", 1},        {"B", 1},        {"K", 0x1p10},
                                                   {"KB", 0x1p10}, {"KIB", 0x1p10}, {"M", 0x1p20},
                                                   {"MB", 0x1p20}, {"MIB", 0x1p20}, {"G", 0x1p30},
                                                   {"GB", 0x1p30}, {"GIB", 0x1p30}};
  const auto found = units.find(unit);
  if (error != std::errc() || found == units.end() || value < 0 || value * found->second >= 0x1p62)
    throw UsageError(
        fmt::format("{} is '{}'; expected a size (example: 8, 4K, 1.5M, 8G)", flag, text));
  return static_cast<std::int64_t>(value * found->second);
}

// Finds one of `known` by name(), or all. `absent`: names that only nccl-tests has.
template <class T, class Known>
std::vector<T> parse_named(std::string_view kind, const std::string& text, const Known& known,
                           const std::vector<std::string>& absent = {}) {
  if (text == "all") return {std::begin(known), std::end(known)};
  std::vector<std::string> names{"all"};
  for (const T value : known) {
    if (text == name(value)) return {value};
    names.emplace_back(name(value));
  }
  if (std::ranges::find(absent, text) != absent.end())
    throw UsageError(fmt::format("{} '{}' of nccl-tests is not supported; known: {}", kind, text,
                                 fmt::join(names, ", ")));
  throw UsageError(machine::unknown(kind, text, names));
}

void check_algorithm(Operation operation, const std::string& algorithm) {
  if (algorithm.empty() || algorithm == collectives::library || algorithm == collectives::automatic)
    return;
  std::vector<std::string> known = algorithm_names(operation);
  if (std::ranges::find(known, algorithm) != known.end()) return;
  known.insert(known.begin(),
               {std::string(collectives::library), std::string(collectives::automatic)});
  throw UsageError(
      machine::unknown(fmt::format("{} algorithm", name(operation)), algorithm, known));
}

constexpr std::int64_t many = std::numeric_limits<int>::max();

void add_size(Options& options, const std::string& names, std::int64_t& into,
              const std::string& about) {
  options.read(
      names, "SIZE", [&into, names](const std::string& said) { into = parse_size(names, said); },
      about);
}

// Adds a flag that requests a measurement that this program does not have. Only 0, which turns it
// off, is valid.
void refuse(Options& options, const std::string& names, const std::string& why) {
  options.read(
      names, "0",
      [names, why](const std::string& said) {
        if (whole_number(names, said, 0, many) != 0)
          throw UsageError(fmt::format("{} is {}; expected 0: {}", names, said, why));
      },
      fmt::format("rejected unless 0: {}", why));
}

// Adds a flag that tunes a feature that this program does not have. The measurement stays the same.
void note(Options& options, const std::string& names, std::vector<std::string>& notes,
          std::int64_t usual, const std::string& why) {
  options.read(
      names, "N",
      [names, &notes, usual, why](const std::string& said) {
        if (whole_number(names, said, -1, many) != usual)
          notes.push_back(fmt::format("{} {} has no effect here: {}", names, said, why));
      },
      fmt::format("accepted with a note: {}", why));
}

template <class... Values>
[[noreturn]] void reject(fmt::format_string<Values...> text, Values&&... values) {
  throw UsageError(fmt::format(text, std::forward<Values>(values)...));
}

// A graph repeats only work of the device.
void check_graph(Arguments& a) {
  constexpr std::string_view flag = "-G,--cudagraph";
  if (a.device != machine::Device::Kind::cuda)
    reject("{} {} requires --device cuda (got host): there are no CUDA graphs on the host", flag,
           a.graph_launches);
  const auto transport = a.transport.value_or(machine::Transport::nccl);
  if (transport != machine::Transport::nccl)
    reject(
        "{} {} requires --transport nccl (got {}): the host takes part in each message of other "
        "transports",
        flag, a.graph_launches, name(transport));
  if (a.per_iteration)
    reject("{} {} conflicts with -I,--per_iter_timing 1: a graph has one time for all iterations",
           flag, a.graph_launches);
  if (a.blocking == Blocking::barrier_timed || a.blocking == Blocking::barrier_untimed)
    reject("{} {} conflicts with -z,--blocking {}: a graph has no barriers", flag, a.graph_launches,
           static_cast<int>(a.blocking));
  a.transport = transport;
}

void check_registered(Arguments& a) {
  const int said = static_cast<int>(a.registered);
  if (a.device != machine::Device::Kind::cuda) {
    a.notes.push_back(fmt::format(
        "-R,--local_register {} has no effect here: NCCL registers device memory", said));
    a.registered = machine::Registered::no;
    return;
  }
  const auto transport = a.transport.value_or(machine::Transport::nccl);
  if (transport != machine::Transport::nccl)
    reject("-R,--local_register {} requires --transport nccl (got {})", said, name(transport));
  a.transport = transport;
  a.notes.push_back(fmt::format(
      "-R {}: memory of ncclMemAlloc, {}", said,
      a.registered == machine::Registered::buffer ? "ncclCommRegister" : "ncclCommWindowRegister"));
}

void check(Arguments& arguments) {
  Arguments& a = arguments;
  if (a.min_bytes < 1) reject("-b,--minbytes must be at least 1 byte");
  if (a.min_bytes > a.max_bytes)
    reject("-b,--minbytes {} is above -e,--maxbytes {}; both are {} by default", a.min_bytes,
           a.max_bytes, 32 << 20);
  if (a.step_bytes < 1 && a.step_factor <= 1)
    reject("-i,--stepbytes must be at least 1 byte without a factor of -f,--stepfactor");
  if (a.skipped > 0 && (!a.per_iteration || a.skipped >= a.iterations))
    reject("-K,--per_iter_skip {} needs -I 1 and more than {} iterations (-n {})", a.skipped,
           a.skipped, a.iterations);
  if (a.ranks && a.threads * a.gpus != 1 && a.threads * a.gpus != *a.ranks)
    reject("--ranks {} conflicts with -t {} times -g {}; leave one of them out", *a.ranks,
           a.threads, a.gpus);
  const auto library =
      a.device == machine::Device::Kind::cuda ? machine::Transport::nccl : machine::Transport::mpi;
  if (a.algorithm == collectives::library && a.transport.value_or(library) != library)
    reject("--algorithm library on --device {} requires --transport {}",
           a.device == machine::Device::Kind::cuda ? "cuda" : "host", name(library));
  if (a.algorithm == collectives::library) a.transport = library;
  check_algorithm(a.operation, a.algorithm);
  if (a.graph_launches > 0) check_graph(a);
  if (a.registered != machine::Registered::no) check_registered(a);
  if (!a.json_path.empty() && !a.json_path.ends_with(".json"))
    reject("-J,--output_file {}: the name must end in .json", a.json_path);

  const bool generated = is_generated(a.traffic_or_default());
  if (a.operation != Operation::all_to_all_v && a.traffic)
    reject("--traffic requires all_to_all_v (got {})", name(a.operation));
  if (!generated && a.min_bytes != a.max_bytes)
    reject("-b,--minbytes {} is not -e,--maxbytes {}: the file {} specifies the bytes", a.min_bytes,
           a.max_bytes, *a.traffic);

  const std::string_view operation = name(a.operation);
  if (!reduces(a.operation) && a.reductions != std::vector{Reduction::sum})
    a.notes.push_back(fmt::format("-o has no effect here: {} does not reduce", operation));
  if (!has_root(a.operation) && a.root != 0)
    a.notes.push_back(fmt::format("-r has no effect here: {} has no root", operation));
  if (a.operation == Operation::all_to_all_v)
    a.notes.push_back(fmt::format("traffic: {}", a.traffic_or_default()));
  if (a.device == machine::Device::Kind::cuda && a.threads * a.gpus > 1)
    a.notes.emplace_back("-t and -g: each GPU has a process of its own");
  if (a.parallel_init)
    a.notes.emplace_back("-p 1 has no effect here: ranks are processes, which start together");
  if (a.cpu_time && a.device == machine::Device::Kind::host)
    a.notes.emplace_back(
        "-C 1: collectives of the host end when they return, so cputime equals time");
}

}  // namespace

std::string program_of(Operation operation) { return their_name(operation) + "_perf"; }

std::optional<Arguments> parse_arguments(const std::vector<std::string>& words,
                                         const char* traffic_file) {
  Arguments a;
  Options options("collective", "OPERATION",
                  "Measures one collective as nccl-tests does: its flags, table, JSON and exit "
                  "codes. OPERATION: all_reduce, all_gather, reduce_scatter, broadcast, reduce, "
                  "gather, scatter, all_to_all (alltoall), all_to_all_v (alltoallv), send_receive "
                  "(sendrecv).");
  options.last_counts();
  std::vector<std::string> operation;
  std::string dtype = "float", reduction = "sum";
  options.arguments("OPERATION", operation, "all_reduce, all_gather, ...; see --help", 1, 1);
  options.argument_choices(operation_names);

  options.group("Options of nccl-tests");
  add_size(options, "-b,--minbytes", a.min_bytes, "first size (32M)");
  add_size(options, "-e,--maxbytes", a.max_bytes, "last size (32M); never lowered");
  add_size(options, "-i,--stepbytes", a.step_bytes, "added from size to size (1M)");
  options.number("-f,--stepfactor", "N", a.step_factor, 0, many,
                 "multiplied from size to size, instead of -i");
  options.number("-n,--iters", "N", a.iterations, 1, many, "iterations timed in one interval (20)");
  options.number("-m,--agg_iters", "N", a.aggregated, 1, many, "operations in an iteration (1)");
  options.number("-w,--warmup_iters", "N", a.warm_up, 0, many,
                 "operations not timed, before each interval (1)");
  options.number("-N,--run_cycles", "N", a.cycles, 0, many,
                 "passes over all sizes (1); 0: until a signal");
  options.number("-c,--check", "N", a.checks, 0, many,
                 "operations checked after the timed ones (1), in addition to the last timed one "
                 "out of place; "
                 "0: no checks");
  options.number("-G,--cudagraph", "N", a.graph_launches, 0, many,
                 "launches of a CUDA graph of all iterations (0); requires --device cuda");
  options.number("-R,--local_register", "N", a.registered, 0, 2,
                 "NCCL's memory, 1: ncclCommRegister, 2: ncclCommWindowRegister (0)");
  options.text("-o,--op", "NAME", reduction, "sum, prod, max, min, avg or all (sum)");
  options.text("-d,--datatype", "NAME", dtype,
               "float, bfloat16, half, double, int8, uint8, int32, uint32, int64, uint64 or all "
               "(float)");
  options.read(
      "-r,--root", "RANK",
      [&](const std::string& said) {
        a.root.reset();
        if (said != "all" && said != "-1")
          a.root = static_cast<int>(whole_number("-r,--root", said, 0, many));
      },
      "rank that is the root (0), or all");
  options.number("-a,--average", "N", a.over_ranks, 0, 3,
                 "time over ranks: 0 rank 0, 1 average, 2 minimum, 3 maximum (1)");
  options.number("-z,--blocking", "N", a.blocking, 0, 3,
                 "1: barrier after each operation, timed; 3: after each iteration, not timed; 2: "
                 "same as 0 (0)");
  options.number("-I,--per_iter_timing", "N", a.per_iteration, 0, 1,
                 "1: also each iteration's own time, the maximum over ranks (0)");
  options.number("-K,--per_iter_skip", "N", a.skipped, 0, many,
                 "first iterations that the columns of -I omit (0)");
  options.number("-C,--report_cputime", "N", a.cpu_time, 0, 1,
                 "1: the time until the host has queued the operations, as cputime (0)");
  options.number("-S,--report_timestamps", "N", a.timestamps, 0, 1,
                 "1: a column with the time of day (0)");
  options.text(
      "-J,--output_file", "FILE", a.json_path,
      "also write JSON to this file; an existing file is kept and .0 appended to the name");
  options.read(
      "-T,--timeout", "SECONDS",
      [&](const std::string& said) {
        if (const auto seconds = whole_number("-T,--timeout", said, 0, many); seconds > 0)
          a.timeout_s = static_cast<double>(seconds);
      },
      "seconds that one rank waits for another (60); 0: the default");
  options.number("-t,--nthreads", "N", a.threads, 1, 4096, "start -t times -g ranks (1)");
  options.number("-g,--ngpus", "N", a.gpus, 1, 4096, "see -t (1)");

  options.group("Options of this program");
  options.number("--ranks", "N", a.ranks, 1, 4096, "number of ranks, instead of -t and -g");
  options.text(
      "--algorithm", "NAME", a.algorithm,
      "a name of `shardmark list all_reduce`, library, or auto (measured first); default: by "
      "size");
  options.read(
      "--transport", "NAME",
      [&](const std::string& said) {
        a.transport = harness::AxisText<machine::Transport>::parse("transport", said);
      },
      "shared_memory, mpi, cuda_ipc or nccl; default: by the device and the hosts of the ranks");
  options.read(
      "--device", "KIND", [&](const std::string& said) { a.device = harness::parse_device(said); },
      "memory of the buffers: host or cuda (default: host)");
  options.choices(harness::device_names);
  options.read(
      "--traffic", "NAME", [&](const std::string& said) { a.traffic = said; },
      "traffic of all_to_all_v: skewed (nccl-tests' own), uniform, sparse, hot_spot, or a file in "
      "the format of NCCL_TESTS_ALLTOALLV_MATRIX_FILE (skewed)");

  options.group("Options of nccl-tests without effect here");
  options.number("-p,--parallel_init", "N", a.parallel_init, 0, 1,
                 "accepted with a note: ranks are processes");
  note(options, "-y,--stream_null", a.notes, 0, "there are no CUDA streams");
  note(options, "-x,--cta_policy", a.notes, -1, "there are no CTAs");
  note(options, "-V,--device_cta_count", a.notes, 16, "there are no CTAs");
  refuse(options, "-D,--device_implementation", "there are no device kernels on the host");
  refuse(options, "-M,--memory", "`shardmark run` judges the memory");
  refuse(options, "-u,--unalign", "buffers are aligned to cache lines");
  options.footer(
      "Without --ranks, the command starts -t times -g ranks. Under srun or mpiexec, each process "
      "that they start is a rank.\n"
      "Every size has a warm-up before it is timed. All iterations use the same buffers "
      "(nccl-tests walks through the largest ones).\n"
      "In place is N/A if it is not possible (all_to_all, all_to_all_v, send_receive, --algorithm "
      "library).\n"
      "Environment: NCCL_TESTS_MIN_BW and NCCL_TESTS_ALLTOALLV_MATRIX_FILE as in nccl-tests; "
      "NCCL_TESTS_SPLIT, NCCL_TESTS_ALLTOALLV_SPREAD and …_MATRIX_SCALE are rejected.\n"
      "Exit codes: 0 right, 7 wrong values or too little bandwidth, 2 usage, 3 environment, 4 a "
      "rank hung or died.");

  if (!options.parse(words)) return std::nullopt;
  a.operation = parse_operation(operation.front());
  if (a.operation == Operation::all_to_all_v && !a.traffic && traffic_file)
    a.traffic = traffic_file;
  a.dtypes = parse_named<Dtype>("datatype", dtype, machine::every_dtype);
  a.reductions = parse_named<Reduction>("op", reduction, machine::all_reductions, {"mulsum"});
  check(a);
  return a;
}

std::vector<std::int64_t> sizes(const Arguments& arguments) {
  std::vector<std::int64_t> all;
  for (std::int64_t size = arguments.min_bytes; size <= arguments.max_bytes;) {
    all.push_back(size);
    if (arguments.step_factor > 1) {
      if (size > arguments.max_bytes / arguments.step_factor) break;
      size *= arguments.step_factor;
    } else {
      if (arguments.step_bytes > arguments.max_bytes - size) break;
      size += arguments.step_bytes;
    }
  }
  return all;
}

namespace {

constexpr std::int64_t granule_bytes = 16;

// Returns the elements of one of `ranks` equal shares.
std::int64_t share_of(std::int64_t size, Dtype dtype, int ranks) {
  const auto element = static_cast<std::int64_t>(size_of(dtype)), granule = granule_bytes / element;
  return size / element / ranks / granule * granule;
}

}  // namespace

std::shared_ptr<const collectives::TrafficMatrix> traffic(const Arguments& arguments,
                                                          std::int64_t size, Dtype dtype,
                                                          int ranks) {
  if (arguments.operation != Operation::all_to_all_v) return {};
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  return traffic_matrix(arguments.traffic_or_default(), ranks,
                        share_of(size, dtype, ranks) * ranks * element, dtype, granule_bytes);
}

Extent extent(Operation operation, std::int64_t size, Dtype dtype, int ranks,
              const collectives::TrafficMatrix* traffic) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t whole = size / element, share = share_of(size, dtype, ranks);
  if (traffic) return {share, traffic->busiest() * element};
  if (!collectives::deals_in_shares(operation)) return {whole, whole * element};
  return {share, share * ranks * element};
}

}  // namespace suite::nccl_tests
