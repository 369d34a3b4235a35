// What an implementation that plans before it runs answers from its plan alone: three of an Implementation's functions.
#pragma once

#include <cstddef>
#include <cstdio>

#include "attention.h"
#include "gpu.h"

namespace ortflash {

// kMakePlan: the plan of a valid call on a GPU, or why there is none. kName: the kernels and tiles of a plan.
// Plan has workspace_bytes().
template <typename Params, typename Plan, Status (*kMakePlan)(const Params&, const Gpu&, Plan*),
          void (*kName)(const Plan&, char* name, size_t capacity)>
struct Planned {
  static Status plan(const Params& params, Plan* plan) {
    const Gpu* gpu = nullptr;
    const Status status = current_gpu(&gpu);
    return status.ok() ? kMakePlan(params, *gpu, plan) : status;
  }

  static Status accepts(const Params& params) {
    Plan made;
    return plan(params, &made);
  }

  static size_t workspace_size(const Params& params, const Execution&) {
    Plan made;
    return plan(params, &made).ok() ? made.workspace_bytes() : 0;
  }

  static void describe(const Params& params, const Execution&, char* name, size_t capacity) {
    Plan made;
    const Status status = plan(params, &made);
    if (status.ok()) {
      kName(made, name, capacity);
    } else {
      std::snprintf(name, capacity, "%s", status.message);
    }
  }
};

}  // namespace ortflash
