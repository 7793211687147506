#pragma once
// Sleeps that last as long as they are told to: the kernel's timer slack is taken away from this
// thread, and what waking up takes, measured once, is slept less. Takes no core meanwhile, so more
// ranks than cores can each be "computing". Linux; without it the slack stays.

namespace suite {

class CalibratedSleep {
 public:
  explicit CalibratedSleep(double typical_s);  // what most sleeps will take
  ~CalibratedSleep();
  CalibratedSleep(const CalibratedSleep&) = delete;
  CalibratedSleep& operator=(const CalibratedSleep&) = delete;
  void operator()(double seconds) const;

 private:
  double late_s_ = 0;   // median, of waking up
  long slack_ns_ = -1;  // this thread's before; -1: not known
};

}  // namespace suite
