# The page of a report (web/, TypeScript) as a C++ literal. It is built where node and npm are; elsewhere, and where npm cannot
# fetch its packages, one line says so, and the page of a report is tables (src/show/html.cpp).
set(FINITUDE_WEB ON CACHE STRING "Build the page of a report where node is there: ON, OFF, or REQUIRED, which fails elsewhere")

function(finitude_embed_page target)
  set(out ${PROJECT_BINARY_DIR}/generated/built_page.inc)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/web/src/*)
  list(APPEND sources ${PROJECT_SOURCE_DIR}/web/head.html ${PROJECT_SOURCE_DIR}/web/index.html ${PROJECT_SOURCE_DIR}/web/timeline.html
    ${PROJECT_SOURCE_DIR}/web/package-lock.json
    ${PROJECT_SOURCE_DIR}/web/vite.config.ts ${PROJECT_SOURCE_DIR}/tools/web.sh ${PROJECT_SOURCE_DIR}/cmake/web_embed.cmake)
  add_custom_command(OUTPUT ${out} DEPENDS ${sources}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DROOT=${PROJECT_SOURCE_DIR} -DBUILD=${FINITUDE_WEB}
      -P ${PROJECT_SOURCE_DIR}/cmake/web_embed.cmake
    COMMENT "page of a report" VERBATIM)
  target_sources(${target} PRIVATE ${out})
  # The page of a run that trains is read by Python: python/finitude/live/page.py.
  if(SKBUILD AND FINITUDE_WEB)
    install(FILES ${PROJECT_SOURCE_DIR}/web/dist/timeline.html DESTINATION finitude/live OPTIONAL)
  endif()
endfunction()
