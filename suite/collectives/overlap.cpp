// Claim: a collective and a matrix product that run at the same time give the same results as when
// each runs separately. Also measures how much each slows the other down.
//
// run() starts y = x Wᵀ, runs the collective during the product and waits for both. On the host the
// product has its own thread on the rank's cores. If a rank has one core, the two share it and
// nothing can be hidden. On a CUDA device the product has its own stream. The collective moves
// memory of the device over cuda_ipc and nccl, and host memory over the other transports.
//
// gemm_slowdown, collective_slowdown: the time while both run, divided by the time of a separate
// run. overlap_fraction = (t_gemm + t_collective - t_both) / min(t_gemm, t_collective). 1: the
// shorter is hidden. 0: as if one ran after the other. Below 0: they hinder each other. Each time
// is the median over rounds of the maximum over ranks. The rounds of the three times alternate.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <semaphore>
#include <thread>
#include <utility>

#include "collectives/communicator/communicator.h"
#include "collectives/cost.h"
#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/device/gemm.h"
#include "suite/collectives/expected.h"
#include "suite/reference/product_reference.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

constexpr int rounds = 15;
constexpr Operation operations[] = {Operation::all_reduce, Operation::all_gather,
                                    Operation::reduce_scatter};

// A thread that runs one task at a time, on the cores of the thread that created it.
class Worker {
 public:
  ~Worker() {
    given_.release();
    thread_.join();
  }

  void start(std::function<void()> task) {
    task_ = std::packaged_task<void()>(std::move(task));
    done_ = task_.get_future();
    given_.release();
  }
  // Throws the task's exception.
  void wait() { done_.get(); }

 private:
  void serve() {
    while (true) {
      given_.acquire();
      if (!task_.valid()) return;
      std::exchange(task_, {})();
    }
  }

  std::packaged_task<void()> task_;
  std::future<void> done_;
  std::counting_semaphore<> given_{0};
  std::thread thread_{[this] { serve(); }};  // last: uses the members above
};

