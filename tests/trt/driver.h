// What both drivers (driver_v3.cc, driver_v2.cc) share. They play TensorRT's part for a plugin, as far as that needs no
// TensorRT: plain C functions for tests/tensorrt/driver.py. Each is built against the declarations in tensorrt/abi.
#pragma once

#include <dlfcn.h>
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <type_traits>

#include "tensorrt/abi/logger.h"
#include "tensorrt/nvinfer.h"

#define DRIVER_EXPORT extern "C" __attribute__((visibility("default")))

// What getInferLibVersion() answers: it tells the plugin which layout the logger finder has.
inline int32_t& library_version() {
  static int32_t version = 100000;
  return version;
}

inline std::string& log_text() {
  static std::string text;
  return text;
}

namespace abi = ortflash::trt::abi;

// From any thread. ORTFLASH_DRIVER_LOG: to stderr too, as it comes, with the seconds since the first. A builder says
// tens of thousands of verbose lines: they are never kept, and shown where the variable says "verbose".
inline void keep(abi::Severity severity, const char* message) {
  static std::mutex mutex;
  static const auto began = std::chrono::steady_clock::now();
  static const char* const shown = std::getenv("ORTFLASH_DRIVER_LOG");
  const bool verbose = severity == abi::Severity::kVERBOSE;
  if (verbose && (shown == nullptr || std::strcmp(shown, "verbose") != 0)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string line = std::to_string(static_cast<int>(severity)) + " " + message + "\n";
  if (!verbose) log_text() += line;
  if (shown == nullptr) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
  std::fprintf(stderr, "%7.2f s  %s", elapsed.count(), line.c_str());
}

struct BareLogger final : abi::bare::Logger {
  void log(abi::Severity severity, const char* message) noexcept override { keep(severity, message); }
};
struct BareFinder final : abi::bare::LoggerFinder {
  BareLogger logger;
  abi::bare::Logger* findLogger() override { return &logger; }
};
struct VersionedLogger final : abi::versioned::Logger {
  int32_t getAPILanguage() const noexcept override { return 0; }
  abi::versioned::InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILogger", 1, 0}; }
  void log(abi::Severity severity, const char* message) noexcept override { keep(severity, message); }
};
struct VersionedFinder final : abi::versioned::LoggerFinder {
  VersionedLogger logger;
  int32_t getAPILanguage() const noexcept override { return 0; }
  abi::versioned::InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILoggerFinder", 1, 0}; }
  abi::versioned::Logger* findLogger() override { return &logger; }
};

DRIVER_EXPORT int32_t getInferLibVersion() { return library_version(); }

// Hands the plugin a finder in the layout of that version, or none for 0.
DRIVER_EXPORT void driver_set_version(void* library, int32_t version) {
  static BareFinder bare;
  static VersionedFinder versioned;
  library_version() = version;
  const auto set = reinterpret_cast<void (*)(void*)>(dlsym(library, "setLoggerFinder"));
  const bool is_versioned = version >= 110000 || (version >= 10700 && version < 100000);
  set(version == 0 ? nullptr : is_versioned ? static_cast<void*>(&versioned) : static_cast<void*>(&bare));
}

// Null, and the reason in driver_log(), where the library does not load.
DRIVER_EXPORT void* driver_open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) log_text() += dlerror();
  return library;
}

// What was logged since the last call: a line each, led by the severity.
DRIVER_EXPORT const char* driver_log() {
  static std::string taken;
  taken.swap(log_text());
  log_text().clear();
  return taken.c_str();
}

// Bytes that are allocated at this moment.
DRIVER_EXPORT size_t driver_allocated_bytes() { return mallinfo2().uordblks; }

// One value of a PluginField; the same struct in driver.py.
struct DriverField {
  const char* name;
  const void* data;
  int32_t type;
  int32_t length;
};

// One tensor; the same struct in driver.py. -1 is an unknown size.
struct DriverTensor {
  int32_t type;
  int32_t rank;
  int64_t dims[8];
};

inline nvinfer1::Dims to_dims(const DriverTensor& tensor) {
  nvinfer1::Dims dims = {};
  dims.nbDims = tensor.rank;
  for (int32_t i = 0; i < tensor.rank && i < nvinfer1::Dims::MAX_DIMS; ++i) dims.d[i] = tensor.dims[i];
  return dims;
}

inline nvinfer1::PluginTensorDesc to_desc(const DriverTensor& tensor) {
  return {to_dims(tensor), static_cast<nvinfer1::DataType>(tensor.type), nvinfer1::TensorFormat::kLINEAR, 1.0f};
}

// Sizes as expressions: a number, or the number that it has in this call and TensorRT would not know yet.
using Size = std::remove_extent_t<decltype(nvinfer1::Dims::d)>;

class Expression final : public nvinfer1::IDimensionExpr, public nvinfer1::apiv::VDimensionExpr {
 public:
  Expression(Size value, bool constant) : value_(value), constant_(constant) { mImpl = this; }
  bool isConstant() const noexcept override { return constant_; }
  Size getConstantValue() const noexcept override { return constant_ ? value_ : -1; }
#if ORTFLASH_TENSORRT_MAJOR >= 10
  bool isSizeTensor() const override { return false; }
#endif
  Size value() const { return value_; }

 private:
  Size value_;
  bool constant_;
};

class Builder final : public nvinfer1::IExprBuilder, public nvinfer1::apiv::VExprBuilder {
 public:
  Builder() { mImpl = this; }
  const Expression* make(Size value, bool constant) { return &expressions_.emplace_back(value, constant); }
  const nvinfer1::IDimensionExpr* constant(Size value) override { return make(value, true); }
  const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation op, const nvinfer1::IDimensionExpr& first,
                                            const nvinfer1::IDimensionExpr& second) override {
    const auto& a = static_cast<const Expression&>(first);
    const auto& b = static_cast<const Expression&>(second);
    const bool product = op == nvinfer1::DimensionOperation::kPROD;
    return make(product ? a.value() * b.value() : a.value() / b.value(), a.isConstant() && b.isConstant());
  }
#if ORTFLASH_TENSORRT_MAJOR >= 10
  const nvinfer1::IDimensionExpr* declareSizeTensor(int32_t, const nvinfer1::IDimensionExpr&,
                                                    const nvinfer1::IDimensionExpr&) override {
    return nullptr;
  }
#endif

  // The shape of a tensor; where `constant` is false, every size is one that is not known yet.
  nvinfer1::DimsExprs shape(const DriverTensor& tensor, bool constant) {
    nvinfer1::DimsExprs exprs = {};
    exprs.nbDims = tensor.rank;
    for (int32_t i = 0; i < tensor.rank; ++i) exprs.d[i] = make(static_cast<Size>(tensor.dims[i]), constant);
    return exprs;
  }

 private:
  std::deque<Expression> expressions_;  // their addresses stay
};

inline void from_shape(const nvinfer1::DimsExprs& exprs, DriverTensor* tensor) {
  tensor->rank = exprs.nbDims;
  for (int32_t i = 0; i < exprs.nbDims; ++i) tensor->dims[i] = static_cast<const Expression*>(exprs.d[i])->value();
}
