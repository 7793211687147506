// The step's clock on a stream that runs behind its caller. world_test.cpp tests it on the host.

#include "machine/world/step_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "machine/testing/queued_device.h"

namespace machine {
namespace {

TEST(StepClock, ChargesThePartsWithTheTimesOfTheStream) {
  QueuedDevice device;
  const auto work = [&device](int milliseconds) {
    device.worker().push(
        [=] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  };
  StepClock clock;
  for (int step = 0; step < 2; ++step) {
    clock.start(&device.stream());
    {
      const During forward(Part::forward);
      work(40);
      {
        const During reduce(Part::communication, "tp");
        work(20);
      }
      work(40);
    }
    {
      const DuringMessage message("pp");
      const DuringWait wait(3);
      work(30);
    }
    clock.stop();
    std::map<std::string, double> seconds;
    double all = 0;
    for (const StepTimes::Row& row : clock.times().own.rows) {
      seconds[row.text()] = row.seconds;
      all += row.seconds;
    }
    EXPECT_GE(seconds["forward"], 0.08);
    EXPECT_GE(seconds["communication tp"], 0.02);
    EXPECT_GE(seconds["bubble"], 0.03);
    EXPECT_GE(clock.times().waited_s.at(3), 0.03);
    EXPECT_NEAR(all, clock.times().end_s - clock.times().start_s, 1e-9);
    EXPECT_GE(all, 0.13);
  }
}

}  // namespace
}  // namespace machine
