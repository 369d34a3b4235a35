// libortflash_trt_register.so: registers the plugin by being loaded, for programs that only dlopen plugin libraries and
// then look into TensorRT's registry (trtexec --staticPlugins, ONNX Runtime's TensorRT provider).
//
// It is a library of its own, because one that registers itself can't also be loaded with the registry's loadLibrary():
// that refuses creators that are registered already.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "flash_attention_schema.h"
#include "tensorrt/abi/registry.h"
#include "tensorrt/library.h"

namespace ortflash::trt {
namespace {

bool complain(const char* what) {
  std::fprintf(stderr, "ortflash: the TensorRT plugin is not registered: %s\n", what);
  return false;
}

// The file `name` in the folder that this library lies in.
bool path_beside(const char* name, char* path, size_t capacity) {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&path_beside), &info) == 0) return false;
  const char* slash = std::strrchr(info.dli_fname, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash - info.dli_fname + 1);
  const int length = std::snprintf(path, capacity, "%.*s%s", folder, info.dli_fname, name);
  return length > 0 && static_cast<size_t>(length) < capacity;
}

// Both plugins' lists are pointers to objects of one base, and so serve as pointers to anything.
void* creator_in(void* plugin, const char* function) {
  const auto get = reinterpret_cast<void* const* (*)(int&)>(dlsym(plugin, function));
  int count = 0;
  void* const* creators = get == nullptr ? nullptr : get(count);
  return count == 1 ? creators[0] : nullptr;
}

bool register_plugin() {
  const Library tensorrt = loaded_library();
  if (tensorrt.handle == nullptr) return complain("TensorRT must be loaded first, and is not in this process");
  const auto get_registry = reinterpret_cast<void* (*)()>(dlsym(tensorrt.handle, "getPluginRegistry"));
  if (get_registry == nullptr) return complain("TensorRT has no getPluginRegistry()");

  const bool old = tensorrt.major() < 10;
  char path[4096];
  if (!path_beside(old ? "libortflash_trt8.so" : "libortflash_trt.so", path, sizeof(path))) {
    return complain("its own folder is not known");
  }
  void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // never closed: the registry keeps its creator
  if (plugin == nullptr) return complain(dlerror());
  void* creator = creator_in(plugin, old ? "getPluginCreators" : "getCreators");
  if (creator == nullptr) return complain("the plugin library has no creator");
  const int slot = old                      ? abi::kRegisterCreatorSlotOf8
                   : tensorrt.major() == 10 ? abi::kRegisterCreatorSlotOf10
                                            : abi::kRegisterCreatorSlotOf11;
  if (abi::register_creator(get_registry(), slot, creator, schema::kPluginNamespace.default_value)) return true;
  return complain("TensorRT refused it; one of the same name may be registered already");
}

__attribute__((constructor)) void on_load() { register_plugin(); }

}  // namespace
}  // namespace ortflash::trt

// For programs that load TensorRT after this library; 1 where the plugin is registered now.
extern "C" __attribute__((visibility("default"))) int ortflash_register_trt_plugin() {
  return ortflash::trt::register_plugin() ? 1 : 0;
}
