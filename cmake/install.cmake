# `cmake --install` copies a folder that can be moved anywhere: train_gpt2_fp8, bin/, lib/, and the files that these look for.
# tools/make_package.sh calls it. CUDA's libraries stay out; README.md of the package names the folders that are searched.
set(GPT2_LIBRARIES gpt2 gpt2_tools)
if(TARGET gpt2_mpi)
  list(APPEND GPT2_LIBRARIES gpt2_mpi)
endif()
set(GPT2_PACKAGE_RPATH "$ORIGIN")
if(GPT2_WITH_CUDA)
  set(cuda_folders /usr/local/cuda/lib64 ${CUDAToolkit_LIBRARY_DIR})
  list(REMOVE_DUPLICATES cuda_folders)
  list(APPEND GPT2_PACKAGE_RPATH "$ORIGIN/../.deps/cudnn/lib" ${cuda_folders})
endif()
set_target_properties(train_gpt2_fp8 PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
set_target_properties(${GPT2_TOOL_PROGRAMS} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
set_target_properties(${GPT2_LIBRARIES} PROPERTIES INSTALL_RPATH "${GPT2_PACKAGE_RPATH}")

install(TARGETS train_gpt2_fp8 DESTINATION .)
install(TARGETS ${GPT2_TOOL_PROGRAMS} DESTINATION bin)
install(TARGETS ${GPT2_LIBRARIES} DESTINATION lib)
install(FILES LICENSE CHANGELOG.md DESTINATION .)
install(DIRECTORY configs docs DESTINATION .)
install(FILES data/README.md DESTINATION data OPTIONAL)
install(PROGRAMS tools/download_dataset.py tools/install_deps.sh tools/parquet_to_jsonl.py tools/start_tensorboard.sh
        tools/submit_fp8.sh tools/wandb_sync DESTINATION tools)
install(DIRECTORY ${GPT2_DEPS_DIR}/gpt2_bpe DESTINATION .deps OPTIONAL)

set(GPT2_CUDA_IN_PACKAGE "It has the CPU engine alone.")
if(GPT2_WITH_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " archs)
  list(JOIN cuda_folders "`, `" cuda_folders)
  set(GPT2_CUDA_IN_PACKAGE "It has the CPU engine and the CUDA engine (CUDA ${CUDAToolkit_VERSION}, code for ${archs}).

NVIDIA's libraries are not in it. The program looks for them in this order: `LD_LIBRARY_PATH`, `lib/` and `.deps/cudnn/lib/` of this
folder, `${cuda_folders}`, and the loader's own folders (`ldconfig -p`).

| library | needed | where it comes from |
|---|---|---|
| `libcublasLt.so.13` | to start | the CUDA ${CUDAToolkit_VERSION_MAJOR} toolkit, the Debian package libcublas-13-0 of NVIDIA, or the wheel nvidia-cublas |
| `libcuda.so.1`, `libnvidia-ml.so.1` | to train on a GPU | the driver |
| `libcudnn.so.9` | no: other kernels are used without it | the wheel nvidia-cudnn-cu13, or NVIDIA's Debian package libcudnn9-cuda-13 |
| `libnccl.so.2` | for several GPUs | NVIDIA's Debian package libnccl2, or the wheel nvidia-nccl-cu13 |")
endif()
set(GPT2_MACHINES "Its CPU code is for any ${CMAKE_SYSTEM_PROCESSOR} machine; glibc and libstdc++ must be at least as new as where it was compiled.")
if(GPT2_NATIVE AND NOT CMAKE_CROSSCOMPILING)
  set(GPT2_MACHINES "Its CPU code is for machines like the one that compiled it (`make package` compiles for any).")
endif()
configure_file(cmake/package_readme.md.in ${CMAKE_BINARY_DIR}/package/README.md @ONLY)
file(WRITE ${CMAKE_BINARY_DIR}/package/name "train_gpt2_fp8-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR}\n")
install(FILES ${CMAKE_BINARY_DIR}/package/README.md DESTINATION .)
