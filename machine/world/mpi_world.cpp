#include "machine/world/mpi_world.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <thread>

#include "machine/base/error.h"
#include "machine/device/device_wait.h"
#include "machine/link/mpi.h"
#include "machine/world/binding.h"
#include "machine/world/segment.h"

namespace machine {
namespace {

// What ranks tell each other first.
struct Introduction {
  std::array<char, 256> host{};
  std::array<char, 64> boot{};  // two containers may share a host name; not a boot and pid space
  long pid_space = 0;
  long pid = 0;
  int descriptor = -1;
  std::uint64_t segment_bytes = 0;
  std::array<int, 64> cores{};  // given by the launcher
  int num_cores = 0;
};

template <std::size_t N>
void put(std::array<char, N>& field, std::string_view text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), N - 1));
}

// MPI's first and last calls wait without end for a rank that is gone, before or after anybody
// watches. Past the timeout the process says so and ends with 4, the exit code of a lost rank.
class Patience {
 public:
  Patience(double seconds, std::string what)
      : thread_([this, seconds, what = std::move(what)] {
          std::unique_lock lock(mutex_);
          if (over_changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                     [this] { return over_; }))
            return;
          const std::string line = fmt::format("shardmark: {} within {:.0f} s\n", what, seconds);
          [[maybe_unused]] const auto wrote = write(STDERR_FILENO, line.data(), line.size());
          _exit(4);
        }) {}
  ~Patience() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    over_changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
  std::thread thread_;
};

// Between the last message and MPI_Finalize, where ranks are on several hosts and nobody touches
// MPI (MpiWorld::part).
constexpr std::chrono::milliseconds quiet_before_finalize{250};

