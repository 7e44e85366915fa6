//! Proof that the checks would notice a defect: each runs with one rule broken on purpose and must fail.
//! `cargo test -p transport --features sabotage`
#![cfg(feature = "sabotage")]

use crate::{placement, requester_rules, responder_rules, signatures, tags, uc_ud, windows, xrc};
use std::panic::{AssertUnwindSafe, catch_unwind};
use transport::sabotage::{Sabotage, with};

#[track_caller]
fn assert_noticed(defect: Sabotage, check: fn()) {
    check();
    let outcome = catch_unwind(AssertUnwindSafe(|| with(defect, check)));
    assert!(outcome.is_err(), "the check passes although {defect:?}");
    check();
}

macro_rules! proofs {
    ($($name:ident: $defect:ident, $check:path;)*) => {
        $(#[test]
        fn $name() {
            assert_noticed(Sabotage::$defect, $check);
        })*
        /// Every defect has its proof.
        #[test]
        fn all_defects_are_proven() {
            let proven = [$(Sabotage::$defect),*];
            for defect in Sabotage::ALL {
                assert!(proven.contains(defect), "{defect:?} has no proof");
            }
        }
    };
}

proofs! {
    stale_key: SkipRkeyCheck, responder_rules::a_stale_key_gives_no_access;
    foreign_domain: SkipPdCheck, responder_rules::a_key_of_another_domain_gives_no_access;
    range: SkipRangeCheck, responder_rules::a_range_stays_within_its_registration;
    key_rights: SkipKeyAccess, responder_rules::a_key_gives_only_its_rights;
    qp_rights: SkipAccessFlags, responder_rules::a_qp_offers_only_what_it_was_told_to;
    psn: SkipPsnCheck, responder_rules::a_gap_is_reported_once_until_progress;
    atomic_twice: ReexecuteAtomics, responder_rules::a_repeated_atomic_gives_the_saved_result;
    not_ready: IgnoreRnr, responder_rules::without_a_receive_the_peer_is_told_to_wait;
    completion_order: LoseCompletionOrder, requester_rules::one_acknowledge_completes_all_before_it_in_order;
    qkey: SkipQkey, uc_ud::a_datagram_with_the_wrong_qkey_is_dropped;
    pkey: SkipPkey, responder_rules::packets_of_another_partition_or_service_are_dropped;
    ack_before_place: AckBeforePlace, responder_rules::failing_memory_is_a_remote_operational_error;
    payload_size: SkipLengthCheck, responder_rules::payload_fits_its_place;
    announced_length: SkipLengthCheck, responder_rules::a_write_keeps_to_its_announced_length;
    fence: IgnoreFence, requester_rules::a_fence_waits_for_reads_and_atomics;
    lost_write: LoseWrite, responder_rules::a_write_is_placed_whole;
    window_qp: SkipWindowQp, windows::a_window_of_type_2_is_open_to_one_qp;
    bind_right: SkipBindRight, windows::a_wrong_bind_fails_and_changes_nothing;
    flush_right: SkipFlushRight, placement::a_flush_needs_its_right_of_qp_and_key;
    atomic_write_twice: ReexecuteAtomics, placement::a_repeated_one_is_answered_and_not_done_again;
    fin: FinBeforeData, tags::a_rendezvous_is_read_and_then_answered;
    tag_phase: IgnoreTagPhase, tags::messages_of_one_tag_keep_their_order;
    signature: SkipSignature, signatures::a_flipped_bit_is_found_in_its_block;
    stop_at_signature: SkipSignature, signatures::a_queue_stops_at_a_bad_signature;
    xrc_domain: SkipXrcDomain, xrc::a_queue_of_another_domain_cannot_be_named;
}
