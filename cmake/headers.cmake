# What is compiled in and not linked: Highway, nlohmann-json.
find_path(FINITUDE_HIGHWAY_INCLUDE hwy/highway.h DOC "The folder that holds hwy/highway.h")
if(NOT FINITUDE_HIGHWAY_INCLUDE)
  message(FATAL_ERROR "There is no hwy/highway.h: install Highway (Debian: libhwy-dev) or set FINITUDE_HIGHWAY_INCLUDE.")
endif()
add_library(finitude_highway INTERFACE)
target_include_directories(finitude_highway SYSTEM INTERFACE ${FINITUDE_HIGHWAY_INCLUDE})
# Its checks of a debug build would end in a function of its library.
target_compile_definitions(finitude_highway INTERFACE HWY_IS_DEBUG_BUILD=0)

find_package(nlohmann_json REQUIRED)
