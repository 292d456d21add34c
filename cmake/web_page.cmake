# The web page is made of web/ by Node and the packages of its lock file (`npm ci` in web/, which scripts/setup-debian
# does). Without them the program has a page that says how to get it; nothing else is missing.
find_program(PGF_NODE node)
set(page_cc ${CMAKE_BINARY_DIR}/web_page.cc)
file(GLOB page_packages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/web/node_modules/.package-lock.json)
if(PGF_NODE AND page_packages)
  file(GLOB page_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/web/src/*)
  add_custom_command(
    OUTPUT ${page_cc}
    COMMAND ${PGF_NODE} node_modules/typescript/bin/tsc -p .
    COMMAND ${PGF_NODE} build.mjs ${page_cc}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/web
    DEPENDS ${page_sources} ${page_packages} ${CMAKE_SOURCE_DIR}/web/build.mjs ${CMAKE_SOURCE_DIR}/web/tsconfig.json
    COMMENT "Building the web page"
    VERBATIM)
else()
  message(STATUS "the web page is left out: it wants node, and npm ci in web/")
  configure_file(${CMAKE_SOURCE_DIR}/web/absent.cc ${page_cc} COPYONLY)
endif()
target_sources(pgf_web PRIVATE ${page_cc})
