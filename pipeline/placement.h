#pragma once
// The mapping of the chunks of all stages to the parts of the model, as data. For every copy of the
// model it has the path of a micro-batch, place by place. Forward follows the path, and backward
// follows it in reverse.
//
//   looped(3, 2)      "0 1 2 0.1 1.1 2.1"      stages 0 1 2, then their second chunks
//   v_shaped(3)       "0 1 2 2.1 1.1 0.1"      chunk 0 goes down the stages, chunk 1 comes back up
//   bidirectional(3)  "0 1 2 | 2.1 1.1 0.1"    two copies of the model, one from each end

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/number_text.h"

namespace pipeline {

struct Place {
  int stage = 0, chunk = 0;
  bool operator==(const Place&) const = default;
};

using Path = std::vector<Place>;

class Placement {
 public:
  constexpr Placement() = default;
  // Throws std::invalid_argument unless the paths are equally long and every chunk of every stage
  // is on exactly one path, once.
  constexpr explicit Placement(std::vector<Path> paths) : paths_(std::move(paths)) {
    std::size_t places = 0;
    for (const Path& path : paths_) {
      places += path.size();
      for (const Place& place : path) {
        stages_ = std::max(stages_, place.stage + 1);
        chunks_ = std::max(chunks_, place.chunk + 1);
      }
      if (path.size() != paths_[0].size())
        throw std::invalid_argument("placement: the copies of the model have different lengths");
    }
    spots_.resize(stages_ * chunks_);
    if (places != spots_.size())
      throw std::invalid_argument("placement: every chunk of every stage must be exactly one part");
    for (int copy = 0; copy < copies(); ++copy) {
      for (int part = 0; part < parts(); ++part) {
        const Place& place = at(copy, part);
        Spot& spot = spots_[index(place.stage, place.chunk)];
        if (spot.part >= 0)
          throw std::invalid_argument("placement: a chunk of a stage is two parts of the model");
        spot = {copy, part};
      }
    }
  }

  constexpr int stages() const { return stages_; }
  constexpr int chunks() const { return chunks_; }  // of a stage
  constexpr int copies() const { return static_cast<int>(paths_.size()); }
  constexpr int parts() const { return paths_.empty() ? 0 : static_cast<int>(paths_[0].size()); }
  constexpr const std::vector<Path>& paths() const { return paths_; }

  constexpr int copy(int stage, int chunk) const { return spots_[index(stage, chunk)].copy; }
  constexpr int part(int stage, int chunk) const { return spots_[index(stage, chunk)].part; }
  constexpr bool begins(int stage, int chunk) const { return part(stage, chunk) == 0; }
  constexpr bool ends(int stage, int chunk) const { return part(stage, chunk) == parts() - 1; }
  constexpr const Place& at(int copy, int part) const {
    return paths_[copy][static_cast<std::size_t>(part)];
  }
  // Returns the copy that runs a micro-batch. The micro-batches are split equally, in the order of
  // the copies.
  constexpr int copy_of(int micro_batch, int micro_batches) const {
    return static_cast<int>(static_cast<long>(micro_batch) * copies() / micro_batches);
  }

 private:
  struct Spot {
    int copy = 0, part = -1;
  };
  constexpr std::size_t index(int stage, int chunk) const {
    return static_cast<std::size_t>(stage * chunks_ + chunk);
  }
  int stages_ = 0, chunks_ = 0;
  std::vector<Path> paths_;  // of each copy
  std::vector<Spot> spots_;  // by stage and chunk
};

// Narayanan et al. 2021, arXiv:2104.04473: chunk c of stage i is part c * stages + i.
constexpr Placement looped(int stages, int chunks) {
  Path path;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (int stage = 0; stage < stages; ++stage) path.push_back({stage, chunk});
  return Placement({path});
}

// Qi et al. 2024, arXiv:2405.15362: first and last part on the first stage.
constexpr Placement v_shaped(int stages) {
  Path path;
  for (int stage = 0; stage < stages; ++stage) path.push_back({stage, 0});
  for (int stage = stages; stage-- > 0;) path.push_back({stage, 1});
  return Placement({path});
}

// DeepSeek-AI 2024, arXiv:2412.19437: every stage has a part of each of two copies.
constexpr Placement bidirectional(int stages) {
  Path down, up;
  for (int stage = 0; stage < stages; ++stage) down.push_back({stage, 0});
  for (int stage = stages; stage-- > 0;) up.push_back({stage, 1});
  return Placement({down, up});
}

constexpr std::string text(const Placement& placement) {
  std::string out;
  for (const Path& path : placement.paths()) {
    if (!out.empty()) out += " |";
    for (const Place& place : path) {
      if (!out.empty()) out += ' ';
      append_number(out, place.stage);
      if (place.chunk != 0) {
        out += '.';
        append_number(out, place.chunk);
      }
    }
  }
  return out;
}

static_assert(bidirectional(4).part(1, 1) == 2 && bidirectional(4).copy(1, 1) == 1);
static_assert(bidirectional(4).copy_of(3, 8) == 0 && bidirectional(4).copy_of(4, 8) == 1);

}  // namespace pipeline
