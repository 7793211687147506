#include "machine/world/control/pipe.h"

#include <algorithm>
#include <cstring>

#include "machine/base/bytes.h"

namespace machine {

void PipePost::send(int to, std::string_view text, Operation during) {
  Pipe& pipe = *to_[to];
  const Waiting waiting{during, to, ++texts_[to].sent, text.size(), "take"};
  write(pipe, bytes_of(std::uint64_t{text.size()}), waiting);
  write(pipe, text, waiting);
}

std::string PipePost::receive(int from, Operation during) {
  Pipe& pipe = *from_[from];
  Waiting waiting{during, from, ++texts_[from].received, 0, "send"};
  std::uint64_t size = 0;
  read(pipe, reinterpret_cast<char*>(&size), sizeof size, waiting);
  waiting.bytes = size;
  std::string text(size, '\0');
  read(pipe, text.data(), size, waiting);
  return text;
}

void PipePost::write(Pipe& pipe, std::string_view bytes, const Waiting& waiting) const {
  while (!bytes.empty()) {
    const std::uint32_t written = pipe.written.load(std::memory_order_relaxed);
    wait_.until_reached(pipe.read, written - Pipe::capacity + 1, pipe.writer_sleeps, waiting);
    const std::uint32_t room =
        Pipe::capacity - (written - pipe.read.load(std::memory_order_acquire));
    const std::uint32_t at = written % Pipe::capacity;
    const auto part = std::min<std::size_t>({bytes.size(), room, Pipe::capacity - at});
    std::memcpy(pipe.ring.data() + at, bytes.data(), part);
    Wait::publish(pipe.written, written + static_cast<std::uint32_t>(part), pipe.reader_sleeps);
    bytes.remove_prefix(part);
  }
}

void PipePost::read(Pipe& pipe, char* into, std::size_t bytes, const Waiting& waiting) const {
  while (bytes > 0) {
    const std::uint32_t read = pipe.read.load(std::memory_order_relaxed);
    wait_.until_reached(pipe.written, read + 1, pipe.reader_sleeps, waiting);
    const std::uint32_t there = pipe.written.load(std::memory_order_acquire) - read;
    const std::uint32_t at = read % Pipe::capacity;
    const auto part = std::min<std::size_t>({bytes, there, Pipe::capacity - at});
    std::memcpy(into, pipe.ring.data() + at, part);
    Wait::publish(pipe.read, read + static_cast<std::uint32_t>(part), pipe.writer_sleeps);
    into += part;
    bytes -= part;
  }
}

}  // namespace machine
