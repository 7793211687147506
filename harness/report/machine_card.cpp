// The machine of a run on one card: parts, software, and the features that the run did not use.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstdlib>
#include <set>

#include "harness/fingerprint/fingerprint.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/report/page_parts.h"

namespace harness {
namespace {

constexpr double GiB = 1024.0 * 1024 * 1024;

class Card {
 public:
  explicit Card(const Fields& fields) : left_(fields) {}

  // Returns a field's value, which rest() then leaves out; empty if it is missing or says "absent".
  std::string take(const std::string& field) {
    const auto found = left_.find(field);
    if (found == left_.end()) return "";
    std::string value = found->second;
    left_.erase(found);
    return value == "absent" ? "" : value;
  }
  void row(std::string_view title, const std::string& value) {
    if (!value.empty())
      html_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", title, escaped(value));
  }
  // Adds the other hardware fields, so that no field is hidden.
  void rest() {
    constexpr std::string_view prefix = "hardware.";
    for (const auto& [field, value] : Fields(left_))
      if (field.starts_with(prefix)) {
        std::string title = field.substr(prefix.size());
        for (char& c : title)
          if (c == '_' || c == '.') c = ' ';
        if (!title.empty())
          title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
        row(escaped(title), value);
      }
  }
  const std::string& html() const { return html_; }

 private:
  Fields left_;
  std::string html_;
};

std::string cpu(Card& card) {
  std::string text = card.take("hardware.cpu");
  for (const auto& [field, noun] : {std::pair{"packages", "package"},
                                    {"cores", "core"},
                                    {"hardware_threads", "hardware thread"},
                                    {"numa_nodes", "NUMA node"}}) {
    const std::string number = card.take(fmt::format("hardware.{}", field));
    if (!number.empty())
      text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", number, noun,
                          number == "1" ? "" : "s");
  }
  return text;
}

std::string memory(Card& card) {
  const std::string bytes = card.take("hardware.memory_bytes");
  char* end = nullptr;
  const double number = std::strtod(bytes.c_str(), &end);
  return number > 0 && *end == '\0' ? fmt::format("{:.1f} GiB", number / GiB) : bytes;
}

std::string gpus(Card& card) {
  const std::string number = card.take("hardware.cuda_devices"),
                    device = card.take("hardware.device");
  const bool is_virtual = card.take("software.cuda.virtual") == "true";
  if (number == "0") return "none";
  if (number.empty()) return device;
  if (is_virtual) return number + " virtual, no hardware";
  return device.starts_with("host") ? number + ", not used" : fmt::format("{}: {}", number, device);
}

// "mlx5_0 (400 Gb/sec (4X NDR), ACTIVE), eth0 (up)".
std::string network(Card& card, const Fields& fields) {
  if (const std::string none = card.take("hardware.network"); !none.empty()) return none;
  constexpr std::string_view prefix = "hardware.network.";
  std::string text;
  for (const auto& [field, value] : fields)
    if (field.starts_with(prefix))
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", field.substr(prefix.size()),
                          card.take(field));
  return text.empty() ? "not recorded" : text;
}

std::string program(Card& card) {
  std::string text = card.take("software.shardmark.version");
  for (const char* field : {"commit", "compiler", "build_type"})
    if (const std::string value = card.take(fmt::format("software.shardmark.{}", field));
        !value.empty())
      text += fmt::format("{}{}", text.empty() ? "" : ", ", value);
  return text;
}

// Values of the axis `transport` in passed cases.
std::set<std::string> transports(const RunFile& run) {
  std::set<std::string> found;
  for (const Record& record : run.records)
    if (const std::string value = axis(record, "transport");
        record.verdict == Ruling::pass && !value.empty())
      found.insert(value);
  return found;
}

