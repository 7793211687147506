#pragma once
// Binds the OpenMP threads of a rank to cores for a while. Beside other work, the system may leave
// two of them on one core for seconds.

#include <memory>
#include <vector>

struct hwloc_bitmap_s;

namespace machine {

// While it exists, each of the OpenMP threads that the calling thread starts stays on a core of its
// own. Changes nothing if there are fewer cores than threads, or if the system forbids it.
class ThreadsOnCores {
 public:
  ThreadsOnCores(const std::vector<int>& cores, int threads);
  ~ThreadsOnCores();
  ThreadsOnCores(const ThreadsOnCores&) = delete;
  ThreadsOnCores& operator=(const ThreadsOnCores&) = delete;

 private:
  struct Free {
    void operator()(hwloc_bitmap_s* bitmap) const;
  };
  using Bitmap = std::unique_ptr<hwloc_bitmap_s, Free>;
  std::vector<Bitmap> before_;  // where each thread could run; null: it is not bound
};

}  // namespace machine
