// Claim: dispatch brings each token to the ranks of its experts exactly once, in the order of
// experts, senders and tokens, and combine returns the sum of the experts' outputs by their weights
// (Lepikhin et al. 2020, arXiv:2006.16668, section 3.2). Experts are the identity here, so a rank's
// rows are copies of tokens, bit for bit. Bytes are those of the routing's traffic matrix, or of an
// all-gather and a reduce-scatter (layers/experts/moe_cost.h). moe_layer judges the memory.
//
// `moe-load` draws the logits: even (the same distribution for all experts), or skewed (the mean
// falls by 1/2 from one expert to the next, so the first experts get most tokens).
//
// run() is dispatch and combine; judge() also has their gradients. The yardstick is the
// communication only: two all_to_all_v of the same matrices, or the all-gather and the
// reduce-scatter of the tokens. communication_share is its time over that of run(). Its limit by
// counted bytes is in layers/experts/dispatch/direct_rows.h.
//
// dispatch_over_all_to_all_v: dispatch_rate.h, of alltoall's dispatch and one all_to_all_v of its
// traffic matrix. dispatch also exchanges counts and makes the plan, which takes some 6 us and 20
// ns for each row, so it is low for short messages. If rows are packed, it reads and writes 6 B
// instead of 2 B (B: the bytes of a rank's rows), and 1/3 is the limit.

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "collectives/communicator/calls.h"
#include "harness/judge/numerics.h"
#include "layers/experts/dispatch/token_dispatcher.h"
#include "layers/experts/moe_cost.h"
#include "machine/link/connect.h"
#include "suite/layers/experts/dispatch_rate.h"
#include "suite/layers/experts/moe_case.h"

namespace suite {
namespace {

using collectives::Communicator;
using Values = std::vector<double>;

class MoeDispatch {
 public:
  using Case = MoeUnitCase;
  static constexpr std::string_view name = "moe_dispatch";
  static constexpr std::string_view about =
      "tokens to the ranks of their experts and back: dispatch and combine";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::determinism};
  static constexpr bool yardstick_is_part = true;
  static constexpr Counter counters[] = {
      load_counters[0],
      load_counters[1],
      {"communication_share", "", Better::higher, Nature::measured,
       "time of the messages of `moe_dispatch` over the time of all its work"},
      {"dispatch_over_all_to_all_v", "", Better::higher, Nature::measured,
       "rate of dispatch over that of its plain all_to_all_v"}};

  static Sweep<Case> sweep();
  MoeDispatch(const Case& c, Context& context);
  static std::string why_not(const Case& c, const Context& context) {
    return machine::why_not(context.world, context.group, c.transport);
  }

  void prepare() {}
  void run() {
    rows_ = Tensor();  // no layer has the rows of two calls
    rows_ = dispatcher_->dispatch(routing_, x_, saved_, Category::activations);
    dispatcher_->combine(rows_, y_, saved_, Category::activations);
  }
  void yardstick();
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description);

 private:
  std::int64_t all_tokens() const { return std::int64_t{case_.ranks} * case_.seq_length; }
  template <class T>
  std::vector<T> own(const std::vector<T>& whole) const {
    return part_of_rank(whole, context_.group.index, case_.ranks);
  }
  Values draw(std::uint64_t which, std::int64_t columns, Dtype dtype) const;
  Values draw_logits() const;
  Tensor filled(const Values& whole) const;
  void make_yardstick();
  std::map<machine::TrafficLabel, machine::Traffic> traffic(const layers::MoePass& pass) const;
  Values expected_rows() const;
  void judge_sums(Judge& judge, const Values& d_weights) const;

  Case case_;
  Context& context_;
  Communicator experts_, plain_, alone_;
  layers::Context layer_;
  std::unique_ptr<layers::TokenDispatcher> dispatcher_;
  Values whole_x_, whole_d_y_;
  MoeReference decisions_;
  std::vector<std::int32_t> choices_;  // of the ranks that exchange tokens
  std::vector<std::int64_t> counts_;   // [ranks, num_experts]
  layers::MoeCost expected_;
  layers::Routing routing_;
  Tensor x_, y_, d_y_, d_x_, rows_;
  layers::TokenDispatcher::Saved saved_;
  std::shared_ptr<const collectives::TrafficMatrix> to_experts_, to_tokens_;  // of the yardstick
  Tensor sent_, received_;
};

