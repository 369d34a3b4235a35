// The C interface: copies flat structs into the core's, calls it, copies the sentence out.
#include "c_api.h"

#include <cstdio>
#include <cstring>

#include "attention.h"
#include "attention_grad.h"
#include "implementation.h"
#include "implementation_grad.h"
#include "status.h"

namespace {

using ortflash::AttentionGradParams;
using ortflash::AttentionParams;
using ortflash::Device;
using ortflash::Execution;
using ortflash::Status;
using ortflash::StatusCode;
using ortflash::Strides;

Strides to_strides(const OrtflashStrides& s) { return {s[0], s[1], s[2], s[3]}; }

Status to_params(const OrtflashParams* from, AttentionParams* to) {
  if (from == nullptr || from->struct_bytes != sizeof(OrtflashParams)) {
    return ortflash::make_status(StatusCode::kInvalidArgument,
                                 "OrtflashParams has %llu bytes in the caller and %zu in this library; they are of "
                                 "different versions",
                                 from == nullptr ? 0ull : static_cast<unsigned long long>(from->struct_bytes),
                                 sizeof(OrtflashParams));
  }
  if (from->dtype < 0 || from->dtype > 2 || from->bias_dtype < 0 || from->bias_dtype > 2) {
    return ortflash::make_status(StatusCode::kInvalidArgument, "dtype %d or bias_dtype %d is not 0, 1 or 2",
                                 static_cast<int>(from->dtype), static_cast<int>(from->bias_dtype));
  }
  to->dtype = static_cast<ortflash::DType>(from->dtype);
  to->batch = from->batch;
  to->num_heads = from->num_heads;
  to->kv_num_heads = from->kv_num_heads;
  to->q_len = from->q_len;
  to->kv_len = from->kv_len;
  to->head_size = from->head_size;
  to->v_head_size = from->v_head_size;
  to->query = from->query;
  to->key = from->key;
  to->value = from->value;
  to->output = from->output;
  to->query_strides = to_strides(from->query_strides);
  to->key_strides = to_strides(from->key_strides);
  to->value_strides = to_strides(from->value_strides);
  to->output_strides = to_strides(from->output_strides);
  to->softmax_lse = from->softmax_lse;
  to->attn_bias = from->attn_bias;
  to->bias_dtype = static_cast<ortflash::DType>(from->bias_dtype);
  to->bias_strides = to_strides(from->bias_strides);
  to->attn_mask = from->attn_mask;
  to->mask_strides = to_strides(from->mask_strides);
  to->key_lengths = from->key_lengths;
  to->key_lengths_stride = from->key_lengths_stride;
  to->block_mask = from->block_mask;
  to->block_mask_strides = to_strides(from->block_mask_strides);
  to->block_size = from->block_size;
  to->sinks = from->sinks;
  to->sinks_stride = from->sinks_stride;
  to->scale = from->scale;
  to->softcap = from->softcap;
  to->mask_fill = from->mask_fill;
  to->is_causal = from->is_causal != 0;
  to->causal_alignment =
      from->causal_alignment == 0 ? ortflash::CausalAlignment::kTopLeft : ortflash::CausalAlignment::kBottomRight;
  to->window_left = from->window_left;
  to->window_right = from->window_right;
  to->precise = from->precise != 0;
  to->dropout_p = from->dropout_p;
  to->dropout_seed = from->dropout_seed;
  return {};
}

Status to_params(const OrtflashGradParams* from, AttentionGradParams* to) {
  if (from == nullptr || from->struct_bytes != sizeof(OrtflashGradParams)) {
    return ortflash::make_status(StatusCode::kInvalidArgument,
                                 "OrtflashGradParams is null or of another version than this library's");
  }
  if (Status status = to_params(&from->forward, &to->forward); !status.ok()) return status;
  to->d_output = from->d_output;
  to->d_output_strides = to_strides(from->d_output_strides);
  to->d_query = from->d_query;
  to->d_query_strides = to_strides(from->d_query_strides);
  to->d_key = from->d_key;
  to->d_key_strides = to_strides(from->d_key_strides);
  to->d_value = from->d_value;
  to->d_value_strides = to_strides(from->d_value_strides);
  to->d_attn_bias = from->d_attn_bias;
  to->d_bias_strides = to_strides(from->d_bias_strides);
  to->d_sinks = from->d_sinks;
  to->deterministic = from->deterministic != 0;
  return {};
}

Device to_device(int32_t device) { return device == 0 ? Device::kCpu : Device::kCuda; }

Status to_execution(const OrtflashExecution* from, Execution* to) {
  if (from == nullptr || from->struct_bytes != sizeof(OrtflashExecution)) {
    return ortflash::make_status(StatusCode::kInvalidArgument,
                                 "OrtflashExecution is null or of another version than this library's");
  }
  to->device = to_device(from->device);
  to->workspace = from->workspace;
  to->stream = from->stream;
  to->parallel.pool = from->pool;
  to->parallel.run = from->run;
  to->parallel.threads = from->threads;
  return {};
}

int32_t report(const Status& status, char* message, size_t capacity) {
  if (message != nullptr && capacity > 0) std::snprintf(message, capacity, "%s", status.message);
  return static_cast<int32_t>(status.code);
}

// One flat struct, one call of the core's, one sentence.
template <class Params, class Flat>
int32_t ask(const Flat* flat, int32_t device, const char* implementation,
            Status (*supports)(const Params&, Device, const char*), char* message, size_t capacity) {
  Params params;
  Status status = to_params(flat, &params);
  if (status.ok()) status = supports(params, to_device(device), implementation);
  return report(status, message, capacity);
}

template <class Params, class Flat>
size_t measure(const Flat* flat, const OrtflashExecution* execution, const char* implementation,
               size_t (*workspace_size)(const Params&, const Execution&, const char*)) {
  Params params;
  Execution e;
  if (!to_params(flat, &params).ok() || !to_execution(execution, &e).ok()) return 0;
  return workspace_size(params, e, implementation);
}

template <class Params, class Flat>
int32_t compute(const Flat* flat, const OrtflashExecution* execution, const char* implementation,
                Status (*run)(const Params&, const Execution&, const char*), char* message, size_t capacity) {
  Params params;
  Execution e;
  Status status = to_params(flat, &params);
  if (status.ok()) status = to_execution(execution, &e);
  if (status.ok()) status = run(params, e, implementation);
  return report(status, message, capacity);
}

template <class Params, class Flat>
int32_t name(const Flat* flat, const OrtflashExecution* execution, const char* implementation,
             Status (*describe)(const Params&, const Execution&, const char*, char*, size_t), char* message,
             size_t capacity) {
  Params params;
  Execution e;
  Status status = to_params(flat, &params);
  if (status.ok()) status = to_execution(execution, &e);
  char text[sizeof(status.message)] = {0};
  if (status.ok()) status = describe(params, e, implementation, text, sizeof(text));
  if (status.ok()) std::memcpy(status.message, text, sizeof(text));
  return report(status, message, capacity);
}

// "a,b" of the implementations whose hardware is there.
template <class List>
void list_names(const List& list, char* names, size_t capacity) {
  if (names == nullptr || capacity == 0) return;
  names[0] = '\0';
  size_t used = 0;
  for (size_t i = 0; i < list.count; ++i) {
    if (!list.first[i].hardware().ok()) continue;
    const int written = std::snprintf(names + used, capacity - used, "%s%s", used == 0 ? "" : ",", list.first[i].name);
    if (written < 0 || used + static_cast<size_t>(written) >= capacity) return;
    used += static_cast<size_t>(written);
  }
}

}  // namespace

