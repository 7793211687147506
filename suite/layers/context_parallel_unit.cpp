#include "suite/layers/context_parallel_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/judge/numerics.h"
#include "machine/device/flash_attention.h"
#include "suite/reference/whole_values.h"

namespace suite {
namespace {

constexpr int longest_head = 256;  // machine/device/flash_attention.h

layers::ContextOptions options_of(const ContextParallelCase& c, layers::CpCommType comm_type) {
  layers::ContextOptions options{comm_type, layers::sequence_order(c.placement), c.cp_a2a_size};
  options.fpdt = c.chunk_size > 0;
  if (options.fpdt) options.fpdt_chunk_size = c.chunk_size;
  options.fpdt_offloading = c.offloading;
  return options;
}

AttentionSizes attention_sizes(const ContextParallelCase& c) {
  return {c.micro_batch_size,
          c.seq_length,
          c.num_attention_heads,
          c.num_query_groups,
          c.kv_channels,
          1 / std::sqrt(static_cast<double>(c.kv_channels)),
          c.causal};
}

}  // namespace

Sweep<ContextParallelCase> context_parallel_axes(const std::vector<std::string>& placements) {
  using Case = ContextParallelCase;
  using enum Dtype;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
      .axis("ranks", &Case::ranks, 4)
      .axis("placement", &Case::placement, placements.back(), placements)
      .axis("causal", &Case::causal, true)
      .axis("micro-batch-size", &Case::micro_batch_size, 1)
      .axis("seq-length", &Case::seq_length, 256)
      .axis("num-attention-heads", &Case::num_attention_heads, 4)
      .axis("num-query-groups", &Case::num_query_groups, 4)
      .axis("kv-channels", &Case::kv_channels, 32);
  return sweep;
}

std::vector<harness::Variation> lengths_over_ranks(std::vector<harness::Variation> more) {
  using Case = ContextParallelCase;
  for (harness::Variation& one : std::vector<harness::Variation>{
           vary(&Case::ranks, {1, 2, 4, 8}), vary(&Case::seq_length, {1024, 2048}),
           vary(&Case::num_attention_heads, {8}), vary(&Case::num_query_groups, {8}),
           vary(&Case::kv_channels, {16})})
    more.push_back(std::move(one));
  return more;
}

std::string why_no_sizes(const ContextParallelCase& c) {
  for (const auto& [axis, value] : {std::pair("micro-batch-size", c.micro_batch_size),
                                    {"seq-length", c.seq_length},
                                    {"num-attention-heads", c.num_attention_heads},
                                    {"num-query-groups", c.num_query_groups},
                                    {"kv-channels", c.kv_channels}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
  if (c.kv_channels > longest_head)
    return fmt::format("kv-channels is {}; expected at most {}", c.kv_channels, longest_head);
  if (c.cp_comm_type == "a2a+p2p" && (c.ranks % c.cp_a2a_size != 0 || c.ranks == c.cp_a2a_size ||
                                      c.num_query_groups % c.cp_a2a_size != 0))
    return fmt::format(
        "cp-comm-type a2a+p2p expects ranks {} above cp-a2a-size {} and divided by it, and so "
        "num-query-groups {}",
        c.ranks, c.cp_a2a_size, c.num_query_groups);
  if (c.num_attention_heads % c.num_query_groups != 0)
    return fmt::format(
        "num-attention-heads is {}; expected a multiple of num-query-groups {} (example: {})",
        c.num_attention_heads, c.num_query_groups,
        (c.num_attention_heads / c.num_query_groups + 1) * c.num_query_groups);
  return {};
}

// Blocks and chunks are as in MPI's usual split: the first `sequence % parts` have one more.
int owner_of(const ContextParallelCase& c, std::int64_t position) {
  if (c.cp_comm_type == "a2a+p2p") {
    ContextParallelCase ring = c;
    ring.cp_comm_type = "p2p";
    ring.ranks = c.ranks / c.cp_a2a_size;
    const int rank = owner_of(ring, position);
    std::int64_t before = 0, all = 0;  // positions of this rank of the ring
    for (std::int64_t other = 0; other < c.seq_length; ++other) {
      if (owner_of(ring, other) != rank) continue;
      ++all;
      before += other < position;
    }
    ring.ranks = c.cp_a2a_size;
    ring.seq_length = static_cast<int>(all);
    ring.placement = "contiguous";
    return rank * c.cp_a2a_size + owner_of(ring, before);
  }
  if (c.placement == "striped") return static_cast<int>(position % c.ranks);
  const std::int64_t parts = c.placement == "zigzag" ? 2 * c.ranks : c.ranks;
  const std::int64_t size = c.seq_length / parts, longer = c.seq_length % parts;
  const std::int64_t part = position < longer * (size + 1)
                                ? position / (size + 1)
                                : longer + (position - longer * (size + 1)) / size;
  return static_cast<int>(c.placement == "zigzag" ? std::min(part, parts - 1 - part) : part);
}

ContextParallelShell::ContextParallelShell(const Case& c, Context& context,
                                           layers::CpCommType comm_type)
    : case_(c),
      context_(context),
      memory_(context.device.ledger()),
      cp_(context.world, context.group, c.transport),
      options_(options_of(c, comm_type)),
      attention_{context.device,
                 cp_,
                 options_.placement(c.seq_length, c.ranks),
                 c.dtype,
                 c.micro_batch_size,
                 c.num_attention_heads,
                 c.num_query_groups,
                 c.kv_channels,
                 attention_sizes(c).scale,
                 c.causal},
      over_cp_(groups(), context.device, c.dtype,
               {c.micro_batch_size, c.num_attention_heads, c.num_query_groups, c.kv_channels},
               attention_sizes(c).scale, c.causal),
      expected_(layers::context_cost({.ranks = c.ranks,
                                      .rank = cp_.rank(),
                                      .options = options_,
                                      .dtype = c.dtype,
                                      .sequences = c.micro_batch_size,
                                      .sequence = c.seq_length,
                                      .heads = c.num_attention_heads,
                                      .kv_heads = c.num_query_groups,
                                      .head = c.kv_channels,
                                      .causal = c.causal})) {
  const auto tensor = [&](std::int64_t width) {
    return attention_.tensor({attention_.tokens(), width}, Category::buffers);
  };
  const auto filled = [&](const std::vector<double>& whole, std::int64_t width) {
    Tensor own = tensor(width);
    from_doubles(own, own_rows(whole));
    return own;
  };
  const std::int64_t D = attention_.width(), K = attention_.kv_width();
  whole_ = {draw(1, D), draw(2, K), draw(3, K), draw(4, D)};
  q_ = filled(whole_.q, D);
  k_ = filled(whole_.k, K);
  v_ = filled(whole_.v, K);
  d_out_ = filled(whole_.d_out, D);
  out_ = tensor(D);
  gradients_ = {tensor(D), tensor(K), tensor(K)};
  context_.device.stream().synchronize();
  memory_.reset();  // all tensors of the caller exist
}

layers::ContextParallel ContextParallelShell::groups() {
  if (options_.is_hybrid()) {
    const layers::HybridGroups groups = layers::hybrid_groups(context_.group, options_.a2a_size);
    a2a_ = std::make_unique<collectives::Communicator>(context_.world, groups.a2a, case_.transport);
    p2p_ = std::make_unique<collectives::Communicator>(context_.world, groups.p2p, case_.transport);
  }
  layers::ContextParallel groups{&cp_, attention_.placement, options_.comm_type, a2a_.get(),
                                 p2p_.get()};
  if (options_.fpdt) {
    if (options_.fpdt_offloading) host_ = machine::make_host_device_beside(context_.device);
    chunks_ = std::make_unique<layers::ChunkOffload>(context_.device, host_.get());
    groups.fpdt_chunk_size = options_.fpdt_chunk_size;
    groups.chunks = chunks_.get();
  }
  return groups;
}

void ContextParallelShell::forward() {
  over_cp_.forward({q_, k_, v_, out_, {}}, saved_, Category::activations);
}
void ContextParallelShell::backward() { over_cp_.backward(d_out_, gradients_, saved_); }

std::vector<machine::Link*> ContextParallelShell::links() {
  std::vector<machine::Link*> all;
  for (collectives::Communicator* group : {&cp_, a2a_.get(), p2p_.get()})
    if (group) all.push_back(&group->link());
  return all;
}

std::string ContextParallelShell::why_not(const Case& c, const Context& context) {
  const std::string why =
      machine::why_not_flash_attention(context.device.stream(), c.dtype, c.kv_channels);
  return why.empty() ? machine::why_not(context.world, context.group, c.transport) : why;
}

// Returns a whole tensor, rounded to the dtype: the same on every rank.
std::vector<double> ContextParallelShell::draw(std::uint64_t which, std::int64_t width) const {
  const Tensor tensor = attention_.tensor(
      {std::int64_t{case_.micro_batch_size} * case_.seq_length, width}, Category::buffers);
  attention_.kernels().fill_normal(tensor, context_.seed + which, {}, 0, 1);
  return to_doubles(tensor);
}

std::vector<double> ContextParallelShell::own_rows(const std::vector<double>& whole) const {
  const auto width = static_cast<std::ptrdiff_t>(whole.size() / static_cast<std::size_t>(tokens()));
  std::vector<double> own;
  for (int s = 0; s < case_.micro_batch_size; ++s)
    for (std::int64_t position = 0; position < case_.seq_length; ++position)
      if (owner_of(case_, position) == cp_.rank()) {
        const auto row = whole.begin() + (s * std::ptrdiff_t{case_.seq_length} + position) * width;
        own.insert(own.end(), row, row + width);
      }
  return own;
}

std::size_t ContextParallelShell::passed_bytes() const {
  std::size_t bytes = 0;
  for (const Tensor& tensor :
       {q_, k_, v_, out_, d_out_, gradients_.d_q, gradients_.d_k, gradients_.d_v})
    bytes += tensor.bytes();
  return bytes;
}

collectives::CallsCost ContextParallelShell::calls_of(const layers::ContextPass& pass) const {
  collectives::CallsCost cost;
  for (const collectives::CollectiveCalls& calls : pass.calls)
    cost.add(calls, collectives::usual_algorithm(calls, case_.transport), cp_.rank());
  return cost;
}

layers::ContextMessages ContextParallelShell::traffic_of(const layers::ContextPass& pass) const {
  layers::ContextMessages all = calls_of(pass).traffic();
  layers::add(all, pass.messages);
  return all;
}

void ContextParallelShell::judge_volume(Judge& judge, const layers::ContextPass& pass) {
  layers::ContextMessages all = traffic_of(pass);
  judge.volume(cp_.link(), all["cp"]);
  if (a2a_) judge.volume(a2a_->link(), all["cp_a2a"]);
  if (p2p_) judge.volume(p2p_->link(), all["cp_p2p"]);
}

void ContextParallelShell::judge_memory(Judge& judge) {
  // Staged collectives hold their scratch in host memory, which this device does not count.
  const std::size_t scratch =
      cp_.link().stages(context_.device) ? 0 : calls_of(expected_.backward).scratch();
  judge.memory(Category::activations, memory_.peak(Category::activations), expected_.kept);
  judge.memory(Category::buffers, memory_.peak(Category::buffers),
               passed_bytes() +
                   std::max({expected_.forward.buffers, expected_.backward.buffers,
                             expected_.backward.buffers_at_end}) +
                   scratch);
  if (!host_) return;
  judge.memory("chunks in host memory", Category::activations,
               host_->ledger().peak(Category::activations), expected_.kept_on_host);
  judge.memory("buffers in host memory", Category::buffers, host_->ledger().peak(Category::buffers),
               expected_.backward.host_buffers);
}

void ContextParallelShell::judge(Judge& judge) {
  judge_memory(judge);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::pair<std::string_view, Tensor> results[] = {
        {"out", out_}, {"d_q", gradients_.d_q}, {"d_k", gradients_.d_k}, {"d_v", gradients_.d_v}};
    for (const auto& [what, result] : results)  // a pass that writes nothing shows
      attention_.kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
    for (const bool is_forward : {true, false}) {
      for (machine::Link* link : links()) link->reset_traffic();
      const layers::HostCopies before = chunks_ ? chunks_->copied() : layers::HostCopies();
      is_forward ? forward() : backward();
      context_.device.stream().synchronize();
      if (repeat > 0) continue;
      const layers::ContextPass& pass = is_forward ? expected_.forward : expected_.backward;
      judge_volume(judge, pass);
      if (!host_) continue;
      const machine::TrafficLabel label{machine::Operation::none, case_.dtype};
      const layers::HostCopies copied = chunks_->copied() - before;
      judge.volume("chunks to the host", label, copied.to_host, pass.copies.to_host);
      judge.volume("chunks to the device", label, copied.to_device, pass.copies.to_device);
    }
    for (const auto& [what, result] : results)
      judge.same_bits(fmt::format("{} of rank {}", what, cp_.rank()), hash(result));
  }
  judge_numerics(judge);
}

// The first rank computes the reference and sends it. The other ranks sleep until then.
//
// The bound is that of one layer (harness/judge/numerics.h): parts of a sum over ranks are rounded
// as parts of a layer that is split over ranks. A score's gradient is a difference of products of
// order 1, which is zero for a query with one key, so errors of gradients are relative to values of
// order 1 in addition to the values themselves.
void ContextParallelShell::judge_numerics(Judge& judge) const {
  AttentionReference reference;
  if (cp_.rank() == 0)
    reference = attention_reference(attention_sizes(case_), whole_, [&] {
      context_.world.board().mine().progress.fetch_add(1);  // this rank does not hang
    });
  reference = context_.world.broadcast(context_.group, 0, reference);
  const double longest = static_cast<double>(std::max(
      case_.kv_channels, case_.num_attention_heads / case_.num_query_groups * case_.seq_length));
  const double bound = harness::norm_bound(case_.dtype, 1, longest) +
                       harness::norm_bound(Dtype::float64, 1, longest);
  const auto compare = [&](std::string_view what, const Tensor& result,
                           const std::vector<double>& whole, bool cancels) {
    const std::vector<double> got = to_doubles(result), want = own_rows(whole);
    const double terms = cancels ? std::sqrt(static_cast<double>(want.size())) : 0;
    judge.numerics(fmt::format("{} against plain loops in double", what), distance(got, want),
                   bound * (norm(want) + terms));
  };
  compare("out", out_, reference.out, false);
  compare("d_q", gradients_.d_q, reference.d_q, true);
  compare("d_k", gradients_.d_k, reference.d_k, true);
  compare("d_v", gradients_.d_v, reference.d_v, true);
}

// Two products forward and four backward, of all pairs of a query and a key that it sees, shared
// evenly. Forward reads q, k, v and writes out. Backward reads them and d_out and writes gradients.
Cost ContextParallelShell::cost() const {
  const double S = case_.seq_length;
  const double pairs = case_.micro_batch_size * (case_.causal ? S * (S + 1) / 2 : S * S);
  const auto bytes = [](const auto&... tensors) {
    return static_cast<double>((tensors.bytes() + ...));
  };
  Cost cost;
  cost.flops = 6 * 2 * pairs * static_cast<double>(attention_.width()) / case_.ranks;
  cost.flops_dtype = case_.dtype;
  cost.memory_bytes = static_cast<double>(passed_bytes()) + bytes(q_, k_, v_, out_);
  cost.working_set_bytes = static_cast<double>(passed_bytes());
  cost.transport = case_.transport;
  for (const auto* pass : {&expected_.forward, &expected_.backward})
    for (const auto& [group, labels] : traffic_of(*pass))
      for (const auto& [label, traffic] : labels)
        cost.wire_bytes += static_cast<double>(traffic.bytes_received);
  cost.tokens = static_cast<double>(tokens());
  return cost;
}

}  // namespace suite
