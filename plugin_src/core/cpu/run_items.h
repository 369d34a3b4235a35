// Spreads the items of a call over the caller's threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../attention.h"

namespace ortflash::cpu {

inline int64_t thread_count(const Execution& execution) {
  const int64_t threads = execution.parallel.run == nullptr ? 1 : execution.parallel.threads;
  return threads < 1 ? 1 : threads;
}

// Threads that have something to do.
inline int64_t slot_count(const Execution& execution, int64_t items) {
  const int64_t threads = thread_count(execution);
  return threads < items ? threads : items;
}

// Calls run(i, scratch) once for each i in [0, items), on slot_count() threads, each of which takes the next item until
// none is left and has `scratch_bytes` of its own from `workspace` on.
template <class Run>
void run_items(const Execution& execution, int64_t items, void* workspace, size_t scratch_bytes, const Run& run) {
  struct Work {
    const Run& run;
    int64_t items;
    char* workspace;
    size_t scratch_bytes;
    std::atomic<int64_t> next{0};

    void run_slot(int64_t slot) {
      void* scratch = workspace + static_cast<size_t>(slot) * scratch_bytes;
      for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < items;
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        run(i, scratch);
      }
    }
  };
  Work work{run, items, static_cast<char*>(workspace), scratch_bytes};
  const int64_t slots = slot_count(execution, items);
  if (slots <= 1) {
    work.run_slot(0);
  } else {
    execution.parallel.run(
        execution.parallel.pool, slots, [](void* arg, int64_t slot) { static_cast<Work*>(arg)->run_slot(slot); },
        &work);
  }
}

}  // namespace ortflash::cpu