// How launchers tell a process, before MPI does, which of the ranks it is and how many there are:
// hydra and other process managers with PMI, Open MPI and others with PMIx, Slurm.
constexpr std::array rank_variables{"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"};
constexpr std::array size_variables{"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};

template <std::size_t N>
const char* first_set(const std::array<const char*, N>& variables) {
  for (const char* variable : variables)
    if (const char* value = std::getenv(variable)) return value;
  return nullptr;
}

// Slurm numbers the shell of a batch script and of an interactive job, too: steps of their own,
// with the last numbers (SLURM_BATCH_SCRIPT and others in slurm.h). No ranks were started there.
bool under_slurms_shell() {
  const char* step = std::getenv("SLURM_STEP_ID");
  return !step || std::strtoul(step, nullptr, 10) >= 0xfffffff0;
}

// The rank's number in its launch, if a launcher started this process.
const char* given_rank() {
  const char* number = first_set(rank_variables);
  if (!number) number = under_slurms_shell() ? nullptr : std::getenv("SLURM_PROCID");
  return number;
}

// A process that another library's launcher started comes up as the only rank.
void check_size(int ranks) {
  const char* started = first_set(size_variables);
  if (ranks > 1 || !started || std::atoi(started) <= 1) return;
  throw MachineError(fmt::format(
      "the launcher started {0} ranks, but {1}, which this program is built on, sees "
      "one; start them with {1}'s launcher, or with srun --mpi={2}",
      started, name(mpi_library()), mpi_library() == MpiLibrary::openmpi ? "pmix" : "pmi2"));
}

std::size_t header_bytes(int ranks) {
  return 4096 + sizeof(Channel) * static_cast<std::size_t>(ranks);
}
static_assert(sizeof(RankStatus) <= 4096);

class MpiWorld final : public World {
 public:
  explicit MpiWorld(double timeout_s);
  ~MpiWorld() override;

  const std::string& host(int rank) const override {
    return hosts_[static_cast<std::size_t>(rank)];
  }
  bool ranks_are_threads() const override { return false; }

 private:
  std::unique_ptr<Link> connect_host(const Group& group, Transport transport) override;
  std::string why_not_host(const Group& group, Transport transport) const override;
  SharedMemory shared_memory() override {
    return {{segment_->base(), segment_->size()}, segment_.get(), bases_};
  }
  int cores_of_host() const override { return static_cast<int>(host_cores_.size()); }
  void bind(int index, int active) override;
  bool one_host() const { return std::ranges::find(bases_, nullptr) == bases_.end(); }
  void part();
  MPI_Comm communicator(const Group& group) const;

  std::vector<std::string> hosts_;
  std::unique_ptr<Segment> segment_;
  std::vector<std::unique_ptr<MappedSegment>> mapped_;
  std::vector<std::byte*> bases_;  // null for ranks of other hosts
  std::vector<int> host_cores_;
  bool launcher_bound_ = false;
};

MpiWorld::MpiWorld(double timeout_s) {
  set_timeout_s(timeout_s);
  const char* number = given_rank();
  const Patience patience(
      timeout_s, fmt::format("rank {}: not all ranks have started", number ? number : "0"));
  // Without PMIx, Open MPI would end the process with a page about how Slurm is built.
  if (mpi_library() == MpiLibrary::openmpi && number && !first_set(rank_variables)) check_size(1);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check_size(ranks);
  group_ = first_ranks("world", ranks, rank);

  segment_ = std::make_unique<Segment>(header_bytes(ranks));
  new (segment_->base()) RankStatus;
  auto* channels = reinterpret_cast<Channel*>(segment_->base() + 4096);
  std::uninitialized_default_construct_n(channels, ranks);

  Introduction mine;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  put(mine.host, host.data());
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  put(mine.boot, boot);
  std::array<char, 64> pid_space{};
  if (readlink("/proc/self/ns/pid", pid_space.data(), pid_space.size() - 1) > 0)
    mine.pid_space =
        std::strtol(pid_space.data() + std::strcspn(pid_space.data(), "0123456789"), nullptr, 10);
  mine.pid = getpid();
  mine.descriptor = segment_->descriptor();
  mine.segment_bytes = segment_->size();
  const std::vector<int> given = given_cores();
  mine.num_cores = static_cast<int>(std::min(given.size(), mine.cores.size()));
  std::copy_n(given.begin(), mine.num_cores, mine.cores.begin());

  std::vector<Introduction> all(static_cast<std::size_t>(ranks));
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE,
                          MPI_COMM_WORLD),
            "MPI_Allgather");

  bool one_host = true;
  std::vector<RankStatus*> statuses;
  mapped_.resize(static_cast<std::size_t>(ranks));
  host_cores_ = given;
  SharedMemoryLink::Wiring wiring;
  for (int peer = 0; peer < ranks; ++peer) {
    const Introduction& other = all[static_cast<std::size_t>(peer)];
    hosts_.emplace_back(other.host.data());
    const bool here =
        other.boot == mine.boot && other.pid_space == mine.pid_space && other.host == mine.host;
    one_host = one_host && here;
    if (!here) {
      bases_.push_back(nullptr);
      statuses.push_back(nullptr);
      continue;
    }
    if (other.num_cores != mine.num_cores || other.cores != mine.cores) launcher_bound_ = true;
    if (peer != rank)
      mapped_[static_cast<std::size_t>(peer)] =
          std::make_unique<MappedSegment>(other.pid, other.descriptor, other.segment_bytes);
    bases_.push_back(peer == rank ? segment_->base()
                                  : mapped_[static_cast<std::size_t>(peer)]->base());
    statuses.push_back(reinterpret_cast<RankStatus*>(bases_.back()));
    wiring.ends.outgoing.push_back(reinterpret_cast<Channel*>(bases_.back() + 4096) + rank);
  }
  board_ = std::make_unique<Board>(rank, statuses);
  board_->mine().pid.store(mine.pid);
  board_->mine().state.store(RankState::running);
  host_device_ = make_host_device(*segment_);

  // Control waits end when a rank fails, not at a time: ranks without work wait as long as it
  // takes.
  const WaitPolicy patient{board_.get(), std::numeric_limits<double>::infinity(), true, true};
  if (one_host) {
    wiring.own = {segment_->base(), segment_->size()};
    wiring.ends.incoming = channels;
    wiring.ends.retire = [] {};
    wiring.bases = bases_;
    wiring.staging = segment_.get();
    control_ = std::make_unique<SharedMemoryLink>(group_, std::move(wiring), patient);
  } else {
    control_ = std::make_unique<MpiLink>(group_, communicator(group_), patient);
  }
  set_active_ranks(ranks);
  DeviceWait::count = &board_->mine().on_device;
  Wait::before_sleep = [] {
    int main = 0, any = 0;
    MPI_Is_thread_main(&main);
    if (!main) return;  // a thread beside the rank's own: MPI_THREAD_FUNNELED keeps it out
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE);
  };
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");  // everybody has mapped everybody
}

