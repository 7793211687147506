#pragma once
// A plain timing loop around the collective calls of one library: barrier, then the clock around a
// batch of calls. It takes the maximum over ranks of each sample, and prints the median and the 5th
// percentile. It depends on no other file of the project: scripts/sampler_check compares it with
// the program's times of the same library, scripts/compare_mpi with the program's own algorithms.
//
//   LOOP ONCE_OR_FILLED SECONDS OPERATION=BYTES,BYTES,... [OPERATION=...]...
//
// once: one call a sample. filled: as many calls as last 20 us or more, like the program's samples.
// SECONDS is the time of one size. BYTES is the size of the largest buffer of a rank: all shares
// of all_gather, reduce_scatter and all_to_all. Rank 0 prints "OPERATION BYTES MEDIAN_S P5_S".

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace peers {

constexpr double filled_s = 22e-6;
constexpr int warm_ups = 10, fewest = 30, most = 10000;

struct Library {
  int rank = 0, ranks = 1;
  std::function<void()> barrier;
  std::function<void(double* values, int count)> maximum;  // over ranks, in place
  // The call of an operation over `bytes`; empty if the library does not have it. The buffers have
  // `bytes` each.
  std::function<std::function<void()>(const std::string& operation, float* in, float* out,
                                      long bytes)>
      call;
};

// Binds each rank to a core, in the order of the ranks. If there are fewer cores, ranks share them.
inline void bind(int rank) {
  cpu_set_t allowed, mine;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int cores = CPU_COUNT(&allowed);
  int place = rank % cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && place-- == 0) {
      CPU_ZERO(&mine);
      CPU_SET(core, &mine);
      sched_setaffinity(0, sizeof mine, &mine);
      return;
    }
}

inline double timed(const Library& library, const std::function<void()>& call, int batch) {
  using Clock = std::chrono::steady_clock;
  library.barrier();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < batch; ++i) call();
  return std::chrono::duration<double>(Clock::now() - begin).count() / batch;
}

// Returns the median and the 5th percentile.
inline std::pair<double, double> times_of(const Library& library, const std::function<void()>& call,
                                          bool filled, double seconds) {
  const auto slowest = [&](double value) {
    library.maximum(&value, 1);
    return value;
  };
  double warm_s = 0;
  for (int i = 0; i < warm_ups; ++i) warm_s = timed(library, call, 1);
  int batch = 1;
  if (filled) {
    warm_s = slowest(timed(library, call, 20));
    batch = std::max(1, static_cast<int>(filled_s / warm_s));
  }
  const double per_sample_s = slowest(warm_s * batch);
  std::vector<double> times(static_cast<std::size_t>(
      std::clamp(seconds / std::max(per_sample_s, 1e-9), 1.0 * fewest, 1.0 * most)));
  for (double& time : times) time = timed(library, call, batch);
  // Reduces after the loop, so that only the barrier separates two samples.
  library.maximum(times.data(), static_cast<int>(times.size()));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 20]};
}

inline std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

// Returns the exit code.
inline int run(const Library& library, int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0;
  bool right = argc > 3 && (how == "once" || how == "filled") && seconds > 0;
  for (int i = 3; i < argc; ++i) {
    const std::vector<std::string> named = split(argv[i], '=');
    right = right && named.size() == 2;
    if (right)
      for (const std::string& bytes : split(named[1], ','))
        right = right && std::atol(bytes.c_str()) >= 4;
  }
  if (!right) {
    if (library.rank == 0)
      std::fprintf(stderr, "usage: %s once|filled SECONDS OPERATION=BYTES,... (each 4 or more)\n",
                   argv[0]);
    return 2;
  }
  bind(library.rank);
  for (int i = 3; i < argc; ++i) {
    const std::vector<std::string> named = split(argv[i], '=');
    for (const std::string& text : split(named[1], ',')) {
      const long bytes = std::atol(text.c_str());
      std::vector<float> in(static_cast<std::size_t>(bytes) / sizeof(float), 1), out(in.size());
      const std::function<void()> call = library.call(named[0], in.data(), out.data(), bytes);
      if (!call) continue;
      const auto [median, p5] = times_of(library, call, how == "filled", seconds);
      if (library.rank == 0) std::printf("%s %ld %.9g %.9g\n", named[0].c_str(), bytes, median, p5);
    }
  }
  return 0;
}

}  // namespace peers