class Overlap {
 public:
  static constexpr std::string_view name = "overlap";
  static constexpr std::string_view about = "a collective during a matrix product";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"gemm_s", "s", Better::lower, Nature::measured,
       "time of the matrix product without the collective"},
      {"collective_s", "s", Better::lower, Nature::measured,
       "time of the collective without the matrix product"},
      {"gemm_slowdown", "", Better::lower, Nature::measured,
       "time of the product next to the collective over `gemm_s`"},
      {"collective_slowdown", "", Better::lower, Nature::measured,
       "time of the collective next to the product over `collective_s`"},
      {"overlap_fraction", "", Better::higher, Nature::measured,
       "(`gemm_s` + `collective_s` - both at once) / the shorter of the two"}};

  struct Case {
    int ranks = 2;
    Transport transport{};
    std::string operation;
    harness::Bytes bytes{};  // the whole, as for the collectives' units
    int extent = 512;        // each of the three of the product
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    std::vector<std::string> names;
    for (const Operation operation : operations) names.emplace_back(machine::name(operation));
    Sweep<Case> sweep;
    sweep.axis("operation", &Case::operation, "all_reduce", names)
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("ranks", &Case::ranks, 2)
        .axis("extent", &Case::extent, 512)
        .axis("bytes", &Case::bytes, harness::Bytes{4 << 20})
        .only([](const Case& c) {
          return c.extent >= 1 && c.extent <= 16384
                     ? std::string()
                     : fmt::format("extent {} is not between 1 and 16384", c.extent);
        })
        .slice({quick}, "all-reduce")
        .launch_slice(request, {quick, acceptance, paper})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::operation, names),
                vary(&Case::transport, {Transport::shared_memory, Transport::mpi}),
                vary(&Case::ranks, {2, 4}), vary(&Case::bytes, {{64 << 10}, {4 << 20}})})
        .slice({smoke}, "smoke",
               {vary(&Case::operation, names), vary(&Case::ranks, {1, 3}),
                vary(&Case::extent, {65}), vary(&Case::bytes, {{20000}})});
    return sweep;
  }
  Overlap(const Case& c, Context& context)
      : case_(c),
        context_(context),
        operation_(*std::ranges::find(operations, c.operation,
                                      [](Operation each) { return machine::name(each); })),
        communicator_(context.world, context.group, c.transport),
        own_device_(context.device.readable_by_host()
                        ? machine::make_host_device_beside(context.device)
                        : nullptr) {
    const bool shares = collectives::deals_in_shares(operation_);
    const std::int64_t whole = c.bytes.value / static_cast<std::int64_t>(sizeof(float));
    count_ = std::max<std::int64_t>(1, shares ? whole / c.ranks : whole);
    algorithm_ = collectives::default_algorithm(operation_, c.transport,
                                                static_cast<std::size_t>(c.bytes.value), c.ranks);
    const auto buffer = [&](bool all_shares) {
      return Tensor(communicator_.device(), Dtype::float32,
                    {all_shares ? count_ * c.ranks : count_}, Category::buffers);
    };
    in_ = buffer(operation_ == Operation::reduce_scatter);
    out_ = buffer(operation_ == Operation::all_gather);
    std::vector<double> values(static_cast<std::size_t>(in_.size()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = pattern(question(), context.group.index, static_cast<std::int64_t>(i));
    from_doubles(in_, values);

    if (own_device_) {
      own_device_->set_threads(context.device.threads());
      worker_ = std::make_unique<Worker>();
    } else {
      own_stream_ = context.device.make_stream();
    }
    machine::Device& device = stream().device();
    for (Tensor* matrix : {&x_, &weight_, &y_})
      *matrix = Tensor(device, Dtype::float32, {c.extent, c.extent}, Category::buffers);
    stream().kernels().fill_normal(x_, context.seed, {}, 0, 1);
    stream().kernels().fill_normal(weight_, context.seed + 1, {}, 0, 1);
    stream().synchronize();
  }

  void prepare() {}
  void run() { both(true); }

  void judge(Judge& judge) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      const bool beside = repeat > 0;
      stream().kernels().fill(y_, std::numeric_limits<double>::quiet_NaN());
      stream().synchronize();
      from_doubles(out_, std::vector<double>(static_cast<std::size_t>(out_.size()), -77));
      communicator_.link().reset_traffic();
      both(beside);
      judge_product(judge,
                    beside ? "product during the collective" : "product without the collective");
      judge.exact(fmt::format("{} {}", case_.operation,
                              beside ? "during the product" : "after the product"),
                  to_doubles(out_), expected(question(), context_.group.index));
      judge.same_bits("product", hash(y_));
      if (operation_ != Operation::reduce_scatter) judge.same_bits("collective", hash(out_));
    }
    const collectives::Call call{context_.group.index, case_.ranks, 1, 0, communicator_.inner()};
    judge.volume(communicator_.link(),
                 {{{operation_, Dtype::float32},
                   expected_traffic(collectives::find_algorithm(operation_, algorithm_), call,
                                    count_, Dtype::float32)}});
  }

  // Only the product's arithmetic, as if the collective were hidden completely.
  Cost cost() const {
    Cost cost;
    cost.flops = 2.0 * case_.extent * case_.extent * case_.extent;
    return cost;
  }

  void describe(Description& description) {
    struct Times {
      double gemm, collective, gemm_beside, collective_beside, both;
    };
    std::vector<Times> mine;
    const auto meet = [this] {
      communicator_.barrier();
      finish_collective();
    };
    for (int round = 0; round < rounds; ++round) {
      Times times{};
      meet();
      start_product();
      times.gemm = finish_product();
      meet();
      const double begin = machine::steady_s();
      collective();
      times.collective = machine::steady_s() - begin;
      meet();
      const double both_begin = machine::steady_s();
      times.collective_beside = both(true);
      times.both = machine::steady_s() - both_begin;
      times.gemm_beside = product_s_;
      mine.push_back(times);
    }
    const std::vector<std::vector<Times>> all = context_.world.all_gather(context_.group, mine);
    const auto median_of = [&](double Times::*member) {
      std::vector<double> worst(mine.size());
      for (const auto& of_rank : all)
        for (std::size_t i = 0; i < worst.size(); ++i)
          worst[i] = std::max(worst[i], of_rank[i].*member);
      return harness::median(worst);
    };
    const double gemm = median_of(&Times::gemm), alone = median_of(&Times::collective);
    description.set("gemm_s", gemm);
    description.set("collective_s", alone);
    description.set("gemm_slowdown", median_of(&Times::gemm_beside) / gemm);
    description.set("collective_slowdown", median_of(&Times::collective_beside) / alone);
    description.set("overlap_fraction",
                    (gemm + alone - median_of(&Times::both)) / std::min(gemm, alone));
  }

 private:
  machine::Stream& stream() { return own_device_ ? own_device_->stream() : *own_stream_; }
  Question question() const {
    return {operation_, machine::Reduction::sum, Dtype::float32, case_.ranks, 0, count_};
  }

  void multiply() {
    begun_ = stream().record();
    gemm(stream(), matrix(x_), matrix(weight_).transposed(), matrix(y_));
    ended_ = stream().record();
  }
  void start_product() {
    if (worker_)
      worker_->start([this] { multiply(); });
    else
      multiply();
  }
  double finish_product() {
    if (worker_) worker_->wait();
    ended_->synchronize();
    return product_s_ = ended_->seconds_since(*begun_);
  }
  void collective() {
    communicator_.run(operation_, algorithm_, in_, out_);
    finish_collective();
  }
  void finish_collective() {
    if (machine::Stream* queue = communicator_.link().stream()) queue->synchronize();
  }
  // Returns the collective's time. Without `beside` the product is finished before the collective.
  double both(bool beside) {
    start_product();
    if (!beside) finish_product();
    const double begin = machine::steady_s();
    try {
      collective();
    } catch (...) {  // the product's thread still uses this
      if (beside) finish_product();
      throw;
    }
    const double seconds = machine::steady_s() - begin;
    if (beside) finish_product();
    return seconds;
  }

  void judge_product(Judge& judge, std::string_view what) const {
    const std::int64_t n = case_.extent;
    const auto cols = static_cast<std::size_t>(n);
    const std::vector<double> x = to_doubles(x_), weight = to_doubles(weight_), y = to_doubles(y_);
    const std::vector<std::int64_t> rows = rows_to_check(n, 4 * n * n, context_.seed);
    const ProductRows want = product_rows(rows, {x.data(), n, 1}, {weight.data(), 1, n}, n, n);
    std::vector<double> bounds = want.sizes;
    for (double& bound : bounds) bound *= product_bound(n, 0, Dtype::float32);
    for (std::size_t i = 0; i < rows.size(); ++i)
      judge.numerics(fmt::format("{}, row {}", what, rows[i]),
                     std::span(y).subspan(static_cast<std::size_t>(rows[i]) * cols, cols),
                     std::span(want.values).subspan(i * cols, cols),
                     std::span(bounds).subspan(i * cols, cols));
  }

  Case case_;
  Context& context_;
  Operation operation_;
  collectives::Communicator communicator_;
  std::string_view algorithm_;
  std::int64_t count_ = 0;
  Tensor in_, out_;

  // The product's members. On the host the product has its own device, which only its thread uses
  // while the product runs. On a CUDA device it has its own stream.
  std::unique_ptr<machine::Device> own_device_;
  std::unique_ptr<machine::Stream> own_stream_;
  Tensor x_, weight_, y_;
  std::unique_ptr<machine::Event> begun_, ended_;
  double product_s_ = 0;
  std::unique_ptr<Worker> worker_;  // last: its task uses the members above
};

const bool registered = harness::add<Overlap>();

}  // namespace
}  // namespace suite
