#pragma once
// A step's passes and sums of gradients as a CUDA graph.
//
//   StepGraph graph(device, links_of_all_groups);
//   graph.launch(loss_scale, [&] { …queue the passes and the sums… });
//
// The first launch, and each one with another loss scale, captures the work: the scale is an
// argument of a kernel. What the work keeps exists already (Stream::capture).

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "machine/device/device.h"
#include "machine/link/link.h"

namespace suite {

class StepGraph {
 public:
  StepGraph(machine::Device& device, std::vector<machine::Link*> links)
      : device_(device), links_(std::move(links)) {}

  // Links count the messages of the graph for each launch.
  void launch(double loss_scale, const std::function<void()>& queue_work);

 private:
  using Messages = std::map<machine::TrafficLabel, machine::Traffic>;
  void capture(const std::function<void()>& queue_work);

  machine::Device& device_;
  std::vector<machine::Link*> links_;
  std::unique_ptr<machine::Graph> graph_;
  double loss_scale_ = 0;           // in graph_
  std::vector<Messages> messages_;  // of a launch, by link
};

}  // namespace suite
