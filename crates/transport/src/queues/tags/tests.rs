use super::*;

fn list() -> TagList {
    TagList::new(TmCap { max_num_tags: 3, max_ops: 1 }).unwrap()
}

fn request(wr_id: u64) -> RecvWr {
    RecvWr { wr_id, scatter: Default::default() }
}

fn op(op: TagOp) -> TagWr {
    TagWr { wr_id: 9, op, signaled: true, handled: None }
}

fn add(wr_id: u64, tag: u64, mask: u64) -> TagWr {
    op(TagOp::Add { request: request(wr_id), tag, mask })
}

fn handled(count: u32, wr: TagWr) -> TagWr {
    TagWr { handled: Some(count), ..wr }
}

fn message(op: u8, tag: u64, rest: &[u8]) -> Vec<u8> {
    [&[op, 0, 0, 0, 0, 0, 0, 7][..], &tag.to_be_bytes(), rest].concat()
}

/// Identifier of the request taken and what the completion says.
fn eager(list: &mut TagList, tag: u64) -> (u64, WcFlags) {
    let found = list.accept(&message(OP_EAGER, tag, b"abc"), true, true, || Some(request(100)));
    let found = found.expect("a place");
    assert_eq!((found.label.opcode, found.fetch), (WcOpcode::TmRecv, None));
    (found.request.wr_id, found.label.flags)
}

const BOTH: WcFlags = WcFlags::TM_MATCH.union(WcFlags::TM_DATA_VALID);

#[test]
fn the_oldest_buffer_that_fits_takes_the_message() {
    let mut list = list();
    for wr in [add(1, 0x12, u64::MAX), add(2, 0x10, 0xf0), add(3, 0x12, u64::MAX)] {
        list.apply(wr).unwrap();
    }
    assert_eq!(eager(&mut list, 0x1f), (2, BOTH), "the mask hides the low bits");
    assert_eq!(eager(&mut list, 0x12), (1, BOTH));
    assert_eq!(eager(&mut list, 0x12), (3, BOTH));
    assert_eq!(eager(&mut list, 0x12), (100, WcFlags::empty()), "unexpected");
}

#[test]
fn a_tag_with_bits_outside_its_mask_fits_nothing() {
    let mut list = list();
    list.apply(add(1, 0x11, 0xf0)).unwrap();
    assert_eq!(eager(&mut list, 0x11).0, 100);
}

#[test]
fn an_expected_eager_message_loses_its_header_and_shows_it() {
    let mut list = list();
    list.apply(add(1, 5, u64::MAX)).unwrap();
    let found = list.accept(&message(OP_EAGER, 5, b""), false, false, || None).unwrap();
    assert_eq!((found.skip, found.label.info), (16, TmInfo { tag: 5, app_ctx: 7 }));
    let found = list.accept(&message(OP_EAGER, 5, b""), true, true, || Some(request(8)));
    let found = found.unwrap();
    assert_eq!((found.skip, found.label.info), (0, TmInfo::default()), "unexpected: whole");
}

#[test]
fn what_has_no_tag_goes_to_the_ordinary_requests_and_counts_for_nothing() {
    let mut list = list();
    list.apply(add(1, 0, 0)).unwrap();
    for first in
        [&message(0, 0, b"")[..], &message(OP_FIN, 0, b""), &message(4, 0, b""), b"123456789012345"]
    {
        let found = list.accept(first, true, true, || Some(request(100))).unwrap();
        assert_eq!((found.request.wr_id, found.skip, found.fetch), (100, 0, None));
        assert_eq!(found.label, Label::of(WcOpcode::TmNoTag, WcFlags::empty()));
        assert_eq!(list.accept(first, true, true, || None), None);
    }
    assert_eq!(list.apply(op(TagOp::Sync)).unwrap().flags, WcFlags::empty());
}

#[test]
fn a_full_list_takes_no_more_and_changes_nothing() {
    let mut list = list();
    assert_eq!(eager(&mut list, 1).0, 100);
    for wr_id in 0..3 {
        list.apply(add(wr_id, 1, u64::MAX)).unwrap();
    }
    let refused = list.apply(handled(1, add(3, 1, u64::MAX)));
    assert!(matches!(refused, Err(Error::NoMemory(_))));
    assert_eq!(eager(&mut list, 1).0, 100, "the count was not taken either");
}

#[test]
fn a_buffer_posted_out_of_step_waits_until_the_counts_meet() {
    let mut list = list();
    list.apply(add(1, 1, u64::MAX)).unwrap();
    assert_eq!(eager(&mut list, 2), (100, WcFlags::empty()));
    let late = list.apply(add(2, 2, u64::MAX)).unwrap();
    assert_eq!((late.opcode, late.flags), (WcOpcode::TmAdd, WcFlags::TM_SYNC_REQ));
    assert_eq!(eager(&mut list, 2).0, 100, "the earlier message of this tag comes first");
    assert_eq!(eager(&mut list, 1), (1, BOTH), "what was posted in step goes on");
    let sync = list.apply(handled(1, op(TagOp::Sync))).unwrap();
    assert_eq!((sync.opcode, sync.flags), (WcOpcode::TmSync, WcFlags::TM_SYNC_REQ));
    assert_eq!(eager(&mut list, 2).0, 100, "one of two is not all");
    assert_eq!(list.apply(handled(3, op(TagOp::Sync))).unwrap().flags, WcFlags::empty());
    assert_eq!(eager(&mut list, 2), (2, BOTH));
}

