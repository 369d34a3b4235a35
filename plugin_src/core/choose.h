// Choosing an implementation for a call, the same for the forward and its gradients: the first one in a device's list
// whose declaration covers what the call requires and whose hardware is there, or the sentence that says what is
// missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "implementation_grad.h"
#include "status.h"

namespace ortflash {

// "causal, window" for the bits set, or "nothing".
struct FeatureList {
  char text[320] = {0};

  explicit FeatureList(uint32_t features);
};

// "the CPU", or the current GPU. Made only for a message: asking for a GPU's name takes a while.
struct MachineName {
  char text[128] = "the CPU";

  explicit MachineName(Device device);
};

// kOk where `candidate` takes the call on this machine; otherwise what is required, supported and missing.
template <class Candidate, class Params>
Status covers(const Candidate& candidate, const Params& params, const AttentionParams& sizes, uint32_t required,
              Device device) {
  if (sizes.head_size > candidate.max_head_size || sizes.v_head_size > candidate.max_head_size) {
    return make_status(StatusCode::kUnsupported,
                       "%s on %s takes head sizes up to %lld; this call has query and key head size %lld and value "
                       "head size %lld",
                       candidate.name, MachineName(device).text, static_cast<long long>(candidate.max_head_size),
                       static_cast<long long>(sizes.head_size), static_cast<long long>(sizes.v_head_size));
  }
  if (const uint32_t missing = required & ~candidate.features; missing != 0) {
    return make_status(StatusCode::kUnsupported, "%s on %s misses: %s (required: %s)", candidate.name,
                       MachineName(device).text, FeatureList(missing).text, FeatureList(required).text);
  }
  if (Status status = candidate.hardware(); !status.ok()) return status;
  if (candidate.accepts != nullptr) return candidate.accepts(params);
  return {};
}

template <class Candidate>
struct Choice {
  const Candidate* implementation = nullptr;
  Status status;
};

inline bool only_by_name(const Implementation& candidate, const AttentionParams& params) {
  return candidate.only_by_name != nullptr && candidate.only_by_name(params);
}
inline bool only_by_name(const GradImplementation& candidate, const AttentionGradParams&) {
  return candidate.only_by_name;
}

// The first implementation that covers the call (only the one called `name`, where a name is given), or why the last
// one, which is the most general, doesn't.
template <class Candidate, class Params>
Choice<Candidate> choose(const Candidate* first, size_t count, const Params& params, const AttentionParams& sizes,
                         uint32_t required, Device device, const char* name) {
  const bool any_name = name == nullptr || name[0] == '\0';
  Choice<Candidate> choice;
  for (size_t i = 0; i < count; ++i) {
    const Candidate& candidate = first[i];
    if (any_name ? only_by_name(candidate, params) : std::strcmp(candidate.name, name) != 0) continue;
    Status status = covers(candidate, params, sizes, required, device);
    if (status.ok()) return {&candidate, status};
    choice.status = status;
  }
  if (choice.status.ok()) {
    if (!any_name) {
      choice.status = make_status(StatusCode::kUnsupported, "there is no implementation called %s", name);
    } else {
#ifdef ORTFLASH_WITH_CUDA
      choice.status =
          make_status(StatusCode::kUnsupported, "this library has no kernel for it on %s", MachineName(device).text);
#else
      choice.status = make_status(StatusCode::kUnsupported, "this library was built without CUDA");
#endif
    }
  }
  return choice;
}

// Whether the caller's workspace will do for `bytes`.
inline Status check_workspace(size_t bytes, const Execution& execution) {
  if (bytes == 0) return {};
  if (execution.workspace != nullptr && reinterpret_cast<uintptr_t>(execution.workspace) % 256 == 0) return {};
  return make_status(StatusCode::kInvalidArgument, "the workspace is null or not aligned to 256 bytes");
}

}  // namespace ortflash
