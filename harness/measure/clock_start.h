#pragma once
// A common start for ranks, by the clock: rank 0 names a moment a little ahead, and all wait for
// it (Hunold & Carpen-Amarie 2016, doi:10.1109/TPDS.2016.2539167). A rank that is late makes the
// sample invalid. Ranks of one host read one clock; those of other hosts estimate how far theirs is
// from rank 0's, by the fastest of many round trips (Cristian 1989, doi:10.1007/BF01784024), which
// is wrong by half that trip at most.

#include "machine/link/link.h"

namespace harness {

class ClockStart {
 public:
  // Collective. one_clock: all ranks are on one host. link null: one rank.
  ClockStart(machine::Link* link, bool one_clock);

  struct Moment {
    double start_s = 0;  // by this rank's clock
    bool late = false;
  };
  // Collective: estimates the offset again, for clocks drift. Nothing to do with one clock.
  void synchronize();
  // Collective; returns at the moment, or late.
  Moment wait();
  // Rank 0: more of the last samples were late than should be, so leave more time ahead.
  void leave_more_time();
  double offset_s() const { return offset_s_; }            // rank 0's clock minus this one's
  double uncertainty_s() const { return uncertainty_s_; }  // of the offset, at most

 private:
  machine::Link* link_;
  bool one_clock_;
  double offset_s_ = 0, uncertainty_s_ = 0;
  double ahead_s_ = 20e-6;
};

}  // namespace harness