Sweep<MoeUnitCase> MoeDispatch::sweep() {
  using enum Profile;
  Sweep<Case> sweep = moe_axes();
  sweep.axis("moe-load", &Case::load, "even", {"even", "skewed"});
  const auto dispatchers = vary(&Case::dispatcher, {"alltoall", "allgather"}),
             loads = vary(&Case::load, {"even", "skewed"}), skewed = vary(&Case::load, {"skewed"}),
             mpi = vary(&Case::transport, {Transport::mpi}),
             dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
             topk = vary(&Case::topk, {1, 2}), two = vary(&Case::ep, {2}),
             split = vary(&Case::etp, {2}), pads = vary(&Case::pads, {false, true}),
             drops = vary(&Case::capacity_factor, {"1"}),
             policies = vary(&Case::drop_policy, {"probs", "position"}),
             small = vary(&Case::seq_length, {11}), narrow = vary(&Case::hidden_size, {16}),
             wide = vary(&Case::hidden_size, {512});
  const auto lengths = [](std::vector<int> all) { return vary(&Case::seq_length, std::move(all)); };
  const auto ranks = [](std::vector<int> all) { return vary(&Case::ranks, std::move(all)); };
  const auto degrees = vary(&Case::ep, {1, 2, 4, 8});
  return sweep.slice({quick}, "usual", {dispatchers, loads, lengths({1024}), wide})
      .slice({quick}, "edges", {mpi, two, drops, skewed, policies, dtypes})
      .slice({acceptance, paper}, "matrix",
             {dtypes, ranks({1, 2, 4, 8}), degrees, dispatchers, topk, loads})
      .slice({acceptance, paper}, "sizes", {dispatchers, loads, lengths({256, 1024, 4096}), wide})
      .slice({acceptance, paper}, "capacity", {drops, policies, pads, topk, skewed, dispatchers})
      .slice({acceptance, paper}, "transports", {mpi, dispatchers, ranks({4, 8}), loads})
      .slice({smoke}, "smoke",
             {small, narrow, ranks({1, 4}), vary(&Case::ep, {1, 2}), dispatchers, topk, loads})
      .slice({smoke}, "smoke", {small, narrow, two, split, dispatchers, dtypes})
      .slice({smoke}, "smoke", {small, narrow, two, drops, policies, pads, dispatchers, skewed});
}

MoeDispatch::MoeDispatch(const Case& c, Context& context)
    : case_(c),
      context_(context),
      experts_(context.world, layers::expert_groups(context.group, c.degrees()).experts,
               c.transport),
      plain_(context.world, experts_.group(), c.transport),
      alone_(context.world, machine::Group{"alone", {context.world.rank()}, 0},
             Transport::shared_memory),
      layer_{context.device, alone_, c.dtype},
      dispatcher_(layers::make_token_dispatcher(layer_, experts_, c.config(), c.degrees())),
      whole_x_(draw(1, c.hidden_size, c.dtype)),
      whole_d_y_(draw(2, c.hidden_size, c.dtype)),
      decisions_(moe_decisions(c.reference(), draw_logits())) {
  const int block = c.degrees().ranks();
  choices_ = part_of_rank(decisions_.choices, context.group.index / block, c.ranks / block);
  counts_ = rows_of_group(c, choices_);
  expected_ =
      layers::moe_cost({c.config(), c.degrees(), experts_.rank(), c.dtype, c.seq_length, counts_});
  routing_.tokens = c.seq_length;
  routing_.topk = c.topk;
  routing_.chosen = own(decisions_.chosen);
  routing_.choices = own(decisions_.choices);
  routing_.weights = own(decisions_.weights);
  x_ = filled(whole_x_);
  d_y_ = filled(whole_d_y_);
  y_ = layer_.tensor(x_.shape(), Category::buffers);
  d_x_ = layer_.tensor(x_.shape(), Category::buffers);
  make_yardstick();
  context.device.stream().synchronize();
}

// Returns values that are rounded to the dtype, the same on every rank.
Values MoeDispatch::draw(std::uint64_t which, std::int64_t columns, Dtype dtype) const {
  const Tensor tensor(context_.device, dtype, {all_tokens(), columns}, Category::buffers);
  layer_.kernels().fill_normal(tensor, context_.seed + which, {}, 0, 1);
  layer_.stream().synchronize();
  return to_doubles(tensor);
}

Values MoeDispatch::draw_logits() const {
  Values logits = draw(3, case_.num_experts, Dtype::float64);
  if (case_.load == "skewed")
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] -= 0.5 * static_cast<double>(i % static_cast<std::size_t>(case_.num_experts));
  return logits;
}

