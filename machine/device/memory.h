#pragma once
// Counted memory. Every byte that a rank allocates for tensors is in its device's Ledger under one
// Category. The memory oracle compares measured peaks with the closed formulas, exactly: the ledger
// counts requested bytes, not the allocator's rounded sizes.

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace machine {

class Device;

enum class Category : unsigned char {
  parameters,   // the weights that forward and backward read
  gradients,    // accumulated by backward
  optimizer,    // master weights and moments
  activations,  // kept by forward for backward
  buffers,      // staging, temporaries, communication
  compression,  // residuals and codes of compressed sums
  links,        // where a link receives; its own bytes and the staging of collectives
};
inline constexpr std::size_t num_categories = 7;
inline constexpr Category all_categories[] = {
    Category::parameters, Category::gradients,   Category::optimizer, Category::activations,
    Category::buffers,    Category::compression, Category::links};
std::string_view name(Category category);

// Whether results are stored in the cache or bypass it. Results bypass the cache if a call's
// buffers exceed it, so that they do not evict data that is still needed.
enum class Store : unsigned char { cached, streaming };

// Current and peak bytes by category. Used by the thread that owns the device only.
class Ledger {
 public:
  void add(Category category, std::size_t bytes);
  void remove(Category category, std::size_t bytes);
  std::size_t current(Category category) const { return current_[index(category)]; }
  std::size_t peak(Category category) const { return peak_[index(category)]; }
  std::size_t current() const { return total_; }
  std::size_t peak() const { return peak_total_; }  // of the sum; at most the sum of the peaks
  void reset_peaks();                               // sets the peaks to the current bytes

 private:
  static std::size_t index(Category category) { return static_cast<std::size_t>(category); }
  std::array<std::size_t, num_categories> current_{}, peak_{};
  std::size_t total_ = 0, peak_total_ = 0;
};

// Owns one allocation on a device. Frees it and removes it from the ledger when destroyed.
class Memory {
 public:
  Memory() = default;
  Memory(Device& device, void* data, std::size_t bytes, Category category)
      : device_(&device), data_(data), bytes_(bytes), category_(category) {}
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory();

  Device& device() const { return *device_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Category category() const { return category_; }

 private:
  void swap(Memory& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(category_, other.category_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Category category_ = Category::buffers;
};

}  // namespace machine
