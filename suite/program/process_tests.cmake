# Tests that start the program under MPI's launcher. The thread sanitizer omits them, because MPI and its
# launcher are not built with it. The address sanitizer runs the tests that lose ranks.
if(SHARDMARK_SANITIZE MATCHES thread)
  return()
endif()

find_program(SHARDMARK_PYTHON python3 REQUIRED)
if(SHARDMARK_MPI STREQUAL "openmpi")
  find_program(SHARDMARK_LAUNCHER NAMES mpirun.openmpi mpirun NAMES_PER_DIR)
  set(launcher "${SHARDMARK_LAUNCHER} --quiet --oversubscribe --allow-run-as-root")
else()
  find_program(SHARDMARK_LAUNCHER NAMES mpiexec.mpich mpiexec NAMES_PER_DIR)
  set(launcher ${SHARDMARK_LAUNCHER})
endif()

# process_test(NAME SCRIPT [WORDS …] [LABELS …] [TIMEOUT S] [ENVIRONMENT …])
function(process_test name script)
  cmake_parse_arguments(ARG "" "TIMEOUT" "WORDS;LABELS;ENVIRONMENT" ${ARGN})
  # detect_leaks=0: MPI keeps memory until the process ends.
  add_test(NAME suite_${name}_test COMMAND ${SHARDMARK_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/program/${script}_test.py ${ARG_WORDS})
  set_tests_properties(suite_${name}_test PROPERTIES
    LABELS "suite;processes;${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "SHARDMARK_PROGRAM=$<TARGET_FILE:shardmark>;SHARDMARK_LAUNCHER=${launcher};PYTHONDONTWRITEBYTECODE=1;ASAN_OPTIONS=detect_leaks=0;${ARG_ENVIRONMENT}")
endfunction()

process_test(peer_data peer_data LABELS peer TIMEOUT 300)
process_test(disturbed_run disturbed_run TIMEOUT 600)
process_test(kept_results kept_results TIMEOUT 600)
set_tests_properties(suite_disturbed_run_test suite_kept_results_test PROPERTIES COST 80)  # they mostly wait
if(SHARDMARK_SANITIZE)
  return()
endif()
foreach(test program checkpoints command_line manual documents runs recipes comparisons nccl_tests)
  process_test(${test} ${test} TIMEOUT 600)
endforeach()
set_tests_properties(suite_runs_test suite_comparisons_test suite_nccl_tests_test PROPERTIES RUN_SERIAL ON)
if(SHARDMARK_CUDA STREQUAL "VIRTUAL")
  process_test(virtual_gpu virtual_gpu TIMEOUT 1200)
  process_test(check_gpu check_gpu WORDS CheckGpu TIMEOUT 600)
  process_test(check_gpu_full check_gpu WORDS AllSteps LABELS full TIMEOUT 1800)
  process_test(gpu_matrix gpu_matrix WORDS CrossSection TIMEOUT 900)
  process_test(gpu_matrix_full gpu_matrix WORDS Matrix LABELS full TIMEOUT 36000)
  set_tests_properties(suite_gpu_matrix_test PROPERTIES PROCESSORS 2 COST 90)
  set_tests_properties(suite_gpu_matrix_full_test PROPERTIES RUN_SERIAL ON)
endif()
process_test(documents_full documents WORDS Commands LABELS full TIMEOUT 1800 ENVIRONMENT SHARDMARK_DOCUMENTS=all)
process_test(hugging_face hugging_face LABELS peer TIMEOUT 600)
process_test(peer_training peer_training LABELS peer TIMEOUT 300)
process_test(checkpoints_full checkpoints WORDS KilledTraining LABELS full TIMEOUT 3600 ENVIRONMENT SHARDMARK_KILLS=200)
process_test(many_kills kept_results WORDS KilledRun LABELS full TIMEOUT 1800 ENVIRONMENT SHARDMARK_KILLS=200)
if(SHARDMARK_MPI STREQUAL "openmpi")
  return()
endif()

# One placement of some faults, many placements of each fault, and ranks on separate hosts.
set(some_faults Refused)
foreach(fault lost_rank lost_rank_in_every_unit corrupt_message full_disk rank_out_of_memory slow_disk slow_rank slow_link
              wrong_version)
  list(APPEND some_faults Faults.test_a_${fault})
endforeach()
process_test(faults faults WORDS ${some_faults} TIMEOUT 600 ENVIRONMENT SHARDMARK_PLACEMENTS=1)
process_test(faults_full faults LABELS full TIMEOUT 7200 ENVIRONMENT SHARDMARK_PLACEMENTS=20)
process_test(separate_hosts separate_hosts LABELS full TIMEOUT 7200 ENVIRONMENT SHARDMARK_PLACEMENTS=1)
set_tests_properties(suite_faults_test suite_faults_full_test suite_separate_hosts_test PROPERTIES RUN_SERIAL ON)
