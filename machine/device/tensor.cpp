#include "machine/device/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "machine/base/error.h"

namespace machine {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  SHARDMARK_CHECK(extents.size(), <=, static_cast<std::size_t>(max_rank));
  for (const std::int64_t extent : extents) {
    SHARDMARK_CHECK(extent, >=, 0);
    extents_[rank_++] = extent;
  }
}

std::int64_t Shape::size() const {
  std::int64_t product = 1;
  for (int dim = 0; dim < rank_; ++dim) product *= (*this)[dim];
  return product;
}

std::string Shape::text() const {
  return fmt::format("[{}]", fmt::join(extents_.begin(), extents_.begin() + rank_, ", "));
}

Tensor::Tensor(Device& device, Dtype dtype, Shape shape, Category category)
    : memory_(std::make_shared<Memory>(
          device.allocate(static_cast<std::size_t>(shape.size()) * size_of(dtype), category))),
      device_(&device),
      data_(memory_->data()),
      dtype_(dtype),
      shape_(shape) {}

void Tensor::check_type(Dtype wanted) const { SHARDMARK_CHECK(name(dtype_), ==, name(wanted)); }

Tensor Tensor::reshape(Shape shape) const {
  SHARDMARK_CHECK(shape.size(), ==, size());
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::slice(std::int64_t offset, Shape shape) const {
  SHARDMARK_CHECK(offset, >=, 0);
  SHARDMARK_CHECK(offset + shape.size(), <=, size());
  Tensor view = *this;
  if (data_)
    view.data_ = static_cast<char*>(data_) + static_cast<std::size_t>(offset) * size_of(dtype_);
  view.shape_ = shape;
  return view;
}

Tensor Tensor::row_range(std::int64_t begin, std::int64_t count) const {
  SHARDMARK_CHECK(begin, >=, 0);
  SHARDMARK_CHECK(count, >=, 0);
  SHARDMARK_CHECK(begin + count, <=, rows());
  return slice(begin * cols(), {count, cols()});
}

namespace {

// Host memory for one copy from or to a device. It is pinned if it is small: a step reads single
// numbers, such as a norm, and a copy of pageable memory would pass through the driver's buffer.
// Oracles read whole tensors, for which nothing is pinned.
class Passage {
 public:
  Passage(Device& device, std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t most_pinned = std::size_t{64} << 10;
    if (!device.readable_by_host() && bytes <= most_pinned) pinned_ = &device.pinned_memory();
    data_ = pinned_ ? static_cast<unsigned char*>(pinned_->allocate(bytes)) : nullptr;
    if (data_) return;
    pinned_ = nullptr;
    pageable_.resize(bytes);
    data_ = pageable_.data();
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;
  ~Passage() {
    if (pinned_) pinned_->free(data_, bytes_);
  }
  unsigned char* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  HostMemory* pinned_ = nullptr;  // null: pageable
  std::vector<unsigned char> pageable_;
  unsigned char* data_ = nullptr;
  std::size_t bytes_;
};

// tensor: not empty.
void read(const Tensor& tensor, const Passage& into) {
  Stream& stream = tensor.device().stream();
  stream.copy(into.data(), tensor.data(), into.size());
  stream.synchronize();
}

}  // namespace

std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> values(tensor.size());
  if (values.empty()) return values;
  const Passage bytes(tensor.device(), tensor.bytes());
  read(tensor, bytes);
  visit_every(tensor.dtype(), [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<double>(static_cast<Accumulator<T>>(element));
    }
  });
  return values;
}

void from_doubles(const Tensor& tensor, const std::vector<double>& values) {
  SHARDMARK_CHECK(static_cast<std::int64_t>(values.size()), ==, tensor.size());
  if (values.empty()) return;
  const Passage bytes(tensor.device(), tensor.bytes());
  visit_every(tensor.dtype(), [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T element = static_cast<T>(convert<Accumulator<T>>(values[i]));
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  Stream& stream = tensor.device().stream();
  stream.copy(tensor.data(), bytes.data(), bytes.size());
  stream.synchronize();
}

namespace {

// FNV-1a over words of eight bytes. Eight lanes overlap their multiplications. The last words are
// zero-padded. The length distinguishes equal padded data.
std::uint64_t hash_of(std::span<const unsigned char> bytes) {
  constexpr std::size_t lanes = 8, stride = 8 * lanes;
  constexpr std::uint64_t prime = 0x100000001b3u;
  std::uint64_t states[lanes];
  for (std::size_t lane = 0; lane < lanes; ++lane) states[lane] = 0xcbf29ce484222325u + lane;
  const auto add = [&](const std::uint64_t(&words)[lanes]) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      states[lane] = (states[lane] ^ words[lane]) * prime;
      states[lane] ^= states[lane] >> 32;
    }
  };
  std::uint64_t words[lanes];
  std::size_t done = 0;
  for (; done + stride <= bytes.size(); done += stride) {
    std::memcpy(words, bytes.data() + done, stride);
    add(words);
  }
  if (done < bytes.size()) {
    std::fill_n(words, lanes, 0);
    std::memcpy(words, bytes.data() + done, bytes.size() - done);
    add(words);
  }
  std::uint64_t state = bytes.size();
  for (const std::uint64_t lane : states) {
    state = (state ^ lane) * prime;
    state ^= state >> 32;
  }
  return state;
}

}  // namespace

std::uint64_t hash(const Tensor& tensor) {
  if (tensor && tensor.bytes() > 0 && !tensor.device().readable_by_host()) {
    const Passage bytes(tensor.device(), tensor.bytes());
    read(tensor, bytes);
    return hash_of({bytes.data(), bytes.size()});
  }
  return hash_of({static_cast<const unsigned char*>(tensor.data()), tensor.bytes()});
}

}  // namespace machine
