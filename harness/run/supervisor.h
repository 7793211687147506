#pragma once
// Keeps a launcher from ending the other ranks before they have said which one was lost.
//
// mpiexec and srun kill every rank the moment one of their processes dies by a signal. So that
// process is a supervisor that does nothing but wait, and the rank is its child: when the rank is
// killed the supervisor lingers for as long as the others' watchdogs need to report, then ends with
// exit code 4. So it does when the rank ends with code 0 before it has come to its end: to a
// launcher all would be well.

namespace harness {

// First thing in the main of a rank that a launcher started, before any thread and before MPI.
// Returns in the child; the parent ends with the child's exit code, or as told above.
void supervise_rank();

// Last thing in it: this is the rank's end, with that code, which it returns.
int rank_ends(int code);

}  // namespace harness
