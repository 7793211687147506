#include "collectives/communicator/group_algorithms.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "collectives/communicator/communicator.h"
#include "collectives/cost.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Tensor;

constexpr Operation two[] = {Operation::all_reduce, Operation::all_gather};

std::string refusal(std::string_view text) {
  try {
    read_algorithms(text, two);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(GroupAlgorithms, ANameIsForAllOperationsThatHaveIt) {
  for (const char* name : {"library", "ring"}) {
    const GroupAlgorithms all = read_algorithms(name, two);
    EXPECT_EQ(all.of(Operation::all_reduce), name);
    EXPECT_EQ(all.of(Operation::all_gather), name);
    EXPECT_EQ(all.of(Operation::broadcast), "");
  }
  const GroupAlgorithms one = read_algorithms("binomial_tree", two);
  EXPECT_EQ(one.of(Operation::all_reduce), "binomial_tree");
  EXPECT_EQ(one.of(Operation::all_gather), "");
}

TEST(GroupAlgorithms, PairsReplaceSingleOperations) {
  GroupAlgorithms others;
  for (const Operation operation : two) others.set(operation, library);
  const GroupAlgorithms all = read_algorithms("all_gather=bruck", two, others);
  EXPECT_EQ(all.of(Operation::all_reduce), library);
  EXPECT_EQ(all.of(Operation::all_gather), "bruck");
  const GroupAlgorithms both = read_algorithms("all_gather=ring,all_reduce=ours", two, others);
  EXPECT_EQ(both.of(Operation::all_reduce), "") << "default_algorithm";
  EXPECT_EQ(both.of(Operation::all_gather), "ring");
  EXPECT_EQ(read_algorithms("ours", two, others), GroupAlgorithms());
}

TEST(GroupAlgorithms, RejectsUnknownNamesWithTheNearest) {
  EXPECT_EQ(refusal("libary"), "unknown algorithm 'libary'; did you mean 'library'?");
  EXPECT_EQ(refusal("pairwise").substr(0, 28), "unknown algorithm 'pairwise'")
      << "of reduce_scatter";
  EXPECT_EQ(refusal("all_reduc=ring"), "unknown operation 'all_reduc'; did you mean 'all_reduce'?");
  EXPECT_EQ(refusal("all_gather=rng"), "unknown all_gather algorithm 'rng'; did you mean 'ring'?");
  EXPECT_NE(refusal("all_gather="), "accepted");
  EXPECT_NE(refusal(""), "accepted");
  EXPECT_NE(refusal("ring,ring"), "accepted");
}

TEST(GroupAlgorithms, AListDividesNamesAndKeepsPairsTogether) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(divide_algorithm_texts("library"), Texts{"library"});
  EXPECT_EQ(divide_algorithm_texts("library,ours"), (Texts{"library", "ours"}));
  EXPECT_EQ(divide_algorithm_texts("all_reduce=ring,all_gather=ring,library"),
            (Texts{"all_reduce=ring,all_gather=ring", "library"}));
  EXPECT_EQ(divide_algorithm_texts(""), Texts{""});
}

// The links count other bytes for the ring, which sends two chunks of a third to its neighbour,
// than for direct_one_step, which sends the whole to each peer.
TEST(GroupAlgorithms, CallsWithoutANameUseThoseOfTheGroup) {
  machine::run_ranks(3, [](machine::World& world) {
    Communicator group(world, world.group(), machine::Transport::shared_memory);
    const Tensor data(world.device(), Dtype::float32, {30}, Category::buffers);
    world.device().stream().kernels().fill(data, 1);
    const auto sent = [&](std::string_view asked) {
      group.link().reset_traffic();
      group.all_reduce(data, data, asked);
      return group.link().traffic().at({Operation::all_reduce, Dtype::float32});
    };
    const auto expected = [&](const char* name) {
      return expected_traffic(find_algorithm(Operation::all_reduce, name), {world.rank(), 3}, 30,
                              Dtype::float32);
    };
    EXPECT_EQ(sent({}), expected("direct_one_step"));
    group.set_algorithms(read_algorithms("all_reduce=ring", two));
    EXPECT_EQ(sent({}), expected("ring"));
    EXPECT_EQ(sent("direct_one_step"), expected("direct_one_step"));
    group.set_algorithms(read_algorithms("library", two));
    EXPECT_THROW(sent({}), std::invalid_argument) << "shared_memory has no library";
  });
}

}  // namespace
}  // namespace collectives
