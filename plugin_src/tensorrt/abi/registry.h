// TensorRT's plugin registry, as far as registering a creator takes: what REGISTER_TENSORRT_PLUGIN does, for a library
// that links against no TensorRT.
//
// Read in github.com/NVIDIA/TensorRT, include/NvInferRuntimeCommon.h, IPluginRegistry, at v8.6.0, v10.0.0 to v10.16,
// v11.0 and v11.1: the functions before the wanted one, by number; a virtual destructor counts twice. Creators are
// passed by reference, as pointers to their only base (IPluginCreator in 8.6, IPluginCreatorInterface since).
//
//   v8.6   registerCreator(IPluginCreator&) is the first
//   v10    registerCreator(IPluginCreator&), getPluginCreatorList, getPluginCreator, the destructor, setErrorRecorder,
//          getErrorRecorder, deregisterCreator(IPluginCreator), isParentSearchEnabled, setParentSearchEnabled,
//          loadLibrary, deregisterLibrary, registerCreator(IPluginCreatorInterface&), ...
//   v11    without the first three and deregisterCreator(IPluginCreator)
#pragma once

namespace ortflash::trt::abi {

inline constexpr int kRegisterCreatorSlotOf8 = 0;
inline constexpr int kRegisterCreatorSlotOf10 = 12;
inline constexpr int kRegisterCreatorSlotOf11 = 8;

// bool IPluginRegistry::registerCreator(Creator&, const char* const plugin_namespace) noexcept
inline bool register_creator(void* registry, int slot, void* creator, const char* plugin_namespace) {
  using Function = bool (*)(void* self, void* creator, const char* plugin_namespace);
  return (*static_cast<Function* const*>(registry))[slot](registry, creator, plugin_namespace);
}

}  // namespace ortflash::trt::abi
