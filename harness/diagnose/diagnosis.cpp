#include "harness/diagnose/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace harness {
namespace {

using machine::RankState;
using Kind = LossReport::Kind;

struct Culprit {
  Kind kind;
  int rank;
  std::vector<int> ring = {};  // of a deadlock: each rank waits for the next
};

bool over(ProcessState process) {
  return process == ProcessState::gone || process == ProcessState::zombie;
}
bool held(ProcessState process) {
  return process == ProcessState::stopped || process == ProcessState::traced;
}

class Diagnosis {
 public:
  Diagnosis(const Snapshot& snapshot, double now_s, double timeout_s)
      : ranks_(snapshot.ranks), self_(snapshot.self), now_s_(now_s), timeout_s_(timeout_s) {}

  std::optional<LossReport> find() const {
    const std::optional<Culprit> found = culprit();
    if (!found) return std::nullopt;
    // The rank whose activity is reported: the culprit, or the first rank that has one.
    const auto acts = [](const RankView& rank) { return rank.here && !rank.activity.empty(); };
    const RankView* witness = acts(at(found->rank)) ? &at(found->rank) : first(acts);
    machine::Failure failure = failure_of(*found);
    failure.text =
        line(*found, witness ? " during " + witness->activity : " before the first case");
    return LossReport{found->kind, found->rank, reporter(), std::move(failure),
                      witness ? witness->running_case : ""};
  }

 private:
  const RankView& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  bool running(const RankView& rank) const { return rank.here && rank.state == RankState::running; }
  // Waits for a known rank; or for a rank or device that the board does not know.
  static bool waits_for_a_rank(const RankView& rank) { return rank.waiting_for >= 0; }
  static bool waits_for_some(const RankView& rank) {
    return rank.waiting_for == machine::any_of_group ||
           (rank.waiting_for == machine::nobody && rank.on_device);
  }
  double still_s(const RankView& rank) const { return now_s_ - rank.progress_s; }
  double silent_s(const RankView& rank) const { return now_s_ - rank.heartbeat_s; }

  // Returns the first rank for which `holds` is true, or null.
  const RankView* first(const auto& holds) const {
    const auto found = std::ranges::find_if(ranks_, holds);
    return found == ranks_.end() ? nullptr : &*found;
  }

  std::optional<Culprit> culprit() const {
    const auto died = [&](const RankView& rank) { return running(rank) && over(rank.process); };
    const auto silent = [&](const RankView& rank) {
      return running(rank) && rank.watched && silent_s(rank) > timeout_s_;
    };
    const auto stopped = [&](const RankView& rank) { return silent(rank) && held(rank.process); };
    if (const RankView* rank = first(died)) return Culprit{Kind::died, rank->rank};
    if (const RankView* rank = first(stopped)) return Culprit{Kind::stopped, rank->rank};
    if (const RankView* rank = first(silent)) return Culprit{Kind::unresponsive, rank->rank};
    if (const auto still = standing_still()) return still;
    return failed();
  }

  std::optional<Culprit> standing_still() const {
    double since_s = 0;                 // when the last rank stopped progressing
    const RankView* idle = nullptr;     // waits for no rank
    const RankView* waiting = nullptr;  // the first that waits for a known rank
    const RankView* open = nullptr;     // waits for an unknown rank or device
    bool several_open = false;
    for (const RankView& rank : ranks_) {
      if (!running(rank)) continue;
      // If a rank works, or may work unobserved, the other ranks wait for a reason.
      if (!rank.watched || still_s(rank) <= timeout_s_) return std::nullopt;
      since_s = std::max(since_s, rank.progress_s);
      if (waits_for_a_rank(rank)) {
        if (!waiting) waiting = &rank;
      } else if (waits_for_some(rank)) {
        several_open = open != nullptr;
        open = &rank;
      } else if (!idle) {
        idle = &rank;
      }
    }
    // An earlier failure may be the reason why the others do not progress.
    for (const RankView& rank : ranks_)
      if (rank.here && rank.failed_s < since_s + timeout_s_) return std::nullopt;
    if (idle) return Culprit{Kind::hung, idle->rank};
    if (open && !several_open && open->waiting_for == machine::nobody &&
        std::ranges::all_of(ranks_, &RankView::here))
      return Culprit{Kind::hung, open->rank};
    if (open) return Culprit{Kind::deadlock, open->rank};
    if (!waiting) return std::nullopt;
    return Culprit{Kind::deadlock, waiting->rank, ring(waiting->rank)};
  }

  // Follows the waits from rank until a rank repeats or waits for no visible rank. Removes the
  // ranks that only lead to the ring.
  std::vector<int> ring(int rank) const {
    std::vector<int> chain;
    while (true) {
      const auto met = std::ranges::find(chain, rank);
      if (met != chain.end()) {
        chain.erase(chain.begin(), met);
        chain.push_back(rank);
        return chain;
      }
      chain.push_back(rank);
      if (rank >= static_cast<int>(ranks_.size()) || !running(at(rank)) ||
          !waits_for_a_rank(at(rank)))
        return chain;
      rank = at(rank).waiting_for;
    }
  }

