//! The QP state machine against a table of its own, written from the specification (IBA 11.2.5.2)
//! and Linux.

use crate::support::{Node, Setup, port_one, send_wr};
use QpState::{Err as Error_, Init, Reset, Rtr, Rts, Sqd, Sqe};
use transport::Error;
use transport::values::*;

const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error_];
const KINDS: [QpType; 6] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket, QpType::XrcSend, QpType::XrcRecv];

/// Those with a receive queue of their own.
const RECEIVING: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket];

/// from, to, service, required, optional. `-` is nothing.
const TABLE: &str = "
reset init rc  pkey_index,port,access                                   -
reset init uc  pkey_index,port,access                                   -
reset init ud  pkey_index,port,qkey                                     -
init  init rc  -                                                        pkey_index,port,access
init  init uc  -                                                        pkey_index,port,access
init  init ud  -                                                        pkey_index,port,qkey
init  rtr  rc  av,path_mtu,dest_qpn,rq_psn,max_dest_rd_atomic,min_rnr   access,pkey_index,alt_path
init  rtr  uc  av,path_mtu,dest_qpn,rq_psn                              access,pkey_index,alt_path
init  rtr  ud  -                                                        pkey_index,qkey
rtr   rts  rc  timeout,retry_cnt,rnr_retry,sq_psn,max_rd_atomic         cur_state,access,min_rnr,\
                                                                        alt_path,path_mig
rtr   rts  uc  sq_psn                                                   cur_state,access,alt_path,\
                                                                        path_mig
rtr   rts  ud  sq_psn                                                   cur_state,qkey
rts   rts  rc  -                                                        cur_state,access,min_rnr,\
                                                                        alt_path,path_mig
rts   rts  uc  -                                                        cur_state,access,alt_path,\
                                                                        path_mig
rts   rts  ud  -                                                        cur_state,qkey
rts   sqd  rc  -                                                        sqd_notify
rts   sqd  uc  -                                                        sqd_notify
rts   sqd  ud  -                                                        sqd_notify
sqd   rts  rc  -                                                        cur_state,access,min_rnr,\
                                                                        alt_path,path_mig
sqd   rts  uc  -                                                        cur_state,access,alt_path,\
                                                                        path_mig
sqd   rts  ud  -                                                        cur_state,qkey
sqd   sqd  rc  -                                                        port,av,timeout,retry_cnt,\
                                                                        rnr_retry,max_rd_atomic,\
                                                                        max_dest_rd_atomic,access,\
                                                                        pkey_index,min_rnr,\
                                                                        alt_path,path_mig
sqd   sqd  uc  -                                                        av,access,pkey_index,\
                                                                        alt_path,path_mig
sqd   sqd  ud  -                                                        pkey_index,qkey
reset init ini pkey_index,port,access                                   -
reset init tgt pkey_index,port,access                                   -
init  init ini -                                                        pkey_index,port,access
init  init tgt -                                                        pkey_index,port,access
init  rtr  ini av,path_mtu,dest_qpn,rq_psn                              access,pkey_index,alt_path
init  rtr  tgt av,path_mtu,dest_qpn,rq_psn,max_dest_rd_atomic,min_rnr   access,pkey_index,alt_path
rtr   rts  ini timeout,retry_cnt,rnr_retry,sq_psn,max_rd_atomic         cur_state,access,alt_path,\
                                                                        path_mig
rtr   rts  tgt timeout,sq_psn                                           cur_state,access,min_rnr,\
                                                                        alt_path,path_mig
rts   rts  ini -                                                        cur_state,access,alt_path,\
                                                                        path_mig
rts   rts  tgt -                                                        cur_state,access,min_rnr,\
                                                                        alt_path,path_mig
rts   sqd  ini -                                                        sqd_notify
rts   sqd  tgt -                                                        sqd_notify
sqd   rts  ini -                                                        cur_state,access,alt_path,\
                                                                        path_mig
sqd   rts  tgt -                                                        cur_state,access,min_rnr,\
                                                                        alt_path,path_mig
sqd   sqd  ini -                                                        port,av,timeout,retry_cnt,\
                                                                        rnr_retry,max_rd_atomic,\
                                                                        access,pkey_index,alt_path,\
                                                                        path_mig
sqd   sqd  tgt -                                                        port,av,timeout,\
                                                                        max_dest_rd_atomic,access,\
                                                                        pkey_index,min_rnr,\
                                                                        alt_path,path_mig