// Returns the number of hosts in "node-a x4, node-b x4".
std::size_t hosts(const std::string& host) {
  std::set<std::string> names;
  for (std::size_t at = 0; at < host.size();) {
    const std::size_t end = std::min(host.find(", ", at), host.size());
    const std::string one = host.substr(at, end - at);
    names.insert(one.substr(0, one.find(" x")));
    at = end + 2;
  }
  return names.size();
}

std::string not_exercised(const RunFile& run, const Fields& fields) {
  const auto value = [&](const char* field) {
    const auto found = fields.find(field);
    return found == fields.end() ? std::string() : found->second;
  };
  std::string items;
  const auto add = [&](const std::string& text) { items += fmt::format("<li>{}</li>\n", text); };
  if (value("hardware.cuda_devices") == "0") add("GPUs: none found; all cases ran in host memory");
  if (value("options.device") == "host" && value("hardware.cuda_devices") != "0")
    add("GPUs: the run used host memory (<code>--device host</code>)");
  if (const Gpus& gpus = run.context.gpus; gpus.is_virtual)
    add("Hardware of GPUs: the run used virtual GPUs");
  else if (gpus.tested > 0 && gpus.tested < gpus.seen)
    add(fmt::format("{} of {} GPUs", gpus.seen - gpus.tested, gpus.seen));
  if (!fields.empty() && !transports(run).contains("nccl"))
    add(value("software.nccl.loaded") == "absent" ? "NCCL: not loaded"
                                                  : "NCCL: no passed case used it");
  if (hosts(value("host")) == 1) add("Links between hosts: all ranks were on one host");
  std::size_t skipped = 0;
  for (const Record& record : run.records) skipped += record.verdict == Ruling::skipped;
  if (skipped > 0)
    add(fmt::format("<a href=\"#skipped\">{}</a>, with reasons", counted(skipped, "skipped case")));
  if (run.context.not_run > 0)
    add(fmt::format("{} after the time limit",
                    counted(static_cast<std::size_t>(run.context.not_run), "case")));
  return items.empty() ? "" : fmt::format("<h3>Not exercised</h3>\n<ul>\n{}</ul>\n", items);
}

std::string measured_limits(const RunContext& context) {
  if (context.rates.empty()) return "";
  std::string rows;
  for (const auto& [what, rate] : context.rates)
    rows += fmt::format("<tr><td class=\"name\">{}</td>{}</tr>\n", breakable(what),
                        sorted_cell(fmt::format("{:.4g}", rate), rate));
  return fold(
      "", fmt::format("Measured limits: {}", counted(context.rates.size(), "rate")),
      table("Measured limits", "sortable", heads({"Limit"}) + number_heads({"Rate"}), rows));
}

}  // namespace

std::string machine_card(const RunFile& run, const Fields& fields) {
  Card card(fields);
  const std::string host = card.take("host"), ranks = card.take("ranks");
  card.row("Hosts", host.empty() ? run.host_name : host);
  card.row("Ranks", ranks);
  card.row("CPU", cpu(card));
  card.row("Memory", memory(card));
  card.row("GPUs", gpus(card));
  card.row("GPU driver", card.take("software.gpu_driver"));
  if (!fields.empty()) card.row("Network adapters", network(card, fields));
  card.row("Kernel", card.take("software.kernel"));
  card.row("MPI", mpi_name(card.take("software.mpi.version")));
  card.row("oneDNN", card.take("software.onednn.version"));
  card.row("CUDA", card.take("software.cuda.runtime"));
  card.row("NCCL", card.take("software.nccl.loaded"));
  card.row("Transports of passed cases", fmt::format("{}", fmt::join(transports(run), ", ")));
  card.row("Program", program(card));
  card.rest();
  const std::string body =
      card.html().empty() ? "" : fmt::format("<dl class=\"facts\">\n{}</dl>\n", card.html());
  return fmt::format("<div class=\"card\">\n{}{}{}</div>\n", body, not_exercised(run, fields),
                     measured_limits(run.context));
}

}  // namespace harness
