#include "tensorrt/library.h"

#include <dlfcn.h>

#include <cstdio>
#include <initializer_list>

namespace ortflash::trt {
namespace {

constexpr int kOldestMajor = 8;
constexpr int kNewestMajor = 15;  // a guess; asking for a file that nobody has costs nothing

// `name` is a path, or the name that a loaded library goes by. Never loads anything.
Library find(const char* name) {
  Library library;
  void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return library;
  const auto version = reinterpret_cast<int32_t (*)()>(dlsym(handle, "getInferLibVersion"));
  if (version == nullptr) {
    dlclose(handle);
    return library;
  }
  library.version = version();
  library.handle = handle;
  return library;
}

}  // namespace

Library library_of(const void* object) {
  const void* vtable = *static_cast<const void* const*>(object);
  Dl_info info;
  return dladdr(vtable, &info) == 0 ? Library{} : find(info.dli_fname);
}

Library loaded_library() {
  for (int major = kNewestMajor; major >= kOldestMajor; --major) {
    for (const char* format : {"libnvinfer.so.%d", "libnvinfer_lean.so.%d"}) {
      char name[32];
      std::snprintf(name, sizeof(name), format, major);
      const Library library = find(name);
      if (library.handle != nullptr) return library;
    }
  }
  return {};
}

}  // namespace ortflash::trt
