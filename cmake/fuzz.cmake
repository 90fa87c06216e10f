# *_fuzz.cpp: one program each, named after the file, against finitude_core. With clang it is a libFuzzer target (preset
# "fuzz"); another compiler gets the driver of tests/fuzz, which takes the same options. ctest runs each for two seconds; under
# AddressSanitizer (preset "asan") each reader is tried on 8,000 seeded files, in `make test-thorough` on 100,000. An input is
# several: itself, and changes of sound ones.
set(fuzz_inputs 8000)
foreach(reader capsule checkpoint comparison report tape_file)  # 2 from one input, notes of the tape among them
  set(fuzz_inputs_${reader}_fuzz 4000)
endforeach()
foreach(reader generators safetensors trace_jsonl)  # 3
  set(fuzz_inputs_${reader}_fuzz 2700)
endforeach()
foreach(reader ring_posix step_statistics)  # 4
  set(fuzz_inputs_${reader}_fuzz 2000)
endforeach()
set(fuzz_sources ${FINITUDE_SOURCES})
list(FILTER fuzz_sources INCLUDE REGEX "_fuzz\\.cpp$")
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE finitude_core finitude_options)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/driver_posix.cpp)
  endif()
  if(FINITUDE_SANITIZE MATCHES "address" AND NOT name MATCHES "^scan" AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(inputs ${fuzz_inputs})
    if(DEFINED fuzz_inputs_${name})
      set(inputs ${fuzz_inputs_${name}})
    endif()
    add_test(NAME Fuzz.${name} COMMAND ${name} -seed=1 -runs=${inputs} -max_len=256)
  else()
    add_test(NAME Fuzz.${name} COMMAND ${name} -seed=1 -max_total_time=2)
  endif()
  set_tests_properties(Fuzz.${name} PROPERTIES LABELS fuzz)
endforeach()
