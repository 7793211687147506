// The table of all algorithms. To add an algorithm, add its header and its row.

#include "collectives/algorithms/bidirectional_ring.h"
#include "collectives/algorithms/binomial_tree.h"
#include "collectives/algorithms/bruck.h"
#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/direct_one_step.h"
#include "collectives/algorithms/dissemination.h"
#include "collectives/algorithms/double_binary_tree.h"
#include "collectives/algorithms/hierarchical.h"
#include "collectives/algorithms/mesh.h"
#include "collectives/algorithms/pairwise.h"
#include "collectives/algorithms/parameter_server.h"
#include "collectives/algorithms/recursive_doubling.h"
#include "collectives/algorithms/recursive_halving_doubling.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/scatter_all_gather.h"
#include "collectives/plan.h"

namespace collectives {
namespace {
int none_kept(const Call&) { return 0; }
}  // namespace

const std::vector<Algorithm>& algorithms() {
  using enum machine::Operation;
  static const std::vector<Algorithm> table{
      {all_reduce, "ring", ring::paper, ring::all_reduce, ring::all_reduce_volume, none_kept,
       false},
      {all_reduce, "direct", direct::paper, direct::all_reduce, direct::all_reduce_volume,
       direct::reduce_bays},
      {all_reduce, "direct_one_step", direct_one_step::paper, direct_one_step::all_reduce,
       direct_one_step::volume, direct_one_step::bays},
      {all_reduce, "recursive_doubling", recursive_doubling::paper, recursive_doubling::all_reduce,
       recursive_doubling::all_reduce_volume, recursive_doubling::all_reduce_bays},
      {all_reduce, "recursive_halving_doubling", recursive_halving_doubling::paper,
       recursive_halving_doubling::all_reduce, recursive_halving_doubling::all_reduce_volume},
      {all_reduce, "binomial_tree", binomial_tree::paper, binomial_tree::all_reduce,
       binomial_tree::all_reduce_volume},
      {all_reduce, "bidirectional_ring", bidirectional_ring::paper, bidirectional_ring::all_reduce,
       bidirectional_ring::all_reduce_volume, none_kept, false},
      {all_reduce, "parameter_server", parameter_server::paper, parameter_server::all_reduce,
       parameter_server::volume},
      {all_reduce, "double_binary_tree", double_binary_tree::paper, double_binary_tree::all_reduce,
       double_binary_tree::all_reduce_volume, none_kept, false},
      {all_reduce, "hierarchical", hierarchical::paper, hierarchical::all_reduce,
       hierarchical::all_reduce_volume, hierarchical::all_reduce_bays},
      {all_reduce, "mesh", mesh::paper, mesh::all_reduce, mesh::all_reduce_volume, none_kept,
       false},
      {all_gather, "ring", ring::paper, ring::all_gather, ring::one_lap_volume},
      {all_gather, "direct", direct::paper, direct::all_gather, direct::one_step_volume},
      {all_gather, "recursive_doubling", recursive_doubling::paper, recursive_doubling::all_gather,
       recursive_doubling::all_gather_volume},
      {all_gather, "bruck", bruck::paper, bruck::all_gather, bruck::all_gather_volume,
       bruck::all_gather_bays},
      {all_gather, "bidirectional_ring", bidirectional_ring::paper, bidirectional_ring::all_gather,
       ring::one_lap_volume},
      {all_gather, "hierarchical", hierarchical::paper, hierarchical::all_gather,
       hierarchical::shares_volume},
      {all_gather, "mesh", mesh::paper, mesh::all_gather, mesh::shares_volume},
      {reduce_scatter, "ring", ring::paper, ring::reduce_scatter, ring::one_lap_volume,
       ring::reduce_scatter_bays, false},
      {reduce_scatter, "direct", direct::paper, direct::reduce_scatter, direct::one_step_volume,
       direct::reduce_bays},
      {reduce_scatter, "recursive_halving", recursive_halving_doubling::paper_of_halving,
       recursive_halving_doubling::reduce_scatter,
       recursive_halving_doubling::reduce_scatter_volume,
       recursive_halving_doubling::reduce_scatter_bays},
      {reduce_scatter, "pairwise", pairwise::paper, pairwise::reduce_scatter, pairwise::volume,
       none_kept, false},
      {reduce_scatter, "bidirectional_ring", bidirectional_ring::paper,
       bidirectional_ring::reduce_scatter, ring::one_lap_volume,
       bidirectional_ring::reduce_scatter_bays, false},
      {reduce_scatter, "hierarchical", hierarchical::paper, hierarchical::reduce_scatter,
       hierarchical::shares_volume, hierarchical::reduce_scatter_bays},
      {reduce_scatter, "mesh", mesh::paper, mesh::reduce_scatter, mesh::shares_volume,
       mesh::reduce_scatter_bays, false},
      {broadcast, "ring", ring::paper, ring::broadcast, ring::broadcast_volume},
      {broadcast, "direct", direct::paper, direct::broadcast, direct::from_root_volume},
      {broadcast, "binomial_tree", binomial_tree::paper, binomial_tree::broadcast,
       binomial_tree::broadcast_volume},
      {broadcast, "double_binary_tree", double_binary_tree::paper, double_binary_tree::broadcast,
       double_binary_tree::broadcast_volume},
      {broadcast, "hierarchical", hierarchical::paper_of_broadcast, hierarchical::broadcast,
       hierarchical::broadcast_volume},
      {broadcast, "scatter_all_gather", scatter_all_gather::paper, scatter_all_gather::broadcast,
       scatter_all_gather::volume},
      {reduce, "ring", ring::paper, ring::reduce, ring::reduce_volume, ring::reduce_bays},
      {reduce, "direct", direct::paper, direct::reduce, direct::to_root_volume,
       direct::rooted_bays},
      {reduce, "binomial_tree", binomial_tree::paper, binomial_tree::reduce,
       binomial_tree::reduce_volume, binomial_tree::reduce_bays},
      {reduce, "double_binary_tree", double_binary_tree::paper, double_binary_tree::reduce,
       double_binary_tree::reduce_volume, double_binary_tree::reduce_bays, false},
      {gather, "ring", ring::paper_of_shares, ring::gather, ring::gather_volume, ring::gather_bays},
      {gather, "direct", direct::paper, direct::gather, direct::to_root_volume},
      {gather, "binomial_tree", binomial_tree::paper, binomial_tree::gather,
       binomial_tree::gather_volume, binomial_tree::share_bays},
      {scatter, "ring", ring::paper_of_shares, ring::scatter, ring::scatter_volume,
       ring::scatter_bays},
      {scatter, "direct", direct::paper, direct::scatter, direct::from_root_volume},
      {scatter, "binomial_tree", binomial_tree::paper, binomial_tree::scatter,
       binomial_tree::scatter_volume, binomial_tree::share_bays},
      {all_to_all, "ring", ring::paper_of_shares, ring::all_to_all, ring::all_to_all_volume,
       ring::all_to_all_bays},
      {all_to_all, "direct", direct::paper, direct::all_to_all, direct::one_step_volume},
      {all_to_all, "bruck", bruck::paper, bruck::all_to_all, bruck::all_to_all_volume,
       bruck::all_to_all_bays},
      {all_to_all, "pairwise", pairwise::paper, pairwise::all_to_all, pairwise::volume},
      {all_to_all_v, "direct", direct::paper, direct::all_to_all, direct::all_to_all_v_volume},
      {all_to_all_v, "pairwise", pairwise::paper, pairwise::all_to_all,
       direct::all_to_all_v_volume},
      {barrier, "dissemination", dissemination::paper, dissemination::barrier,
       dissemination::volume},
      {send_receive, "direct", direct::paper, direct::send_receive, direct::send_receive_volume},
  };
  return table;
}

}  // namespace collectives
