# What is compiled in and not linked: Highway, nlohmann-json.
find_path(FINITUDE_HIGHWAY_INCLUDE hwy/highway.h DOC "The folder that holds hwy/highway.h")
if(NOT FINITUDE_HIGHWAY_INCLUDE)
  message(FATAL_ERROR "There is no hwy/highway.h: install Highway (Debian: libhwy-dev) or set FINITUDE_HIGHWAY_INCLUDE.")
endif()
add_library(finitude_highway INTERFACE)
target_include_directories(finitude_highway SYSTEM INTERFACE ${FINITUDE_HIGHWAY_INCLUDE})
# Its checks of a debug build would end in a function of its library.
target_compile_definitions(finitude_highway INTERFACE HWY_IS_DEBUG_BUILD=0)

find_path(FINITUDE_JSON_INCLUDE nlohmann/json.hpp DOC "The folder that holds nlohmann/json.hpp")
if(NOT FINITUDE_JSON_INCLUDE)
  message(FATAL_ERROR "There is no nlohmann/json.hpp: install nlohmann-json (Debian: nlohmann-json3-dev) or set FINITUDE_JSON_INCLUDE.")
endif()
add_library(finitude_json INTERFACE)
target_include_directories(finitude_json SYSTEM INTERFACE ${FINITUDE_JSON_INCLUDE})
