"""The seeds of the tests.

If `plan` is changed so that it draws other values, a seed determines another simulation.
"""

# The fixed seeds of each kind. The large seeds found defects when `plan` was different. The last line of
# "kafka" has two seeds for each scenario.
FIXED = {
    "alone": (1, 2, 3, 5, 8, 13, 17, 21, 50, 74, 9_001_467, 50_002_413, 379_637_292_585),
    "kafka": (
        *(1, 2, 3, 7, 9, 22, 25, 26, 29, 33, 34, 36, 38, 58, 71, 100, 284, 835, 1_065, 1_271, 5_015, 5_124),
        *(20_057, 20_069, 400_314, 8_000_249, 300_000_393, 300_001_022),
        *(618_711_000_370, 618_711_001_226, 618_711_002_206, 618_711_002_401, 618_711_003_773),
        *(74, 83, 86, 103, 113, 117, 146, 147, 172, 224, 20_331),
    ),
}

# The fixed seeds of `make check`: nearly all blocks of code that the fixed seeds execute.
QUICK = {
    "alone": {17, 21, 74, 9_001_467, 50_002_413},
    "kafka": {22, 38, 71, 100, 300_000_393},
}

# The number of new seeds of each kind in the slow tests.
NEW_SEEDS = 30

# The seed that a test tries first for each mutant (default: 1). If it does not detect the mutant, the fixed
# seeds are tried.
FIRST_SEED_BY_MUTANT = {
    "deletes_in_memory_only": 2,
    "does_not_fence_old_state_epochs": 2,
    "allows_lower_start_offset": 2,
    "replaces_state_batches_instead_of_merging": 3,
    "resets_state_on_repeated_initialize": 2,
    "answers_reads_from_pending_writes": 74,
    "keeps_state_whose_append_failed": 9,
    "schedules_no_commit_batch_after_an_append": 49,
    "drops_operations_queued_during_loading": 65,
    "keeps_request_memory_of_lost_connections": 49,
    "never_aborts_stalled_connections": 49,
    "serves_recovered_commits_before_their_sync": 35,
    "ignores_checksums": 11,
    "truncates_damage_like_a_torn_tail": 60,
    "writes_after_a_commit_of_unknown_outcome": 9,
    "reads_appends_of_unknown_outcome": 9,
    "reports_unknown_outcome_as_success": 74,
    "never_probes_the_disk_again": 65,
    "accepts_a_claim_with_an_equal_epoch": 71,
    "serves_without_verifying_its_claim": 3,
    "accepts_append_at_unexpected_offset": 33,
    "ignores_truncation_of_the_log": 38,
    "releases_shard_during_its_append": 2,
    "never_retries_a_failed_claim": 25,
    "does_not_store_leader_epoch_max": 50_002_413,
    "sends_responses_out_of_order": 17,
    "never_closes_slow_readers": 86,
    "treats_missing_response_as_success": 13,
    "treats_uncommitted_append_as_success": 44,
    "accepts_records_of_any_owner": 618_711_002_401,
    "treats_missing_response_as_failure": 113,
    "answers_from_memory_after_the_lease": 71,
    "does_not_wait_for_earlier_leases": 71,
    "prunes_the_record_with_the_owner_epoch": 7,
    "uses_metadata_of_the_last_broker_that_responded": 100,
    "forwards_to_the_owner_of_another_shard": 22,
    "forwards_according_to_the_first_assignment": 29,
    "names_wrong_owner_in_find_coordinator": 9,
    "never_expires_the_state_of_an_empty_group": 34,
    "treats_loading_group_coordinator_as_deleted_group": 75,
}