  // Returns whether the rank failed because of another rank that failed.
  bool is_consequence(const RankView& rank) const {
    if (!rank.noted || rank.noted->kind != machine::Failure::Kind::peer_failed) return false;
    const int peer = rank.noted->peer;
    return peer >= 0 && peer < static_cast<int>(ranks_.size()) && peer != rank.rank &&
           at(peer).here && at(peer).state == RankState::failed;
  }

  machine::Failure failure_of(const Culprit& culprit) const {
    machine::Failure failure{.kind = machine::Failure::Kind::lost_rank, .rank = culprit.rank};
    if (culprit.kind == Kind::deadlock) return {.kind = machine::Failure::Kind::deadlock};
    if (const auto& noted = at(culprit.rank).noted; culprit.kind == Kind::failed && noted) {
      failure = *noted;
      failure.rank = culprit.rank;
    }
    return failure;
  }

  std::optional<Culprit> failed() const {
    const auto order = [&](const RankView& rank) {
      const bool has_failed = rank.here && rank.state == RankState::failed;
      return std::tuple(!has_failed, is_consequence(rank), rank.failed_s);
    };
    const RankView& culprit = *std::ranges::min_element(ranks_, {}, order);
    if (std::get<0>(order(culprit))) return std::nullopt;
    return Culprit{Kind::failed, culprit.rank};
  }

  int reporter() const {
    return first([&](const RankView& rank) {
             if (rank.rank == self_) return true;  // this rank runs
             const bool there =
                 rank.here && (rank.state == RankState::running || rank.state == RankState::failed);
             return there && rank.watched && rank.process == ProcessState::alive &&
                    silent_s(rank) < responsive_s;
           })
        ->rank;
  }

  std::string line(const Culprit& culprit, const std::string& during) const {
    const RankView& rank = at(culprit.rank);
    const std::string who = fmt::format("rank {} (pid {} on {})", rank.rank, rank.pid, rank.host);
    std::string text;
    switch (culprit.kind) {
      case Kind::died:
        text = fmt::format("{} died{}", who, during);
        break;
      case Kind::stopped:
        text = fmt::format(
            "{} was {} for {:.0f} s{}", who,
            rank.process == ProcessState::traced ? "held by a debugger" : "stopped (SIGSTOP)",
            silent_s(rank), during);
        break;
      case Kind::unresponsive:
        text = fmt::format("{} did not respond for {:.0f} s{}", who, silent_s(rank), during);
        break;
      case Kind::hung:
        text = fmt::format("{} made no progress for {:.0f} s and waited for {}{}{}", who,
                           still_s(rank), rank.on_device ? "its device" : "no rank", during,
                           rank.last_wait.empty() ? "" : "; it was " + rank.last_wait);
        break;
      case Kind::deadlock:
        if (culprit.ring.empty())
          return fmt::format("no progress for {:.0f} s{}, and no single rank blocks the others",
                             still_s(rank), during) +
                 others(-1, "Each rank");
        return deadlock_line(culprit, during) + others(-1);
      case Kind::failed:
        text = fmt::format("{} failed{}: {}", who, during, reason(rank));
        break;
    }
    return text + others(culprit.rank);
  }

  static std::string reason(const RankView& rank) {
    return rank.noted && !rank.noted->text.empty() ? rank.noted->text : "no reason given";
  }

  std::string deadlock_line(const Culprit& culprit, const std::string& during) const {
    std::string text;
    for (std::size_t i = 0; i + 1 < culprit.ring.size(); ++i)
      text += fmt::format("{}rank {} waits for rank {}", i == 0 ? "" : ", ", culprit.ring[i],
                          culprit.ring[i + 1]);
    const int last = culprit.ring.back();
    if (last == culprit.ring.front()) return fmt::format("deadlock{}: {}", during, text);
    if (last < static_cast<int>(ranks_.size()) && !at(last).here)
      return fmt::format("no progress for {:.0f} s{}: {}, which is on {} and not visible from here",
                         still_s(at(culprit.rank)), during, text, at(last).host);
    return fmt::format("deadlock{}: {}, which has finished or failed", during, text);
  }

  std::string others(int except, const char* whose = "The others") const {
    std::string text;
    for (const RankView& rank : ranks_) {
      if (rank.rank == except || !rank.here || rank.state == RankState::absent ||
          rank.state == RankState::finished)
        continue;
      std::string doing = "was working";
      if (rank.state == RankState::failed)
        doing = "failed: " + reason(rank);
      else if (over(rank.process))
        doing = "died";
      else if (waits_for_a_rank(rank) || waits_for_some(rank))
        doing = rank.waiting;
      if (rank.state != RankState::failed && rank.noted)
        doing += ", after it threw: " + reason(rank);
      text += fmt::format("{}rank {} {}", text.empty() ? fmt::format(". {}: ", whose) : "; ",
                          rank.rank, doing);
    }
    return text;
  }

  const std::vector<RankView>& ranks_;
  int self_;
  double now_s_, timeout_s_;
};

}  // namespace

std::optional<LossReport> diagnose(const Snapshot& snapshot, double now_s, double timeout_s) {
  return Diagnosis(snapshot, now_s, timeout_s).find();
}

}  // namespace harness
