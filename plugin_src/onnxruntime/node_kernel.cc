#include "onnxruntime/node_kernel.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <thread>

#include "core/status.h"
#include "onnxruntime/device_memory.h"

namespace ortflash::ort {
namespace {

constexpr size_t kWorkspaceAlignment = 256;

// The attributes of a node whose kernel is being made.
class KernelInfoAttributes final : public AttributeSource {
 public:
  KernelInfoAttributes(const OrtApi& api, const OrtKernelInfo& info) : api_(api), info_(info) {}

  Found read_int(const char* name, int64_t* value) const override {
    return is_int(name, value) ? Found::kYes : missing(name);
  }
  Found read_float(const char* name, float* value) const override {
    return is_float(name, value) ? Found::kYes : missing(name);
  }
  Found read_string(const char* name, char* value, size_t capacity) const override {
    char text[256];
    size_t size = sizeof(text);
    if (!OwnedStatus(api_, api_.KernelInfoGetAttribute_string(&info_, name, text, &size)).ok()) {
      if (size <= sizeof(text)) return missing(name);
      std::snprintf(text, sizeof(text), "(%zu characters)", size - 1);
    }
    std::snprintf(value, capacity, "%s", text);
    return Found::kYes;
  }

 private:
  bool is_int(const char* name, int64_t* value) const {
    return OwnedStatus(api_, api_.KernelInfoGetAttribute_int64(&info_, name, value)).ok();
  }
  bool is_float(const char* name, float* value) const {
    return OwnedStatus(api_, api_.KernelInfoGetAttribute_float(&info_, name, value)).ok();
  }
  // ONNX Runtime tells an absent attribute from one of another type by its message only, so the types are tried.
  Found missing(const char* name) const {
    int64_t integer;
    float number;
    size_t size = 0;
    const bool other = is_int(name, &integer) || is_float(name, &number) ||
                       OwnedStatus(api_, api_.KernelInfoGetAttribute_string(&info_, name, nullptr, &size)).ok() ||
                       OwnedStatus(api_, api_.KernelInfoGetAttributeArray_int64(&info_, name, nullptr, &size)).ok() ||
                       OwnedStatus(api_, api_.KernelInfoGetAttributeArray_float(&info_, name, nullptr, &size)).ok();
    return other ? Found::kOtherType : Found::kAbsent;
  }

  const OrtApi& api_;
  const OrtKernelInfo& info_;
};

// Every type that no input of the schema has comes out as none of its bits.
schema::Type schema_type(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return schema::kTypeFloat32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return schema::kTypeFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return schema::kTypeBFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return schema::kTypeBool;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return schema::kTypeInt32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return schema::kTypeInt64;
    default:
      return schema::Type{0};
  }
}

OrtStatus* read_tensor(const OrtApi& api, const OrtValue& value, InputTensor* input) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ORTFLASH_RETURN_IF_ERROR(api.GetTensorTypeAndShape(&value, &info));
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  OrtStatus* status = api.GetTensorElementType(info, &type);
  if (status == nullptr) status = api.GetDimensionsCount(info, &input->tensor.rank);
  if (status == nullptr && input->tensor.rank > kMaxRank) {
    status = api.CreateStatus(ORT_INVALID_ARGUMENT, "FlashAttention: an input has more than 8 axes.");
  }
  if (status == nullptr) status = api.GetDimensions(info, input->shape, input->tensor.rank);
  api.ReleaseTensorTypeAndShapeInfo(info);
  ORTFLASH_RETURN_IF_ERROR(status);

  void* data = nullptr;
  ORTFLASH_RETURN_IF_ERROR(api.GetTensorMutableData(const_cast<OrtValue*>(&value), &data));
  input->tensor.present = true;
  input->tensor.data = data;
  input->tensor.type = schema_type(type);
  input->tensor.shape = input->shape;
  return nullptr;
}

bool has_one_element(const Tensor& tensor) {
  return std::all_of(tensor.shape, tensor.shape + tensor.rank, [](int64_t size) { return size == 1; });
}

// The session's thread pool as the core's Parallel. It keeps the first failure, since the core's call returns nothing.
struct Pool {
  const OrtApi& api;
  const OrtKernelContext& context;
  OrtStatus* failure = nullptr;

  struct Task {
    void (*body)(void* arg, int64_t i);
    void* arg;
  };
  static void run(void* pool, int64_t count, void (*body)(void* arg, int64_t i), void* arg) {
    auto& self = *static_cast<Pool*>(pool);
    Task task{body, arg};
    const auto one = [](void* user, size_t i) {
      const auto& work = *static_cast<const Task*>(user);
      work.body(work.arg, static_cast<int64_t>(i));
    };
    constexpr size_t kNoBatches = 0;  // each call is taken from the queue by itself
    OwnedStatus status(self.api, self.api.KernelContext_ParallelFor(&self.context, one, static_cast<size_t>(count),
                                                                    kNoBatches, &task));
    if (!status.ok() && self.failure == nullptr) self.failure = status.release();
  }
};