Tensor MoeDispatch::filled(const Values& whole) const {
  Tensor part = layer_.tensor({case_.seq_length, case_.hidden_size}, Category::buffers);
  from_doubles(part, own(whole));
  return part;
}

void MoeDispatch::make_yardstick() {
  if (case_.dispatcher == "allgather") {
    sent_ = layer_.tensor(x_.shape(), Category::buffers);
    received_ = layer_.tensor({plain_.size() * x_.rows(), x_.cols()}, Category::buffers);
    return;
  }
  const int each = case_.num_experts / case_.ep;
  std::vector<std::int64_t> forth(static_cast<std::size_t>(plain_.size() * plain_.size())),
      back(forth.size());
  for (int from = 0; from < plain_.size(); ++from)
    for (int to = 0; to < plain_.size(); ++to)
      for (int i = 0; i < each; ++i) {
        const int expert = to / case_.etp * each + i;
        const std::int64_t elements =
            counts_[static_cast<std::size_t>(from * case_.num_experts + expert)] *
            case_.hidden_size;
        forth[static_cast<std::size_t>(from * plain_.size() + to)] += elements;
        back[static_cast<std::size_t>(to * plain_.size() + from)] += elements;
      }
  to_experts_ = std::make_shared<const collectives::TrafficMatrix>(plain_.size(), forth);
  to_tokens_ = std::make_shared<const collectives::TrafficMatrix>(plain_.size(), back);
  sent_ = layer_.tensor({to_experts_->sent_by(plain_.rank())}, Category::buffers);
  received_ = layer_.tensor({to_experts_->received_by(plain_.rank())}, Category::buffers);
}

void MoeDispatch::yardstick() {
  if (case_.dispatcher == "allgather") {
    plain_.all_gather(sent_, received_);
    plain_.reduce_scatter(received_, sent_);
    return;
  }
  plain_.all_to_all_v(sent_, received_, to_experts_);
  plain_.all_to_all_v(received_, sent_, to_tokens_);
}

std::map<machine::TrafficLabel, machine::Traffic> MoeDispatch::traffic(
    const layers::MoePass& pass) const {
  collectives::CallsCost cost;
  for (const collectives::CollectiveCalls& calls : pass.calls)
    cost.add(calls, collectives::usual_algorithm(calls, case_.transport), experts_.rank());
  auto all = cost.traffic("ep");
  for (const auto& [label, messages] : pass.messages) all[label] += messages;
  return all;
}

void MoeDispatch::judge(Judge& judge) {
  const int rank = context_.group.index;
  Values d_weights;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Tensor& result : {y_, d_x_})  // a pass that writes nothing shows
      layer_.kernels().fill(result, std::nan(""));
    experts_.link().reset_traffic();
    run();
    layer_.stream().synchronize();
    judge.volume(experts_.link(), traffic(expected_.forward));
    judge.exact("rows of this rank's experts", to_doubles(rows_), expected_rows());
    judge.same_bits(fmt::format("rows of rank {}", rank), hash(rows_));
    experts_.link().reset_traffic();
    const Tensor d_rows = dispatcher_->combine_backward(d_y_, d_weights, saved_, Category::buffers);
    dispatcher_->dispatch_backward(d_rows, d_x_, saved_);
    layer_.stream().synchronize();
    judge.volume(experts_.link(), traffic(expected_.backward_input));
    judge.same_bits(fmt::format("y of rank {}", rank), hash(y_));
    judge.same_bits(fmt::format("d_x of rank {}", rank), hash(d_x_));
  }
  judge_sums(judge, d_weights);
}

// Returns the tokens of the rank's experts: by expert, sender and token, zeros for padding.
Values MoeDispatch::expected_rows() const {
  const int each = case_.num_experts / case_.ep, first = experts_.rank() / case_.etp * each;
  const int ranks = experts_.size(), block = context_.group.index / ranks * ranks;
  const std::int64_t slots = std::int64_t{case_.seq_length} * case_.topk;
  Values rows;
  for (int expert = first; expert < first + each; ++expert)
    for (std::int64_t from = 0; from < ranks; ++from) {
      std::int64_t missing = counts_[static_cast<std::size_t>(from * case_.num_experts + expert)];
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        if (choices_[static_cast<std::size_t>(from * slots + slot)] != expert) continue;
        const std::int64_t token = (block + from) * case_.seq_length + slot / case_.topk;
        const auto begin = whole_x_.begin() + token * case_.hidden_size;
        rows.insert(rows.end(), begin, begin + case_.hidden_size);
        --missing;
      }
      rows.insert(rows.end(), static_cast<std::size_t>(missing * case_.hidden_size), 0.0);
    }
  return rows;
}

