#include "tensorrt/log.h"

#include <dlfcn.h>

#include <cstdio>
#include <mutex>

#include "flash_attention_schema.h"
#include "tensorrt/abi/logger.h"
#include "tensorrt/library.h"

namespace ortflash::trt {
namespace {

// Where TensorRT said that its log is: a finder, and the library that it is of.
struct Source {
  void* finder = nullptr;
  Library library;
};

std::mutex source_mutex;
Source current_source;

Source source() {
  const std::lock_guard<std::mutex> lock(source_mutex);
  return current_source;
}

// Each returns whether there was a logger.
template <typename Logger>
bool log_to(Logger* logger, const char* message) {
  if (logger != nullptr) logger->log(abi::Severity::kERROR, message);
  return logger != nullptr;
}
bool log_to_finder(const Source& source, const char* message) {
  if (source.finder == nullptr) return false;
  if (source.library.has_versioned_interfaces()) {
    return log_to(static_cast<abi::versioned::LoggerFinder*>(source.finder)->findLogger(), message);
  }
  return log_to(static_cast<abi::bare::LoggerFinder*>(source.finder)->findLogger(), message);
}
bool log_to_library(const Library& library, const char* message) {
  if (!library.is_known()) return false;
  const auto get_logger = reinterpret_cast<void* (*)()>(dlsym(library.handle, "getLogger"));
  if (get_logger == nullptr) return false;
  if (library.has_versioned_interfaces()) return log_to(static_cast<abi::versioned::Logger*>(get_logger()), message);
  return log_to(static_cast<abi::bare::Logger*>(get_logger()), message);
}

}  // namespace

void set_logger_finder(void* finder) {
  Source next;
  if (finder != nullptr) next.library = library_of(finder);
  if (next.library.is_known()) next.finder = finder;
  const std::lock_guard<std::mutex> lock(source_mutex);
  current_source = next;
}

void log_error(const char* node_name, const Status& status) {
  char message[1024];
  if (node_name == nullptr || node_name[0] == '\0') {
    std::snprintf(message, sizeof(message), "%s: %s.", schema::kOpName, status.message);
  } else {
    std::snprintf(message, sizeof(message), "%s node '%s': %s.", schema::kOpName, node_name, status.message);
  }
  // A finder finds nothing while a model is parsed, and TensorRT 8.6 hands one only to plugins that are stored in
  // engines. Then there is the logger of the library itself: that of its first builder or runtime.
  const Source told = source();
  if (log_to_finder(told, message) || log_to_library(told.library, message)) return;
  if (told.finder == nullptr && log_to_library(loaded_library(), message)) return;
  std::fprintf(stderr, "ortflash: %s\n", message);
}

}  // namespace ortflash::trt
