set(world_headers)
set(world_sources)
set(world_tests)
