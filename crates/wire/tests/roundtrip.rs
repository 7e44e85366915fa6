//! Whatever can be emitted parses back to itself, and whatever parses emits the same bytes but for
//! reserved bits.

mod common;

use proptest::prelude::*;
use wire::icrc::{Addresses, Checker, FlowCrc};
use wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, MAX_HEADERS_LEN, NakCode, Opcode, Psn, Reth,
    Syndrome,
};

fn opcode() -> impl Strategy<Value = Opcode> {
    let all: Vec<_> = (0..=u8::MAX).filter_map(Opcode::from_byte).collect();
    prop::sample::select(all)
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0..32u8).prop_map(Syndrome::Ack),
        (0..32u8).prop_map(Syndrome::RnrNak),
        (0..5u8).prop_map(|code| Syndrome::Nak(NakCode::from_code(code).expect("defined"))),
    ]
}

fn bth() -> impl Strategy<Value = Bth> {
    let flags = any::<[bool; 5]>();
    (opcode(), flags, any::<u16>(), 0..1u32 << 24, any::<u32>(), 0..4u8).prop_map(
        |(opcode, [solicited, migrated, fecn, becn, ack_req], pkey, dest_qp, psn, pad)| Bth {
            opcode,
            solicited,
            migrated,
            pad,
            pkey,
            fecn,
            becn,
            dest_qp,
            ack_req,
            psn: Psn::new(psn),
        },
    )
}

fn headers() -> impl Strategy<Value = Headers> {
    (bth(), any::<[u64; 4]>(), any::<[u32; 5]>(), syndrome()).prop_map(|(bth, wide, word, syn)| {
        let opcode = bth.opcode;
        let low = word[0] & 0x00ff_ffff;
        let mut headers = Headers::new(bth);
        headers.deth = opcode.has_deth().then_some(Deth { qkey: word[1], src_qp: low });
        headers.xrc_srqn = opcode.has_xrceth().then_some(low);
        headers.reth =
            opcode.has_reth().then_some(Reth { va: wide[0], rkey: word[1], len: word[2] });
        headers.feth = opcode
            .has_feth()
            .then_some(Feth { placement: word[2] as u8 & 0xf, level: word[1] as u8 & 3 });
        headers.atomic = opcode.has_atomic().then_some(AtomicEth {
            va: wide[0],
            rkey: word[1],
            swap_or_add: wide[1],
            compare: wide[2],
        });
        headers.aeth = opcode.has_aeth().then_some(Aeth { syndrome: syn, msn: low });
        headers.atomic_ack = opcode.has_atomic_ack().then_some(wide[3]);
        headers.imm = opcode.has_imm().then_some(word[3]);
        headers.invalidate = opcode.has_invalidate().then_some(word[4]);
        headers
    })
}

fn addresses() -> impl Strategy<Value = Addresses> {
    prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|[a, b]| Addresses::V4(a.into(), b.into())),
        any::<[[u8; 16]; 2]>().prop_map(|[a, b]| Addresses::V6(a.into(), b.into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn emitted_headers_parse_back(
        headers in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut packet = vec![0xaa; MAX_HEADERS_LEN];
        let len = headers.emit(&mut packet);
        prop_assert_eq!(len, headers.len());
        packet.truncate(len);
        packet.extend(&payload);
        packet.extend(std::iter::repeat_n(0, headers.bth.pad.into()));
        let (parsed, found) = Headers::parse(&packet).expect("own packets parse");
        prop_assert_eq!(parsed, headers);
        prop_assert_eq!(found, &payload[..]);
    }

    #[test]
    fn parsed_headers_emit_the_same_bytes(
        opcode in opcode(),
        mut packet in prop::collection::vec(any::<u8>(), 0..MAX_HEADERS_LEN + 8),
    ) {
        if let [first, second, ..] = &mut packet[..] {
            *first = opcode.to_byte();
            *second &= 0xf0;
        }
        if let Ok((headers, _)) = Headers::parse(&packet) {
            let mut out = [0; MAX_HEADERS_LEN];
            let len = headers.emit(&mut out);
            // A second pass sees no reserved bits any more.
            let mut clean = packet.clone();
            clean[..len].copy_from_slice(&out[..len]);
            prop_assert_eq!(Headers::parse(&clean).expect("still a packet").0, headers);
            let changed: u32 =
                packet[..len].iter().zip(&out[..len]).map(|(a, b)| (a ^ b).count_ones()).sum();
            // BTH 6 + 7, 8 in DETH or XRCETH, 26 in FETH, the end of a notification.
            let feth = if opcode.has_feth() { 26 } else { 0 };
            let end = if opcode.has_reserved() { 128 } else { 0 };
            let reserved = 6 + 7 + 8 + feth + end;
            prop_assert!(changed <= reserved, "{} bits lost", changed);
        }
    }

    #[test]
    fn a_sealed_packet_checks_and_a_changed_one_does_not(
        addresses in addresses(),
        port in any::<u16>(),
        (identification, hint) in any::<(u16, u16)>(),
        transport in prop::collection::vec(any::<u8>(), 12..200),
        change in 1..=u32::MAX,
    ) {
        let icrc = FlowCrc::new(addresses, port).icrc(identification, &transport);
        let ipv4 = matches!(addresses, Addresses::V4(..));
        let mut checker = Checker::new();
        let found = checker.check(addresses, port, hint, &transport, icrc);
        prop_assert_eq!(found, Some(if ipv4 { identification } else { 0 }));
        // On IPv4 a wrong sum passes only as the right sum of another identification.
        let wrong = icrc ^ change;
        if let Some(other) = checker.check(addresses, port, hint, &transport, wrong) {
            prop_assert!(ipv4);
            prop_assert_eq!(FlowCrc::new(addresses, port).icrc(other, &transport), wrong);
        }
    }
}
