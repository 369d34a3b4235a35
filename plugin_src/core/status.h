// Making a Status with a printf sentence; shared by every file of the core.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "attention.h"

namespace ortflash {

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
inline Status make_status(StatusCode code, const char* format, ...) {
  Status status;
  status.code = code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status.message, sizeof(status.message), format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace ortflash
