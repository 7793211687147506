#pragma once
// Texts from rank to rank of one world. The control plane is built on Post. Post uses no links.
//
// Texts of an ordered pair of ranks arrive in order. Waits sleep. They end with PeerFailure when
// another rank fails, and have no timeout, because ranks without work wait for their next case.
// `during` names the operation on the board while the call waits.

#include <string>
#include <string_view>

#include "machine/base/operation.h"

namespace machine {

class Post {
 public:
  virtual ~Post() = default;
  // Returns when `text` may change. A long text waits for its receiver.
  virtual void send(int to, std::string_view text, Operation during) = 0;
  virtual std::string receive(int from, Operation during) = 0;
};

}  // namespace machine
