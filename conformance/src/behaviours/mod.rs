//! The behaviours: one a file, in the order of the standard's chapters as far as that helps a reader.

mod a_connection_logs_another_out;
mod a_data_ack_forgets_data;
mod a_data_ack_of_nothing_is_rejected;
mod a_data_digest_error_is_rejected;
mod a_data_snack_gets_data_again;
mod a_data_snack_of_what_was_not_sent_is_rejected;
mod a_function_for_a_missing_lun;
mod a_header_digest_error_ends_the_connection;
mod a_lost_data_out_is_asked_for_again;
mod a_multi_task_abort_waits_for_acknowledgements;
mod a_read_is_reassigned;
mod a_second_login_is_rejected;
mod a_session_outlives_its_connection;
mod a_snack_at_level_0_is_rejected;
mod a_status_snack_gets_the_response_again;
mod a_status_snack_of_what_was_acknowledged_is_rejected;
mod a_targets_opcode_is_rejected;
mod a_task_tag_in_use_is_rejected;
mod a_write_is_reassigned;
mod a_wrong_buffer_offset_is_not_good;
mod a_wrong_data_sn_is_not_good;
mod abort_task_set_ends_tasks;
mod abort_task_silences_it;
mod abort_task_that_has_not_come;
mod abort_task_that_never_was;
mod an_abort_comes_on_its_tasks_connection;
mod an_r2t_snack_gets_the_r2t_again;
mod an_r_data_snack_gets_all_again_and_the_snack_tag;
mod an_unassigned_function;
mod an_unknown_opcode_is_rejected;
mod another_initiator_cannot_join;
mod clear_task_set_ends_tasks;
mod cmd_sn_too_high_is_ignored;
mod cmd_sn_too_low_is_ignored;
mod commands_are_ordered_over_connections;
mod commands_cleared_with_their_connection_are_told;
mod commands_wait_for_those_before_them;
mod connection_reinstatement_keeps_the_session;
mod data_belongs_on_its_commands_connection;
mod data_in_is_numbered_and_whole;
mod data_that_came_wrong_is_asked_for_again;
mod discovery_lists_the_target;
mod discovery_takes_no_commands;
mod functions_of_protocol_level_2_need_it;
mod immediate_commands_do_not_wait;
mod immediate_data_is_taken;
mod logical_unit_reset_ends_tasks;
mod login_begins_with_a_login_request;
mod login_key_answers;
mod login_missing_initiator_name;
mod login_missing_target_name;
mod login_repeated_key;
mod login_target_not_found;
mod login_text_in_pieces;
mod login_unknown_key;
mod login_unknown_tsih;
mod login_unsupported_version;
mod logout_closes_the_connection;
mod logout_closes_the_session;
mod logout_for_recovery_at_level_0;
mod logout_of_an_unknown_connection;
mod no_more_connections_than_agreed;
mod nop_out_is_echoed;
mod nop_out_without_a_tag_is_not_answered;
mod others_hear_of_a_lost_connection;
mod query_asynchronous_event_sees_unit_attentions;
mod query_task_tells_whether_it_is_there;
mod r2ts_keep_to_the_burst_length;
mod reassign_at_level_0;
mod reassign_of_what_is_not_there;
mod residual_overflow_is_told;
mod residual_underflow_is_told;
mod session_reinstatement_ends_the_old_one;
mod stat_sn_counts_responses;
mod stat_sn_is_each_connections_own;
mod support;
mod target_warm_reset_ends_tasks;
mod text_renegotiates_the_segment_length;
mod text_with_a_stale_tag_is_rejected;
mod the_last_connection_keeps_the_session;
mod too_little_data_is_not_good;
mod too_much_data_is_not_good;
mod unsolicited_data_is_taken;
mod unsolicited_data_not_agreed_fails_the_task;

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Something a target must do.
pub struct Behaviour {
    /// Its file's name.
    pub name: &'static str,
    /// Where the standard says so.
    pub clause: &'static str,
    /// Tries it.
    pub run: fn(&Bench) -> Outcome,
}

