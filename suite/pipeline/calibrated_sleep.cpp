#include "suite/pipeline/calibrated_sleep.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>

#include "machine/base/clock.h"

namespace suite {

CalibratedSleep::CalibratedSleep(double typical_s) {
  slack_ns_ = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  std::array<double, 15> late;
  for (double& seconds : late) {
    const double start_s = machine::steady_s();
    (*this)(typical_s);
    seconds = machine::steady_s() - start_s - typical_s;
  }
  std::nth_element(late.begin(), late.begin() + late.size() / 2, late.end());
  late_s_ = std::clamp(late[late.size() / 2], 0.0, typical_s / 2);
}

CalibratedSleep::~CalibratedSleep() {
  if (slack_ns_ > 0) prctl(PR_SET_TIMERSLACK, slack_ns_, 0, 0, 0);
}

void CalibratedSleep::operator()(double seconds) const {
  seconds = std::max(0.0, seconds - late_s_);
  timespec left;
  left.tv_sec = static_cast<time_t>(std::floor(seconds));
  left.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace suite
