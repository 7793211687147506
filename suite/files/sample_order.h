#pragma once
// The order of samples in Megatron-Core's GPT datasets (core/datasets/gpt_dataset.py, helpers.cpp,
// blended_dataset.py), index by index. A sample is `length` tokens and the next one, its last
// target. Samples cross documents. All random numbers are those of numpy's RandomState(seed).
//
//   documents   all documents of an epoch, epoch after epoch, shuffled together
//   samples     first token of each sample: its place in `documents`, and the offset there
//   shuffled    permutation of the samples
//
// If the last epoch contributes less than 80 % of its samples, it is shuffled separately, so that
// no document of it comes early.
//
//   const SampleOrder order = sample_order(sizes, documents, 1024, 500'000, seed);
//   order.shuffled[i];   // the sample at position i

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace suite {

struct SampleOrder {
  struct Start {
    std::int64_t place = 0, offset = 0;
    bool operator==(const Start&) const = default;
  };
  std::int64_t epochs = 1;
  std::vector<std::int32_t> documents;
  std::vector<Start> samples;  // one more than samples: the end of the last
  std::vector<std::int64_t> shuffled;

  std::int64_t size() const { return static_cast<std::int64_t>(shuffled.size()); }
};

// sizes: tokens of every document of the file; documents: those of this split. samples: at least
// this number, 0: those of one epoch. Throws std::invalid_argument if the documents have fewer
// tokens than one sample.
SampleOrder sample_order(std::span<const std::int32_t> sizes,
                         std::span<const std::int32_t> documents, std::int64_t length,
                         std::int64_t samples, std::uint32_t seed);

// A position of a blend: the data set and the position in it.
struct Blended {
  std::int32_t set = 0;
  std::int64_t position = 0;
  bool operator==(const Blended&) const = default;
};
// Returns for each of `size` positions the data set whose number of samples is farthest below its
// weight. weights: positive, in any scale.
std::vector<Blended> blend(std::span<const double> weights, std::int64_t size);
// Returns the number of samples that a data set of this weight (of a sum of 1) must have.
std::int64_t samples_of_set(double weight, std::int64_t size);

// Returns the documents [first, second) of split 0 (training), 1 (validation) or 2 (test):
// "949,50,1". Throws std::invalid_argument for texts that are not one to three numbers.
std::pair<std::int64_t, std::int64_t> split_range(std::string_view text, int split,
                                                  std::int64_t documents);

}  // namespace suite
