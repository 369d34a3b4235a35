#include "tensorrt/log.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#include "flash_attention_schema.h"
#include "tensorrt/abi/logger.h"

namespace ortflash::trt {
namespace {

// One finder for each layout; at most one of them is set.
std::atomic<abi::bare::LoggerFinder*> bare_finder{nullptr};
std::atomic<abi::versioned::LoggerFinder*> versioned_finder{nullptr};

enum class Layout : uint8_t { kBare, kVersioned, kUnknown };

// Which layout `object` has, from the version of the TensorRT library whose code it runs.
Layout layout_of(const void* object) {
  const void* vtable = *static_cast<const void* const*>(object);
  Dl_info library;
  if (dladdr(vtable, &library) == 0) return Layout::kUnknown;
  void* handle = dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return Layout::kUnknown;
  using VersionFunction = int32_t (*)();
  const auto version_function = reinterpret_cast<VersionFunction>(dlsym(handle, "getInferLibVersion"));
  const int32_t version = version_function == nullptr ? 0 : version_function();
  dlclose(handle);

  if (version >= 110000) return Layout::kVersioned;                              // TensorRT 11
  if (version >= 100000) return Layout::kBare;                                   // TensorRT 10
  if (version >= 10700) return Layout::kVersioned;                               // TensorRT-RTX 1.7
  return version >= 8000 && version < 10000 ? Layout::kBare : Layout::kUnknown;  // TensorRT 8 and 9
}

}  // namespace

void set_logger_finder(void* finder) {
  const Layout layout = finder == nullptr ? Layout::kUnknown : layout_of(finder);
  bare_finder = layout == Layout::kBare ? static_cast<abi::bare::LoggerFinder*>(finder) : nullptr;
  versioned_finder = layout == Layout::kVersioned ? static_cast<abi::versioned::LoggerFinder*>(finder) : nullptr;
}

void log_error(const char* node_name, const Status& status) {
  char message[1024];
  if (node_name == nullptr || node_name[0] == '\0') {
    std::snprintf(message, sizeof(message), "%s: %s.", schema::kOpName, status.message);
  } else {
    std::snprintf(message, sizeof(message), "%s node '%s': %s.", schema::kOpName, node_name, status.message);
  }
  if (abi::versioned::LoggerFinder* finder = versioned_finder) {
    if (abi::versioned::Logger* logger = finder->findLogger()) return logger->log(abi::Severity::kERROR, message);
  }
  if (abi::bare::LoggerFinder* finder = bare_finder) {
    if (abi::bare::Logger* logger = finder->findLogger()) return logger->log(abi::Severity::kERROR, message);
  }
  std::fprintf(stderr, "ortflash: %s\n", message);
}

}  // namespace ortflash::trt
