# Runs at installation. Generates the program's manual page and completions, and compresses documents.
# shardmark_program: its path; shardmark_generated: the folder of the results; shardmark_source: the source tree.
file(MAKE_DIRECTORY ${shardmark_generated})
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${shardmark_program} manual OUTPUT_FILE ${shardmark_generated}/shardmark.1)
foreach(shell bash zsh fish)
  execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${shardmark_program} completion ${shell} OUTPUT_FILE ${shardmark_generated}/${shell})
endforeach()
file(COPY_FILE ${shardmark_source}/CHANGELOG.md ${shardmark_generated}/changelog)
foreach(file shardmark.1 changelog)
  execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND gzip -9nc ${shardmark_generated}/${file} OUTPUT_FILE ${shardmark_generated}/${file}.gz)
endforeach()
