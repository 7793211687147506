#pragma once
// How long this thread has slept in waits for other ranks since it began. What it spun and yielded
// before it slept, some 100 us at most a wait, is not in it: a short wait costs no look at a clock.

namespace machine {

double waited_s();
void add_waited_s(double seconds);

}  // namespace machine
