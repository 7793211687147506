#include "suite/configuration/group_algorithms.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "suite/configuration/models.h"

namespace suite {
namespace {

using machine::Operation;
using machine::Transport;

TrainingConfig small(Transport transport, machine::Degrees degrees) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.transport = transport;
  config.degrees = degrees;
  return config;
}

std::string names(const TrainingConfig& config, std::string_view group) {
  const collectives::GroupAlgorithms all = group_algorithms(config, group);
  std::string text;
  for (const Operation operation :
       {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather})
    text += std::string(all.of(operation).empty() ? "ours" : all.of(operation)) + " ";
  return text;
}

std::string refusal(const TrainingConfig& config) {
  try {
    validate_algorithms(config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

constexpr const char *by_library = "library library library ", *by_us = "ours ours ours ";

TEST(StepAlgorithms, TheLibraryIsTheDefaultOverNccl) {
  for (const Transport transport :
       {Transport::shared_memory, Transport::mpi, Transport::cuda_ipc, Transport::nccl})
    for (const char* group : {"tp", "dp", "pp", "embedding"}) {
      const bool library = transport == Transport::nccl && (group[0] == 't' || group[0] == 'd');
      EXPECT_EQ(names(small(transport, {.tp = 4, .dp = 4}), group), library ? by_library : by_us)
          << machine::name(transport) << " " << group;
    }
}

// The first and the last stage hold a tied table, at different places of their buckets.
TEST(StepAlgorithms, OursAddWhereTwoStagesHoldAParameter) {
  TrainingConfig config = small(Transport::nccl, {.tp = 4, .dp = 3, .pp = 2});
  EXPECT_EQ(names(config, "dp"), "ours ours library ");
  EXPECT_EQ(names(config, "tp"), by_library);
  config.degrees.dp = 2;
  EXPECT_EQ(names(config, "dp"), by_library) << "a sum of two terms has one order";
  config.degrees.dp = 3;
  config.model.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(names(config, "dp"), by_library);
  config.batch.global_batch_size = 24;
  config.pipeline.schedule = "dual_pipe";  // two copies of the model
  EXPECT_EQ(names(config, "dp"), "ours ours library ");
  EXPECT_EQ(names(config, "tp"), "ours ours library ");
  config.model.untie_embeddings_and_output_weights = false;
  config.pipeline.schedule = "zb_v";  // both ends on one stage
  EXPECT_EQ(names(config, "dp"), by_library);
}

TEST(StepAlgorithms, AKeySelectsThem) {
  TrainingConfig config = small(Transport::nccl, {.tp = 4, .dp = 4});
  config.algorithms.tp = "ours";
  config.algorithms.dp = "all_gather=bruck,all_reduce=ours";
  EXPECT_EQ(names(config, "tp"), by_us);
  EXPECT_EQ(names(config, "dp"), "ours library bruck ");
  config.transport = Transport::mpi;
  config.algorithms.tp = "library";
  EXPECT_EQ(names(config, "tp"), by_library);
  EXPECT_EQ(names(config, "dp"), "ours ours bruck ");
}

TEST(StepAlgorithms, InvalidOnesAreRejectedByTheKey) {
  TrainingConfig config = small(Transport::shared_memory, {.tp = 3, .dp = 3, .pp = 2});
  EXPECT_EQ(refusal(config), "accepted");
  config.algorithms.tp = "libary";
  EXPECT_EQ(refusal(config), "tp-algorithm: unknown algorithm 'libary'; did you mean 'library'?");
  config.algorithms.tp = "library";
  EXPECT_EQ(refusal(config),
            "tp-algorithm library requires transport mpi or nccl (got shared_memory)");
  config.algorithms.tp = "all_reduce=recursive_doubling";
  EXPECT_EQ(refusal(config), "accepted");
  config.algorithms.tp.clear();
  config.transport = Transport::mpi;
  for (const char* other : {"library", "ring"}) {
    config.algorithms.dp = other;
    EXPECT_EQ(refusal(config),
              std::string("dp-algorithm ") + other + ": all_reduce by " + other +
                  " adds in an order that depends on the place in a buffer, but two stages hold "
                  "the same parameters and must get the same bits; use "
                  "all_reduce=ours,reduce_scatter=ours");
  }
  config.algorithms.dp = "all_gather=library,reduce_scatter=direct";
  EXPECT_EQ(refusal(config), "accepted");
  config.algorithms.dp.clear();
  config.algorithms.embedding = "library";
  EXPECT_EQ(refusal(config), "accepted");
  config.algorithms.embedding = "all_gather=library";
  EXPECT_NE(refusal(config).find("embedding-algorithm: unknown operation 'all_gather'"),
            std::string::npos);
}

}  // namespace
}  // namespace suite
