//! Messages of connection management: what is emitted parses to the same, and what parses emits the
//! same but for reserved bits and private data that nobody uses.

use proptest::array::{uniform16, uniform32};
use proptest::prelude::*;
use wire::cm::{
    About, Dreq, Ece, Ids, Kind, Mad, Mra, Reason, Rej, Rep, Req, SidrRep, SidrReq, SidrStatus,
    Transport,
};
use wire::mad::MAD_LEN;

const QPN: std::ops::Range<u32> = 0..1 << 24;

fn bytes<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    prop::collection::vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().expect("N of them"))
}

fn ids() -> impl Strategy<Value = Ids> {
    any::<(u32, u32)>().prop_map(|(local, remote)| Ids { local, remote })
}

fn ece() -> impl Strategy<Value = Ece> {
    (QPN, any::<u32>()).prop_map(|(vendor_id, attr_mod)| Ece { vendor_id, attr_mod })
}

fn req() -> impl Strategy<Value = Req> {
    let transport = prop::sample::select(vec![Transport::Rc, Transport::Uc, Transport::Xrc]);
    let five = || 0..32u8;
    let small = ((five(), five(), five()), (0..8u8, 0..8u8, 0..16u8, 0..16u8, 0..64u8));
    let wide = (any::<u32>(), any::<u64>(), any::<u64>(), QPN, QPN, 0..1u32 << 20);
    let rest = (any::<[u8; 4]>(), any::<[bool; 2]>(), transport, ece());
    (small, wide, rest, uniform16(any::<u8>()), uniform16(any::<u8>()), bytes()).prop_map(
        |(small, wide, rest, local_gid, remote_gid, private)| {
            let ((remote_timeout, local_timeout, ack_timeout), small) = small;
            let (retry_count, rnr_retry_count, max_retries, mtu, rate) = small;
            let (local_id, service_id, ca_guid, qpn, psn, flow_label) = wide;
            let ([responder_resources, initiator_depth, traffic_class, hop_limit], flags, ..) =
                rest;
            Req {
                local_id,
                service_id,
                ca_guid,
                qpn,
                responder_resources,
                initiator_depth,
                remote_timeout,
                local_timeout,
                transport: rest.2,
                flow_control: flags[0],
                psn,
                retry_count,
                rnr_retry_count,
                max_retries,
                mtu,
                srq: flags[1],
                local_gid,
                remote_gid,
                flow_label,
                rate,
                traffic_class,
                hop_limit,
                ack_timeout,
                ece: rest.3,
                private,
            }
        },
    )
}

fn rep() -> impl Strategy<Value = Rep> {
    let depths = any::<[u8; 2]>();
    let flags = any::<[bool; 2]>();
    (ids(), QPN, QPN, QPN, depths, flags, 0..8u8, any::<u64>(), ece(), bytes()).prop_map(
        |(ids, qpn, xrc_qpn, psn, depths, flags, rnr_retry_count, ca_guid, ece, private)| Rep {
            ids,
            qpn,
            xrc_qpn,
            psn,
            responder_resources: depths[0],
            initiator_depth: depths[1],
            flow_control: flags[0],
            rnr_retry_count,
            srq: flags[1],
            ca_guid,
            ece,
            private,
        },
    )
}

fn rej() -> impl Strategy<Value = Rej> {
    (ids(), 0..4u8, any::<u16>(), 0..128u8, bytes(), bytes()).prop_map(
        |(ids, about, reason, info_len, info, private)| Rej {
            ids,
            about: About(about),
            reason: Reason(reason),
            info_len,
            info,
            private,
        },
    )
}

