// TensorRT's logger as a plugin library gets at it. Its layout changed with TensorRT 11 (and is the new one in
// TensorRT-RTX 1.7), so both are here, and neither TensorRT's own header nor nvinfer10.h can stand for it.
//
// Read in github.com/NVIDIA/TensorRT, include/NvInferRuntime.h and NvInferRuntimeBase.h: ILoggerFinder and ILogger at
// v8.6.0, v10.0.0 and v10.16 have no base; at v11.0 and v11.1 they derive from IVersionedInterface. Severity's values
// are the same in all. getInferLibVersion() is exported by every TensorRT library: major * 1000 + minor * 100 + patch
// up to 9, major * 10000 + minor * 100 + patch from 10 on (NvInferVersion.h); TensorRT-RTX 1.7.1 was seen to return
// 10701.
#pragma once

#include <cstdint>

namespace ortflash::trt::abi {

enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };

namespace bare {  // TensorRT 8.6 to 10
class Logger {
 public:
  virtual void log(Severity severity, const char* message) noexcept = 0;

 protected:
  virtual ~Logger() = default;
};
class LoggerFinder {
 public:
  virtual Logger* findLogger() = 0;

 protected:
  virtual ~LoggerFinder() = default;
};
}  // namespace bare

namespace versioned {  // TensorRT 11, TensorRT-RTX 1.7
struct InterfaceInfo {
  const char* kind;
  int32_t major;
  int32_t minor;
};
class Interface {
 public:
  virtual int32_t getAPILanguage() const noexcept = 0;
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;

 protected:
  virtual ~Interface() noexcept = default;
};
class Logger : public Interface {
 public:
  virtual void log(Severity severity, const char* message) noexcept = 0;
};
class LoggerFinder : public Interface {
 public:
  virtual Logger* findLogger() = 0;
};
}  // namespace versioned

}  // namespace ortflash::trt::abi
