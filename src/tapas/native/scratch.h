// Memory for intermediate results.
//
// A large block that is freed goes back to the system, which clears it before the next call can use
// it: that can take longer than the work itself. So a few large blocks are kept for the next call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace tapas {

constexpr size_t KEPT_FROM = 64 << 10;  // bytes; smaller blocks stay in malloc's own lists
constexpr size_t KEPT_AT_MOST = 16 << 20;

class ScratchCache {
 public:
  // A block of at least `size` bytes; `size` becomes that of the block.
  void* take(size_t& size) {
    size = (size + 63) / 64 * 64;
    // only tried: after a fork in the middle of another thread's call it would never be unlocked
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (size >= KEPT_FROM && lock) {
      auto best = blocks_.end();
      for (auto it = blocks_.begin(); it != blocks_.end(); ++it)
        if (it->size >= size && it->size <= 2 * size && (best == blocks_.end() || it->size < best->size))
          best = it;
      if (best != blocks_.end()) {
        void* found = best->at;
        size = best->size;
        total_ -= best->size;
        blocks_.erase(best);
        return found;
      }
    }
    return ::operator new(size, std::align_val_t{64});
  }

  // Keeps the block, and lets the oldest ones go.
  void give(void* at, size_t size) noexcept {
    std::vector<Kept> old;
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (size >= KEPT_FROM && size <= KEPT_AT_MOST && lock) {
      try {
        blocks_.push_back({at, size});
        total_ += size;
        at = nullptr;
        while (total_ > KEPT_AT_MOST) {
          old.push_back(blocks_.front());
          total_ -= blocks_.front().size;
          blocks_.erase(blocks_.begin());
        }
      } catch (const std::bad_alloc&) {  // then the lists are as before, or hold one block more
      }
    }
    if (lock) lock.unlock();
    if (at) release(at);
    for (const Kept& block : old) release(block.at);
  }

 private:
  struct Kept {
    void* at;
    size_t size;
  };

  static void release(void* at) { ::operator delete(at, std::align_val_t{64}); }

  std::mutex mutex_;
  std::vector<Kept> blocks_;  // the oldest first
  size_t total_ = 0;
};

inline ScratchCache& scratch_cache() {
  static ScratchCache* cache = new ScratchCache;  // never destroyed: threads may outlive statics
  return *cache;
}

// An array for intermediate results, not initialised unless a value is given.
template <class T>
struct Scratch {
  size_t bytes;
  T* at;

  explicit Scratch(int64_t size)
      : bytes(std::max<int64_t>(size, 1) * sizeof(T)), at(static_cast<T*>(scratch_cache().take(bytes))) {}
  Scratch(int64_t size, T value) : Scratch(size) { std::fill_n(at, size, value); }
  ~Scratch() {
    if (at) scratch_cache().give(at, bytes);
  }
  Scratch(Scratch&& other) noexcept : bytes(other.bytes), at(other.at) { other.at = nullptr; }
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(bytes, other.bytes);
    std::swap(at, other.at);
    return *this;
  }

  T& operator[](int64_t i) { return at[i]; }
  const T& operator[](int64_t i) const { return at[i]; }
  T* data() const { return at; }
};

}  // namespace tapas
