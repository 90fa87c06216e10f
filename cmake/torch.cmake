# The extension module finitude._native: everything that sees torch or Python.
# torch is found with find_spec, not imported, and its libraries are named directly: find_package(Torch) fails on a CUDA
# wheel unless the whole CUDA toolkit is installed.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; s=u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT TORCH_DIR)
  message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE}; pip install torch first (the build uses the one that will run).")
endif()
if(NOT EXISTS ${TORCH_DIR}/include/pybind11/pybind11.h)
  message(FATAL_ERROR "${TORCH_DIR} carries no headers; finitude needs a full torch wheel.")
endif()

foreach(lib c10 torch_cpu torch_python)
  add_library(torch_${lib} SHARED IMPORTED)
  set_target_properties(torch_${lib} PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/lib${lib}.so IMPORTED_NO_SONAME OFF)
endforeach()
add_library(finitude_torch INTERFACE)
target_include_directories(finitude_torch SYSTEM INTERFACE ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
# NDEBUG always: at::RecordFunction has a member in debug builds only, and a mismatch with the wheel corrupts it.
target_compile_definitions(finitude_torch INTERFACE NDEBUG _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(finitude_torch INTERFACE torch_c10 torch_torch_cpu torch_torch_python)

set(torch_sources ${FINITUDE_SOURCES})
list(FILTER torch_sources INCLUDE REGEX "(_torch|_python)\\.cpp$|/src/bindings/.*\\.cpp$")
list(FILTER torch_sources EXCLUDE REGEX "_test\\.cpp$")
Python_add_library(_native MODULE WITH_SOABI ${torch_sources})
target_link_libraries(_native PRIVATE finitude_core finitude_torch finitude_options)
target_compile_options(_native PRIVATE -fopenmp)  # without it at::parallel_for silently runs serial
target_compile_options(_native PRIVATE -Wno-unused-function -Wno-attributes -Wno-sign-compare)
target_precompile_headers(_native PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_pch.h)
target_compile_definitions(_native PRIVATE TORCH_EXTENSION_NAME=_native FINITUDE_VERSION="${PROJECT_VERSION}")
install(TARGETS _native LIBRARY DESTINATION finitude)
