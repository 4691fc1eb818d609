# Sets GPT2_WITH_CUDA: whether a CUDA toolkit is here that can build the CUDA engine. If not, says why, and the CPU engine
# is built alone.
set(GPT2_WITH_CUDA OFF)
if(NOT GPT2_CUDA)
  message(STATUS "CUDA engine: no, GPT2_CUDA is off")
  return()
endif()

find_package(CUDAToolkit QUIET) # also finds an nvcc that is not on the PATH
if(NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(STATUS "CUDA engine: no, nvcc was not found")
  return()
endif()
if(CUDAToolkit_VERSION VERSION_LESS 13.0)
  message(STATUS "CUDA engine: no, ${CUDAToolkit_NVCC_EXECUTABLE} is CUDA ${CUDAToolkit_VERSION}, and 13.0 or newer is needed")
  return()
endif()
if(NOT TARGET CUDA::cublasLt)
  message(STATUS "CUDA engine: no, the toolkit of ${CUDAToolkit_NVCC_EXECUTABLE} has no cuBLASLt")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
# Machine language for Ampere (BF16), Ada, Hopper and both Blackwells, and PTX that newer GPUs compile at start.
# 80-real also runs on 8.6, 100-real on 10.3 and 120-real on 12.1.
set(ALL_ARCHS 80-real 89-real 90a-real 100-real 120-real 100-virtual)
set(CMAKE_CUDA_ARCHITECTURES ${ARCHS})
if(ARCHS STREQUAL "auto")
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/gpu_archs.sh OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} --list-gpu-code OUTPUT_VARIABLE KNOWN_TO_NVCC)
  foreach(arch ${CMAKE_CUDA_ARCHITECTURES})
    string(REGEX REPLACE "a?-real" "" number ${arch})
    if(NOT KNOWN_TO_NVCC MATCHES "sm_${number}\n") # newer than this toolkit: PTX
      list(REMOVE_ITEM CMAKE_CUDA_ARCHITECTURES ${arch})
      list(APPEND CMAKE_CUDA_ARCHITECTURES 100-virtual)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES CMAKE_CUDA_ARCHITECTURES)
endif()
if(ARCHS STREQUAL "all" OR NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${ALL_ARCHS})
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # Debian 12's CMake, 3.25.1, does not know this flag of nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(GPT2_WITH_CUDA ON)
message(STATUS "CUDA engine: yes, CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
