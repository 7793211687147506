set(device_headers)
set(device_sources)
set(device_tests)
