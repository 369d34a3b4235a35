// RegisterCustomOps: the one symbol of the library, called by ONNX Runtime when a session asks for it.
#include <cstdio>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <mutex>

#include "flash_attention_schema.h"
#include "onnxruntime/api.h"
#include "onnxruntime/custom_op.h"

namespace ortflash::ort {
namespace {

// Session config entries: the first is ours to write, the second the user's.
constexpr char kRegisteredKey[] = "ortflash.registered";
constexpr char kPreciseKey[] = "ortflash.precise";

// The operators' kernels for one ONNX Runtime and one value of `precise`. Sessions point into it for as long as they
// live, so it is shared by all of them and never taken away.
struct Registration {
  const OrtApi& api;
  const bool precise;
  OrtCustomOpDomain* domain = nullptr;
  std::deque<CustomOp> ops;  // their addresses stay

  Registration(const OrtApi& ort_api, bool is_precise) : api(ort_api), precise(is_precise) {}

  OrtStatus* fill() {
    ORTFLASH_RETURN_IF_ERROR(api.CreateCustomOpDomain(schema::kDomain, &domain));
    const Device devices[] = {
        Device::kCpu,
#if ORTFLASH_WITH_CUDA
        Device::kCuda,
#endif
    };
    for (const Device device : devices) {
      for (const ONNXTensorElementDataType type :
           {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
            ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16}) {
        for (const OpSpec* spec : {&kFlashAttention, &kFlashAttentionGrad}) {
          ops.emplace_back(api, *spec, device, type, precise);
          ORTFLASH_RETURN_IF_ERROR(api.CustomOpDomain_Add(domain, &ops.back()));
        }
      }
    }
    return nullptr;
  }
};

OrtStatus* find_or_make(const OrtApi& api, bool precise, Registration** found) {
  static std::mutex mutex;
  static auto& registrations = *new std::deque<Registration>;  // outlives every session, also while a process ends
  const std::lock_guard<std::mutex> lock(mutex);
  for (Registration& registration : registrations) {
    if (&registration.api == &api && registration.precise == precise) {
      *found = &registration;
      return nullptr;
    }
  }
  registrations.emplace_back(api, precise);
  OrtStatus* status = registrations.back().fill();
  if (status != nullptr) {
    registrations.pop_back();
    return status;
  }
  *found = &registrations.back();
  return nullptr;
}

OrtStatus* has_entry(const OrtApi& api, const OrtSessionOptions* options, const char* key, bool* has) {
  int found = 0;
  ORTFLASH_RETURN_IF_ERROR(api.HasSessionConfigEntry(options, key, &found));
  *has = found != 0;
  return nullptr;
}

// `ortflash.precise`: "1" or "0", absent means "0".
OrtStatus* read_precise(const OrtApi& api, const OrtSessionOptions* options, bool* precise) {
  *precise = false;
  bool has = false;
  ORTFLASH_RETURN_IF_ERROR(has_entry(api, options, kPreciseKey, &has));
  if (!has) return nullptr;
  char value[8] = {0};
  size_t size = sizeof(value);
  OwnedStatus status(api, api.GetSessionConfigEntry(options, kPreciseKey, value, &size));
  *precise = status.ok() && std::strcmp(value, "1") == 0;
  if (*precise || (status.ok() && std::strcmp(value, "0") == 0)) return nullptr;
  return api.CreateStatus(ORT_INVALID_ARGUMENT, "the session config entry 'ortflash.precise' must be \"0\" or \"1\".");
}

OrtStatus* register_ops(const OrtApi& api, OrtSessionOptions* options) {
  // A second registration in the same options would be refused as a second operator of the same name.
  bool registered = false;
  ORTFLASH_RETURN_IF_ERROR(has_entry(api, options, kRegisteredKey, &registered));
  if (registered) return nullptr;
  bool precise = false;
  ORTFLASH_RETURN_IF_ERROR(read_precise(api, options, &precise));
  Registration* registration = nullptr;
  ORTFLASH_RETURN_IF_ERROR(find_or_make(api, precise, &registration));
  ORTFLASH_RETURN_IF_ERROR(api.AddCustomOpDomain(options, registration->domain));
  return api.AddSessionConfigEntry(options, kRegisteredKey, "1");
}

// The API of the version that is asked for, or a status made with the oldest one, which every release has.
OrtStatus* get_api(const OrtApiBase* base, const OrtApi** api) {
  const char* version = base->GetVersionString();
  int major = 0, minor = 0;
  // The version is looked at first, because asking an old ONNX Runtime for a new API makes it print to stderr.
  const bool known = std::sscanf(version, "%d.%d", &major, &minor) == 2;
  const bool old = known && major == 1 && minor < static_cast<int>(kApiVersion);
  *api = old ? nullptr : base->GetApi(kApiVersion);
  if (*api != nullptr) return nullptr;
  char message[160];
  std::snprintf(message, sizeof(message), "ortflash needs ONNX Runtime 1.%u or newer, and this is %s.", kApiVersion,
                version);
  return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, message);
}

}  // namespace
}  // namespace ortflash::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                                            const OrtApiBase* base) {
  const OrtApi* api = nullptr;
  ORTFLASH_RETURN_IF_ERROR(ortflash::ort::get_api(base, &api));
  try {
    return ortflash::ort::register_ops(*api, options);
  } catch (...) {
    return api->CreateStatus(ORT_FAIL, "ortflash: out of memory.");
  }
}
