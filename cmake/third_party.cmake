# Libraries from the distribution (tools/install_deps.sh build). Their folders are used as SYSTEM includes, so that
# our -Werror does not judge them.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(HDF5 REQUIRED COMPONENTS C)
# Debian keeps each variant in a folder of its own; the OpenMP one shares its threads with our loops.
find_path(CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas-openmp openblas-pthread openblas REQUIRED)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-openmp openblas-pthread REQUIRED)
find_path(PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(PCRE2_LIBRARY NAMES pcre2-8 REQUIRED)
find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_path(JSON_INCLUDE nlohmann/json.hpp REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
find_path(ZLIB_INCLUDE zlib.h REQUIRED)
find_library(ZLIB_LIBRARY z REQUIRED)
find_path(ZSTD_INCLUDE zstd.h REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
find_path(SODIUM_INCLUDE sodium.h REQUIRED)
find_library(SODIUM_LIBRARY NAMES libsodium.a sodium REQUIRED) # static: programs run where libsodium.so is not installed
