#pragma once
// Seconds since the calling thread began in which it was ready to run and its core ran something
// else; 0 if the system does not report it.

namespace harness {

double core_delay_s();

}  // namespace harness
