#pragma once
// How long this thread has yielded or slept in waits for other ranks since it began: beside busy
// processes a yield may last milliseconds. What it spun before, some microseconds of a wait, is not
// in it: a short wait costs no look at a clock.

namespace machine {

double waited_s();
void add_waited_s(double seconds);

}  // namespace machine
