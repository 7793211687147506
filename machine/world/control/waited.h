#pragma once
// Seconds that this thread has yielded or slept in waits for other ranks since it began. Next to
// busy processes a yield may last milliseconds. The spinning before it, some microseconds of a
// wait, is not included, so a short wait reads no clock.

namespace machine {

double waited_s();
void add_waited_s(double seconds);

}  // namespace machine
