//! Acknowledges that wait for what the program answers.

use super::*;
use std::time::Duration;

const SOON: Duration = Duration::from_micros(3);
const PATIENCE: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_micros(250);
/// Messages answered at once before an acknowledge waits.
const NEEDED: u32 = 64;

/// A program, and its connection.
struct Program {
    node: Node,
    memory: Region,
    psn: u32,
}

impl Program {
    fn new() -> Program {
        Program::of(responder())
    }

    fn of(mut node: Node) -> Program {
        let memory = node.register(4096);
        Program { node, memory, psn: FIRST_PSN }
    }

    /// A message comes, and the burst ends: what leaves then.
    fn message(&mut self) -> Vec<Packet> {
        self.node.post_recv(1, &[self.memory.sge(0, 64)]);
        self.node.receive(&send(Only, self.psn, 8));
        self.psn += 1;
        assert!(self.node.told.received.pop().is_some(), "the program knows of it");
        let now = self.node.now;
        let waits = self.node.qp.burst_ended(now);
        self.node.with(|qp, cx| qp.transmit(cx));
        let left = self.node.emitted();
        assert_eq!(waits, left.is_empty());
        left
    }

    /// The program answers `after` it came, and the peer acknowledges that: what left.
    fn answer(&mut self, after: Duration) -> Vec<Packet> {
        self.node.now += after;
        self.node.post_send(send_wr(2, SendOp::Send, &[self.memory.sge(64, 8)]));
        let left = self.node.emitted();
        let psn = left.iter().find(|packet| !packet.is_ack()).expect("the answer").psn();
        assert_eq!(self.node.feed(&ack(psn)).len(), 0);
        left
    }

    /// Messages answered at once, until the acknowledge of one waits: how many did not.
    fn until_one_waits(&mut self) -> u32 {
        for messages in 0..1 << 17 {
            if self.message().is_empty() {
                return messages;
            }
            assert!(self.answer(SOON).iter().all(|packet| !packet.is_ack()));
        }
        panic!("none waits");
    }
}

#[test]
fn an_acknowledge_leaves_behind_the_answer() {
    let mut program = Program::new();
    assert_eq!(program.until_one_waits(), NEEDED);
    for _ in 0..1000 {
        let left = program.answer(SOON);
        assert_eq!(left.len(), 2);
        assert!(!left[0].is_ack() && left[1].is_ack(), "in its train");
        assert_eq!(left[1].psn(), program.psn - 1);
        assert!(program.message().is_empty());
    }
}

#[test]
fn it_leaves_when_the_program_polls_or_time_is_over() {
    let mut program = Program::new();
    program.until_one_waits();
    let until = program.node.qp.deadline().unwrap();
    assert_eq!(until, program.node.now + PATIENCE);
    assert!(program.node.qp.has_waiting_ack() && program.node.timer().is_empty());
    program.node.with(|qp, cx| qp.end_of_batch(cx));
    assert!(program.node.emitted()[0].is_ack() && !program.node.qp.has_waiting_ack());
    // Not for long: it is no dearer to wait for the next.
    assert_eq!(program.until_one_waits(), NEEDED);
    program.node.now += LONG;
    let left = program.node.timer();
    assert!(left.len() == 1 && left[0].is_ack());
    assert_eq!(program.until_one_waits(), 2 * NEEDED);
}

#[test]
fn none_waits_of_who_computes() {
    for after in [2 * PATIENCE, LONG] {
        let mut program = Program::new();
        for _ in 0..1000 {
            assert!(program.message().iter().any(Packet::is_ack), "{after:?}");
            program.answer(after);
        }
    }
    // Nor of a peer that may not be patient.
    for (timeout, waits) in [(0, true), (1, false), (8, false), (11, false), (12, true)] {
        let mut program = Program::of(responder_with(|setup| setup.timeout = timeout));
        let first = (0..200).find(|_| {
            let waits = program.message().is_empty();
            program.answer(SOON);
            waits
        });
        assert_eq!(first.is_some(), waits, "{timeout}");
    }
    // Nor of messages that come without an answer between, and in several packets.
    let mut program = Program::new();
    for _ in 0..1000 {
        assert!(program.message()[0].is_ack());
    }
    program.until_one_waits();
    assert!(program.message()[0].is_ack(), "for both");
    assert_eq!(program.node.qp.query().qp_state, QpState::Rts);
}

#[test]
fn a_program_that_ends_the_connection_has_answered_before() {
    let ends: [fn(&mut Node); 4] = [
        |node| {
            node.modify(&QpAttr { qp_state: QpState::Err, ..node.qp.query() }, AttrMask::STATE)
                .unwrap()
        },
        |node| {
            node.modify(&QpAttr { qp_state: QpState::Reset, ..node.qp.query() }, AttrMask::STATE)
                .unwrap()
        },
        // It destroys the queue pair.
        |node| {
            assert!(node.qp.has_ack_pending());
            node.with(|qp, cx| qp.end_of_batch(cx));
        },
        // Its answer is refused.
        |node| node.post_send(send_wr(3, SendOp::Send, &[Sge { addr: 0, length: 8, lkey: 0 }])),
    ];
    for end in ends {
        let mut program = Program::new();
        program.until_one_waits();
        end(&mut program.node);
        let left = program.node.emitted();
        assert!(left.len() == 1 && left[0].is_ack() && left[0].psn() == program.psn - 1);
        assert!(!program.node.qp.has_waiting_ack());
    }
}

#[test]
fn what_comes_while_one_waits_is_answered_as_ever() {
    let mut program = Program::new();
    program.until_one_waits();
    let left = program.node.feed(&read_of(&program, 8));
    assert!(left[0].is_ack() && left[1].operation() == Operation::ReadResponse, "{}", left.len());
    // So it is where nobody asks whether one waits.
    let mut program = Program::new();
    program.until_one_waits();
    program.node.receive(&read_of(&program, 8));
    program.node.with(|qp, cx| qp.transmit(cx));
    let left = program.node.emitted();
    assert!(left.len() == 2 && left[0].is_ack());
    // A repetition of what is acknowledged late, and what is refused behind it.
    let mut program = Program::new();
    program.until_one_waits();
    let again = program.node.feed(&send(Only, program.psn - 1, 8));
    assert!(again.iter().all(Packet::is_ack) && again.last().unwrap().psn() == program.psn - 1);
    let mut program = Program::new();
    program.until_one_waits();
    let refused = program.node.feed(&write(Only, program.psn, 8).reth(0, 1, 8));
    let naks: Vec<_> = refused.iter().map(|packet| packet.nak()).collect();
    assert_eq!(naks, [None, Some(NakCode::RemoteAccess)]);
}

/// The peer's next request is a READ.
fn read_of(program: &Program, len: u32) -> Packet {
    read(program.psn, program.memory.iova, program.memory.key, len)
}