#[test]
fn an_addition_may_bring_the_count() {
    let mut list = list();
    assert_eq!(eager(&mut list, 2).0, 100);
    assert_eq!(list.apply(handled(1, add(2, 2, u64::MAX))).unwrap().flags, WcFlags::empty());
    assert_eq!(eager(&mut list, 2), (2, BOTH));
}

#[test]
fn counts_of_16_and_of_32_bits_are_the_same() {
    for wide in [0x1_0001, 1] {
        let mut list = list();
        for _ in 0..0x1_0001 {
            list.accept(&message(OP_EAGER, 1, b""), true, true, || Some(request(0))).unwrap();
        }
        assert_eq!(list.apply(handled(wide, op(TagOp::Sync))).unwrap().flags, WcFlags::empty());
    }
}

#[test]
fn a_program_that_never_reports_is_asked_to() {
    let mut list = list();
    for _ in 0..MAX_UNREPORTED {
        assert_eq!(eager(&mut list, 1).1, WcFlags::empty());
    }
    assert_eq!(eager(&mut list, 1).1, WcFlags::TM_SYNC_REQ);
}

#[test]
fn a_message_without_a_place_is_not_counted() {
    let mut list = list();
    assert_eq!(list.accept(&message(OP_EAGER, 1, b""), true, true, || None), None);
    assert_eq!(list.apply(op(TagOp::Sync)).unwrap().flags, WcFlags::empty());
}

#[test]
fn a_removed_buffer_takes_nothing_and_a_taken_one_cannot_be_removed() {
    let mut list = list();
    let handles = [1, 2].map(|id| list.apply(add(id, id, u64::MAX)).unwrap().handle.unwrap());
    let removed = list.apply(op(TagOp::Del(handles[0]))).unwrap();
    assert_eq!((removed.opcode, removed.status), (WcOpcode::TmDel, WcStatus::Success));
    assert_eq!(eager(&mut list, 2).0, 2);
    assert_eq!(list.apply(op(TagOp::Del(handles[1]))).unwrap().status, WcStatus::TmErr);
    assert_eq!(eager(&mut list, 1).0, 100);
    let next = list.apply(add(3, 3, u64::MAX)).unwrap().handle.unwrap();
    assert!(!handles.contains(&next), "a stale handle hits nothing");
}

fn rendezvous(extra: usize) -> Vec<u8> {
    let asked = [&0x1122u64.to_be_bytes()[..], &0x33u32.to_be_bytes(), &0x44u32.to_be_bytes()];
    message(OP_RNDV, 5, &[asked.concat(), vec![0xee; extra]].concat())
}

#[test]
fn a_rendezvous_is_fetched_and_answered() {
    for extra in [0, 32] {
        let mut list = list();
        list.apply(add(1, 5, u64::MAX)).unwrap();
        let found = list.accept(&rendezvous(extra), true, true, || None).unwrap();
        let fetch = found.fetch.unwrap();
        assert_eq!((fetch.from, fetch.len), (Remote { addr: 0x1122, rkey: 0x33 }, 0x44));
        assert_eq!(fetch.fin[..], message(OP_FIN, 5, b""));
        assert_eq!(found.label.flags, WcFlags::TM_MATCH);
        assert_eq!(found.label.info, TmInfo { tag: 5, app_ctx: 7 });
    }
}

#[test]
fn a_rendezvous_that_the_device_cannot_serve_is_left_to_the_program() {
    let cut = rendezvous(0)[..31].to_vec();
    for (first, whole, fetches) in [
        (cut, true, true),
        (rendezvous(33), true, true),
        (rendezvous(0), false, true),
        (rendezvous(0), true, false),
    ] {
        let mut list = list();
        list.apply(add(1, 5, u64::MAX)).unwrap();
        let found = list.accept(&first, whole, fetches, || None).unwrap();
        assert_eq!((found.request.wr_id, found.skip, found.fetch), (1, 0, None));
        assert_eq!((found.label.status, found.label.flags), (WcStatus::TmRndvIncomplete, BOTH));
    }
}

#[test]
fn an_unexpected_rendezvous_is_the_programs() {
    let mut list = list();
    let found = list.accept(&rendezvous(0), true, true, || Some(request(100))).unwrap();
    assert_eq!((found.request.wr_id, found.skip, found.fetch), (100, 0, None));
    assert_eq!(list.apply(op(TagOp::Sync)).unwrap().flags, WcFlags::TM_SYNC_REQ);
}
