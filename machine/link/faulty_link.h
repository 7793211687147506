#pragma once
// A link for host memory with the faults of its rank (machine/device/faults.h). Links of a rank
// without such faults are not wrapped and have no overhead.

#include <memory>

#include "machine/device/faults.h"
#include "machine/link/link.h"

namespace machine {

std::unique_ptr<Link> with_faults(std::unique_ptr<Link> link, const Faults& faults);
// Returns the wrapped link, or `link` if it is not wrapped. For code that needs the link's type.
Link& plain(Link& link);

}  // namespace machine
