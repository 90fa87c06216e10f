# What becomes part of our libraries: Highway and nlohmann-json, which are headers, zlib and SQLite.
find_path(FINITUDE_HIGHWAY_INCLUDE hwy/highway.h DOC "The folder that holds hwy/highway.h")
if(NOT FINITUDE_HIGHWAY_INCLUDE)
  message(FATAL_ERROR "There is no hwy/highway.h: install Highway (Debian: libhwy-dev) or set FINITUDE_HIGHWAY_INCLUDE.")
endif()
add_library(finitude_highway INTERFACE)
target_include_directories(finitude_highway SYSTEM INTERFACE ${FINITUDE_HIGHWAY_INCLUDE})

find_path(FINITUDE_JSON_INCLUDE nlohmann/json.hpp DOC "The folder that holds nlohmann/json.hpp")
if(NOT FINITUDE_JSON_INCLUDE)
  message(FATAL_ERROR "There is no nlohmann/json.hpp: install nlohmann-json (Debian: nlohmann-json3-dev) or set FINITUDE_JSON_INCLUDE.")
endif()
add_library(finitude_json INTERFACE)
target_include_directories(finitude_json SYSTEM INTERFACE ${FINITUDE_JSON_INCLUDE})

# Cross-compiled tests of the kernels do without.
add_library(finitude_zlib INTERFACE)
if(NOT FINITUDE_FOLDERS OR "archive" IN_LIST FINITUDE_FOLDERS)
  # Static: a wheel needs no library but torch's and the system's, and nobody else's zlib is met in the process.
  find_path(FINITUDE_ZLIB_INCLUDE zlib.h DOC "The folder that holds zlib.h")
  find_library(FINITUDE_ZLIB_LIBRARY libz.a DOC "zlib as a static library")
  if(NOT FINITUDE_ZLIB_INCLUDE OR NOT FINITUDE_ZLIB_LIBRARY)
    message(FATAL_ERROR "There is no zlib.h or no libz.a: install zlib (Debian: zlib1g-dev) or set "
            "FINITUDE_ZLIB_INCLUDE and FINITUDE_ZLIB_LIBRARY.")
  endif()
  target_include_directories(finitude_zlib SYSTEM INTERFACE ${FINITUDE_ZLIB_INCLUDE})
  target_link_libraries(finitude_zlib INTERFACE ${FINITUDE_ZLIB_LIBRARY})
  target_link_options(finitude_zlib INTERFACE -Wl,--exclude-libs,libz.a)
endif()

add_library(finitude_sqlite INTERFACE)
if(NOT FINITUDE_FOLDERS OR "store" IN_LIST FINITUDE_FOLDERS)
  # Static, as zlib is: Python's own SQLite is in the same process.
  find_path(FINITUDE_SQLITE_INCLUDE sqlite3.h DOC "The folder that holds sqlite3.h")
  find_library(FINITUDE_SQLITE_LIBRARY libsqlite3.a DOC "SQLite as a static library")
  if(NOT FINITUDE_SQLITE_INCLUDE OR NOT FINITUDE_SQLITE_LIBRARY)
    message(FATAL_ERROR "There is no sqlite3.h or no libsqlite3.a: install SQLite (Debian: libsqlite3-dev) or set FINITUDE_SQLITE_INCLUDE and FINITUDE_SQLITE_LIBRARY.")
  endif()
  target_include_directories(finitude_sqlite SYSTEM INTERFACE ${FINITUDE_SQLITE_INCLUDE})
  target_link_libraries(finitude_sqlite INTERFACE ${FINITUDE_SQLITE_LIBRARY} m ${CMAKE_DL_LIBS})
  target_link_options(finitude_sqlite INTERFACE -Wl,--exclude-libs,libsqlite3.a)
endif()
