"""The seeds of the tests. If the plan draws its values in another way, a seed means another simulation."""

# A few seeds for each kind of simulation; the large seeds once found a defect. The last line of "kafka" has
# two seeds for each scenario.
FIXED = {
    "alone": (1, 2, 3, 5, 8, 13, 17, 21, 50, 74, 9_001_467, 50_002_413, 379_637_292_585),
    "kafka": (
        *(1, 2, 3, 7, 9, 25, 26, 33, 1_065, 1_271, 5_015, 5_124),
        # Seeds that find two members of one process in the group.
        *(20_069, 400_314),
        # Seeds that find coordinators with endless leases or stale metadata.
        *(71, 100, 284, 20_057),
        # Seeds that find wrong owners in the forwarder and in FindCoordinator, and defects of expiry and of
        # HTTP writes.
        *(22, 29, 34, 182, 36, 38),
        # A seed that finds claimants that do not allow for different clock rates.
        835,
        # A seed that finds that a forwarded request of unknown outcome is executed twice.
        8_000_249,
        *(74, 83, 86, 103, 113, 117, 146, 147, 172, 224, 20_331),
    ),
}

# The seeds of the complete test suite; `python -m tests.simulation` tries thousands of other seeds.
RANGES = {
    "alone": range(10_000, 10_080),
    "kafka": range(20_000, 20_080),
}

# The first seed to try for each mutant. If a mutant has no entry, or its seed does not detect it, the test
# tries all seeds from 1 on and prints the seed that detects the mutant.
NOTICED_BY = {
    "writes_nothing": 2,
    "deletes_in_memory_only": 2,
    "fences_no_state_epoch": 2,
    "lets_the_start_offset_go_back": 2,
    "lets_the_last_write_win": 3,
    "initialises_again_when_asked_twice": 2,
    "answers_reads_from_what_is_not_durable": 7,
    "keeps_in_memory_what_the_log_refused": 2,
    "takes_an_unknown_outcome_for_success": 14,
    "forgets_to_go_on_after_an_append": 22,
    "forgets_who_waited_for_loading": 33,
    "keeps_count_of_bytes_that_have_gone": 9,
    "waits_for_ever_for_clients_that_never_read": 16,
    "syncs_nothing": 11,
    "serves_what_it_recovered_before_it_is_durable": 64,
    "takes_a_failed_commit_for_done": 9,
    "checks_no_sums": 11,
    "cuts_off_damage_as_if_it_were_torn": 88,
    "drops_segments_that_are_needed": 16,
    "never_writes_anything_anew": 22,
    "gives_nothing_up_that_failed": 9,
    "shows_what_is_in_doubt": 9,
    "does_not_settle_what_is_in_doubt": 60,
    "never_probes_the_disk_again": 65,
    "accepts_a_claim_with_an_equal_epoch": 1,
    "trusts_its_claim_without_looking": 1,
    "believes_success_at_any_offset": 16,
    "does_not_mind_a_log_that_went_back": 16,
    "reads_before_it_claims": 3,
    "releases_under_its_own_append": 5,
    "gives_up_when_a_claim_fails": 3,
    "answers_before_the_append_is_done": 2,
    "forgets_who_was_fenced": 4,
    "answers_in_any_order": 3,
    "lets_clients_that_never_read_fill_the_queue": 61,
    "takes_no_answer_for_success": 13,
    "takes_an_uncommitted_append_for_a_success": 24,
    "lets_records_of_any_owner_count": 105,
    "takes_no_answer_for_failure": 136,
    "has_a_lease_that_never_ends": 71,
    "waits_for_no_earlier_lease": 71,
    "prunes_what_tells_the_owner_epoch": 7,
    "takes_the_metadata_of_the_last_broker_that_answered": 100,
    "forwards_to_the_owner_of_another_shard": 22,
    "forwards_by_the_first_assignment": 29,
    "finds_the_coordinator_of_another_shard": 9,
    "never_expires_the_state_of_an_empty_group": 34,
    "takes_a_loading_group_coordinator_for_a_deleted_group": 182,
    "prunes_all_records_over_http": 36,
    "waits_without_a_margin_for_clock_drift": 4,
}

# The virtual minutes of the simulation for mutants that need more than the default.
NOTICED_AFTER = {"never_writes_anything_anew": 4.0}
