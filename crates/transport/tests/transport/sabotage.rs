//! Proof that the checks would notice a defect: each runs with one rule broken on purpose and must
//! fail. `cargo test -p transport --features sabotage`
#![cfg(feature = "sabotage")]

use crate::keys::{signatures, windows};
use crate::requester::{answers, requests};
use crate::responder::{access, messages, placement, receives, repetitions, states};
use crate::services::{tags, uc_ud, xrc};
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
    stale_key: SkipRkeyCheck, access::a_stale_key_gives_no_access;
    foreign_domain: SkipPdCheck, access::a_key_of_another_domain_gives_no_access;
    range: SkipRangeCheck, access::a_range_stays_within_its_registration;
    key_rights: SkipKeyAccess, access::a_key_gives_only_its_rights;
    qp_rights: SkipAccessFlags, access::a_qp_offers_only_what_it_was_told_to;
    psn: SkipPsnCheck, messages::a_gap_is_reported_once_until_progress;
    atomic_twice: ReexecuteAtomics, repetitions::a_repeated_atomic_gives_the_saved_result;
    not_ready: IgnoreRnr, receives::without_a_receive_the_peer_is_told_to_wait;
    completion_order: LoseCompletionOrder,
        answers::one_acknowledge_completes_all_before_it_in_order;
    qkey: SkipQkey, uc_ud::a_datagram_with_the_wrong_qkey_is_dropped;
    pkey: SkipPkey, states::packets_of_another_partition_or_service_are_dropped;
    ack_before_place: AckBeforePlace, access::failing_memory_is_a_remote_operational_error;
    payload_size: SkipLengthCheck, messages::payload_fits_its_place;
    announced_length: SkipLengthCheck, messages::a_write_keeps_to_its_announced_length;
    fence: IgnoreFence, requests::a_fence_waits_for_reads_and_atomics;
    lost_write: LoseWrite, messages::a_write_is_placed_whole;
    window_qp: SkipWindowQp, windows::a_window_of_type_2_is_open_to_one_qp;
    bind_right: SkipBindRight, windows::a_wrong_bind_fails_and_changes_nothing;
    flush_right: SkipFlushRight, placement::a_flush_needs_its_right_of_qp_and_key;
    atomic_write_twice: ReexecuteAtomics, placement::a_repeated_one_is_answered_and_not_done_again;
    fin: FinBeforeData, tags::a_rendezvous_is_read_and_then_answered;
    tag_phase: IgnoreTagPhase, tags::messages_of_one_tag_keep_their_order;
    signature: SkipSignature, signatures::fields::a_flipped_bit_is_found_in_its_block;
    stop_at_signature: SkipSignature, signatures::connections::a_queue_stops_at_a_bad_signature;
    xrc_domain: SkipXrcDomain, xrc::a_queue_of_another_domain_cannot_be_named;
}