MpiWorld::~MpiWorld() {
  Wait::before_sleep = nullptr;
  DeviceWait::count = nullptr;
  const bool healthy = board_->failed_rank() < 0;
  if (healthy) {
    try {
      barrier(group_);
      if (!one_host()) part();
    } catch (const MachineError&) {
      // Another rank failed between the look and the barrier; it names itself.
    }
  }
  board_->mine().state.store(healthy ? RankState::finished : RankState::failed);
  control_.reset();
  // With a rank gone, its GPU work may never end, and to free a device waits for that.
  if (!healthy) static_cast<void>(device_.release());
  device_.reset();
  host_device_.reset();
  if (healthy) {
    if (!one_host()) std::this_thread::sleep_for(quiet_before_finalize);
    const Patience patience(timeout_s(), fmt::format("rank {}: not all ranks have ended", rank()));
    MPI_Finalize();
  }
}

// In MPI_Finalize MPICH 4.0 and 4.1 flush each connection of UCX's that was sent over. Over TCP the
// other side answers that, in its own progress; who has all answers goes on to a barrier of the
// process manager, where nothing is answered any more, and who still waits for one waits forever.
// So each rank is to ask every other before it answers any: all have sent to all, and none is in
// MPI while another may have begun.
void MpiWorld::part() {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) control_->send(peer, nullptr, 0);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) control_->receive(peer, nullptr, 0);
}

MPI_Comm MpiWorld::communicator(const Group& group) const {
  MPI_Group everybody = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm result = MPI_COMM_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &everybody);
  MPI_Group_incl(everybody, group.size(), group.members.data(), &members);
  const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, group.members.front(), &result);
  MPI_Group_free(&members);
  MPI_Group_free(&everybody);
  check_mpi(code, "MPI_Comm_create_group");
  return result;
}

std::unique_ptr<Link> MpiWorld::connect_host(const Group& group, Transport transport) {
  if (transport == Transport::mpi)
    return std::make_unique<MpiLink>(group, communicator(group), wait_policy());
  return connect_shared_memory(group);
}

std::string MpiWorld::why_not_host(const Group& group, Transport transport) const {
  if (transport == Transport::mpi) return "";
  for (const int member : group.members)
    if (!bases_[static_cast<std::size_t>(member)])
      return fmt::format(
          "transport shared_memory needs ranks of one host; rank {} is on {}, rank {} on {}",
          rank(), host(rank()), member, host(member));
  return "";
}

void MpiWorld::bind(int index, int active) {
  cores_ = launcher_bound_ ? host_cores_ : cores_of(index, active, host_cores_);
  if (!launcher_bound_) bind_process(cores_);
}

}  // namespace

std::unique_ptr<World> make_mpi_world(double timeout_s) {
  return std::make_unique<MpiWorld>(timeout_s);
}

MpiLibrary mpi_library() {
#ifdef OPEN_MPI
  return MpiLibrary::openmpi;
#else
  return MpiLibrary::mpich;
#endif
}

std::string_view name(MpiLibrary library) {
  return library == MpiLibrary::openmpi ? "Open MPI" : "MPICH";
}

bool under_launcher() { return given_rank() != nullptr; }

}  // namespace machine
