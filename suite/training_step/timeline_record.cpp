#include "suite/training_step/timeline_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace suite {

std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline) {
  std::string mine;
  for (const pipeline::Event& event : timeline.events)
    mine +=
        fmt::format("{} {} {} {}\n", event.doing == pipeline::Doing::compute ? "compute" : "wait",
                    pipeline::text(event.action), timeline.origin_s + event.start_s,
                    timeline.origin_s + event.end_s);
  std::vector<harness::Span> spans;
  int rank = 0;
  for (const std::string& text : world.all_gather(group, mine)) {
    std::istringstream lines(text);
    harness::Span span;
    span.rank = rank++;
    while (lines >> span.lane >> span.name >> span.start_s >> span.end_s) spans.push_back(span);
  }
  double first = spans.empty() ? 0 : spans.front().start_s;
  for (const harness::Span& span : spans) first = std::min(first, span.start_s);
  for (harness::Span& span : spans) {
    span.start_s -= first;
    span.end_s -= first;
  }
  return spans;
}

}  // namespace suite
