// What the kernels of FlashAttention and of its gradient share: a node that is read once, its inputs in each call, and
// running on ONNX Runtime's threads, stream and memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adapter/attributes.h"
#include "adapter/call.h"
#include "core/attention.h"
#include "flash_attention_schema.h"
#include "onnxruntime/api.h"

namespace ortflash::ort {

// An operator's name and inputs.
struct Ports {
  const char* op_name;
  const schema::Input* inputs;
  size_t count;
  // The forward's input that the one at `index` is; only asked for optional ones.
  schema::InputIndex (*forward_input)(size_t index);
};

constexpr size_t kMostInputs = schema::grad::kInputCount;
static_assert(size_t{schema::grad::kInputCount} > size_t{schema::kInputCount}, "kMostInputs");

// A tensor with room for its shape. Ranks past kMaxRank are told by their number, but not held.
constexpr size_t kMaxRank = 8;
struct InputTensor {
  int64_t shape[kMaxRank];
  Tensor tensor;
};

class NodeKernel {
 protected:
  NodeKernel(const OrtApi& api, Device device, bool precise, const Ports& ports)
      : api_(api), device_(device), precise_(precise), ports_(ports), allocator_(api) {}
  ~NodeKernel() = default;

  // Reads and checks name, attributes and constant inputs.
  OrtStatus* read_node(const OrtKernelInfo& info);

  // The node's integer attribute, or its default; checked.
  OrtStatus* read_int(const OrtKernelInfo& info, const schema::IntAttribute& attribute, int64_t* value) const;

  // The inputs of a call; neutral ones are absent. `inputs` point into `storage`.
  OrtStatus* read_inputs(OrtKernelContext& context, InputTensor (&storage)[kMostInputs],
                         Tensor (&inputs)[kMostInputs]) const;

  // The output's data; null where the node does not have it.
  OrtStatus* output_data(OrtKernelContext& context, size_t index, const int64_t* shape, size_t rank, void** data) const;

  // Runs a call with a workspace. `supports`, `workspace_size` and `run` are the core's for these params.
  template <class Params>
  OrtStatus* run(OrtKernelContext& context, const Params& params, Status (*supports)(const Params&, Device),
                 size_t (*workspace_size)(const Params&, const Execution&),
                 Status (*compute)(const Params&, const Execution&)) const {
    ORTFLASH_RETURN_IF_ERROR(told(supports(params, device_)));
    struct Bound {
      const Params& params;
      size_t (*workspace_size)(const Params&, const Execution&);
      Status (*compute)(const Params&, const Execution&);
    };
    const Bound bound{params, workspace_size, compute};
    return run_bound(
        context, &bound,
        [](const void* call, const Execution& execution) {
          const Bound& b = *static_cast<const Bound*>(call);
          return b.workspace_size(b.params, execution);
        },
        [](const void* call, const Execution& execution) {
          const Bound& b = *static_cast<const Bound*>(call);
          return b.compute(b.params, execution);
        });
  }

  // The core's status as ONNX Runtime's, with the node's name.
  OrtStatus* told(const Status& status) const { return to_ort_status(api_, ports_.op_name, name_, status); }

  const OrtApi& api_;
  const Device device_;
  const bool precise_;
  Attributes attributes_;

 private:
  OrtStatus* read_constants(const OrtKernelInfo& info);
  OrtStatus* run_bound(OrtKernelContext& context, const void* call,
                       size_t (*workspace_size)(const void* call, const Execution&),
                       Status (*compute)(const void* call, const Execution&)) const;

  const Ports ports_;
  char name_[256] = {0};
  OwnedAllocator allocator_;               // of the device's memory
  const OrtMemoryInfo* memory_ = nullptr;  // owned by allocator_
  int64_t threads_ = 1;
  bool neutral_[kMostInputs] = {false};  // inputs whose constant value says that they are not there
};

}  // namespace ortflash::ort
