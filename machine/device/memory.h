#pragma once
// Memory that is counted. Every byte a rank takes for tensors goes through its device's Ledger
// under one Category, so the memory oracle compares measured peaks with the closed formulas,
// exactly: requested bytes are counted, not what the allocator rounds them up to.

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace machine {

class Device;

enum class Category : unsigned char {
  parameters,   // the weights that forward and backward read
  gradients,    // what backward accumulates into
  optimizer,    // master weights and moments
  activations,  // what forward keeps for backward
  buffers,      // staging, temporaries, communication
};
inline constexpr std::size_t num_categories = 5;
inline constexpr Category all_categories[] = {Category::parameters, Category::gradients,
                                              Category::optimizer, Category::activations,
                                              Category::buffers};
std::string_view name(Category category);

// Whether a result is stored in the cache or past it. Results bypass the cache if a call's buffers
// exceed it, so that they do not evict data that is still needed.
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
  void reset_peaks();                               // peaks start again from what is held now

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
