//! What a key and a queue pair give a peer access to, and that nothing else is touched.

use super::*;

/// A WRITE of two packets, a READ and an atomic with this key and address must all be refused and
/// do nothing.
#[track_caller]
fn assert_guarded(register: impl Fn(&mut Node) -> (Region, u64, u32), atomic_too: bool) {
    let kinds = if atomic_too { 3 } else { 2 };
    for kind in 0..kinds {
        let mut node = responder();
        let (region, va, rkey) = register(&mut node);
        let before = region.get(0, region.len as usize);
        let packet = match kind {
            0 => write(First, FIRST_PSN, 256).reth(va, rkey, 512),
            1 => read(FIRST_PSN, va, rkey, 512),
            _ => fetch_add(FIRST_PSN, va & !7, rkey),
        };
        let out = node.feed(&packet);
        assert_eq!(region.get(0, region.len as usize), before, "nothing was written");
        assert_eq!(out.len(), 1, "nothing but the NAK is said");
        assert_no_access(&node, &out, FIRST_PSN);
        assert_eq!(node.counted(Counter::RespRemoteAccessErrors), 1);
    }
}

#[test]
pub fn a_stale_key_gives_no_access() {
    assert_guarded(
        |node| {
            let region = node.register(1024);
            let stale = region.key ^ 1;
            (region.clone(), region.iova, stale)
        },
        true,
    );
}

#[test]
fn an_unknown_key_gives_no_access() {
    assert_guarded(
        |node| {
            let r = node.register(1024);
            (r.clone(), r.iova, 0)
        },
        true,
    );
    assert_guarded(
        |node| {
            let r = node.register(1024);
            (r.clone(), r.iova, u32::MAX)
        },
        true,
    );
    assert_guarded(
        |node| {
            let region = node.register(1024);
            node.keys.remove(region.key, || ()).unwrap();
            (region.clone(), region.iova, region.key)
        },
        true,
    );
}

#[test]
pub fn a_key_of_another_domain_gives_no_access() {
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    assert_guarded(
        |node| {
            let region = node.register_as(PdId(PD.0 + 1), 1024, all);
            (region.clone(), region.iova, region.key)
        },
        true,
    );
}

#[test]
pub fn a_key_gives_only_its_rights() {
    assert_guarded(
        |node| {
            let region = node.register_as(PD, 1024, Access::LOCAL_WRITE);
            (region.clone(), region.iova, region.key)
        },
        true,
    );
    // Each right alone gives nothing else.
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (given, right) in rights.into_iter().enumerate() {
        for asked in 0..3 {
            let mut node = responder();
            let region = node.register_as(PD, 1024, Access::LOCAL_WRITE | right);
            let packet = match asked {
                0 => write(Only, FIRST_PSN, 8).reth(region.iova, region.key, 8),
                1 => read(FIRST_PSN, region.iova, region.key, 8),
                _ => fetch_add(FIRST_PSN, region.iova, region.key),
            };
            let out = node.feed(&packet);
            assert_eq!(out[0].nak().is_none(), given == asked, "{right:?}, operation {asked}");
        }
    }
}

#[test]
pub fn a_range_stays_within_its_registration() {
    let cases: [fn(&Region) -> u64; 4] = [
        |region| region.iova + region.len - 256,
        |region| region.iova - 8,
        |region| region.iova + region.len,
        |_| u64::MAX - 100,
    ];
    for (number, va) in cases.into_iter().enumerate() {
        let atomic_too = number > 0;
        assert_guarded(
            |node| {
                let region = node.register(1024);
                (region.clone(), va(&region), region.key)
            },
            atomic_too,
        );
    }
}

