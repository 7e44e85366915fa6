//! The QP state machine: which changes of state and attributes are legal (IBA 10.3.1, 11.2.5.2; the
//! masks are those of Linux `ib_modify_qp_is_ok`), and what they do.

use crate::Cx;
use crate::error::{Error, Result};
use crate::qp::{Transport, mtu};
use crate::values::*;
use wire::Psn;

/// What a transition needs and allows besides the state itself.
struct Rule {
    required: AttrMask,
    optional: AttrMask,
}

/// Attribute masks of the transition, or `None` when there is no such transition.
fn rule(kind: QpType, from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    type M = AttrMask;
    let none = M::empty();
    if kind == QpType::RawPacket {
        return raw_rule(from, to);
    }
    let ud = kind == QpType::Ud;
    // What the sending half of a connection retries with, and what its receiving half answers with.
    let sends = matches!(kind, QpType::Rc | QpType::XrcSend);
    let answers = matches!(kind, QpType::Rc | QpType::XrcRecv);
    let when = |holds: bool, mask: M| if holds { mask } else { none };
    let migration = when(!ud, M::ALT_PATH | M::PATH_MIG_STATE);
    let init = M::PKEY_INDEX | M::PORT | if ud { M::QKEY } else { M::ACCESS_FLAGS };
    let rts = M::CUR_STATE
        | if ud { M::QKEY } else { M::ACCESS_FLAGS | migration }
        | when(answers, M::MIN_RNR_TIMER);
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Err) => return None,
        (_, Err) => (none, none),
        (Reset, Init) => (init, none),
        (Init, Init) => (none, init),
        (Init, Rtr) => {
            let required = when(!ud, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN)
                | when(answers, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
            let optional = M::PKEY_INDEX | if ud { M::QKEY } else { M::ALT_PATH | M::ACCESS_FLAGS };
            (required, optional)
        }
        (Rtr, Rts) => {
            let reliable = M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
            let required = M::SQ_PSN | when(kind.is_reliable(), M::TIMEOUT) | when(sends, reliable);
            (required, rts)
        }
        (Rts, Rts) | (Sqd, Rts) => (none, rts),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let sending = M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
            let optional = M::PKEY_INDEX
                | if ud { M::QKEY } else { M::AV | M::ACCESS_FLAGS | migration }
                | when(kind.is_reliable(), M::PORT | M::TIMEOUT)
                | when(sends, sending)
                | when(answers, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
            (none, optional)
        }
        (Sqe, Rts) => {
            let optional = when(ud, M::QKEY) | when(kind == QpType::Uc, M::ACCESS_FLAGS);
            (none, M::CUR_STATE | optional)
        }
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// The same for raw packets, which have no attribute but their port.
fn raw_rule(from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{Init, Reset};
    // The transitions themselves are those of datagrams.
    rule(QpType::Ud, from, to)?;
    let required = match (from, to) {
        (Reset, Init) => AttrMask::PORT,
        _ => AttrMask::empty(),
    };
    Some(Rule { required, optional: AttrMask::empty() })
}

/// Checks a change of state as Linux does. A rate limit only raw packets may have, on devices that
/// say so in `packet_pacing_caps`.
fn check_transition(
    kind: QpType,
    current: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState> {
    use QpState::{Rtr, Rts, Sqd, Sqe};
    if kind == QpType::RawPacket && mask.contains(AttrMask::RATE_LIMIT) {
        return Err(Error::NotSupported("the device does not pace packets"));
    }
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != current {
        return Err(Error::Invalid("cur_qp_state is not the QP's state"));
    }
    if mask.contains(AttrMask::CUR_STATE) && !matches!(current, Rtr | Rts | Sqd | Sqe) {
        return Err(Error::Invalid("cur_qp_state has no meaning in this state"));
    }
    let next = if mask.contains(AttrMask::STATE) { attr.qp_state } else { current };
    let rule =
        rule(kind, current, next).ok_or(Error::Invalid("no such transition of the QP state"))?;
    if !mask.contains(rule.required) {
        return Err(Error::Invalid("an attribute that the transition requires is missing"));
    }
    if !(rule.required | rule.optional | AttrMask::STATE).contains(mask) {
        return Err(Error::Invalid("an attribute that the transition does not allow is given"));
    }
    Ok(next)
}

/// Checks the values of the attributes that `mask` names, for a QP on `port`. Which ports there are
/// the device knows.
fn check_values(attr: &QpAttr, mask: AttrMask, max_rd_atomic: u8, port: u8) -> Result<()> {
    type M = AttrMask;
    let path_port = if mask.contains(M::PORT) {
        attr.port_num
    } else if mask.contains(M::STATE) {
        port
    } else {
        // In SQD a path alone moves the port as well (`modify_qp` of uverbs).
        attr.ah.port_num
    };
    let checks = [
        (M::PORT, attr.port_num == 0, "ports count from 1"),
        (M::PKEY_INDEX, attr.pkey_index != 0, "the P_Key table has one entry"),
        (M::PATH_MTU, !(1..=5).contains(&attr.path_mtu), "path_mtu is 1 (256 bytes) to 5 (4096)"),
        (M::TIMEOUT, attr.timeout > 31, "timeout has 5 bits"),
        (M::RETRY_CNT, attr.retry_cnt > 7, "retry_cnt has 3 bits"),
        (M::RNR_RETRY, attr.rnr_retry > 7, "rnr_retry has 3 bits"),
        (M::MIN_RNR_TIMER, attr.min_rnr_timer > 31, "min_rnr_timer has 5 bits"),
        (M::RQ_PSN, attr.rq_psn >= Psn::SPAN, "rq_psn has 24 bits"),
        (M::SQ_PSN, attr.sq_psn >= Psn::SPAN, "sq_psn has 24 bits"),
        (M::DEST_QPN, attr.dest_qp_num >= 1 << 24, "dest_qp_num has 24 bits"),
        (M::MAX_QP_RD_ATOMIC, attr.max_rd_atomic > max_rd_atomic, "max_rd_atomic above the limit"),
        (
            M::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic > max_rd_atomic,
            "max_dest_rd_atomic above the limit",
        ),
        (M::AV, !attr.ah.is_global, "RoCE needs a GRH in the address vector"),
        (M::AV, attr.ah.port_num != path_port, "the path leaves by another port than the QP's"),
        (
            M::PATH_MIG_STATE,
            attr.path_mig_state != MIGRATED,
            "a QP without an alternate path stays migrated",
        ),
        (M::ALT_PATH, true, "RoCE has no alternate paths"),
    ];
    for (names, wrong, why) in checks {
        if mask.contains(names) && wrong {
            return Err(Error::Invalid(why));
        }
    }
    Ok(())
}

impl Transport {
    /// Changes attributes and state.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a transition, a set of attributes or a value that is not legal,
    /// [`Error::NoMemory`] when there is none for answers to the peer; nothing has changed then.
    pub fn modify(&mut self, attr: &QpAttr, mask: AttrMask, cx: &mut Cx<'_>) -> Result<()> {
        self.unfold_at(cx.now);
        let next = check_transition(self.kind, self.state, attr, mask)?;
        check_values(attr, mask, self.max_rd_atomic, self.attr.port_num)?;
        self.set_answers_aside(attr, mask)?;
        self.now = Some(cx.now);
        self.take_attributes(attr, mask);
        let previous = self.state;
        match (previous, next) {
            // A device acknowledges before the program knows of a message: the program's end of it
            // must not leave the peer in doubt.
            (_, QpState::Reset) => {
                self.respond(cx);
                self.reset();
            }
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => {
                self.respond(cx);
                self.enter_error(cx);
            }
            (_, next) => {
                self.state = next;
                match (previous, next) {
                    (QpState::Init, QpState::Rtr) => {
                        self.mtu = mtu(self.kind, &self.attr);
                        self.resp.restart(Psn::new(self.attr.rq_psn));
                    }
                    (QpState::Rtr, QpState::Rts) => {
                        let first = Psn::new(self.attr.sq_psn);
                        self.req.restart(first, self.window_bytes, self.mtu);
                    }
                    (QpState::Rts, QpState::Sqd) => self.attr.sq_draining = true,
                    (QpState::Sqd, QpState::Rts) => {
                        self.attr.sq_draining = false;
                        self.silence_alarm();
                    }
                    _ => {}
                }
                self.req.retry_left = self.attr.retry_cnt;
                self.req.rnr_left = self.attr.rnr_retry;
                self.check_drained(cx);
            }
        }
        Ok(())
    }

    /// Sets memory aside for what the peer may ask for after this change.
    fn set_answers_aside(&mut self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        type M = AttrMask;
        let access = if mask.contains(M::ACCESS_FLAGS) { attr.access } else { self.attr.access };
        let resources = match mask.contains(M::MAX_DEST_RD_ATOMIC) {
            true => attr.max_dest_rd_atomic,
            false if mask.contains(M::ACCESS_FLAGS) => self.attr.max_dest_rd_atomic,
            false => 0,
        };
        match resources {
            0 => Ok(()),
            more => self.resp.set_aside(more.into(), access.contains(Access::REMOTE_READ)),
        }
    }

    fn take_attributes(&mut self, attr: &QpAttr, mask: AttrMask) {
        type M = AttrMask;
        let own = &mut self.attr;
        let mut take = |name: M, store: &mut dyn FnMut(&mut QpAttr)| {
            if mask.contains(name) {
                store(own);
            }
        };
        take(M::EN_SQD_ASYNC_NOTIFY, &mut |own| own.en_sqd_async_notify = attr.en_sqd_async_notify);
        take(M::ACCESS_FLAGS, &mut |own| own.access = attr.access);
        take(M::PKEY_INDEX, &mut |own| own.pkey_index = attr.pkey_index);
        take(M::PORT, &mut |own| own.port_num = attr.port_num);
        take(M::QKEY, &mut |own| own.qkey = attr.qkey);
        take(M::AV, &mut |own| (own.ah, own.port_num) = (attr.ah, attr.ah.port_num));
        take(M::PATH_MTU, &mut |own| own.path_mtu = attr.path_mtu);
        take(M::TIMEOUT, &mut |own| own.timeout = attr.timeout);
        take(M::RETRY_CNT, &mut |own| own.retry_cnt = attr.retry_cnt);
        take(M::RNR_RETRY, &mut |own| own.rnr_retry = attr.rnr_retry);
        take(M::RQ_PSN, &mut |own| own.rq_psn = attr.rq_psn);
        take(M::SQ_PSN, &mut |own| own.sq_psn = attr.sq_psn);
        take(M::MAX_QP_RD_ATOMIC, &mut |own| own.max_rd_atomic = attr.max_rd_atomic);
        take(M::MAX_DEST_RD_ATOMIC, &mut |own| own.max_dest_rd_atomic = attr.max_dest_rd_atomic);
        take(M::MIN_RNR_TIMER, &mut |own| own.min_rnr_timer = attr.min_rnr_timer);
        take(M::DEST_QPN, &mut |own| own.dest_qp_num = attr.dest_qp_num);
        if mask.contains(M::ACCESS_FLAGS) {
            self.resp.forget_grants();
        }
    }

    fn reset(&mut self) {
        self.state = QpState::Reset;
        self.silence_alarm();
        self.attr = QpAttr::in_reset(self.attr.cap);
        self.mtu = mtu(self.kind, &self.attr);
        self.req.restart(Psn::default(), self.window_bytes, self.mtu);
        self.resp.restart(Psn::default());
        self.inbox.clear();
        self.faults.clear();
        self.congestion.restart();
        self.more = false;
        self.owes_last_wqe = false;
        self.paced_until = None;
    }
}
