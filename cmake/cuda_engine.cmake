# The CUDA engine: our kernels, cuBLASLt, cuDNN through its frontend headers. cuDNN, NVML and the driver are opened at
# run time and the CUDA runtime is linked in, so the program starts (and says what is missing) on a machine without them.
file(GLOB KERNEL_CUDA_SOURCES CONFIGURE_DEPENDS kernels/*.cu kernels/cuda/*.cu kernels/cuda/*.cpp kernels/device/*.cuh)
file(GLOB KERNEL_SM90_SOURCES CONFIGURE_DEPENDS kernels/sm90/*.cu kernels/sm90/*.cuh)
file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS engine/cuda/*.cu engine/cuda/*.cpp engine/nccl/*.cu)
gpt2_room(gpt2_kernels_cuda SOURCES ${KERNEL_CUDA_SOURCES} LINK gpt2_kernels CUDA::cublasLt CUDA::cudart_static ${CMAKE_DL_LIBS})
target_include_directories(gpt2_kernels_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
# Hopper's own instructions: code for sm_90a alone, whatever ARCHS says, and chosen at run time.
gpt2_room(gpt2_kernels_sm90 SOURCES ${KERNEL_SM90_SOURCES} LINK gpt2_kernels_cuda)
set_target_properties(gpt2_kernels_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
gpt2_room(gpt2_cuda SOURCES ${CUDA_SOURCES} LINK gpt2_model gpt2_ranks gpt2_kernels_sm90 ${CMAKE_DL_LIBS})

find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${GPT2_DEPS_DIR}/cudnn/include)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${GPT2_DEPS_DIR}/cudnn_frontend/include)
if(CUDNN_INCLUDE AND CUDNN_FRONTEND_INCLUDE)
  # One file includes the frontend's headers, and the C++ compiler reads it: nvcc takes over eight minutes for it. -O1: the file
  # describes graphs to cuDNN and computes nothing.
  set_source_files_properties(kernels/cuda/attention_cudnn.cpp PROPERTIES COMPILE_DEFINITIONS
    "GPT2_WITH_CUDNN=1;NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING=1;CUDNN_FRONTEND_SKIP_JSON_LIB=1" COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
  target_include_directories(gpt2_kernels_cuda SYSTEM PRIVATE ${CUDNN_INCLUDE} ${CUDNN_FRONTEND_INCLUDE})
  message(STATUS "cuDNN: headers in ${CUDNN_INCLUDE}, frontend in ${CUDNN_FRONTEND_INCLUDE}")
else()
  message(STATUS "cuDNN: no headers (tools/install_deps.sh build fetches them); attention uses our own kernels")
endif()

# Where libgpt2.so looks for libcublasLt.so.13 and libcudnn.so.9, beside the system's folders (GPT2_CUDA_RPATH). What is in
# the tree is named relative to BUILD/lib, so that a moved tree still finds it.
if(NOT CMAKE_CROSSCOMPILING)
  set(CUDNN_FOLDER ${GPT2_DEPS_DIR}/cudnn/lib)
  cmake_path(IS_PREFIX CMAKE_SOURCE_DIR ${CUDNN_FOLDER} NORMALIZE CUDNN_IN_TREE)
  cmake_path(IS_PREFIX CMAKE_SOURCE_DIR ${CMAKE_BINARY_DIR} NORMALIZE BUILD_IN_TREE)
  if(CUDNN_IN_TREE AND BUILD_IN_TREE)
    file(RELATIVE_PATH CUDNN_FOLDER ${CMAKE_BINARY_DIR}/lib ${CUDNN_FOLDER})
    set(CUDNN_FOLDER "$ORIGIN/${CUDNN_FOLDER}")
  endif()
  set(GPT2_CUDA_RPATH ${CUDAToolkit_LIBRARY_DIR} ${CUDNN_FOLDER})
endif()
