#include "suite/trainer/step_graph.h"

#include <cstddef>

#include "machine/world/step_clock.h"

namespace suite {

void StepGraph::launch(double loss_scale, const std::function<void()>& queue_work) {
  if (!graph_ || loss_scale_ != loss_scale) {
    capture(queue_work);
    loss_scale_ = loss_scale;
  }
  const machine::During launching(machine::Part::graph);
  graph_->launch();
  for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->count(messages_[i]);
}

void StepGraph::capture(const std::function<void()>& queue_work) {
  graph_.reset();  // first, because its memory serves the next graph
  const machine::StepClock::Paused paused;
  std::vector<Messages> before;
  for (machine::Link* link : links_) {
    before.push_back(link->traffic());
    link->reset_traffic();
  }
  graph_ = device_.stream().capture(queue_work);
  messages_.clear();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    messages_.push_back(links_[i]->traffic());
    links_[i]->reset_traffic();
    links_[i]->count(before[i]);
  }
}

}  // namespace suite