extern "C" {

int32_t ortflash_supports(const OrtflashParams* params, int32_t device, const char* implementation, char* message,
                          size_t capacity) {
  return ask<AttentionParams>(params, device, implementation, ortflash::supports, message, capacity);
}

size_t ortflash_workspace_size(const OrtflashParams* params, const OrtflashExecution* execution,
                               const char* implementation) {
  return measure<AttentionParams>(params, execution, implementation, ortflash::workspace_size);
}

int32_t ortflash_forward(const OrtflashParams* params, const OrtflashExecution* execution, const char* implementation,
                         char* message, size_t capacity) {
  return compute<AttentionParams>(params, execution, implementation, ortflash::forward, message, capacity);
}

int32_t ortflash_describe(const OrtflashParams* params, const OrtflashExecution* execution, const char* implementation,
                          char* message, size_t capacity) {
  return name<AttentionParams>(params, execution, implementation, ortflash::describe, message, capacity);
}

int32_t ortflash_supports_backward(const OrtflashGradParams* params, int32_t device, const char* implementation,
                                   char* message, size_t capacity) {
  return ask<AttentionGradParams>(params, device, implementation, ortflash::supports_backward, message, capacity);
}

size_t ortflash_backward_workspace_size(const OrtflashGradParams* params, const OrtflashExecution* execution,
                                        const char* implementation) {
  return measure<AttentionGradParams>(params, execution, implementation, ortflash::backward_workspace_size);
}

int32_t ortflash_backward(const OrtflashGradParams* params, const OrtflashExecution* execution,
                          const char* implementation, char* message, size_t capacity) {
  return compute<AttentionGradParams>(params, execution, implementation, ortflash::backward, message, capacity);
}

int32_t ortflash_describe_backward(const OrtflashGradParams* params, const OrtflashExecution* execution,
                                   const char* implementation, char* message, size_t capacity) {
  return name<AttentionGradParams>(params, execution, implementation, ortflash::describe_backward, message, capacity);
}

void ortflash_implementations(int32_t device, char* names, size_t capacity) {
#ifdef ORTFLASH_WITH_CUDA
  if (device == 1) return list_names(ortflash::cuda_implementations(), names, capacity);
#endif
  list_names(device == 0 ? ortflash::cpu_implementations() : ortflash::ImplementationList{nullptr, 0}, names, capacity);
}

void ortflash_backward_implementations(int32_t device, char* names, size_t capacity) {
#ifdef ORTFLASH_WITH_CUDA
  if (device == 1) return list_names(ortflash::cuda_grad_implementations(), names, capacity);
#endif
  list_names(device == 0 ? ortflash::cpu_grad_implementations() : ortflash::GradImplementationList{nullptr, 0}, names,
             capacity);
}

const char* ortflash_build_info(void) {
  return "compiler="
#if defined(__clang__)
         "clang " __clang_version__
#elif defined(__GNUC__)
         "gcc " __VERSION__
#else
         "unknown"
#endif
         "; cpu="
#ifdef ORTFLASH_CPU_X86
         "avx512,avx2,portable"
#else
         "portable"
#endif
         "; cuda="
#ifdef ORTFLASH_CUDA_ARCHITECTURES
      ORTFLASH_CUDA_ARCHITECTURES
#else
         "none"
#endif
      ;
}

}  // extern "C"
