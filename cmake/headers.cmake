# What becomes part of our libraries: Highway and nlohmann-json, which are headers, and zlib.
find_path(FINITUDE_HIGHWAY_INCLUDE hwy/highway.h DOC "The folder that holds hwy/highway.h")
if(NOT FINITUDE_HIGHWAY_INCLUDE)
  message(FATAL_ERROR "There is no hwy/highway.h: install Highway (Debian: libhwy-dev) or set FINITUDE_HIGHWAY_INCLUDE.")
endif()
add_library(finitude_highway INTERFACE)
target_include_directories(finitude_highway SYSTEM INTERFACE ${FINITUDE_HIGHWAY_INCLUDE})

find_path(FINITUDE_JSON_INCLUDE nlohmann/json.hpp DOC "The folder that holds nlohmann/json.hpp")
if(NOT FINITUDE_JSON_INCLUDE)
  message(FATAL_ERROR "There is no nlohmann/json.hpp: install nlohmann-json (Debian: nlohmann-json3-dev) or set FINITUDE_JSON_INCLUDE.")
endif()
add_library(finitude_json INTERFACE)
target_include_directories(finitude_json SYSTEM INTERFACE ${FINITUDE_JSON_INCLUDE})

# Cross-compiled tests of the kernels do without.
add_library(finitude_zlib INTERFACE)
if(NOT FINITUDE_FOLDERS OR "archive" IN_LIST FINITUDE_FOLDERS)
  # Static: a wheel needs no library but torch's and the system's, and nobody else's zlib is met in the process.
  set(ZLIB_USE_STATIC_LIBS ON)
  find_package(ZLIB)
  if(NOT ZLIB_FOUND)
    message(FATAL_ERROR "There is no zlib.h: install zlib (Debian: zlib1g-dev).")
  endif()
  target_link_libraries(finitude_zlib INTERFACE ZLIB::ZLIB)
  target_link_options(finitude_zlib INTERFACE -Wl,--exclude-libs,libz.a)
endif()
