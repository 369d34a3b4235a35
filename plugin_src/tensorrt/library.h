// The TensorRT library of this process: which version, and what it exports. Nothing here links against it.
#pragma once

#include <cstdint>

namespace ortflash::trt {

// TensorRT as its own getInferLibVersion() tells it, in the manner of NvInferVersion.h: major * 1000 up to TensorRT 9,
// major * 10000 from TensorRT 10 on. TensorRT-RTX counts its own versions from 1 on; 1.7.1 was seen to say 10701.
struct Library {
  int32_t version = 0;     // 0: none was found
  void* handle = nullptr;  // for dlsym(); the process keeps the library, so it is never closed

  // Whether the layout of its classes is known: TensorRT-RTX before 1.7 was never looked into.
  bool is_known() const { return handle != nullptr && (!is_rtx() || version >= 10700); }
  int major() const { return version >= 10000 ? version / 10000 : version / 1000; }
  bool is_rtx() const { return version >= 10000 && version < 100000; }
  // Interfaces that every class of TensorRT's derives from, loggers and all: TensorRT 11, and TensorRT-RTX 1.7.
  bool has_versioned_interfaces() const { return is_rtx() ? version >= 10700 : major() >= 11; }
};

// The library whose code this object of TensorRT's runs: where its table of virtual functions lies.
Library library_of(const void* object);

// The library that the process has loaded: libnvinfer.so of TensorRT 8.6 or newer, or its lean runtime.
Library loaded_library();

}  // namespace ortflash::trt