// With experts that are the identity, y_t = etp x_t times the sum of the token's weights, and d_x_t
// is the same of d_y_t, because each of etp ranks returns a copy. A term is rounded as a weight, as
// a product and at most once in each addition, over choices and over ranks, and once at the end.
// d_weight = etp d_y_t · x_t is a sum of products in the accumulator.
void MoeDispatch::judge_sums(Judge& judge, const Values& d_weights) const {
  const Dtype sums = case_.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  const double etp = case_.etp, k = case_.topk * etp;
  const double of_sum =
                   harness::gamma(3 + k + experts_.size(), machine::unit_roundoff(case_.dtype)),
               of_dot = harness::gamma(case_.hidden_size + etp + 3, machine::unit_roundoff(sums));
  const Values x = own(whole_x_), d_y = own(whole_d_y_), weights = own(decisions_.weights);
  const std::vector<std::int32_t> choices = own(decisions_.choices);
  Values y, d_x, d_w, y_bounds, d_x_bounds, d_w_bounds;
  for (std::int64_t t = 0; t < case_.seq_length; ++t) {
    double sum = 0, dot = 0, size = 0;
    for (int i = 0; i < case_.topk; ++i)
      sum += etp * weights[static_cast<std::size_t>(t * case_.topk + i)];
    for (int c = 0; c < case_.hidden_size; ++c) {
      const auto place = static_cast<std::size_t>(t * case_.hidden_size + c);
      y.push_back(sum * x[place]);
      d_x.push_back(sum * d_y[place]);
      y_bounds.push_back(of_sum * std::abs(y.back()));
      d_x_bounds.push_back(of_sum * std::abs(d_x.back()));
      dot += etp * d_y[place] * x[place];
      size += etp * std::abs(d_y[place] * x[place]);
    }
    for (int i = 0; i < case_.topk; ++i) {
      const bool kept = choices[static_cast<std::size_t>(t * case_.topk + i)] >= 0;
      d_w.push_back(kept ? dot : 0);
      d_w_bounds.push_back(kept ? of_dot * size : 0);
    }
  }
  judge.numerics("y", to_doubles(y_), y, y_bounds);
  judge.numerics("d_x", to_doubles(d_x_), d_x, d_x_bounds);
  judge.numerics("gradients of weights", d_weights, d_w, d_w_bounds);
}

// dispatch reads tokens and writes rows; combine reads rows and writes tokens. By allgather the
// tokens of all ranks are written and read between the two.
Cost MoeDispatch::cost() const {
  Cost cost;
  cost.transport = case_.transport;
  const std::int64_t gathered =
      case_.dispatcher == "allgather" ? std::int64_t{experts_.size()} * case_.seq_length : 0;
  cost.memory_bytes =
      2.0 *
      static_cast<double>((case_.seq_length + expected_.rows + gathered) * case_.hidden_size) *
      static_cast<double>(size_of(case_.dtype));
  cost.working_set_bytes = cost.memory_bytes;
  for (const auto& [label, messages] : traffic(expected_.forward))
    cost.wire_bytes += static_cast<double>(messages.bytes_received);
  cost.tokens = static_cast<double>(all_tokens());
  return cost;
}

void MoeDispatch::describe(Description& description) {
  const MoeLoad load = moe_load(case_, decisions_);
  description.set("expert_load_max_over_mean", load.largest_over_mean);
  description.set("dropped_share", load.dropped_share);
  if (description.seconds > 0 && description.yardstick_s > 0)
    description.set("communication_share", description.yardstick_s / description.seconds);
  if (case_.dispatcher != "alltoall" || plain_.size() == 1) return;
  const auto dispatch = [this] {
    rows_ = Tensor();  // no layer has the rows of two calls
    rows_ = dispatcher_->dispatch(routing_, x_, saved_, Category::activations);
  };
  const auto messages = [this] { plain_.all_to_all_v(sent_, received_, to_experts_); };
  description.set("dispatch_over_all_to_all_v",
                  dispatch_over_messages(context_.world, plain_, dispatch, messages));
}

const bool registered = harness::add<MoeDispatch>();

}  // namespace
}  // namespace suite
