# cpack reads this file for each generator. It sets the parts of the package and the time of all its files.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(own_part debian)
else()
  set(own_part bundle)
endif()
set(CPACK_INSTALL_CMAKE_PROJECTS
  "${CPACK_SHARDMARK_BUILD};shardmark;program;/;${CPACK_SHARDMARK_BUILD};shardmark;${own_part};/")

# The same commit gives the same bytes.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  execute_process(COMMAND git -C ${CPACK_SHARDMARK_SOURCE} log -1 --format=%ct
                  OUTPUT_VARIABLE commit_s OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(commit_s)
    set(ENV{SOURCE_DATE_EPOCH} ${commit_s})
  endif()
endif()