sqe   rts  rc  -                                                        cur_state
sqe   rts  uc  -                                                        cur_state,access
sqe   rts  ud  -                                                        cur_state,qkey
reset init raw port                                                     -
init  init raw -                                                        -
init  rtr  raw -                                                        -
rtr   rts  raw -                                                        -
rts   rts  raw -                                                        -
rts   sqd  raw -                                                        -
sqd   rts  raw -                                                        -
sqd   sqd  raw -                                                        -
sqe   rts  raw -                                                        -
";

fn state_name(state: QpState) -> &'static str {
    ["reset", "init", "rtr", "rts", "sqd", "sqe", "err"][state as usize]
}

fn kind_name(kind: QpType) -> &'static str {
    match kind {
        QpType::Rc => "rc",
        QpType::Uc => "uc",
        QpType::Ud => "ud",
        QpType::RawPacket => "raw",
        QpType::XrcSend => "ini",
        QpType::XrcRecv => "tgt",
    }
}

fn bit(name: &str) -> AttrMask {
    match name {
        "-" => AttrMask::empty(),
        "pkey_index" => AttrMask::PKEY_INDEX,
        "port" => AttrMask::PORT,
        "access" => AttrMask::ACCESS_FLAGS,
        "qkey" => AttrMask::QKEY,
        "av" => AttrMask::AV,
        "path_mtu" => AttrMask::PATH_MTU,
        "dest_qpn" => AttrMask::DEST_QPN,
        "rq_psn" => AttrMask::RQ_PSN,
        "max_dest_rd_atomic" => AttrMask::MAX_DEST_RD_ATOMIC,
        "min_rnr" => AttrMask::MIN_RNR_TIMER,
        "timeout" => AttrMask::TIMEOUT,
        "retry_cnt" => AttrMask::RETRY_CNT,
        "rnr_retry" => AttrMask::RNR_RETRY,
        "sq_psn" => AttrMask::SQ_PSN,
        "max_rd_atomic" => AttrMask::MAX_QP_RD_ATOMIC,
        "cur_state" => AttrMask::CUR_STATE,
        "sqd_notify" => AttrMask::EN_SQD_ASYNC_NOTIFY,
        "alt_path" => AttrMask::ALT_PATH,
        "path_mig" => AttrMask::PATH_MIG_STATE,
        other => panic!("{other}"),
    }
}

fn mask(names: &str) -> AttrMask {
    names.split(',').map(bit).fold(AttrMask::empty(), |all, one| all | one)
}

/// Required and optional attributes, or `None` for no such transition.
fn expected(kind: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    let nothing = (AttrMask::empty(), AttrMask::empty());
    match (from, to) {
        (_, Reset) => return Some(nothing),
        (Reset, Error_) => return None,
        (_, Error_) => return Some(nothing),
        _ => {}
    }
    TABLE.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [f, t, k, required, optional] = words[..] else { return None };
        (f == state_name(from) && t == state_name(to) && k == kind_name(kind))
            .then(|| (mask(required), mask(optional)))
    })
}

fn attr(to: QpState, from: QpState) -> QpAttr {
    QpAttr {
        qp_state: to,
        cur_qp_state: from,
        path_mtu: 3,
        qkey: 1,
        rq_psn: 1,
        sq_psn: 1,
        dest_qp_num: 5,
        access: Access::REMOTE_WRITE,
        ah: AhAttr { is_global: true, port_num: 1, ..AhAttr::default() },
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..Node::new(QpType::Rc, 1, None).qp.query()
    }
}

/// A QP in `state`, or `None` where the service has no such state.
fn in_state(kind: QpType, state: QpState) -> Option<Node> {
    let mut node = Node::new(kind, 11, None);
    let go = |node: &mut Node, to: QpState, extra: AttrMask| {
        let from = node.qp.state();
        node.modify(&attr(to, from), AttrMask::STATE | extra).unwrap();
    };
    if state == Reset {
        return Some(node);
    }
    let (init, _) = expected(kind, Reset, Init).unwrap();
    go(&mut node, Init, init);
    if state == Init {
        return Some(node);
    }
    let mut node = Node::new(kind, 11, None);
    node.connect(&Setup { stop_at_rtr: state == Rtr, ..Setup::new(kind) });
    match state {
        Sqd | Error_ => go(&mut node, state, AttrMask::empty()),
        Sqe => {
            if kind.is_reliable() {
                return None;
            }
            let bad = Sge { addr: 0, length: 64, lkey: 0 };
            let mut wr = send_wr(1, SendOp::Send, &[bad]);
            if kind == QpType::Ud {
                let ah = port_one();
                wr.datagram = Some(Datagram { ah, remote_qpn: 1, remote_qkey: 1 });
            }
            node.post_send(wr);
        }
        _ => {}
    }
    assert_eq!(node.qp.state(), state);
    Some(node)
}

