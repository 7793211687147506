#include "zero/checkpoint/saving.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "machine/device/random.h"

namespace zero {
namespace {

constexpr std::string_view right = "+";  // prefix of a part's text; any other text is an error

// Returns the result of `work` with the prefix, or its error.
std::string attempt(const std::function<std::string()>& work) {
  try {
    return std::string(right) + work();
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Returns the results of all ranks. Throws the first error on every rank.
std::vector<std::string> gathered(machine::World& world, const machine::Group& group,
                                  const std::string& mine) {
  std::vector<std::string> all = world.all_gather(group, mine);
  for (std::string& theirs : all) {
    if (!theirs.starts_with(right)) throw CheckpointError(theirs);
    theirs.erase(0, right.size());
  }
  return all;
}

std::string new_save(machine::World& world, const machine::Group& group) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const auto random =
      machine::philox(static_cast<std::uint64_t>(now), static_cast<std::uint64_t>(::getpid()));
  return world.broadcast(group, 0, fmt::format("{:08x}{:08x}", random[0], random[1]));
}

std::string write_part(const std::string& folder, const std::string& save,
                       const machine::Group& group, const Fill& fill) {
  std::filesystem::create_directories(folder);
  PartWriter writer(folder, save, group.index, group.size());
  fill(writer);
  return writer.finish();
}

void commit_together(machine::World& world, const machine::Group& group, const std::string& folder,
                     const std::string& save, const std::vector<std::string>& parts,
                     const Facts& facts) {
  gathered(world, group, attempt([&] {
             if (group.index == 0) commit(folder, save, parts, facts);
             return std::string();
           }));
}

}  // namespace

void save(machine::World& world, const machine::Group& group, const std::string& folder,
          const Facts& facts, const Fill& fill) {
  const std::string name = new_save(world, group);
  const std::vector<std::string> parts =
      gathered(world, group, attempt([&] { return write_part(folder, name, group, fill); }));
  commit_together(world, group, folder, name, parts, facts);
}

// Copies each piece to host memory.
class PendingSave::Copies final : public PieceSink {
 public:
  explicit Copies(PendingSave& save) : save_(save) {}
  void add(const Piece& piece, const Tensor& elements) override {
    machine::Device& from = elements.device();
    if (from_ != &from) {
      save_.hosts_.push_back(machine::make_host_device_beside(from));
      from_ = &from;
    }
    const Tensor copy(*save_.hosts_.back(), elements.dtype(), elements.shape(),
                      machine::Category::buffers);
    from.stream().copy(copy.data(), elements.data(), elements.bytes());
    // The views of a state may end with this call.
    from.stream().synchronize();
    save_.copies_.push_back({piece, copy});
  }

 private:
  PendingSave& save_;
  machine::Device* from_ = nullptr;
};

PendingSave::PendingSave(machine::World& world, const machine::Group& group, std::string folder,
                         Facts facts, const Fill& fill, std::function<void()> before_write)
    : world_(world),
      group_(group),
      folder_(std::move(folder)),
      facts_(std::move(facts)),
      before_write_(std::move(before_write)),
      save_(new_save(world, group)) {
  const std::string copied = attempt([&] {
    Copies copies(*this);
    fill(copies);
    return std::string();
  });
  if (copied != right) {
    written_ = copied;
    done_ = true;
    return;
  }
  thread_ = std::thread([this] { write(); });
}

PendingSave::~PendingSave() {
  if (thread_.joinable()) thread_.join();
}

void PendingSave::write() {
  written_ = attempt([&] {
    before_write_();
    return write_part(folder_, save_, group_, [&](PieceSink& part) {
      for (const auto& [piece, elements] : copies_) part.add(piece, elements);
    });
  });
  done_ = true;
}

bool PendingSave::try_finish() {
  for (const int theirs : world_.all_gather(group_, int{done_}))
    if (theirs == 0) return false;
  finish();
  return true;
}

void PendingSave::finish() {
  if (thread_.joinable()) thread_.join();
  commit_together(world_, group_, folder_, save_, gathered(world_, group_, written_), facts_);
}

}  // namespace zero
