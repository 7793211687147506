# Run at build time (cmake -P): writes build_info.cpp from build_info.cpp.in when what it says changed.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=12 HEAD
                OUTPUT_VARIABLE SHARDMARK_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  set(SHARDMARK_COMMIT unknown)
else()
  execute_process(COMMAND git -C ${SOURCE_DIR} --no-optional-locks status --porcelain --untracked-files=no
                  OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND SHARDMARK_COMMIT "-dirty")
  endif()
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
