#pragma once
// A link between host memory that has the faults of its rank (machine/device/faults.h). Links of a
// rank without such faults are not wrapped and cost nothing more.

#include <memory>

#include "machine/device/faults.h"
#include "machine/link/link.h"

namespace machine {

std::unique_ptr<Link> with_faults(std::unique_ptr<Link> link, const Faults& faults);
// The link inside, or the link itself: for code that needs its type.
Link& plain(Link& link);

}  // namespace machine
