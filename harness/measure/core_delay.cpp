#include "harness/measure/core_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace harness {

double core_delay_s() {
  const int file = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[96] = "";
  const auto got = ::read(file, text, sizeof text - 1);
  ::close(file);
  unsigned long long ran_ns = 0, delayed_ns = 0;
  if (got <= 0 || std::sscanf(text, "%llu %llu", &ran_ns, &delayed_ns) != 2) return 0;
  return 1e-9 * static_cast<double>(delayed_ns);
}

}  // namespace harness
