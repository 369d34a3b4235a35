#include "tensorrt/log.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#include "flash_attention_schema.h"
#include "tensorrt/abi/logger.h"
#include "tensorrt/library.h"

namespace ortflash::trt {
namespace {

// One finder for each layout; at most one of them is set.
std::atomic<abi::bare::LoggerFinder*> bare_finder{nullptr};
std::atomic<abi::versioned::LoggerFinder*> versioned_finder{nullptr};

// Both return whether there was a logger.
template <typename Logger>
bool log_to(Logger* logger, const char* message) {
  if (logger != nullptr) logger->log(abi::Severity::kERROR, message);
  return logger != nullptr;
}
bool log_to_library(const Library& library, const char* message) {
  if (library.handle == nullptr) return false;
  const auto get_logger = reinterpret_cast<void* (*)()>(dlsym(library.handle, "getLogger"));
  if (get_logger == nullptr) return false;
  if (library.has_versioned_interfaces()) return log_to(static_cast<abi::versioned::Logger*>(get_logger()), message);
  return log_to(static_cast<abi::bare::Logger*>(get_logger()), message);
}

}  // namespace

void set_logger_finder(void* finder) {
  const Library library = finder == nullptr ? Library{} : library_of(finder);
  const bool versioned = library.has_versioned_interfaces();
  // TensorRT-RTX before 1.7 was never looked into: it gets no log of ours.
  const bool bare = library.version != 0 && !versioned && !library.is_rtx();
  versioned_finder = versioned ? static_cast<abi::versioned::LoggerFinder*>(finder) : nullptr;
  bare_finder = bare ? static_cast<abi::bare::LoggerFinder*>(finder) : nullptr;
}

void log_error(const char* node_name, const Status& status) {
  char message[1024];
  if (node_name == nullptr || node_name[0] == '\0') {
    std::snprintf(message, sizeof(message), "%s: %s.", schema::kOpName, status.message);
  } else {
    std::snprintf(message, sizeof(message), "%s node '%s': %s.", schema::kOpName, node_name, status.message);
  }
  // TensorRT 8.6 hands a finder only to plugins that are stored in engines, and a finder finds nothing outside a build
  // or a run; then the library's own logger, that of its first builder or runtime, is the one that there is.
  if (abi::versioned::LoggerFinder* finder = versioned_finder; finder != nullptr) {
    if (log_to(finder->findLogger(), message)) return;
  }
  if (abi::bare::LoggerFinder* finder = bare_finder; finder != nullptr) {
    if (log_to(finder->findLogger(), message)) return;
  }
  if (log_to_library(loaded_library(), message)) return;
  std::fprintf(stderr, "ortflash: %s\n", message);
}

}  // namespace ortflash::trt
