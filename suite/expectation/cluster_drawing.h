#pragma once
// A cluster as a drawing in text, with the rates that the prediction takes from it.

#include <string>

#include "suite/predict/cluster.h"

namespace suite {

// Lines of at most 100 columns: a node with its GPUs, links and adapters; matrix products by inner
// extent; all-reduces by size, within a node and over several nodes.
std::string drawing(const predict::Cluster& cluster);

}  // namespace suite