// Scratch from ONNX Runtime's arena for one call. On a GPU it belongs to the call's stream: it may be given back as
// soon as the work is enqueued, and nobody on another stream gets it before that is done.
class Workspace {
 public:
  explicit Workspace(OrtAllocator* allocator) : allocator_(allocator) {}
  ~Workspace() {
    if (block_ != nullptr) allocator_->Free(allocator_, block_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  OrtStatus* reserve(const OrtApi& api, const OrtKernelContext& context, const OrtMemoryInfo* memory, bool on_stream,
                     size_t bytes) {
    if (bytes == 0) return nullptr;
    const size_t padded = bytes + kWorkspaceAlignment;
    if (on_stream) {
      ORTFLASH_RETURN_IF_ERROR(api.KernelContext_GetScratchBuffer(&context, memory, padded, &block_));
    } else {
      block_ = allocator_->Alloc(allocator_, padded);
    }
    if (block_ == nullptr) return api.CreateStatus(ORT_FAIL, "FlashAttention: no memory for the workspace.");
    return nullptr;
  }
  void* aligned() const {
    const auto address = reinterpret_cast<uintptr_t>(block_);
    return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) & ~(kWorkspaceAlignment - 1));
  }

 private:
  OrtAllocator* allocator_;
  void* block_ = nullptr;
};

}  // namespace

OrtStatus* NodeKernel::read_node(const OrtKernelInfo& info) {
  size_t size = sizeof(name_);
  if (!OwnedStatus(api_, api_.KernelInfo_GetNodeName(&info, name_, &size)).ok()) {
    std::snprintf(name_, sizeof(name_), "(a name of %zu characters)", size - 1);
  }
  ORTFLASH_RETURN_IF_ERROR(told(read_attributes(KernelInfoAttributes(api_, info), &attributes_)));
  ORTFLASH_RETURN_IF_ERROR(api_.KernelInfoGetAllocator(&info, OrtMemTypeDefault, allocator_.out()));
  memory_ = allocator_.get()->Info(allocator_.get());
  threads_ = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return device_ == Device::kCuda ? read_constants(info) : nullptr;
}

OrtStatus* NodeKernel::read_int(const OrtKernelInfo& info, const schema::IntAttribute& attribute,
                                int64_t* value) const {
  return told(read_attribute(KernelInfoAttributes(api_, info), attribute, value));
}

// On the CPU a neutral element is looked at in each call. A GPU's memory can't be read without waiting for it, so there
// the constant inputs are looked at here, once.
OrtStatus* NodeKernel::read_constants(const OrtKernelInfo& info) {
  size_t count = 0;
  ORTFLASH_RETURN_IF_ERROR(api_.KernelInfo_GetInputCount(&info, &count));
  for (size_t i = 0; i < std::min(count, ports_.count); ++i) {
    if (!ports_.inputs[i].optional) continue;
    int is_constant = 0;
    const OrtValue* value = nullptr;
    ORTFLASH_RETURN_IF_ERROR(api_.KernelInfoGetConstantInput_tensor(&info, i, &is_constant, &value));
    if (is_constant == 0 || value == nullptr) continue;
    InputTensor input;
    ORTFLASH_RETURN_IF_ERROR(read_tensor(api_, *value, &input));
    if (!has_one_element(input.tensor)) continue;
    alignas(8) unsigned char element[8] = {0};
    ORTFLASH_RETURN_IF_ERROR(told(copy_to_host(input.tensor.data, element_size(input.tensor.type), element)));
    neutral_[i] = is_neutral(ports_.forward_input(i), input.tensor.type, element);
  }
  return nullptr;
}

OrtStatus* NodeKernel::read_inputs(OrtKernelContext& context, InputTensor (&storage)[kMostInputs],
                                   Tensor (&inputs)[kMostInputs]) const {
  size_t count = 0;
  ORTFLASH_RETURN_IF_ERROR(api_.KernelContext_GetInputCount(&context, &count));
  for (size_t i = 0; i < std::min(count, ports_.count); ++i) {
    const OrtValue* value = nullptr;
    ORTFLASH_RETURN_IF_ERROR(api_.KernelContext_GetInput(&context, i, &value));
    if (value == nullptr || neutral_[i]) continue;
    ORTFLASH_RETURN_IF_ERROR(read_tensor(api_, *value, &storage[i]));
    const Tensor& tensor = storage[i].tensor;
    const bool neutral = device_ == Device::kCpu && ports_.inputs[i].optional && has_one_element(tensor) &&
                         is_neutral(ports_.forward_input(i), tensor.type, tensor.data);
    if (!neutral) inputs[i] = tensor;
  }
  return nullptr;
}

OrtStatus* NodeKernel::output_data(OrtKernelContext& context, size_t index, const int64_t* shape, size_t rank,
                                   void** data) const {
  OrtValue* value = nullptr;
  ORTFLASH_RETURN_IF_ERROR(api_.KernelContext_GetOutput(&context, index, shape, rank, &value));
  *data = nullptr;
  return value == nullptr ? nullptr : api_.GetTensorMutableData(value, data);
}

OrtStatus* NodeKernel::run_bound(OrtKernelContext& context, const void* call,
                                 size_t (*workspace_size)(const void* call, const Execution&),
                                 Status (*compute)(const void* call, const Execution&)) const {
  Pool pool{api_, context};
  Execution execution;
  execution.device = device_;
  const bool on_gpu = device_ == Device::kCuda;
  if (on_gpu) {
    ORTFLASH_RETURN_IF_ERROR(api_.KernelContext_GetGPUComputeStream(&context, &execution.stream));
  } else {
    execution.parallel = {&pool, &Pool::run, threads_};
  }
  Workspace workspace(allocator_.get());
  ORTFLASH_RETURN_IF_ERROR(workspace.reserve(api_, context, memory_, on_gpu, workspace_size(call, execution)));
  execution.workspace = workspace.aligned();
  const Status status = compute(call, execution);
  if (pool.failure != nullptr) return pool.failure;
  return told(status);
}

}  // namespace ortflash::ort
