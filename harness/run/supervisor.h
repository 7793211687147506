#pragma once
// Keeps a launcher from ending the other ranks before they have reported which rank was lost.
//
// mpiexec and srun kill every rank when one of their processes dies by a signal. So that process is
// a supervisor that only waits, and the rank is its child. If the rank is killed, or ends with code
// 0 too early, which would look like success to a launcher, the supervisor lingers while the other
// ranks' watchdogs report, then ends with exit code 4.
//
//   const SupervisedRank rank;
//   return rank.ends(run_rank(…));

namespace harness {

class SupervisedRank {
 public:
  // Call it before any thread, MPI and CUDA, in a rank that a launcher started. Returns in the
  // child. The parent ends with the child's exit code, or as above. Throws std::logic_error if this
  // process used CUDA, which would not work in the child.
  SupervisedRank();
  // Reports the rank's regular end to the supervisor. Must be the rank's last call. Returns code.
  int ends(int code) const;

 private:
  int supervisor_ = -1;  // pipe; -1: the rank is unsupervised
};

}  // namespace harness
