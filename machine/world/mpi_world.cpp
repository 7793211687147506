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
#include "machine/world/binding.h"
#include "machine/world/control/mpi_calls.h"
#include "machine/world/control/mpi_post.h"
#include "machine/world/control/pipe.h"
#include "machine/world/host_topology.h"
#include "machine/world/places.h"
#include "machine/world/segment.h"

namespace machine {
namespace {

// The data that ranks exchange first.
struct Introduction {
  std::array<char, 256> host{};
  std::array<char, 64> boot{};  // two containers may share a host name, but not boot and pid space
  long pid_space = 0;
  long pid = 0;
  int descriptor = -1;
  std::uint64_t segment_bytes = 0;
  CoreSet cores;  // given by the launcher
};

// A timeout for MPI's first and last calls, when the watchdog does not run. These calls wait
// forever for a lost rank. At the timeout the process prints an error and exits with 4, the exit
// code of a lost rank.
class Patience {
 public:
  Patience(double seconds, std::string what)
      : thread_([this, seconds, what = std::move(what)](const std::stop_token& over) {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, over, std::chrono::duration<double>(seconds),
                                [&] { return over.stop_requested(); }))
            return;
          const std::string line = fmt::format("shardmark: {} within {:.0f} s\n", what, seconds);
          [[maybe_unused]] const auto wrote = write(STDERR_FILENO, line.data(), line.size());
          _exit(4);
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // its destructor ends the wait
};

// Pause between the last message and MPI_Finalize if ranks are on several hosts. No rank calls MPI
// in the meantime (~MpiWorld).
constexpr std::chrono::milliseconds quiet_before_finalize{250};

// Variables in which launchers pass rank and size to a process, available before MPI: hydra and
// other process managers with PMI, Open MPI and others with PMIx, Slurm.
constexpr std::array rank_variables{"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"};
constexpr std::array size_variables{"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};

const char* first_set(const std::array<const char*, 3>& variables) {
  for (const char* variable : variables)
    if (const char* value = std::getenv(variable)) return value;
  return nullptr;
}

// Slurm also numbers the shells of batch scripts and interactive jobs. They are separate steps with
// the highest numbers (SLURM_BATCH_SCRIPT and others in slurm.h). They start no ranks.
bool under_slurms_shell() {
  const char* step = std::getenv("SLURM_STEP_ID");
  return !step || std::strtoul(step, nullptr, 10) >= 0xfffffff0;
}

// Returns the rank's number in its launch, or null if no launcher started this process.
const char* given_rank() {
  const char* number = first_set(rank_variables);
  return number || under_slurms_shell() ? number : std::getenv("SLURM_PROCID");
}

// Throws MachineError if the launcher belongs to another MPI library. Such a process is its only
// rank.
void check_size(int ranks) {
  const char* started = first_set(size_variables);
  if (ranks > 1 || !started || std::atoi(started) <= 1) return;
  throw MachineError(fmt::format(
      "the launcher started {0} ranks, but this program's MPI library, {1}, sees "
      "one; use {1}'s launcher, or srun --mpi={2}",
      started, name(mpi_library()), mpi_library() == MpiLibrary::openmpi ? "pmix" : "pmi2"));
}

// A rank's segment begins with its status; the pipes that it reads follow, by sender.
constexpr std::size_t status_bytes = 4096;
static_assert(sizeof(RankStatus) <= status_bytes && status_bytes % alignof(Pipe) == 0);

std::size_t header_bytes(int ranks) { return status_bytes + sizeof(Pipe) * ranks; }
RankStatus* status_in(std::byte* segment) { return reinterpret_cast<RankStatus*>(segment); }
Pipe* pipes_in(std::byte* segment) { return reinterpret_cast<Pipe*>(segment + status_bytes); }

// While a rank sleeps, MPI moves messages to it only here (WaitPolicy::before_sleep).
void look_into_mpi() {
  int main = 0, any = 0;
  MPI_Is_thread_main(&main);
  if (!main) return;  // MPI_THREAD_FUNNELED: only the rank's own thread may call MPI
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE);
}

class MpiWorld final : public World {
 public:
  explicit MpiWorld(double timeout_s);
  ~MpiWorld() override;
  const std::string& host(int rank) const override { return hosts_[rank]; }
  bool ranks_are_threads() const override { return false; }
  SharedMemory shared_memory() override {
    return {segment_->base(), segment_->size(), segment_.get(), bases_};
  }

 private:
  void start_mpi();
  void make_segment();
  std::vector<Introduction> introduce(const std::vector<int>& cores) const;
  void map_peers(const std::vector<Introduction>& ranks);
  void show_status();
  void open_control_plane();

  int cores_of_host() const override { return cores_of_host_; }
  int bind(int index, int active) override;
  bool one_host() const { return std::ranges::find(bases_, nullptr) == bases_.end(); }

