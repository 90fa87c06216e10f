# The extension module finitude._native: everything that sees torch or Python.
# torch is found with find_spec, not imported, and its libraries are named directly: find_package(Torch) fails on a CUDA
# wheel unless the whole CUDA toolkit is installed.
include(CheckLinkerFlag)
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
set(FINITUDE_TORCH_DIR "" CACHE PATH "The folder of the torch to build against; empty: the one that Python finds")
set(TORCH_DIR ${FINITUDE_TORCH_DIR})
if(NOT TORCH_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; s=u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT TORCH_DIR)
  message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE}; pip install torch first (the build uses the one that will run).")
endif()
if(NOT EXISTS ${TORCH_DIR}/include/pybind11/pybind11.h)
  message(FATAL_ERROR "${TORCH_DIR} carries no headers; finitude needs a full torch wheel.")
endif()

# An engine is for one minor version of torch, and a package may hold several: python/finitude/base/engines.py.
file(STRINGS ${TORCH_DIR}/version.py TORCH_VERSION_LINE REGEX "^__version__ *=" LIMIT_COUNT 1)
string(REGEX REPLACE "^[^'\"]*['\"]([^'\"]*).*" "\\1" FINITUDE_BUILT_FOR_TORCH "${TORCH_VERSION_LINE}")
if(NOT FINITUDE_BUILT_FOR_TORCH MATCHES "^([0-9]+)\\.([0-9]+)")
  message(FATAL_ERROR "${TORCH_DIR}/version.py does not say which version of torch this is.")
endif()
set(FINITUDE_ENGINE _engines/torch${CMAKE_MATCH_1}_${CMAKE_MATCH_2})

foreach(lib c10 torch_cpu torch_python)
  add_library(torch_${lib} SHARED IMPORTED)
  set_target_properties(torch_${lib} PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/lib${lib}.so IMPORTED_NO_SONAME OFF)
