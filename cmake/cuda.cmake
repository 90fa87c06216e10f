# libfinitude_cuda: the scan of a whole model's gradients on a GPU, behind the C interface of include/finitude/cuda_scan.h. It needs
# an nvcc (12.8 or later, for sm_100) to build and the driver alone to run; nothing else is linked against it.
# nvcc is called by custom commands: CMake below 3.26 knows no C++20 for CUDA, and enabling the language would ask for a whole toolkit.
if(NOT FINITUDE_CUDA STREQUAL "OFF")
  find_program(FINITUDE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
endif()
if(FINITUDE_NVCC AND NOT FINITUDE_CUDA STREQUAL "OFF")
  execute_process(COMMAND ${FINITUDE_NVCC} --list-gpu-code OUTPUT_VARIABLE nvcc_codes ERROR_QUIET)
  if(NOT nvcc_codes MATCHES "sm_80" OR NOT nvcc_codes MATCHES "sm_100")
    message(STATUS "${FINITUDE_NVCC} cannot compile for sm_80 to sm_100: libfinitude_cuda is left out")
    set(FINITUDE_NVCC FINITUDE_NVCC-NOTFOUND)
  endif()
endif()
if(NOT FINITUDE_NVCC)
  if(FINITUDE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FINITUDE_CUDA=ON, but there is no nvcc for sm_80 to sm_100; set CUDA_HOME or FINITUDE_NVCC.")
  endif()
  return()
endif()

# No -ftz, no fast math: subnormals count. Relaxed constexpr lets kernels call the constexpr functions of sense/format.h.
set(cuda_flags -std=c++20 -O3 --expt-relaxed-constexpr -lineinfo -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra
  -Xcompiler=-Wno-unused-parameter -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
  -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90
  -gencode=arch=compute_100,code=sm_100 -gencode=arch=compute_100,code=compute_100)

function(finitude_compile_cuda out source)
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(kind ${source} EXT)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  set(language)
  if(kind STREQUAL ".cpp")
    set(language -x c++)
  endif()
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda
    COMMAND ${FINITUDE_NVCC} ${language} ${cuda_flags} ${ARGN} -MD -MF ${object}.d -c ${source} -o ${object}
    COMMENT "nvcc ${name}" VERBATIM)
  set(${out} ${${out}} ${object} PARENT_SCOPE)
endfunction()

set(cuda_objects)
foreach(source multi_scan_cuda.cu cuda_scan_cuda.cu cuda_ahead_cuda.cu multi_scan_plan.cpp)
  finitude_compile_cuda(cuda_objects ${PROJECT_SOURCE_DIR}/src/sense/${source})
endforeach()
set(FINITUDE_CUDA_LIBRARY ${PROJECT_BINARY_DIR}/libfinitude_cuda.so)
add_custom_command(OUTPUT ${FINITUDE_CUDA_LIBRARY} DEPENDS ${cuda_objects}
  COMMAND ${FINITUDE_NVCC} -shared -cudart static -o ${FINITUDE_CUDA_LIBRARY} ${cuda_objects}
    -Xlinker=--exclude-libs=ALL -Xlinker=-soname=libfinitude_cuda.so
  COMMENT "link libfinitude_cuda.so" VERBATIM)
add_custom_target(finitude_cuda ALL DEPENDS ${FINITUDE_CUDA_LIBRARY})
if(SKBUILD)
  install(FILES ${FINITUDE_CUDA_LIBRARY} DESTINATION finitude)
endif()

# Programs for a machine with a GPU, run by `make gpu`. Compiled wherever nvcc is, so that they keep compiling; in a build of the
# wheel with the tests of what it ships.
function(finitude_cuda_program name)
  cmake_parse_arguments(program "" "" "SOURCES;FLAGS;LIBRARIES" ${ARGN})
  set(objects)
  foreach(source ${program_SOURCES})
    finitude_compile_cuda(objects ${PROJECT_SOURCE_DIR}/${source} ${program_FLAGS})
  endforeach()
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/${name} DEPENDS ${objects} ${FINITUDE_CUDA_LIBRARY} finitude_core
    COMMAND ${FINITUDE_NVCC} -cudart static -o ${PROJECT_BINARY_DIR}/${name} ${objects} ${FINITUDE_CUDA_LIBRARY}
      $<TARGET_FILE:finitude_core> ${FINITUDE_ZLIB_LIBRARY} ${FINITUDE_SQLITE_LIBRARY} ${program_LIBRARIES} -lpthread -ldl -Xlinker=-rpath=$ORIGIN
    COMMENT "link ${name}" VERBATIM)
  add_custom_target(${name}_program ${by_default} DEPENDS ${PROJECT_BINARY_DIR}/${name})
endfunction()
set(by_default ALL)
if(TARGET finitude_shipped_tests)
  set(by_default)
endif()
if(FINITUDE_TESTS OR TARGET finitude_shipped_tests)
  finitude_cuda_program(finitude_cuda_test SOURCES src/sense/scan_cuda_test.cpp src/sense/scan_cuda_device_test.cpp
    FLAGS -DFINITUDE_TEST_ON_GPU LIBRARIES -lgtest -lgtest_main)
  finitude_cuda_program(finitude_scan_bench SOURCES bench/gpu/scan_bench.cu)
endif()
if(TARGET finitude_shipped_tests)
  add_dependencies(finitude_shipped_tests finitude_cuda_test_program finitude_scan_bench_program)
endif()
unset(by_default)