  std::vector<std::string> hosts_;
  std::unique_ptr<Segment> segment_;
  std::vector<std::unique_ptr<MappedSegment>> mapped_;
  std::vector<std::byte*> bases_;  // null for ranks of other hosts
  int cores_of_host_ = 1;
  bool launcher_bound_ = false;
};

MpiWorld::MpiWorld(double timeout_s) {
  set_timeout_s(timeout_s);
  before_sleep_ = look_into_mpi;
  const char* number = given_rank();
  const Patience patience(
      timeout_s, fmt::format("rank {}: not all ranks have started", number ? number : "0"));
  start_mpi();
  make_segment();
  start_cores_ = given_cores();
  map_peers(introduce(start_cores_));
  show_status();
  set_host_device(make_host_device(*segment_));
  open_control_plane();
  set_active_ranks(size());
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");  // every rank has mapped its peers
}

void MpiWorld::start_mpi() {
  // Without PMIx, Open MPI would end the process with a long message about the build of Slurm.
  if (mpi_library() == MpiLibrary::openmpi && given_rank() && !first_set(rank_variables))
    check_size(1);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check_size(ranks);
  group_ = first_ranks("world", ranks, rank);
}

void MpiWorld::make_segment() {
  segment_ = std::make_unique<Segment>(header_bytes(size()));
  new (segment_->base()) RankStatus;
  std::uninitialized_default_construct_n(pipes_in(segment_->base()), size());
}

std::vector<Introduction> MpiWorld::introduce(const std::vector<int>& cores) const {
  Introduction mine;
  gethostname(mine.host.data(), mine.host.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  boot.copy(mine.boot.data(), mine.boot.size() - 1);
  std::array<char, 64> pid_space{};
  if (readlink("/proc/self/ns/pid", pid_space.data(), pid_space.size() - 1) > 0)
    mine.pid_space =
        std::strtol(pid_space.data() + std::strcspn(pid_space.data(), "0123456789"), nullptr, 10);
  mine.pid = getpid();
  mine.descriptor = segment_->descriptor();
  mine.segment_bytes = segment_->size();
  mine.cores = core_set(cores);

  std::vector<Introduction> all(size());
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE,
                          MPI_COMM_WORLD),
            "MPI_Allgather");
  return all;
}

void MpiWorld::map_peers(const std::vector<Introduction>& ranks) {
  const Introduction& mine = ranks[rank()];
  CoreSet of_host = mine.cores;
  for (const Introduction& other : ranks) {
    hosts_.emplace_back(other.host.data());
    std::unique_ptr<MappedSegment>& mapped = mapped_.emplace_back();
    if (other.boot != mine.boot || other.pid_space != mine.pid_space || other.host != mine.host) {
      bases_.push_back(nullptr);
      continue;
    }
    if (other.cores != mine.cores) launcher_bound_ = true;
    of_host |= other.cores;
    if (&other != &mine)
      mapped = std::make_unique<MappedSegment>(other.pid, other.descriptor, other.segment_bytes);
    bases_.push_back(mapped ? mapped->base() : segment_->base());
  }
  cores_of_host_ = static_cast<int>(of_host.count());
}

void MpiWorld::show_status() {
  std::vector<RankStatus*> statuses;
  for (std::byte* base : bases_) statuses.push_back(base ? status_in(base) : nullptr);
  board_ = std::make_unique<Board>(rank(), statuses);
  board_->mine().pid.store(getpid());
  board_->mine().state.store(RankState::running);
}

void MpiWorld::open_control_plane() {
  const WaitPolicy patient{board_.get(), std::numeric_limits<double>::infinity(), true, true,
                           before_sleep_};
  if (!one_host()) {
    post_ = std::make_unique<MpiPost>(make_communicator(group_, patient), size(), patient);
    return;
  }
  std::vector<Pipe*> from, to;
  for (int peer = 0; peer < size(); ++peer) {
    from.push_back(pipes_in(segment_->base()) + peer);
    to.push_back(pipes_in(bases_[peer]) + rank());
  }
  post_ = std::make_unique<PipePost>(std::move(from), std::move(to), patient);
}

// In MPI_Finalize, MPICH 4.0 and 4.1 flush each UCX connection that was used. Over TCP, the other
// side answers the flush in its own progress. A rank that has all answers enters a barrier of the
// process manager, in which it does not answer. A rank that still waits for its answer then waits
// forever. Therefore each rank asks every other rank before it answers any (exchange_with_all). No
// rank is in MPI while another may have begun to finalize.
MpiWorld::~MpiWorld() {
  const bool healthy = board_->failed_rank() < 0;
  if (healthy) {
    try {
      barrier(group_);
      if (auto* mpi = dynamic_cast<MpiPost*>(post_.get()))
        mpi->exchange_with_all(Operation::barrier);
    } catch (const MachineError&) {
      // Another rank failed between the check and the barrier. It reports its own failure.
    }
  }
  board_->mine().state.store(healthy ? RankState::finished : RankState::failed);
  // After the loss of a rank, its GPU work may never end, and freeing a device waits for that work.
  // MPI may wait as well.
  if (!healthy) {
    static_cast<void>(post_.release());
    static_cast<void>(device_.release());
  }
  post_.reset();
  kept_.clear();
  device_.reset();
  host_device_.reset();
  if (healthy) {
    if (!one_host()) std::this_thread::sleep_for(quiet_before_finalize);
    const Patience patience(timeout_s(), fmt::format("rank {}: not all ranks have ended", rank()));
    MPI_Finalize();
  }
  try {  // what follows, such as drawing figures, may use all cores
    if (!launcher_bound_) bind_process(start_cores_);
  } catch (const MachineError&) {
    // Fewer cores make it slower, not wrong.
  }
}

// Ranks that the launcher bound can share cores. Next to their GPUs, ranks do not share cores, and
// can have different numbers of them.
int MpiWorld::bind(int index, int active) {
  const int equal_part = std::max(1, cores_of_host() / active);
  if (launcher_bound_) {
    cores_ = start_cores_;
    return std::min(equal_part, static_cast<int>(cores_.size()));
  }
  if (places_.empty()) {
    cores_ = cores_of(index, active, start_cores_);
    bind_process(cores_);
    return equal_part;
  }
  cores_ = cores_near(host_topology(), gpus_of_host(active), start_cores_)[index];
  bind_process(cores_);
  return static_cast<int>(cores_.size());
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
