#include "harness/run/inject.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>

#include "machine/base/clock.h"
#include "machine/base/names.h"
#include "machine/device/faults.h"
#include "machine/device/random.h"
#include "machine/world/control/waited.h"

namespace harness {
namespace {

struct Key {
  std::string name;
  bool wanted;
};
const std::map<std::string, std::vector<Key>> kinds{
    {"slow_rank", {{"rank", true}, {"factor", false}, {"seconds", false}}},
    {"slow_core", {{"rank", true}, {"threads", false}}},
    {"jitter", {{"rank", true}, {"seconds", true}, {"probability", true}}},
    {"slow_link", {{"ranks", true}, {"rate", true}}},
    {"corrupt_message", {{"rank", true}, {"peer", true}, {"iteration", true}, {"bit", true}}},
    {"corrupt_result", {{"rank", true}, {"iteration", true}, {"bit", true}}},
    {"slow_disk", {{"rank", true}, {"rate", true}}},
    {"full_disk", {{"rank", true}, {"bytes", true}}},
    {"hang", {{"rank", true}, {"iteration", true}}},
    {"die", {{"rank", true}, {"iteration", true}}},
    {"exit_early", {{"rank", true}, {"iteration", true}}},
    {"out_of_memory", {{"rank", true}, {"bytes", true}}},
    {"wrong_version", {{"rank", true}, {"library", true}, {"version", true}}},
};
const std::vector<std::string> libraries{"mpi", "onednn", "nccl", "cuda"};

std::vector<std::string> names_of(const auto& items, auto name) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(std::invoke(name, item));
  return names;
}

using Units = std::vector<std::pair<std::string_view, double>>;
const Units none{{"", 1}}, durations{{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}},
    rates{{"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1}};

// A number of a fault with its units, its minimum, and the rule for messages.
struct Quantity {
  double Fault::*field;
  const Units& units;
  double least;
  std::string_view expected;
};
const std::map<std::string, Quantity, std::less<>> quantities{
    {"factor", {&Fault::factor, none, 1, "1 or more (example: factor=2)"}},
    {"probability", {&Fault::probability, none, 0, "0 or more (example: probability=0.1)"}},
    {"seconds", {&Fault::seconds, durations, 1e-9, "a duration (example: seconds=5ms)"}},
    {"rate", {&Fault::bytes_per_second, rates, 1e-9, "a rate (example: rate=50MB/s)"}},
};
const std::map<std::string, int Fault::*, std::less<>> whole_numbers{
    {"rank", &Fault::rank}, {"peer", &Fault::peer}, {"threads", &Fault::threads}};

// Returns NAN if text is not a number with one of these units.
double number(std::string_view text, const Units& units) {
  double value = NAN;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return NAN;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const auto unit = std::ranges::find(units, text, &Units::value_type::first);
  return unit == units.end() ? NAN : unit->second * value;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {
    fault_.text = text;
    fault_.kind = next(':');
    const auto kind = kinds.find(fault_.kind);
    if (kind == kinds.end())
      throw UsageError("--inject: " +
                       machine::unknown("kind", fault_.kind, names_of(kinds, [](const auto& kind) {
                                          return kind.first;
                                        })));
    keys_ = &kind->second;
  }

  Fault parse() {
    std::vector<std::string> given;
    while (!rest_.empty()) {
      std::string_view part = next(',');
      const std::size_t equals = part.find('=');
      const std::string key(part.substr(0, equals));
      const auto known = names_of(*keys_, &Key::name);
      if (std::ranges::find(known, key) == known.end())
        refuse("{}", machine::unknown("key of " + fault_.kind, key, known));
      if (std::ranges::find(given, key) != given.end()) refuse("'{}' is given twice", key);
      given.push_back(key);
      set(key, equals == std::string_view::npos ? "" : part.substr(equals + 1));
    }
    for (const Key& key : *keys_)
      if (key.wanted && std::ranges::find(given, key.name) == given.end())
        refuse("{} is missing", key.name);
    if (fault_.kind == "slow_rank" && (fault_.seconds > 0) == (fault_.factor != 1))
      refuse("slow_rank requires either factor (above 1) or seconds");
    if (fault_.rank == fault_.peer) refuse("rank and peer are the same");
    return fault_;
  }

 private:
  std::string_view next(char end) {
    const std::string_view part = rest_.substr(0, rest_.find(end));
    rest_.remove_prefix(std::min(rest_.size(), part.size() + 1));
    return part;
  }

  template <class... Values>
  [[noreturn]] void refuse(fmt::format_string<const Values&...> text, const Values&... values) {
    throw UsageError(fmt::format("--inject {}: {}", fault_.text, fmt::format(text, values...)));
  }
  [[noreturn]] void refuse_value(std::string_view key, std::string_view text,
                                 std::string_view expected) {
    refuse("{} is '{}'; expected {}", key, text, expected);
  }

  int whole(std::string_view key, std::string_view text) {
    const double value = number(text, none);
    if (!(value >= 0 && value <= 1e9 && value == std::floor(value)))
      refuse_value(key, text, fmt::format("a whole number (example: {}=1)", key));
    return static_cast<int>(value);
  }

  void set(const std::string& key, std::string_view text) {
    if (const auto integer = whole_numbers.find(key); integer != whole_numbers.end()) {
      fault_.*integer->second = whole(key, text);
    } else if (const auto quantity = quantities.find(key); quantity != quantities.end()) {
      const Quantity& its = quantity->second;
      const double value = fault_.*its.field = number(text, its.units);
      if (!(value >= its.least && value < 1e18)) refuse_value(key, text, its.expected);
    } else if (key == "bit") {
      fault_.bit = static_cast<std::uint64_t>(whole(key, text));
    } else if (key == "iteration") {
      fault_.iteration = text == "judging" ? judging : whole(key, text);
    } else if (key == "ranks") {
      const std::size_t dash = text.find('-');
      if (dash == std::string_view::npos) refuse_value(key, text, "two ranks (example: ranks=2-3)");
      fault_.rank = whole(key, text.substr(0, dash));
      fault_.peer = whole(key, text.substr(dash + 1));
    } else if (key == "bytes") {
      fault_.bytes = AxisText<Bytes>::parse("inject " + fault_.text + ": bytes", text).value;
    } else if (key == "library") {
      fault_.library = text;
      if (std::ranges::find(libraries, fault_.library) == libraries.end())
        refuse("{}", machine::unknown("library", fault_.library, libraries));
    } else {
      fault_.version = text;
    }
  }

  Fault fault_;
  std::string_view rest_;
  const std::vector<Key>* keys_ = nullptr;
};

void sleep_s(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

Fault parse_fault(std::string_view text) { return Parser(text).parse(); }

void check_ranks(const std::vector<Fault>& faults, int ranks) {
  for (const Fault& fault : faults)
    for (const int rank : {fault.rank, fault.peer})
      if (rank >= ranks)
        throw UsageError(fmt::format("--inject {}: rank {} does not exist (number of ranks: {})",
                                     fault.text, rank, ranks));
}

Injection::Injection(std::vector<Fault> faults, machine::World& world)
    : faults_(std::move(faults)), world_(world) {
  for (const Fault& fault : faults_) begin(fault);
}

Injection::~Injection() {
  over_.store(true);
  for (std::thread& thread : busy_) thread.join();
  world_.faults() = {};
}

std::vector<std::string> Injection::texts() const { return names_of(faults_, &Fault::text); }

InjectedVersions Injection::versions() const {
  InjectedVersions all;
  for (const Fault& fault : faults_)
    if (!fault.library.empty() && mine(fault)) all.try_emplace(fault.library, fault.version);
  return all;
}

void Injection::before(bool judges) {
  at_ = judges ? judging : sample_;
  products_ = 0;
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    due_[i] = fault.iteration == at_ && fault.kind != "corrupt_result";
    if (!mine(fault)) continue;
    if (fault.kind == "slow_rank" && !judges) sleep_s(fault.seconds);
    if (fault.kind == "jitter" && !judges &&
        machine::uniform(static_cast<std::uint64_t>(fault.rank), runs_++) < fault.probability)
      sleep_s(fault.seconds);
    if (!due_[i] || (fault.kind != "hang" && fault.kind != "die" && fault.kind != "exit_early"))
      continue;
    report(fault);
    if (fault.kind == "die") ::raise(SIGKILL);
    if (fault.kind == "exit_early") ::_exit(0);
    while (true) ::pause();
  }
}

void Injection::after(double own_s) {
  at_ = elsewhere;
  due_.assign(due_.size(), false);
  for (const Fault& fault : faults_)
    if (fault.kind == "slow_rank" && mine(fault)) sleep_s((fault.factor - 1) * own_s);
}

void Injection::product(machine::Stream& stream, const machine::Matrix& c) {
  if (at_ != judging) return;
  const int number = products_++;
  for (const Fault& fault : faults_) {
    if (fault.kind != "corrupt_result" || !mine(fault) || fault.iteration != number) continue;
    stream.synchronize();
    // The first element, so batches and strides do not matter.
    auto* const data = static_cast<std::byte*>(c.data);
    const std::uint64_t bit = fault.bit % (8 * size_of(c.dtype));
    std::byte byte{};
    stream.copy(&byte, data + bit / 8, 1);
    stream.synchronize();
    byte ^= std::byte{1} << (bit % 8);
    stream.copy(data + bit / 8, &byte, 1);
    stream.synchronize();
    report(fault);
  }
}

void Injection::begin(const Fault& fault) {
  const std::size_t index = due_.size();
  due_.push_back(false);
  machine::Faults& faults = world_.faults();
  if (fault.kind == "slow_link")
    faults.slow_links.push_back({fault.rank, fault.peer, fault.bytes_per_second});
  if (fault.kind == "corrupt_message")
    faults.corrupt_messages.push_back({fault.rank, fault.peer, fault.bit, [this, index] {
                                         if (!due_[index]) return false;
                                         due_[index] = false;
                                         report(faults_[index]);
                                         return true;
                                       }});
  if (!mine(fault)) return;
  if (fault.kind == "out_of_memory") faults.memory_bytes = static_cast<std::size_t>(fault.bytes);
  if (fault.kind == "slow_disk") disk_.seconds_per_byte = 1 / fault.bytes_per_second;
  if (fault.kind == "full_disk") disk_.room = fault.bytes;
  if (fault.kind.ends_with("_disk")) faults.disk = &disk_;
  if (fault.kind == "corrupt_result")
    faults.after_gemm = [this](machine::Stream& stream, const machine::Matrix& c) {
      product(stream, c);
    };
  if (fault.kind == "slow_core")
    for (int i = 0; i < std::max(1, fault.threads); ++i)
      busy_.emplace_back([this] {  // binding a rank binds all threads of its process
        while (!over_.load(std::memory_order_relaxed)) {
        }
      });
}

void Injection::report(const Fault& fault) {
  const std::string when = at_ == judging ? "while it is judged" : fmt::format("in sample {}", at_);
  const std::string line = fmt::format("shardmark: injected {} on rank {}, {} of {}\n", fault.text,
                                       world_.rank(), when, case_);
  if (line == reported_) return;
  reported_ = line;
  [[maybe_unused]] const auto wrote = ::write(STDERR_FILENO, line.data(), line.size());
}

void Injection::run(Instance& instance) {
  before(false);
  const double begin = machine::steady_s(), waited = machine::waited_s();
  instance.run();
  after(machine::steady_s() - begin - (machine::waited_s() - waited));
}

void Injection::judge(Instance& instance, Judge& judge) {
  before(true);
  instance.judge(judge);
  after(0);
}

}  // namespace harness
