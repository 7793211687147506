# The installed files, and the packages that CPack builds from them (cpack --preset deb, cpack --preset bundle).
#   program  the program, its manual page and completions, the figures' scripts
#   debian   the files of only the Debian package
#   bundle   the libraries and the launcher, with their licences
# The last two end with the list of all files (SPDX), which scripts/packages/complete.py writes.

set(generated ${CMAKE_BINARY_DIR}/generated)
set(documents share/doc/shardmark)

install(TARGETS shardmark RUNTIME DESTINATION bin COMPONENT program)
# No variable may have the name of a component: installation compares without policy CMP0054.
install(CODE "set(shardmark_program \"$<TARGET_FILE:shardmark>\")
    set(shardmark_generated \"${generated}\")
    set(shardmark_source \"${CMAKE_SOURCE_DIR}\")"
  COMPONENT program)
install(SCRIPT scripts/cmake/generated_files.cmake COMPONENT program)
install(FILES ${generated}/shardmark.1.gz DESTINATION share/man/man1 COMPONENT program)
install(FILES ${generated}/bash RENAME shardmark DESTINATION share/bash-completion/completions COMPONENT program)
install(FILES ${generated}/zsh RENAME _shardmark DESTINATION share/zsh/vendor-completions COMPONENT program)
install(FILES ${generated}/fish RENAME shardmark.fish DESTINATION share/fish/vendor_completions.d COMPONENT program)
install(FILES ${generated}/changelog.gz scripts/packages/copyright DESTINATION ${documents} COMPONENT program)
# harness/report/figures.cpp looks here.
install(PROGRAMS scripts/figures.py DESTINATION share/shardmark/scripts COMPONENT program)
install(DIRECTORY scripts/python/shardmark DESTINATION share/shardmark/scripts/python COMPONENT program
        PATTERN __pycache__ EXCLUDE)

# suite/recipes/recipe.cpp looks here.
install(DIRECTORY suite/recipes DESTINATION share/shardmark COMPONENT program
        FILES_MATCHING PATTERN recipe.json PATTERN ds_config.json PATTERN arguments.txt)

# The start script checks the processor.
set(needed_flag "")
if(SHARDMARK_MARCH STREQUAL "x86-64-v3")
  set(needed_flag avx2)
elseif(SHARDMARK_MARCH STREQUAL "x86-64-v4")
  set(needed_flag avx512f)
endif()
configure_file(scripts/packages/start.in ${generated}/start @ONLY)
install(PROGRAMS ${generated}/start RENAME shardmark DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
if(SHARDMARK_CUDA STREQUAL "ON")
  install(PROGRAMS scripts/check_gpu DESTINATION share/shardmark/scripts COMPONENT bundle EXCLUDE_FROM_ALL)
  install(DIRECTORY scripts/gpu_checks DESTINATION share/shardmark/scripts COMPONENT bundle EXCLUDE_FROM_ALL
          PATTERN __pycache__ EXCLUDE)
endif()

set(CPACK_PACKAGE_NAME shardmark)
set(CPACK_PACKAGE_VENDOR Shardmark)
set(CPACK_PACKAGE_CONTACT "Shardmark maintainers <maintainers@shardmark.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "benchmark and conformance suite for distributed training")
set(CPACK_PACKAGE_DESCRIPTION
  "Shardmark implements collectives, tensor-parallel layers, ZeRO with offload,
pipeline schedules and the training step as small units. It compares the
speed of each unit with the limit of the machine, and its results with an
independent reference and the formulas of the papers.
This build is for processors of ${SHARDMARK_MARCH}.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME shardmark-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_MONOLITHIC_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(launchers_mpich mpich)
set(launchers_openmpi openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "${launchers_${SHARDMARK_MPI}}, python3")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-matplotlib, python3-pandas")
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/scripts/cmake/package_kinds.cmake)
set(CPACK_SHARDMARK_BUILD ${CMAKE_BINARY_DIR})
set(CPACK_SHARDMARK_SOURCE ${CMAKE_SOURCE_DIR})
include(CPack)

find_program(SHARDMARK_PYTHON python3 REQUIRED)
foreach(package debian bundle)
  install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND \"${SHARDMARK_PYTHON}\" -B
      \"${CMAKE_SOURCE_DIR}/scripts/packages/complete.py\" ${package} \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\"
      --build \"${CMAKE_BINARY_DIR}\" --version ${PROJECT_VERSION} --maintainer \"${CPACK_PACKAGE_CONTACT}\"
      --launcher \"${MPIEXEC_EXECUTABLE}\")"
    COMPONENT ${package} EXCLUDE_FROM_ALL)
endforeach()
