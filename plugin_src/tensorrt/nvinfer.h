// TensorRT's plugin interfaces: from NVIDIA's headers where CMake was given an SDK (ORTFLASH_TENSORRT_ROOT,
// ORTFLASH_TENSORRT8_ROOT), else from our own declarations of the same binary interface. Everything else includes this
// file.
#pragma once

#ifdef ORTFLASH_TENSORRT_SDK
#include <NvInferRuntime.h>
#elif ORTFLASH_TENSORRT_MAJOR == 8
#include "tensorrt/abi/nvinfer8.h"
#else
#include "tensorrt/abi/nvinfer10.h"
#endif
