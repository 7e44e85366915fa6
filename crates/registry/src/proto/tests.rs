//! What every message must survive: its own encoding, cuts, tails and any bytes.

use super::*;

fn who() -> Identity {
    Identity { device: "peerdma0".into(), guid: 0x1122_3344_5566_7788, comm: "ib_write".into() }
}

fn requests() -> Vec<Request> {
    let id = String::from("vram/3");
    vec![
        Request::Hello { version: VERSION },
        Request::Join { who: who() },
        Request::Rejoin { slot: 7, joined_at: 1 << 60, v4: true, v6: false, who: who() },
        Request::Leave { slot: 7 },
        Request::Members { after: 3 },
        Request::Directory { slot: 1023 },
        Request::Publish { id: id.clone() },
        Request::Lookup { id: id.clone() },
        Request::Withdraw { id },
        Request::Claim { kind: 1, key: u64::MAX, slot: 9 },
        Request::Release { kind: 1, key: 0 },
        Request::Owner { kind: 2, key: 5 },
    ]
}

fn replies() -> Vec<Reply> {
    let row = Row { slot: 5, pid: 77, uid: 0, joined_at: 3, leader: true, who: who() };
    vec![
        Reply::Done,
        Reply::Welcome { version: 1 },
        Reply::Joined { slot: 5, joined_at: 9, v4: true, v6: true },
        Reply::Members(vec![row; PAGE]),
        Reply::Found,
        Reply::Owner { slot: 3 },
        Reply::Failed(Error::PortTaken { port: 4791, holder: "uid 5".into() }),
        Reply::Failed(Error::System { what: "bind".into(), errno: 13 }),
        Reply::Failed(Error::Full("slots".into())),
    ]
}

#[test]
fn what_is_encoded_decodes_to_the_same() {
    for request in requests() {
        assert_eq!(Request::decode(&request.encode(42)), Ok((42, request)));
    }
    for reply in replies() {
        let bytes = reply.encode(7);
        assert!(bytes.len() <= MAX_RECORD);
        assert_eq!(Reply::decode(&bytes), Ok((7, reply)));
    }
}

#[test]
fn every_truncation_and_every_tail_is_refused() {
    for bytes in requests().iter().map(|r| r.encode(1)) {
        for cut in 0..bytes.len() {
            assert!(Request::decode(&bytes[..cut]).is_err());
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(Request::decode(&long).is_err());
    }
}

#[test]
fn any_bytes_decode_without_panic() {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..20_000_usize {
        let mut bytes = requests()[round % 12].encode(round as u32);
        for _ in 0..3 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let at = x as usize % bytes.len();
            bytes[at] = (x >> 32) as u8;
        }
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }
}

#[test]
fn a_version_changes_sides_and_has_16_bits() {
    let refused = Reply::Failed(Error::Version { ours: 7, theirs: VERSION }).encode(1);
    let understood = Reply::Failed(Error::Version { ours: VERSION, theirs: 7 });
    assert_eq!(Reply::decode(&refused), Ok((1, understood)));
    let longer = [10, 0xea, 0, 0x3a, 6, 5, 0, 0x3a, 6, 0xca, 1, 0, 0];
    decode_anything(&longer);
    assert!(Reply::decode(&longer).is_err());
}

#[test]
fn texts_longer_than_their_limit_are_refused() {
    let request = Request::Publish { id: "x".repeat(MAX_ID + 1) };
    assert!(Request::decode(&request.encode(1)).is_err());
}
