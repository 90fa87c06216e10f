# FINITUDE_UNITY=ON compiles the sources of a folder together, some at a time: most of what a compiler does with torch's headers, or
# under sanitizers, is the headers again. So are wheels built, which are built once; `cmake --preset dev` compiles each by itself.
# Names in an anonymous namespace meet those of the neighbours then; files whose names do are compiled alone.
set(by_default OFF)
if(SKBUILD)
  set(by_default ON)
endif()
option(FINITUDE_UNITY "Compile several sources of a folder at once: quicker from scratch, slower after a change" ${by_default})
unset(by_default)
set(FINITUDE_ALONE
  sense/kernels.cpp  # includes itself, once for each instruction set
  capture/link.cpp
  explain/rules/corrupted_state.cpp explain/rules/learning_rate.cpp explain/rules/negative_domain.cpp
  explain/fix_test.cpp show/mutation_test.cpp show/problem.cpp
  observe/tracer_torch.cpp replay/replay_values_torch.cpp replay/tape_elsewhere_torch.cpp
  gate/param_groups_torch.cpp gate/step_wrapper_torch.cpp
  rewind/loader_torch.cpp)

# at_once: of a folder, so many sources are compiled together. Of those that see torch, fewer: each takes a compiler long.
function(finitude_unity target at_once)
  if(NOT FINITUDE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source ${sources})
    if(NOT source MATCHES "\\.cpp$")
      continue()
    endif()
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/src ${source})
    if(path IN_LIST FINITUDE_ALONE)
      continue()
    endif()
    get_filename_component(folder ${path} DIRECTORY)
    string(REPLACE "/" "_" folder ${folder})
    math(EXPR count_${folder} "${count_${folder}} + 1")
    math(EXPR part "${count_${folder}} / ${at_once}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()
