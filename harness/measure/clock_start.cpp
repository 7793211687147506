#include "harness/measure/clock_start.h"

#include <sched.h>

#include <algorithm>
#include <limits>

#include "machine/base/clock.h"

namespace harness {
namespace {

constexpr int round_trips = 100;
constexpr double tolerated_s = 1e-6;
constexpr double most_ahead_s = 5e-3;

}  // namespace

ClockStart::ClockStart(machine::Link* link, bool one_clock)
    : link_(link), one_clock_(one_clock || !link) {
  synchronize();
}

void ClockStart::synchronize() {
  if (one_clock_) return;
  double theirs = 0;
  if (link_->rank() == 0) {
    for (int peer = 1; peer < link_->size(); ++peer)
      for (int i = 0; i < round_trips; ++i) {
        link_->receive(peer, &theirs, sizeof theirs);
        const double mine = machine::steady_s();
        link_->send(peer, &mine, sizeof mine);
      }
    link_->flush();
    return;
  }
  uncertainty_s_ = std::numeric_limits<double>::infinity();
  for (int i = 0; i < round_trips; ++i) {
    const double begin = machine::steady_s();
    link_->send(0, &begin, sizeof begin);
    link_->receive(0, &theirs, sizeof theirs);
    const double end = machine::steady_s();
    if ((end - begin) / 2 >= uncertainty_s_) continue;
    uncertainty_s_ = (end - begin) / 2;
    offset_s_ = theirs - (begin + end) / 2;
  }
  link_->flush();
}

ClockStart::Moment ClockStart::wait() {
  Moment moment{machine::steady_s() + ahead_s_, false};
  if (link_ && link_->rank() == 0) {
    for (int peer = 1; peer < link_->size(); ++peer)
      link_->send(peer, &moment.start_s, sizeof moment.start_s);
    link_->flush();
  } else if (link_) {
    link_->receive(0, &moment.start_s, sizeof moment.start_s);
    moment.start_s -= offset_s_;
  }
  // Another rank may need this core to be in time.
  double now = machine::steady_s();
  while (now < moment.start_s) {
    if (moment.start_s - now > 5e-6) sched_yield();
    now = machine::steady_s();
  }
  moment.late = now - moment.start_s > tolerated_s;
  return moment;
}

void ClockStart::leave_more_time() { ahead_s_ = std::min(2 * ahead_s_, most_ahead_s); }

}  // namespace harness
