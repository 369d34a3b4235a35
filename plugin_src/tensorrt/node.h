// One FlashAttention node between TensorRT and the core: what every plugin interface asks, answered once. The plugins
// (plugin_v3, plugin_v2) only pass TensorRT's calls on.
#pragma once

#include "core/attention.h"
#include "tensorrt/nvinfer.h"
#include "tensorrt/state.h"

namespace ortflash::trt {

// A tensor as a plugin sees it. At build time there is no data.
struct TensorView {
  nvinfer1::DataType type;
  nvinfer1::Dims dims;
  const void* data = nullptr;
};

class Node {
 public:
  // `name` is the layer's; it may be null, and is cut to what fits.
  Node(const char* name, const NodeState& state);

  const char* name() const { return name_; }
  const NodeState& state() const { return state_; }
  int32_t output_count() const { return state_.attributes.return_lse ? 2 : 1; }

  // Whether a tensor may have this type and format, where the query has `query_type`. Positions count inputs, then
  // outputs.
  static bool takes(int32_t position, int32_t input_count, nvinfer1::DataType type, nvinfer1::TensorFormat format,
                    nvinfer1::DataType query_type);

  // The type of an output. The input types are checked against the schema.
  Status output_type(int32_t index, const nvinfer1::DataType* types, int32_t input_count,
                     nvinfer1::DataType* type) const;

  // The shape of an output as expressions of the inputs' shapes. Sizes that are known already are checked, all of them
  // together where no size is left open.
  Status output_shape(int32_t index, const nvinfer1::DimsExprs* inputs, int32_t input_count,
                      nvinfer1::IExprBuilder& builder, nvinfer1::DimsExprs* shape) const;

  // Whether the core takes these inputs. Where this machine has no GPU, whatever a GPU would have to say about it is
  // left to the first enqueue().
  Status check(const TensorView* inputs, int32_t input_count) const;

  // Workspace for every call between these two, on whatever GPU. The larger of this and earlier answers is remembered,
  // and travels with the engine.
  Status reserve(const TensorView* smallest, const TensorView* largest, size_t* bytes);
  size_t reserved_bytes() const { return state_.workspace_bytes < 0 ? 0 : static_cast<size_t>(state_.workspace_bytes); }

  // Enqueues the attention. `outputs` has output_count() pointers. Thread-safe.
  Status enqueue(const TensorView* inputs, int32_t input_count, void* const* outputs, void* workspace,
                 cudaStream_t stream) const;

 private:
  Status make_params(const TensorView* inputs, int32_t input_count, AttentionParams* params) const;
  Status check_constant_shapes(const nvinfer1::DimsExprs* inputs, int32_t input_count) const;

  char name_[256];
  NodeState state_;
};

}  // namespace ortflash::trt