#[test]
fn every_transition_with_every_attribute() {
    let mut tried = 0;
    for kind in KINDS {
        for from in STATES {
            for to in STATES {
                if in_state(kind, from).is_none() {
                    continue;
                }
                let mut attempt = |mask: AttrMask| {
                    tried += 1;
                    let mut node = in_state(kind, from).unwrap();
                    let result = node.modify(&attr(to, from), mask);
                    match result {
                        Ok(()) => assert_eq!(node.qp.state(), to),
                        Err(error) => {
                            // No device of ours paces raw packets.
                            let paced =
                                kind == QpType::RawPacket && mask.contains(AttrMask::RATE_LIMIT);
                            assert_eq!(matches!(error, Error::NotSupported(_)), paced);
                            assert_eq!(node.qp.state(), from, "a refused change changes nothing");
                        }
                    }
                    result.is_ok()
                };
                let context = format!("{kind:?} {from:?} -> {to:?}");
                let Some((required, optional)) = expected(kind, from, to) else {
                    for extra in AttrMask::all() {
                        assert!(!attempt(AttrMask::STATE | extra), "{context} {extra:?}");
                    }
                    continue;
                };
                let base = AttrMask::STATE | required;
                assert!(attempt(base), "{context}");
                for missing in required {
                    assert!(!attempt(base - missing), "{context} without {missing:?}");
                }
                for extra in AttrMask::all() - base {
                    // The transition allows an alternate path, RoCE does not.
                    let allowed = optional.contains(extra) && extra != AttrMask::ALT_PATH;
                    assert_eq!(attempt(base | extra), allowed, "{context} with {extra:?}");
                }
            }
        }
    }
    assert!(tried > 1500, "{tried}");
}

