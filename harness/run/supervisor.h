#pragma once
// Keeps a launcher from ending the other ranks before they have said which one was lost.
//
// mpiexec and srun kill every rank the moment one of their processes dies by a signal. So that
// process is a supervisor that does nothing but wait, and the rank is its child: when the rank is
// killed the supervisor lingers for as long as the others' watchdogs need to report, then ends with
// exit code 4. So it does when the rank ends with code 0 before it has come to its end: to a
// launcher all would be well.
//
//   const SupervisedRank rank;
//   return rank.ends(run_rank(…));

namespace harness {

class SupervisedRank {
 public:
  // Before any thread and before MPI, in the main of a rank that a launcher started. Returns in the
  // child. The parent ends with the child's exit code, or as above.
  SupervisedRank();
  // The last call of the rank: tells the supervisor that it has come to its end. Returns code.
  int ends(int code) const;

 private:
  int supervisor_ = -1;  // pipe; -1: the rank is unsupervised
};

}  // namespace harness
