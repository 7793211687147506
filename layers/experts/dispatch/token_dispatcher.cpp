#include "layers/experts/dispatch/token_dispatcher.h"

#include "layers/experts/dispatch/all_gather_dispatcher.h"
#include "layers/experts/dispatch/all_to_all_dispatcher.h"

namespace layers {

std::unique_ptr<TokenDispatcher> make_token_dispatcher(const Context& context,
                                                       collectives::Communicator& group,
                                                       const MoeConfig& config,
                                                       ExpertParallel degrees) {
  if (config.token_dispatcher_type == TokenDispatcherType::allgather)
    return std::make_unique<AllGatherDispatcher>(context, group, config, degrees);
  return std::make_unique<AllToAllDispatcher>(context, group, config, degrees);
}

}  // namespace layers