#[test]
fn zero_length_names_no_memory() {
    let mut node = responder();
    let out = node.feed(&write(Only, FIRST_PSN, 0).reth(0xdead, 0xdead, 0));
    assert!(out[0].is_ack());
    let out = node.feed(&read(FIRST_PSN + 1, 0xdead, 0xdead, 0));
    assert_eq!((out[0].operation(), out[0].position()), (Operation::ReadResponse, Only));
    assert!(out[0].payload.is_empty());
    receives(&mut node, 1);
    assert!(node.feed(&send(Only, FIRST_PSN + 2, 0))[0].is_ack());
    assert_eq!(node.told.received[0].byte_len, 0);
}

#[test]
pub fn a_qp_offers_only_what_it_was_told_to() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (given, right) in rights.into_iter().enumerate() {
        for asked in 0..3 {
            let mut node = responder_with(|setup| setup.access = right);
            let region = node.register(1024);
            let packet = match asked {
                0 => write(Only, FIRST_PSN, 8).reth(region.iova, region.key, 8),
                1 => read(FIRST_PSN, region.iova, region.key, 8),
                _ => fetch_add(FIRST_PSN, region.iova, region.key),
            };
            let out = node.feed(&packet);
            if given == asked {
                assert!(out[0].nak().is_none());
            } else {
                assert_invalid(&node, &out, FIRST_PSN);
            }
        }
    }
}

#[test]
fn atomics_are_aligned() {
    for offset in 1..8 {
        let mut node = responder();
        let region = node.register(64);
        let out = node.feed(&fetch_add(FIRST_PSN, region.iova + offset, region.key));
        assert_invalid(&node, &out, FIRST_PSN);
        assert_eq!(region.ram.atomics.load(Relaxed), 0);
    }
}

#[test]
fn responder_resources_are_bounded() {
    for atomics in [false, true] {
        let mut node = responder();
        let region = node.register(64);
        for i in 0..5 {
            let psn = FIRST_PSN + i;
            node.receive(&match atomics {
                false => read(psn, region.iova, region.key, 8),
                true => fetch_add(psn, region.iova, region.key),
            });
        }
        node.end_of_batch();
        let out = node.emitted();
        assert_eq!(out.len(), 5, "four answers and a NAK");
        assert_invalid(&node, &out, FIRST_PSN + 4);
        if atomics {
            assert_eq!(region.word(0), 4);
        }
    }
    let mut node = responder_with(|setup| setup.max_rd_atomic = 0);
    let region = node.register(64);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 8));
    assert_invalid(&node, &out, FIRST_PSN);
}

#[test]
pub fn failing_memory_is_a_remote_operational_error() {
    let mut node = responder();
    let region = node.register(1024);
    region.ram.broken.store(true, Relaxed);
    let out = node.feed(&write(Only, FIRST_PSN, 8).reth(region.iova, region.key, 8));
    let event = Some(EventType::QpFatal);
    assert_fatal(&node, &out, FIRST_PSN, NakCode::RemoteOperational, event);

    let mut node = responder();
    let region = node.register(1024);
    node.receive(&read(FIRST_PSN, region.iova, region.key, 1024));
    region.ram.broken.store(true, Relaxed);
    node.end_of_batch();
    let out = node.emitted();
    assert_fatal(&node, &out, FIRST_PSN, NakCode::RemoteOperational, event);
}

#[test]
fn a_registration_that_ends_amid_a_message_ends_its_access() {
    let mut node = responder();
    let region = node.register(1024);
    node.feed(&write(First, FIRST_PSN, 256).reth(region.iova, region.key, 512));
    node.keys.remove(region.key, || ()).unwrap();
    let out = node.feed(&write(Last, FIRST_PSN + 1, 256));
    assert_no_access(&node, &out, FIRST_PSN + 1);
    assert_eq!(region.get(256, 256), [0; 256]);
}

#[test]
fn a_key_that_is_no_window_cannot_be_invalidated() {
    let mut node = responder();
    let region = receives(&mut node, 1);
    let out = node.feed(&send(Only, FIRST_PSN, 8).invalidate(region.key));
    assert_no_access(&node, &out, FIRST_PSN);
    assert_eq!(node.told.received[0].status, WcStatus::WrFlushErr);
}
