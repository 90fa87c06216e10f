# What C++ programs link, found by find_package(Finitude): libfinitude_core and, with torch, libfinitude_torch, which links the
# former, so that a process has one core. Both export names of finitude alone; those that carry FINITUDE_API are for
# programs, the others for libfinitude_torch of the same build: a version of the symbols that names the release keeps others out.
# In a build of the wheel nothing of this is built or installed unless it is asked for:
#   cmake --build BUILD --target finitude_cpp && cmake --install BUILD --component cpp --prefix PREFIX
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(part COMPONENT cpp)
set(by_default)
if(SKBUILD)
  set(part COMPONENT cpp EXCLUDE_FROM_ALL)
  set(by_default EXCLUDE_FROM_ALL)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Finitude)

set(exports ${PROJECT_BINARY_DIR}/generated/exports.map)
file(CONFIGURE OUTPUT ${exports} @ONLY CONTENT [=[
FINITUDE_@PROJECT_VERSION@ {
  global:
    extern "C++" {
      finitude::*;
      typeinfo?for?finitude::*;
      typeinfo?name?for?finitude::*;
      vtable?for?finitude::*;
    };
  local: *;
};
]=])
# Of the objects that the extension module is made of.
function(finitude_shared_library name output)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output} LINKER_LANGUAGE CXX LINK_DEPENDS ${exports}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION})
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports} -Wl,-Bsymbolic-functions -Wl,-z,defs)
  target_include_directories(${name} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} INTERFACE cxx_std_20)
  install(TARGETS ${name} EXPORT finitude LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${part})
endfunction()

add_library(finitude_core_shared SHARED ${by_default} $<TARGET_OBJECTS:finitude_core> $<TARGET_OBJECTS:finitude_core_small>)
target_link_libraries(finitude_core_shared PRIVATE Threads::Threads finitude_zlib finitude_sqlite)
set_target_properties(finitude_core_shared PROPERTIES EXPORT_NAME core)
finitude_shared_library(finitude_core_shared finitude_core)
add_custom_target(finitude_cpp DEPENDS finitude_core_shared)

if(NOT SKBUILD)
  install(TARGETS finitude-offline RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${part})
  add_dependencies(finitude_cpp finitude-offline)
endif()

set(headers dtype.h export.h capsule.h health.h report.h scan.h status.h)
if(FINITUDE_TORCH)
  list(APPEND headers recorder.h replay.h scope.h)
  add_library(finitude_torch_shared SHARED ${by_default}
    $<TARGET_OBJECTS:finitude_recorder> $<TARGET_OBJECTS:finitude_live> $<TARGET_OBJECTS:finitude_player>)
  target_link_libraries(finitude_torch_shared PUBLIC finitude_core_shared
    PRIVATE ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)  # as files: exported targets would ask for the targets
  # The threads of at::parallel_for are those of the OpenMP that came with torch, where one did.
  file(GLOB openmp ${TORCH_DIR}/lib/libgomp*.so*)
  if(openmp)
    list(GET openmp 0 openmp)
    target_link_libraries(finitude_torch_shared PRIVATE ${openmp})
  else()
    target_link_options(finitude_torch_shared PRIVATE -fopenmp)
  endif()
  set_target_properties(finitude_torch_shared PROPERTIES EXPORT_NAME torch_library
    BUILD_RPATH ${TORCH_DIR}/lib INSTALL_RPATH "$ORIGIN;${TORCH_DIR}/lib")
  finitude_shared_library(finitude_torch_shared finitude_torch)
  if(NOT SKBUILD)
    set_target_properties(finitude-replay PROPERTIES INSTALL_RPATH ${TORCH_DIR}/lib)
    install(TARGETS finitude-replay RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${part})
  endif()
  add_dependencies(finitude_cpp finitude_torch_shared finitude-replay)
endif()
if(FINITUDE_CUDA_LIBRARY AND NOT SKBUILD)
  install(FILES ${FINITUDE_CUDA_LIBRARY} DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL ${part})  # not part of finitude_cpp
  # Its header where it was built.
  install(CODE "if(EXISTS \"${FINITUDE_CUDA_LIBRARY}\")
    file(INSTALL \"${PROJECT_SOURCE_DIR}/include/finitude/cuda_scan.h\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/finitude\")
  endif()" ${part})
endif()
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/include/finitude/)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/finitude ${part})

install(EXPORT finitude NAMESPACE Finitude:: FILE FinitudeTargets.cmake DESTINATION ${package_dir} ${part})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/FinitudeConfig.cmake.in ${PROJECT_BINARY_DIR}/generated/FinitudeConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/FinitudeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/FinitudeConfig.cmake ${PROJECT_BINARY_DIR}/generated/FinitudeConfigVersion.cmake
  DESTINATION ${package_dir} ${part})

# What uses them: target finitude_cpp_tests, then ctest -L cpp. src/recorder/*_test.cpp, which see the public headers alone; and
# examples/cpp, built against an installed copy.
if(FINITUDE_TORCH AND (FINITUDE_TESTS OR SKBUILD))
  find_package(GTest QUIET)
endif()
if(FINITUDE_TORCH AND GTest_FOUND)
  enable_testing()
  set(api_tests ${FINITUDE_SOURCES})
  list(FILTER api_tests INCLUDE REGEX "/src/recorder/.*_test\\.cpp$")
  add_executable(finitude_api_test ${by_default} ${api_tests})
  target_link_libraries(finitude_api_test PRIVATE finitude_torch_shared finitude_core_shared finitude_torch_headers finitude_options
    torch_torch_cpu torch_c10
    GTest::gtest_main GTest::gmock)
  target_include_directories(finitude_api_test PRIVATE ${PROJECT_SOURCE_DIR}/src)  # for what the tests share
  target_compile_options(finitude_api_test PRIVATE -O0 -Wno-attributes -Wno-sign-compare)
  set_target_properties(finitude_api_test PROPERTIES BUILD_RPATH ${TORCH_DIR}/lib UNITY_BUILD ${FINITUDE_API_AT_ONCE})
  add_library(finitude_test_loaded MODULE ${by_default} ${PROJECT_SOURCE_DIR}/tests/cpp/loaded.cpp)
  target_link_libraries(finitude_test_loaded PRIVATE finitude_torch_headers torch_torch_cpu torch_c10)
  target_compile_options(finitude_test_loaded PRIVATE -g1)
  target_compile_definitions(finitude_api_test PRIVATE FINITUDE_TEST_LOADED="$<TARGET_FILE:finitude_test_loaded>")
  target_link_libraries(finitude_api_test PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(finitude_api_test finitude_test_loaded)
  add_custom_target(finitude_cpp_tests DEPENDS finitude_cpp finitude_api_test)
  add_test(NAME Cpp.api COMMAND finitude_api_test)
  add_test(NAME Cpp.example COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
    -DREPLAY=$<TARGET_FILE:finitude-replay> -DCXX=${CMAKE_CXX_COMPILER} -DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}
    -P ${PROJECT_SOURCE_DIR}/tests/cpp/example.cmake)
  set_tests_properties(Cpp.api Cpp.example PROPERTIES LABELS cpp TIMEOUT 600)
endif()
