# Decides whether the CUDA part is built: sets ORTFLASH_WITH_CUDA, and prepares the CUDA language where it is.
include(CheckLanguage)

set(ORTFLASH_WITH_CUDA OFF)
if(ORTFLASH_CUDA)  # AUTO is true as well
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(ORTFLASH_WITH_CUDA ON)
  elseif(NOT ORTFLASH_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "ORTFLASH_CUDA is ON but nvcc was not found: install the CUDA toolkit (12.8 or later), "
                        "set CUDACXX to its nvcc, or turn ORTFLASH_CUDA off.")
  endif()
endif()

if(ORTFLASH_WITH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${ORTFLASH_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  find_package(CUDAToolkit 12.8 REQUIRED)
  message(STATUS "ortflash: CPU and CUDA (${ORTFLASH_CUDA_ARCHITECTURES})")
else()
  message(STATUS "ortflash: CPU only (no nvcc, or ORTFLASH_CUDA is off)")
endif()
