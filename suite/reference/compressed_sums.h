#pragma once
// Judges every compressed sum of gradients of a step (zero/stages/compressed_reduction.h) from the
// gradients of all ranks, and keeps their exact sums.
//
// A rank compresses v = gradient + residual before, in float. Laws, for each rank and sum:
//   top_k, deviation   the residual is v without the elements that a complete selection in double
//                      sends, exactly; the sum is the sum of sent values in the order of ranks,
//                      exactly
//   codes              the residual is at most the code's error of v. With a reduce-scatter, the
//                      rank that sums a share keeps at most the code's error of that sum
//   all                sum + residuals after = gradients + residuals before, except for roundings
//   of
//                      float: nothing is lost, and nothing is counted twice
// So every step is judged by its own inputs, and a selection that depends on the last bit of a
// gradient does not spread into a bound.

#include <map>
#include <vector>

#include "harness/judge/judge.h"
#include "machine/world/world.h"
#include "zero/stages/compressed_reduction.h"

namespace suite {

class CompressedSums final : public zero::CompressionWatch {
 public:
  // dp: the ranks of a sum. All must outlive this.
  CompressedSums(harness::Judge& judge, machine::World& world, machine::Group dp,
                 zero::GradientCompression compression);

  void before(std::size_t segment, const machine::Tensor& gradients) override;
  // Collective over dp.
  void after(std::size_t segment, const machine::Tensor& sums,
             const collectives::CompressedAllReduce& sum) override;

  // Returns the sums of the gradients of a segment without compression, in double.
  const std::vector<double>& exact(std::size_t segment) const {
    return segments_.at(segment).exact;
  }

 private:
  // All vectors have the segment's elements. residual: of this rank's code. held: also of the share
  // that this rank sums.
  struct OfRank {
    std::vector<double> gradient, residual, held;
    static auto members(auto& self) { return std::tie(self.gradient, self.residual, self.held); }
  };
  struct Segment {
    std::vector<OfRank> before;  // by rank; gradients of the last step
    std::vector<double> exact;
    int step = 0;
  };
  void judge_sparse(const std::string& what, const Segment& segment,
                    const std::vector<OfRank>& after, const std::vector<double>& sums,
                    std::int64_t selected);
  void judge_code(const std::string& what, const Segment& segment, const std::vector<OfRank>& after,
                  const std::vector<double>& sums);

  harness::Judge& judge_;
  machine::World& world_;
  machine::Group dp_;
  zero::GradientCompression compression_;
  std::vector<double> gradient_;
  std::map<std::size_t, Segment> segments_;
};

}  // namespace suite