endforeach()
add_library(finitude_torch_headers INTERFACE)
target_include_directories(finitude_torch_headers SYSTEM INTERFACE ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
# NDEBUG always: at::RecordFunction has a member in debug builds only, and a mismatch with the wheel corrupts it.
target_compile_definitions(finitude_torch_headers INTERFACE NDEBUG _GLIBCXX_USE_CXX11_ABI=1)
add_library(finitude_torch INTERFACE)
target_link_libraries(finitude_torch INTERFACE finitude_torch_headers torch_c10 torch_torch_cpu torch_torch_python)

set(torch_sources ${FINITUDE_SOURCES})
list(FILTER torch_sources INCLUDE REGEX "(_torch|_python)\\.cpp$|${python_folders}.*\\.cpp$")
list(FILTER torch_sources EXCLUDE REGEX "_test\\.cpp$")
# What plays a tape: without Python, for the program finitude-replay, and part of the extension module.
set(player_sources ${torch_sources})
list(FILTER player_sources INCLUDE REGEX "/src/(replay/(tape_|plain_|decompose_)|cli/replay/|observe/(tape_values|device_memory|generator_state|settings|tensor_view|threads))[a-z_]*\\.cpp$")
list(REMOVE_ITEM torch_sources ${player_sources})
# What observes a step: part of the extension module and of the library for C++ programs.
set(live_sources ${torch_sources})
list(FILTER live_sources INCLUDE REGEX "/src/(observe|replay)/")
list(REMOVE_ITEM torch_sources ${live_sources})
set(recorder_sources ${FINITUDE_SOURCES})
list(FILTER recorder_sources INCLUDE REGEX "/src/recorder/")
list(FILTER recorder_sources EXCLUDE REGEX "_test\\.cpp$")
list(FILTER torch_sources EXCLUDE REGEX "/src/recorder/")
# What that command is made of without torch lies outside the core, too.
list(APPEND player_sources ${PROJECT_SOURCE_DIR}/src/cli/replay/replay_options.cpp ${PROJECT_SOURCE_DIR}/src/cli/replay/replay_distance.cpp)

# -fopenmp: without it at::parallel_for silently runs serial.
set(torch_options -fopenmp -Wno-unused-function -Wno-attributes -Wno-sign-compare)
add_library(finitude_player OBJECT ${player_sources})
add_library(finitude_live OBJECT ${live_sources})
Python_add_library(_native MODULE WITH_SOABI ${torch_sources} $<TARGET_OBJECTS:finitude_player> $<TARGET_OBJECTS:finitude_live>)
# One precompiled header serves all, so all are compiled with the same words.
foreach(target _native finitude_player finitude_live)
  target_link_libraries(${target} PRIVATE finitude_core finitude_torch finitude_options)
  target_compile_options(${target} PRIVATE ${torch_options})
  target_compile_definitions(${target} PRIVATE TORCH_EXTENSION_NAME=_native FINITUDE_VERSION="${PROJECT_VERSION}")
endforeach()
set_target_properties(_native PROPERTIES DEFINE_SYMBOL "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${FINITUDE_ENGINE})
# What every healthy step runs lies together, on a few pages of memory; see tools/hot_functions.py.
set(hot_functions ${PROJECT_SOURCE_DIR}/cmake/hot_functions.ld)
check_linker_flag(CXX "-Wl,-T,${hot_functions}" FINITUDE_ORDERS_FUNCTIONS)
if(FINITUDE_ORDERS_FUNCTIONS)
  foreach(target finitude_core finitude_core_small finitude_player finitude_live _native)
    target_compile_options(${target} PRIVATE -ffunction-sections)
  endforeach()
  target_link_options(_native PRIVATE "-Wl,-T,${hot_functions}")
  set_property(TARGET _native APPEND PROPERTY LINK_DEPENDS ${hot_functions})
endif()
target_link_libraries(finitude_player PRIVATE Python::Module)  # for its include path alone
target_link_libraries(finitude_live PRIVATE Python::Module)
foreach(target finitude_player finitude_live _native)
  finitude_unity(${target} 16)
endforeach()
target_precompile_headers(finitude_player PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_pch.h)
target_precompile_headers(finitude_live REUSE_FROM finitude_player)
target_precompile_headers(_native REUSE_FROM finitude_player)
# Knows nothing of Python. In a build that is made once, the headers of torch's C++ API are read once: all of it is compiled together.
set(FINITUDE_API_AT_ONCE OFF)
if(SKBUILD)
  set(FINITUDE_API_AT_ONCE ON)
endif()
add_library(finitude_recorder OBJECT EXCLUDE_FROM_ALL ${recorder_sources})
set_target_properties(finitude_recorder PROPERTIES UNITY_BUILD ${FINITUDE_API_AT_ONCE} UNITY_BUILD_BATCH_SIZE 0)
target_link_libraries(finitude_recorder PRIVATE finitude_core finitude_torch_headers finitude_options)
target_compile_options(finitude_recorder PRIVATE ${torch_options})
target_compile_definitions(finitude_recorder PRIVATE FINITUDE_VERSION="${PROJECT_VERSION}")
# Calls within the extension stay direct, although other libraries export what the public headers declare.
target_link_options(_native PRIVATE -Wl,--exclude-libs,libfinitude_core.a)
if(SKBUILD)
  install(TARGETS _native LIBRARY DESTINATION finitude/${FINITUDE_ENGINE})
endif()

# finitude-replay: plays capsules and tapes with libtorch alone. In the package, beside the engine, it finds torch where pip put it.
# OpenMP is the one that libtorch_cpu brings: src/observe/threads_torch.cpp.
add_executable(finitude-replay ${PROJECT_SOURCE_DIR}/src/cli/replay/main.cpp $<TARGET_OBJECTS:finitude_player>)
target_link_libraries(finitude-replay PRIVATE finitude_core finitude_options torch_torch_cpu torch_c10)
target_link_options(finitude-replay PRIVATE -Wl,-z,dynamic-undefined-weak)
target_compile_definitions(finitude-replay PRIVATE FINITUDE_VERSION="${PROJECT_VERSION}")
set_target_properties(finitude-replay PROPERTIES BUILD_RPATH ${TORCH_DIR}/lib INSTALL_RPATH "$ORIGIN/../../../torch/lib")
if(SKBUILD)
  install(TARGETS finitude-replay RUNTIME DESTINATION finitude/${FINITUDE_ENGINE})
endif()

# What no call leads to is not shipped: functions have sections of their own, above.
if(FINITUDE_ORDERS_FUNCTIONS)
  foreach(target _native finitude-replay finitude-offline)
    target_link_options(${target} PRIVATE -Wl,--gc-sections)
  endforeach()
endif()
