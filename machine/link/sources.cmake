set(link_headers)
set(link_sources)
set(link_tests)
