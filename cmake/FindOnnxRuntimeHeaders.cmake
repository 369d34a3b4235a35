# Finds ONNX Runtime's C headers of API version 21 or newer and makes the target OnnxRuntime::headers of them. In order:
# ONNXRUNTIME_INCLUDE_DIR (CMake, then the environment), the system's own, then what fetch_onnxruntime_headers.py brings
# into .cache/ (the official release archive, Debian's package).
#
# Newer headers serve as well: the code asks for version 21 of the API by number, whatever the headers' own is.
set(ONNXRUNTIME_INCLUDE_DIR "$ENV{ONNXRUNTIME_INCLUDE_DIR}" CACHE PATH "Folder that has onnxruntime_c_api.h")

function(_ortflash_api_version folder result)
  set(${result} 0 PARENT_SCOPE)
  if(EXISTS "${folder}/onnxruntime_c_api.h")
    file(STRINGS "${folder}/onnxruntime_c_api.h" line REGEX "^#define ORT_API_VERSION [0-9]+")
    string(REGEX MATCH "[0-9]+$" version "${line}")
    if(version)
      set(${result} ${version} PARENT_SCOPE)
    endif()
  endif()
endfunction()

set(_ortflash_headers "")
if(ONNXRUNTIME_INCLUDE_DIR)
  _ortflash_api_version("${ONNXRUNTIME_INCLUDE_DIR}" _ortflash_version)
  if(_ortflash_version LESS 21)
    message(FATAL_ERROR "ONNXRUNTIME_INCLUDE_DIR (${ONNXRUNTIME_INCLUDE_DIR}) has no onnxruntime_c_api.h of API "
                        "version 21 or newer: set it to the headers of ONNX Runtime 1.21 or newer, or unset it.")
  endif()
  set(_ortflash_headers "${ONNXRUNTIME_INCLUDE_DIR}")
else()
  find_path(ONNXRUNTIME_SYSTEM_INCLUDE_DIR onnxruntime_c_api.h
            PATH_SUFFIXES onnxruntime onnxruntime/core/session)
  mark_as_advanced(ONNXRUNTIME_SYSTEM_INCLUDE_DIR)
  _ortflash_api_version("${ONNXRUNTIME_SYSTEM_INCLUDE_DIR}" _ortflash_version)
  if(_ortflash_version GREATER_EQUAL 21)
    set(_ortflash_headers "${ONNXRUNTIME_SYSTEM_INCLUDE_DIR}")
  else()
    set(_ortflash_headers "${PROJECT_SOURCE_DIR}/.cache/onnxruntime-headers")
    execute_process(
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/fetch_onnxruntime_headers.py ${_ortflash_headers}
      RESULT_VARIABLE _ortflash_failed ERROR_VARIABLE _ortflash_reason ERROR_STRIP_TRAILING_WHITESPACE)
    if(_ortflash_failed)
      message(FATAL_ERROR "${_ortflash_reason}")
    endif()
  endif()
endif()

message(STATUS "ortflash: ONNX Runtime headers in ${_ortflash_headers}")
add_library(OnnxRuntime::headers INTERFACE IMPORTED)
target_include_directories(OnnxRuntime::headers INTERFACE "${_ortflash_headers}")
