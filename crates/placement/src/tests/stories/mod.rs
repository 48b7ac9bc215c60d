//! What a caller of the ledger may rely on, one story for each rule.

mod admission;
mod fleet;
mod guard;
mod lease;
mod reserve;
mod retire;

use std::future::Future;
use std::pin::Pin;

use crate::tests::world::World;

pub(super) type Told = Pin<Box<dyn Future<Output = ()> + Send>>;
pub(super) type Story = (&'static str, fn(World) -> Told);

macro_rules! stories {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// Every story by its name.
        pub(super) const STORIES: &[Story] = &[
            $((stringify!($name), |world| Box::pin($module::$name(world)))),*
        ];
    };
}

stories! {
    reserve::the_first_assignment_is_generation_one,
    reserve::all_scopes_or_none_are_charged,
    reserve::capacity_shared_by_two_targets_is_never_exceeded,
    reserve::the_same_request_again_returns_the_first_answer,
    reserve::the_same_operation_with_another_payload_is_a_conflict,
    reserve::a_session_is_reused_only_after_its_retirement,
    reserve::requests_of_older_generations_stay_fenced,
    reserve::a_lease_over_the_maximum_is_refused,
    reserve::many_callers_at_once_share_transactions_and_never_overbook,
    admission::a_target_admits_exactly_its_roles_boot_and_scopes,
    admission::a_scope_without_a_pool_or_with_capacity_zero_denies,
    admission::lowering_a_pool_denies_new_work_and_keeps_what_runs,
    admission::a_pool_is_settled_by_compare_and_swap,
    admission::a_policy_that_was_long_on_its_way_undoes_no_newer_one,
    admission::an_incarnation_is_replaced_only_by_who_saw_it,
    admission::a_policy_update_clears_no_claim,
    lease::a_deadline_only_moves_forward_and_within_the_maximum,
    lease::expired_authority_is_never_revived,
    lease::expiry_frees_nothing,
    lease::every_field_of_the_fence_counts,
    lease::renewing_many_answers_row_by_row,
    lease::lookups_tell_authority_by_the_databases_clock,
    lease::unretired_assignments_come_in_pages,
    retire::without_an_accepted_proof_nothing_is_released,
    retire::an_answer_after_the_assignment_moved_on_releases_nothing,
    retire::a_retirement_repeated_is_a_success,
    retire::evidence_is_kept_once_and_consumed_by_the_retirement,
    retire::only_the_target_or_its_successor_speaks_for_it,
    retire::a_repetition_that_overtakes_the_verifier_is_a_success,
    retire::a_liar_keeps_no_owner_out,
    retire::places_for_evidence_are_bounded_and_the_retirement_needs_none,
    retire::what_an_ending_was_proved_by_is_told,
    retire::what_is_nobodys_to_claim_is_refused,
    guard::a_clock_that_steps_back_revives_nothing,
    guard::a_clock_that_was_ahead_lets_nothing_begin_until_it_is_rebased,
    guard::a_rebase_waits_for_what_lasts_longer,
    guard::what_a_process_saw_without_the_lock_it_does_not_unsee,
    guard::one_processs_glimpse_of_a_wrong_clock_ends_nobodys_authority,
    guard::a_replay_that_tells_an_end_is_kept_to_by_everybody,
    guard::every_request_is_refused_where_the_ledger_is_another_clusters,
    guard::one_bad_row_fails_only_who_asked_for_it,
    guard::an_unreadable_row_hides_nobody_else,
    guard::a_newer_programs_ledger_is_left_alone,
    guard::evidence_about_another_generation_stands_in_nobodys_way,
    fleet::a_full_ledger_says_what_can_be_done,
    fleet::another_clusters_ledger_is_refused,
    fleet::the_ceiling_is_seeded_once_and_a_differing_coordinator_closes,
    fleet::an_older_live_schema_keeps_the_ceiling_unseeded,
    fleet::the_ceiling_rises_by_compare_and_swap_only,
    fleet::a_stale_boot_takes_nothing_over,
    fleet::an_unreadable_coordinator_stops_nobody_else,
    fleet::options_that_differ_are_reported,
    fleet::every_mutation_raises_the_revision_and_no_reading_does,
}