#[test]
fn without_an_alternate_path_a_qp_stays_migrated() {
    let mut node = in_state(QpType::Rc, Rts).unwrap();
    for path_mig_state in [1, 2, 3, u32::MAX] {
        let wrong = QpAttr { path_mig_state, ..attr(Rts, Rts) };
        assert!(matches!(node.modify(&wrong, AttrMask::PATH_MIG_STATE), Err(Error::Invalid(_))));
    }
    node.modify(&attr(Rts, Rts), AttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(node.qp.query().path_mig_state, 0);
}

#[test]
fn a_drained_qp_moves_to_the_port_of_its_new_path() {
    let mut node = in_state(QpType::Rc, Sqd).unwrap();
    let ah = AhAttr { port_num: 3, ..attr(Sqd, Sqd).ah };
    let moved = QpAttr { ah, ..attr(Sqd, Sqd) };
    let both = AttrMask::AV | AttrMask::PORT;
    assert!(node.modify(&moved, both).is_err(), "the port given is another");
    node.modify(&moved, AttrMask::AV).unwrap();
    assert_eq!(node.qp.query().port_num, 3);
    node.modify(&QpAttr { port_num: 3, ..moved }, both).unwrap();
}

#[test]
fn without_a_state_the_present_one_is_meant() {
    let mut node = in_state(QpType::Rc, Rts).unwrap();
    node.modify(&attr(Reset, Rts), AttrMask::MIN_RNR_TIMER).unwrap();
    assert_eq!(node.qp.state(), Rts);
    let mut node = in_state(QpType::Rc, Rtr).unwrap();
    assert!(node.modify(&attr(Reset, Rtr), AttrMask::MIN_RNR_TIMER).is_err());
}

#[test]
fn a_wrong_current_state_is_refused() {
    let mut node = in_state(QpType::Ud, Rts).unwrap();
    let wrong = QpAttr { cur_qp_state: Sqd, ..attr(Rts, Rts) };
    assert!(node.modify(&wrong, AttrMask::STATE | AttrMask::CUR_STATE).is_err());
}

#[test]
fn values_are_checked() {
    let fine = |state| attr(state, Reset);
    type Change = fn(&mut QpAttr);
    let init: [Change; 2] = [|a| a.port_num = 0, |a| a.pkey_index = 1];
    let rtr: [Change; 9] = [
        |a| a.path_mtu = 0,
        |a| a.path_mtu = 6,
        |a| a.rq_psn = 1 << 24,
        |a| a.dest_qp_num = 1 << 24,
        |a| a.max_dest_rd_atomic = 17,
        |a| a.min_rnr_timer = 32,
        |a| a.ah.is_global = false,
        |a| a.ah.port_num = 2,
        |a| a.ah.port_num = 0,
    ];
    let rts: [Change; 5] = [
        |a| a.timeout = 32,
        |a| a.retry_cnt = 8,
        |a| a.rnr_retry = 8,
        |a| a.sq_psn = 1 << 24,
        |a| a.max_rd_atomic = 17,
    ];
    let steps: [(QpState, QpState, &[Change]); 3] =
        [(Reset, Init, &init), (Init, Rtr, &rtr), (Rtr, Rts, &rts)];
    for (from, to, changes) in steps {
        let (required, _) = expected(QpType::Rc, from, to).unwrap();
        for (number, change) in changes.iter().enumerate() {
            let mut node = in_state(QpType::Rc, from).unwrap();
            let mut bad = fine(to);
            change(&mut bad);
            let refused = node.modify(&bad, AttrMask::STATE | required);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{to:?} {number}");
            node.modify(&fine(to), AttrMask::STATE | required).unwrap();
        }
    }
}

/// As in Linux: a region's rights decide as well.
#[test]
fn a_queue_pair_may_permit_anything() {
    let mut node = in_state(QpType::Rc, Reset).unwrap();
    let (required, _) = expected(QpType::Rc, Reset, Init).unwrap();
    let any = QpAttr { access: Access::from_bits_retain(!0), ..attr(Init, Reset) };
    node.modify(&any, AttrMask::STATE | required).unwrap();
    assert_eq!(node.qp.query().access, any.access);
}

#[test]
fn query_gives_back_what_was_set() {
    let node = in_state(QpType::Rc, Rts).unwrap();
    let got = node.qp.query();
    assert_eq!((got.qp_state, got.cur_qp_state), (Rts, Rts));
    assert_eq!((got.sq_psn, got.rq_psn, got.dest_qp_num), (5000, 1000, 99));
    assert_eq!((got.timeout, got.retry_cnt, got.rnr_retry), (14, 7, 7));
    assert_eq!((got.max_rd_atomic, got.max_dest_rd_atomic), (4, 4));
    assert_eq!((got.path_mtu, got.cap.max_send_wr), (1, 256));
}

#[test]
fn posting_depends_on_the_state() {
    for kind in KINDS {
        for state in STATES {
            let Some(mut node) = in_state(kind, state) else { continue };
            let mut wr = send_wr(1, SendOp::Send, &[]);
            if kind == QpType::RawPacket {
                wr.payload = Payload::Inline(vec![0; 14].into());
            }
            if kind == QpType::Ud {
                let ah = port_one();
                wr.datagram = Some(Datagram { ah, remote_qpn: 1, remote_qkey: 1 });
            }
            let may_send = !matches!(state, Reset | Init | Rtr) && kind != QpType::XrcRecv;
            assert_eq!(node.qp.post_send(wr).is_ok(), may_send, "{kind:?} {state:?}");
            let recv = RecvWr { wr_id: 2, scatter: Default::default() };
            let may_receive = state != Reset && RECEIVING.contains(&kind);
            assert_eq!(node.qp.post_recv(recv).is_ok(), may_receive, "{kind:?} {state:?}");
        }
    }
}

#[test]
fn reset_forgets_everything_without_a_word() {
    let mut node = in_state(QpType::Rc, Rts).unwrap();
    node.post_recv(1, &[]);
    node.post_send(send_wr(1, SendOp::Send, &[]));
    node.modify(&attr(Reset, Rts), AttrMask::STATE).unwrap();
    assert!(node.told.sent.is_empty() && node.told.received.is_empty());
    assert_eq!(node.qp.deadline(), None);
    assert_eq!(node.qp.query().dest_qp_num, 0);
    node.connect(&Setup::new(QpType::Rc));
    node.emitted();
    node.post_send(send_wr(2, SendOp::Send, &[]));
    assert_eq!(node.emitted()[0].psn(), 5000);
}

#[test]
fn the_error_state_flushes_both_queues() {
    for kind in RECEIVING {
        let mut node = in_state(kind, Rtr).unwrap();
        node.post_recv(1, &[]);
        node.post_recv(2, &[]);
        node.modify(&attr(Error_, Rtr), AttrMask::STATE).unwrap();
        let told: Vec<_> =
            node.told.received.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(told, [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
        node.modify(&attr(Error_, Error_), AttrMask::STATE).unwrap();
        assert_eq!(node.told.received.len(), 2);
    }
}