// The modules are declared above, by hand: `cargo fmt` does not see what a macro declares. One without its row here is
// dead code, and the compiler says so.
macro_rules! behaviours {
    ($($name:ident),+ $(,)?) => {
        /// All of them.
        pub const BEHAVIOURS: &[Behaviour] =
            &[$(Behaviour { name: stringify!($name), clause: $name::CLAUSE, run: $name::run }),+];
    };
}

behaviours!(
    login_key_answers,
    login_unknown_key,
    login_repeated_key,
    login_target_not_found,
    login_missing_initiator_name,
    login_missing_target_name,
    login_unknown_tsih,
    login_unsupported_version,
    login_begins_with_a_login_request,
    login_text_in_pieces,
    discovery_lists_the_target,
    discovery_takes_no_commands,
    text_renegotiates_the_segment_length,
    text_with_a_stale_tag_is_rejected,
    nop_out_is_echoed,
    nop_out_without_a_tag_is_not_answered,
    cmd_sn_too_high_is_ignored,
    cmd_sn_too_low_is_ignored,
    commands_wait_for_those_before_them,
    immediate_commands_do_not_wait,
    stat_sn_counts_responses,
    a_task_tag_in_use_is_rejected,
    data_in_is_numbered_and_whole,
    residual_underflow_is_told,
    residual_overflow_is_told,
    immediate_data_is_taken,
    unsolicited_data_is_taken,
    unsolicited_data_not_agreed_fails_the_task,
    r2ts_keep_to_the_burst_length,
    a_wrong_data_sn_is_not_good,
    a_wrong_buffer_offset_is_not_good,
    too_much_data_is_not_good,
    too_little_data_is_not_good,
    an_unknown_opcode_is_rejected,
    a_targets_opcode_is_rejected,
    a_second_login_is_rejected,
    a_snack_at_level_0_is_rejected,
    a_header_digest_error_ends_the_connection,
    a_data_digest_error_is_rejected,
    data_that_came_wrong_is_asked_for_again,
    a_lost_data_out_is_asked_for_again,
    a_status_snack_gets_the_response_again,
    a_status_snack_of_what_was_acknowledged_is_rejected,
    a_data_snack_gets_data_again,
    a_data_snack_of_what_was_not_sent_is_rejected,
    an_r2t_snack_gets_the_r2t_again,
    an_r_data_snack_gets_all_again_and_the_snack_tag,
    a_data_ack_of_nothing_is_rejected,
    a_data_ack_forgets_data,
    abort_task_that_never_was,
    abort_task_that_has_not_come,
    abort_task_silences_it,
    abort_task_set_ends_tasks,
    clear_task_set_ends_tasks,
    logical_unit_reset_ends_tasks,
    target_warm_reset_ends_tasks,
    a_function_for_a_missing_lun,
    an_unassigned_function,
    query_task_tells_whether_it_is_there,
    query_asynchronous_event_sees_unit_attentions,
    functions_of_protocol_level_2_need_it,
    reassign_at_level_0,
    logout_closes_the_session,
    logout_closes_the_connection,
    logout_of_an_unknown_connection,
    logout_for_recovery_at_level_0,
    session_reinstatement_ends_the_old_one,
    connection_reinstatement_keeps_the_session,
    commands_are_ordered_over_connections,
    data_belongs_on_its_commands_connection,
    no_more_connections_than_agreed,
    stat_sn_is_each_connections_own,
    a_connection_logs_another_out,
    commands_cleared_with_their_connection_are_told,
    the_last_connection_keeps_the_session,
    an_abort_comes_on_its_tasks_connection,
    a_multi_task_abort_waits_for_acknowledgements,
    another_initiator_cannot_join,
    a_session_outlives_its_connection,
    a_read_is_reassigned,
    a_write_is_reassigned,
    reassign_of_what_is_not_there,
    others_hear_of_a_lost_connection,
);
