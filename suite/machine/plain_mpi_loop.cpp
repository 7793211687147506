// A plain timing loop: MPI_Barrier, then MPI_Wtime around MPI_Allreduce of floats. For each size it
// takes the maximum over ranks of each iteration, and prints the median and the 5th percentile.
// scripts/sampler_check compares them with the program's times of the library. The loop does not
// depend on the other rooms.
//
//   mpiexec -n 2 plain_mpi_loop ONCE_OR_FILLED BYTES...
//
// once: one call between two readings of the clock. filled: a batch of calls that lasts 20 us or
// more, like the sampler's batches. Prints a line "BYTES MEDIAN_S P5_S" for each size.

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr double seconds_of_size = 0.6, filled_s = 22e-6;
constexpr int warm_ups = 10, fewest = 30, most = 10000;

// Binds each rank to a core, in the order of the ranks. If there are fewer cores, ranks share them.
void bind(int rank) {
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

double timed(const std::vector<float>& in, std::vector<float>& out, int batch) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < batch; ++i)
    MPI_Allreduce(in.data(), out.data(), static_cast<int>(in.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  return (MPI_Wtime() - begin) / batch;
}

double slowest(double seconds) {
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

// Returns the median and the 5th percentile.
std::pair<double, double> times_of(long bytes, bool filled) {
  const std::vector<float> in(static_cast<std::size_t>(bytes) / sizeof(float), 1);
  std::vector<float> out(in.size());
  double warm_s = 0;
  for (int i = 0; i < warm_ups; ++i) warm_s = timed(in, out, 1);
  int batch = 1;
  if (filled) {
    warm_s = slowest(timed(in, out, 20));
    batch = std::max(1, static_cast<int>(filled_s / warm_s));
  }
  const double per_sample_s = slowest(warm_s * batch);
  std::vector<double> times(static_cast<std::size_t>(
      std::clamp(seconds_of_size / std::max(per_sample_s, 1e-9), 1.0 * fewest, 1.0 * most)));
  for (double& time : times) time = timed(in, out, batch);
  // Reduces after the loop, so that only the barrier separates two iterations.
  MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE, MPI_MAX,
                MPI_COMM_WORLD);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 20]};
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string how = argc > 1 ? argv[1] : "";
  bool right = argc > 2 && (how == "once" || how == "filled");
  for (int i = 2; i < argc; ++i) right = right && std::atol(argv[i]) >= 4;
  if (!right) {
    if (rank == 0)
      std::fprintf(stderr, "usage: plain_mpi_loop once|filled BYTES... (each 4 or more)\n");
    MPI_Finalize();
    return 2;
  }
  bind(rank);
  for (int i = 2; i < argc; ++i) {
    const long bytes = std::atol(argv[i]);
    const auto [median, p5] = times_of(bytes, how == "filled");
    if (rank == 0) std::printf("%ld %.9g %.9g\n", bytes, median, p5);
  }
  MPI_Finalize();
}
