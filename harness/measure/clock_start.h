#pragma once
// A common start for ranks, by the clock: rank 0 sends a moment in the near future, and all ranks
// wait for it (Hunold & Carpen-Amarie 2016, doi:10.1109/TPDS.2016.2539167). A late rank makes the
// sample invalid. Ranks of one host share a clock. Other hosts estimate their offset from rank 0's
// clock by the fastest of many round trips (Cristian 1989, doi:10.1007/BF01784024), with an error
// of at most half that trip.

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
  // Collective: estimates the offset again, because clocks drift. No-op with one clock.
  void synchronize();
  // Collective; returns at the moment, or late.
  Moment wait();
  // Makes later starts further ahead. Called on rank 0 if too many of the last samples were late.
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
