# Warnings, sanitizers and the embedding of files, shared by every target.
add_library(finitude_options INTERFACE)
# -fno-plt: a call of Python's or torch's goes through the table of addresses at once. By way of the PLT it is one more jump and one more
# line of code, for each of their functions that a healthy step calls.
target_compile_options(finitude_options INTERFACE -Wall -Wextra -Wno-unused-parameter -fno-plt)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 takes "text" + std::string for an overlapping copy (GCC bug 105651).
  target_compile_options(finitude_options INTERFACE -Wno-restrict)
endif()
if(FINITUDE_SANITIZE)
  target_compile_options(finitude_options INTERFACE -fsanitize=${FINITUDE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(finitude_options INTERFACE -fsanitize=${FINITUDE_SANITIZE})
  add_compile_options(-fsanitize=${FINITUDE_SANITIZE})
  add_link_options(-fsanitize=${FINITUDE_SANITIZE})
endif()

# The kernels, compiled once per instruction set, are slow to compile where each of their loads gets its checks of memory in place; by
# calls these are the same checks. UBSan looks at them by g++ alone (preset "asan").
if(FINITUDE_SANITIZE MATCHES "address")
  set(by_calls "--param;asan-instrumentation-with-call-threshold=0")
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(by_calls "-mllvm;-asan-instrumentation-with-call-threshold=0;-fno-sanitize=undefined")
  endif()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/sense/kernels.cpp PROPERTIES COMPILE_OPTIONS "${by_calls}")
  unset(by_calls)
endif()
# Tests, whose code is long and runs once, are compiled without optimization. The libraries that they test are linked first: of inline
# functions that both hold, those of the libraries run, as they ship.
function(finitude_plain_tests target)
  target_compile_options(${target} PRIVATE -O0)
  foreach(library ${ARGN})
    target_link_options(${target} PRIVATE "SHELL:-Wl,--whole-archive $<TARGET_FILE:${library}> -Wl,--no-whole-archive")
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS $<TARGET_FILE:${library}>)
  endforeach()
endfunction()

# A build that lets the compiler assume finite arithmetic would blind every check.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error finite math
#endif
int main() {}" FINITUDE_HONEST_MATH)
if(NOT FINITUDE_HONEST_MATH)
  message(FATAL_ERROR "The compiler flags switch on -ffast-math or -ffinite-math-only. Finitude refuses such a build: it could not see a NaN.")
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# src/show/page/*: text built into the library as raw string literals (page.inc).
function(finitude_embed target)
  file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/show/page/*)
  if(pages)
    set(out ${PROJECT_BINARY_DIR}/generated/show_page.inc)
    add_custom_command(OUTPUT ${out} DEPENDS ${pages} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
      COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DDIR=${PROJECT_SOURCE_DIR}/src/show/page -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
    target_sources(${target} PRIVATE ${out})
    target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/generated)
  endif()
endfunction()
