#pragma once
// Bytes on the wire and in memory of one attention over a context-parallel group, in closed form.
// The oracles compare these with the counted values, exactly. Shares no code with the algorithms.
//
// Notation of rank r of P: n tokens (sequences * rows of the rank), m of the rank with most, T of
// all; D columns of queries, K of keys, H heads; E bytes of a value, A of an accumulator. Ulysses:
// w and x columns of queries and of keys of the own heads, X the sum of x over the ranks.
//
//   p2p         forward sends 2 (T - n_{r+1}) K E in P - 1 messages, receives 2 (T - n_r) K E;
//               backward the same, and sends the gradients of 2 (T - n_r) K values, receives those
//               of 2 (T - n_{r-1}) K, A bytes each
//   all_gather  forward gathers 2 P m K values; backward again, and reduces as many accumulators
//   a2a         forward sends n (D - w) E + 2 n (X - x) E, and (T - n) w E back; backward sends the
//               same for d_out and d_q, and 2 (T - n) x E; 4 (P - 1) messages each
//   FPDT        a2a of each chunk
//
// kept, of p2p and all_gather: q, k, v and out are the caller's, n H A is the log-sum-exp; of a2a:
// 2 T (w + x) E and T (own heads) A.
// buffers, of p2p and all_gather: the sum of a rank's output, or of its queries' gradient, a part
// of it in the dtype and the part's log-sum-exp: n D (A + E) + n H A; of p2p two blocks of keys, 4
// m K E; of all_gather all keys, 2 P m K E. Backward also the gradients of a part's keys, 2 m K E,
// and their sums: of p2p two blocks and the own one, 4 m K A + 2 n K A; of all_gather 2 P m K A.
// buffers of a2a: the two messages of an exchange, n D E + T w E. Backward also d_out of the own
// heads, T w E, and then in its place the gradients, (T w + 2 T x) E; if ranks have copies of a
// head of keys, the sum of the copies, at the end. a2a+p2p: a2a over the rows of a rank of the
// ring, which has the own heads only.
//
// FPDT, with C tokens in the largest chunk and c of them on this rank, h own heads: kept 2 T (w +
// x) E, with offloading on the host, and T h A on the device. Forward's buffers are C w (A + E) + C
// h A of sums, and a message of queries with its result, c D E + C w E; with offloading also two
// chunks of keys that are read, 4 C x E, if there are two, and the own chunk, C (w + 2 x) E.
// Backward's are those of a part, C (w + 2 x) E, of sums, 2 C x A, and of the largest exchange;
// d_out and the sums of d_q, T w (E + A): with offloading on the host, and two chunks of keys and
// queries on the device, 2 C (2 x + 3 w) E + 2 C w A, or one of one. Forward copies what it keeps
// to the host and reads the keys of all chunks that a chunk sees, but one. Backward copies d_out to
// the host, reads all keys once, and q, out and d_out for each pair of chunks; the sum of d_q of a
// chunk goes to the host and back between its pairs.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "collectives/communicator/calls.h"
#include "layers/context_parallel/context_parallel.h"
#include "layers/context_parallel/splits/chunk_offload.h"
#include "machine/device/dtype.h"
#include "machine/link/link.h"

namespace layers {

// Bytes and messages by group ("cp"; of a2a+p2p "cp_a2a" and "cp_p2p") and label.
using ContextMessages = std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>>;
void add(ContextMessages& all, const ContextMessages& each, int times = 1);

struct ContextCase {
  int ranks = 1, rank = 0;
  ContextOptions options{};
  machine::Dtype dtype = machine::Dtype::float32;
  std::int64_t sequences = 1, sequence = 1;        // sequence: positions of a whole one
  std::int64_t heads = 1, kv_heads = 1, head = 1;  // head: columns of a head
  bool causal = true;
};

// The cost of a pass.
struct ContextPass {
  ContextMessages messages;
  std::vector<collectives::CollectiveCalls> calls;  // over the group "cp"
  // Peaks, without scratch of collectives: while the kept tensors are held, and in backward of a2a
  // after they are free.
  std::size_t buffers = 0, buffers_at_end = 0;
  // Of FPDT with offloading: the peak of buffers in host memory, and the copies of chunks.
  std::size_t host_buffers = 0;
  HostCopies copies;
};
struct ContextCost {
  ContextPass forward, backward;
  std::size_t kept = 0;  // from forward for backward, without the caller's tensors
  std::size_t kept_on_host = 0;
};
// Returns the cost. One rank sends no message, and keeps the log-sum-exp.
ContextCost context_cost(const ContextCase& c);

}  // namespace layers