/// Bits in which two datagrams differ.
fn difference(one: &Mad, other: &Mad) -> u32 {
    one.bytes().iter().zip(other.bytes()).map(|(a, b)| (a ^ b).count_ones()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn requests(req in req(), tid in any::<u64>()) {
        let mad = req.emit(tid);
        let wanted = (Some(Kind::Req), tid, req.local_id);
        prop_assert_eq!((mad.kind(), mad.tid(), mad.ids().local), wanted);
        prop_assert_eq!(Req::parse(&mad), Some(req));
        prop_assert_eq!(Rep::parse(&mad), None);
    }

    #[test]
    fn replies(rep in rep(), tid in any::<u64>()) {
        let mad = rep.emit(tid);
        prop_assert_eq!((mad.kind(), mad.tid(), mad.ids()), (Some(Kind::Rep), tid, rep.ids));
        prop_assert_eq!(Rep::parse(&mad), Some(rep));
        prop_assert_eq!(Req::parse(&mad), None);
    }

    #[test]
    fn refusals(rej in rej(), guid in any::<u64>()) {
        prop_assert_eq!(Rej::parse(&rej.emit(1)), Some(rej.clone()));
        let mut named = rej;
        named.info[..8].copy_from_slice(&guid.to_be_bytes());
        prop_assert_eq!(Rej::parse(&named.emit(1)).expect("a REJ").ca_guid(), guid);
    }

    #[test]
    fn short_ones(ids in ids(), about in 0..4u8, service_timeout in 0..32u8, remote_qpn in QPN) {
        let mra = Mra { ids, about: About(about), service_timeout };
        prop_assert_eq!(Mra::parse(&mra.emit(2)), Some(mra));
        let dreq = Dreq { ids, remote_qpn };
        prop_assert_eq!(Dreq::parse(&dreq.emit(3)), Some(dreq));
        for kind in [Kind::Rtu, Kind::Drep] {
            let mad = Mad::with_ids(kind, 4, ids);
            prop_assert_eq!((mad.kind(), mad.ids(), mad.tid()), (Some(kind), ids, 4));
        }
    }

    #[test]
    fn datagram_services(
        numbers in any::<(u32, u64, u32, u8)>(),
        qpn in QPN,
        question in bytes(),
        answer in bytes(),
    ) {
        let (request_id, service_id, qkey, status) = numbers;
        let req = SidrReq { request_id, service_id, private: question };
        prop_assert_eq!(SidrReq::parse(&req.emit(5)), Some(req));
        let status = SidrStatus(status);
        let rep = SidrRep { request_id, status, qpn, service_id, qkey, private: answer };
        prop_assert_eq!(SidrRep::parse(&rep.emit(6)), Some(rep));
    }

    /// Any bytes that are a message come out again but for what the specification reserves or this
    /// room leaves out.
    #[test]
    fn any_bytes(kind in prop::sample::select(Kind::ALL.to_vec()), body in uniform32(any::<u8>())) {
        let mut bytes = [0u8; MAD_LEN];
        for (to, from) in bytes.iter_mut().zip(body.iter().cycle()) {
            *to = *from;
        }
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&(kind as u16).to_be_bytes());
        let mad = Mad::from_bytes(&bytes);
        prop_assert_eq!(mad.kind(), Some(kind));
        let again = match kind {
            Kind::Req => Req::parse(&mad).map(|req| req.emit(mad.tid())),
            Kind::Rep => Rep::parse(&mad).map(|rep| rep.emit(mad.tid())),
            Kind::Rej => Rej::parse(&mad).map(|rej| rej.emit(mad.tid())),
            Kind::Mra => Mra::parse(&mad).map(|mra| mra.emit(mad.tid())),
            Kind::Dreq => Dreq::parse(&mad).map(|dreq| dreq.emit(mad.tid())),
            Kind::SidrReq => SidrReq::parse(&mad).map(|req| req.emit(mad.tid())),
            Kind::SidrRep => SidrRep::parse(&mad).map(|rep| rep.emit(mad.tid())),
            Kind::Rtu | Kind::Drep => Some(Mad::with_ids(kind, mad.tid(), mad.ids())),
        };
        let Some(again) = again else {
            // A transport that does not exist.
            prop_assert_eq!(kind, Kind::Req);
            return Ok(());
        };
        let private = match kind {
            Kind::Req | Kind::Rep | Kind::Rej => 0,
            Kind::Mra => 222,
            Kind::Rtu | Kind::Drep => 224,
            Kind::Dreq => 220,
            // Information that goes with a status.
            Kind::SidrReq => 0,
            Kind::SidrRep => 72,
        };
        // The header's six reserved bytes, and what is not of RoCE: keys, LIDs, an alternate path.
        let reserved = 6 + 4 + if kind == Kind::Req { 80 } else { 12 };
        prop_assert!(difference(&mad, &again) <= 8 * (private + reserved));
    }
}

#[test]
fn other_classes_and_methods_are_nothing() {
    let rtu = *Mad::with_ids(Kind::Rtu, 1, Ids::default()).bytes();
    for (at, bit) in [(0, 0x40), (1, 0x40), (2, 0x40), (3, 0x40), (17, 0x20), (16, 1)] {
        let mut bytes = rtu;
        bytes[at] ^= bit;
        assert_eq!(Mad::from_bytes(&bytes).kind(), None);
    }
}
