#pragma once
// How long the calling thread has been ready to run while its core ran something else, in seconds
// since it began; 0 where the system does not say.

namespace harness {

double core_delay_s();

}  // namespace harness
