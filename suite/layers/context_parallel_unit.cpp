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

layers::SequencePlacement placement_of(const ContextParallelCase& c) {
  layers::SequencePlacement placement{{}, c.seq_length, c.ranks};
  for (const layers::SequenceOrder order : layers::all_orders)
    if (layers::name(order) == c.placement) placement.order = order;
  return placement;
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

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

Sweep<ContextParallelCase> context_parallel_axes() {
  using Case = ContextParallelCase;
  using enum Dtype;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
      .axis("ranks", &Case::ranks, 4)
      .axis("placement", &Case::placement, "zigzag", {"contiguous", "striped", "zigzag"})
      .axis("causal", &Case::causal, true)
      .axis("micro-batch-size", &Case::micro_batch_size, 1)
      .axis("seq-length", &Case::seq_length, 256)
      .axis("num-attention-heads", &Case::num_attention_heads, 4)
      .axis("num-query-groups", &Case::num_query_groups, 4)
      .axis("kv-channels", &Case::kv_channels, 32);
  return sweep;
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
  if (c.num_attention_heads % c.num_query_groups != 0)
    return fmt::format(
        "num-attention-heads is {}; expected a multiple of num-query-groups {} (example: {})",
        c.num_attention_heads, c.num_query_groups,
        (c.num_attention_heads / c.num_query_groups + 1) * c.num_query_groups);
  return {};
}

// Blocks and chunks are as in MPI's usual split: the first `sequence % parts` have one more.
int owner_of(const ContextParallelCase& c, std::int64_t position) {
  if (c.placement == "striped") return static_cast<int>(position % c.ranks);
  const std::int64_t parts = c.placement == "zigzag" ? 2 * c.ranks : c.ranks;
  const std::int64_t size = c.seq_length / parts, longer = c.seq_length % parts;
  const std::int64_t part = position < longer * (size + 1)
                                ? position / (size + 1)
                                : longer + (position - longer * (size + 1)) / size;
  return static_cast<int>(c.placement == "zigzag" ? std::min(part, parts - 1 - part) : part);
}

ContextParallelSizes::ContextParallelSizes(const ContextParallelCase& c, int rank)
    : T(unsigned_of(std::int64_t{c.micro_batch_size} * c.seq_length)),
      D(unsigned_of(std::int64_t{c.num_attention_heads} * c.kv_channels)),
      K(unsigned_of(std::int64_t{c.num_query_groups} * c.kv_channels)),
      H(unsigned_of(c.num_attention_heads)),
      E(size_of(c.dtype)),
      A(c.dtype == Dtype::float64 ? 8 : 4),
      P(unsigned_of(c.ranks)) {
  std::vector<std::uint64_t> tokens(P);
  for (std::int64_t position = 0; position < c.seq_length; ++position)
    tokens[static_cast<std::size_t>(owner_of(c, position))] += unsigned_of(c.micro_batch_size);
  const auto of = [&](int offset) {
    return tokens[static_cast<std::size_t>((rank + c.ranks + offset) % c.ranks)];
  };
  n = of(0);
  next = of(1);
  previous = of(-1);
  m = *std::ranges::max_element(tokens);
}

ContextParallelShell::ContextParallelShell(const Case& c, Context& context)
    : case_(c),
      context_(context),
      memory_(context.device.ledger()),
      cp_(context.world, context.group, c.transport),
      attention_{context.device,           cp_,
                 placement_of(c),          c.dtype,
                 c.micro_batch_size,       c.num_attention_heads,
                 c.num_query_groups,       c.kv_channels,
                 attention_sizes(c).scale, c.causal},
      sizes_(c, cp_.rank()) {
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
}

void ContextParallelShell::ready() {
  context_.device.stream().synchronize();
  memory_.reset();
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
  const auto width = static_cast<std::ptrdiff_t>(whole.size() / static_cast<std::size_t>(sizes_.T));
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

void ContextParallelShell::judge(Judge& judge) {
  const ContextParallelClaims claim = claims();
  // Staged collectives hold their scratch in host memory, which this device does not count.
  const std::size_t scratch = cp_.link().stages(context_.device) ? 0 : claim.scratch;
  judge.memory(Category::activations, memory_.peak(Category::activations), claim.saved);
  judge.memory(Category::buffers, memory_.peak(Category::buffers),
               passed_bytes() + claim.buffers + scratch);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::pair<std::string_view, Tensor> results[] = {
        {"out", out_}, {"d_q", gradients_.d_q}, {"d_k", gradients_.d_k}, {"d_v", gradients_.d_v}};
    for (const auto& [what, result] : results)  // a pass that writes nothing shows
      attention_.kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
    cp_.link().reset_traffic();
    forward();
    context_.device.stream().synchronize();
    if (repeat == 0) judge.volume(cp_.link(), claim.forward);
    cp_.link().reset_traffic();
    backward();
    context_.device.stream().synchronize();
    if (repeat == 0) judge.volume(cp_.link(), claim.backward);
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
  const ContextParallelClaims claim = claims();
  Cost cost;
  cost.flops = 6 * 2 * pairs * static_cast<double>(sizes_.D) / case_.ranks;
  cost.flops_dtype = case_.dtype;
  cost.memory_bytes = static_cast<double>(passed_bytes()) + bytes(q_, k_, v_, out_);
  cost.working_set_bytes = static_cast<double>(passed_bytes());
  cost.transport = case_.transport;
  for (const auto* pass : {&claim.forward, &claim.backward})
    for (const auto& [label, traffic] : *pass)
      cost.wire_bytes += static_cast<double>(traffic.bytes_received);
  cost.tokens = static_cast<double>(sizes_.T);
  return cost;
}

}  // namespace suite
