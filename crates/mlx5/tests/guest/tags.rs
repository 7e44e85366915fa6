//! Tag matching: a queue with a list, changed by requests, and what its completions say.

use crate::driver::{Pair, pair};
use crate::support::numbers::{BAD_PARAMETER, BUSY, REQUEST, REQUEST_ERROR, RESPONSE_SEND, SEND};
use crate::support::verbs::{Cq, Qp, cq, data, inline, qp, qp_over};
use crate::support::{Driver, field, word};

pub const CREATE: u16 = 0x717;
const DESTROY: u16 = 0x718;
const QUERY: u16 = 0x719;
const ARM: u16 = 0x703;
const DESTROY_QP: u16 = 0x501;
const TAG_MATCHING: u8 = 0x28;
const NO_PACKET: u8 = 6;
/// Entries of the queue and bytes of each, as logarithms.
const LOG_SIZE: u32 = 3;
const LOG_STRIDE: u32 = 5;
/// What user space calls the queue.
const NAME: u32 = 0x55;
/// Operations on the list, and what asks for a completion and reports handled messages.
const NOTHING: u8 = 0;
const APPEND: u8 = 1;
const REMOVE: u8 = 2;
const SIGNALED: u8 = 1 << 7;
const HANDLED: u8 = 1 << 6;
/// What completions say.
const CONSUMED: u8 = 1;
const EXPECTED: u8 = 2;
const UNEXPECTED: u8 = 3;
const NO_TAG: u8 = 4;
const APPENDED: u8 = 5;
const REMOVED: u8 = 6;
const DONE_NOTHING: u8 = 7;
const WHOLE: u8 = 0xa;

/// A queue that matches tags, and the queue pair that changes its list.
struct Tags {
    number: u32,
    page: u64,
    record: u64,
    posted: u16,
    commands: Qp,
    /// Where its requests complete.
    done: Cq,
    cq: Cq,
}

/// The command that makes one with a list of 2^`log_list` entries.
pub fn create(driver: &mut Driver, pd: u32, cq: &Cq, log_list: u64) -> (Vec<u8>, u64, u64) {
    let (page, record) = (driver.page(), driver.page());
    let mut input = vec![0; 0x150 + 8];
    let (context, queue) = (0x80, 0x480);
    field(&mut input, context + 0x14, 4, 1);
    field(&mut input, context + 0x1c, 4, 1);
    field(&mut input, context + 0x28, 24, NAME.into());
    field(&mut input, context + 0x48, 24, cq.number.into());
    field(&mut input, context + 0x100, 4, log_list);
    field(&mut input, queue + 0x48, 24, pd.into());
    field(&mut input, queue + 0x80, 64, record);
    field(&mut input, queue + 0x10c, 4, LOG_STRIDE.into());
    field(&mut input, queue + 0x11b, 5, LOG_SIZE.into());
    field(&mut input, 0x150 * 8, 64, page);
    (input, page, record)
}

impl Tags {
    fn new(driver: &mut Driver, pd: u32, eqn: u32) -> Tags {
        let [cq, done] = [(); 2].map(|()| cq(driver, eqn));
        let (input, page, record) = create(driver, pd, &cq, 4);
        let number = driver.create(CREATE, input);
        for index in 0..1u16 << LOG_SIZE {
            let next = (index + 1) % (1 << LOG_SIZE);
            driver.poke(page + (u64::from(index) << LOG_STRIDE) + 2, &next.to_be_bytes());
        }
        let commands = qp_over(driver, pd, &done, number);
        let lid = driver.lid;
        commands.connect(driver, lid, commands.number);
        Tags { number, page, record, posted: 0, commands, done, cq }
    }

    /// An ordinary request.
    fn post(&mut self, driver: &Driver, key: u32, addr: u64, len: u32) {
        let index = u64::from(self.posted % (1 << LOG_SIZE));
        driver.poke(self.page + (index << LOG_STRIDE) + 16, &data(key, addr, len));
        self.posted += 1;
        driver.poke(self.record, &u32::from(self.posted).to_be_bytes());
    }

    /// A change of the list. `handled`: so many unexpected messages.
    fn change(&mut self, driver: &Driver, op: u8, index: u16, handled: Option<u16>, rest: &[u8]) {
        let mut segment = vec![op << 4, SIGNALED];
        segment.extend(index.to_be_bytes());
        segment.extend([0, 0]);
        segment.extend(handled.unwrap_or(0).to_be_bytes());
        segment.resize(16, 0);
        if handled.is_some() {
            segment[1] |= HANDLED;
        }
        segment.extend(rest);
        segment.resize(segment.len().max(32), 0);
        self.commands.post(driver, TAG_MATCHING, 0, &[&segment]);
    }

    fn append(&mut self, driver: &Driver, next: u16, tag: u64, buffer: (u32, u64, u32)) {
        let tag = [tag.to_be_bytes(), u64::MAX.to_be_bytes()].concat();
        let buffer = data(buffer.0, buffer.1, buffer.2);
        self.change(driver, APPEND, next, None, &[tag, buffer].concat());
    }

    /// The next completion of the queue, and what it says.
    fn expect(&mut self, driver: &Driver, opcode: u8, app_op: u8) -> Vec<u8> {
        let entry = self.cq.expect(driver, opcode);
        assert_eq!((entry[0x28], entry[0x29]), (1, app_op));
        assert_eq!(word(&entry, 0x20), NAME);
        entry
    }
}

/// A message with a header: 1 a rendezvous, 3 eager.
fn message(op: u8, tag: u64, rest: &[u8]) -> Vec<u8> {
    [&[op, 0, 0, 0, 0, 0, 0, 7][..], &tag.to_be_bytes(), rest].concat()
}

fn about(number: u32) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x48, 24, number.into());
    input
}

/// One sends to the other, whose receives are of the queue.
struct Setting {
    driver: Driver,
    cq: Cq,
    pd: u32,
    key: u32,
    sender: Qp,
    receiver: Qp,
    tags: Tags,
}

fn setting(name: &str) -> Setting {
    let Pair { mut driver, cq, pd, key, .. } = pair(name);
    let tags = Tags::new(&mut driver, pd, 0);
    let sender = qp(&mut driver, 0, pd, &cq);
    let receiver = qp_over(&mut driver, pd, &cq, tags.number);
    let lid = driver.lid;
    sender.connect(&mut driver, lid, receiver.number);
    receiver.connect(&mut driver, lid, sender.number);
    Setting { driver, cq, pd, key, sender, receiver, tags }
}

#[test]
fn messages_find_the_buffers_of_their_tags() {
    let Setting { mut driver, mut cq, key, mut sender, mut tags, .. } = setting("tags");
    let page = driver.page();
    tags.post(&driver, key, page, 64);
    tags.post(&driver, key, page + 64, 64);
    // Its index is 0; the next one's shall be 5.
    tags.append(&driver, 5, 0x77, (key, page + 128, 64));
    let entry = tags.expect(&driver, NO_PACKET, APPENDED);
    assert_eq!((word(&entry, 0), word(&entry, 4) >> 16), (1 << 31, 0));
    tags.append(&driver, 6, 0x78, (key, page + 256, 64));
    tags.expect(&driver, NO_PACKET, APPENDED);
    let mut send = |bytes: &[u8]| {
        sender.post(&driver, SEND, 0, &[&inline(bytes)]);
        cq.expect(&driver, REQUEST);
    };
    send(&message(3, 0x78, b"second"));
    let entry = tags.expect(&driver, RESPONSE_SEND, WHOLE);
    assert_eq!((word(&entry, 0x28) & 0xffff, word(&entry, 0x2c)), (5, 6));
    assert_eq!((word(&entry, 4), word(&entry, 12)), (7, 0x78), "the header's words");
    assert_eq!(driver.peek(page + 256, 6), b"second");
    send(&message(3, 0x99, b"!"));
    let entry = tags.expect(&driver, RESPONSE_SEND, UNEXPECTED);
    assert_eq!((word(&entry, 0x3c) >> 16, word(&entry, 0x2c)), (0, 17));
    assert_eq!(driver.peek(page + 16, 1), b"!");
    send(b"no header at all");
    let entry = tags.expect(&driver, RESPONSE_SEND, NO_TAG);
    assert_eq!(word(&entry, 0x3c) >> 16, 1);
    // Removed, it is there no more.
    tags.change(&driver, REMOVE, 0, None, &[]);
    let entry = tags.expect(&driver, NO_PACKET, REMOVED);
    assert_eq!((word(&entry, 0), word(&entry, 4) >> 16), (1 << 31, 1), "one was unexpected");
    tags.change(&driver, REMOVE, 5, None, &[]);
    assert_eq!(word(&tags.expect(&driver, NO_PACKET, REMOVED), 0), 0, "a message has taken it");
    tags.change(&driver, NOTHING, 0, Some(1), &[]);
    tags.expect(&driver, NO_PACKET, DONE_NOTHING);
    let answer = driver.command(QUERY, about(tags.number), 0x150);
    assert_eq!((word(&answer, 0x10 + 0x24) >> 16, word(&answer, 0x10 + 0x26) >> 16), (1, 1));
}

#[test]
fn a_rendezvous_fetches_and_tells_twice() {
    let Setting { mut driver, mut cq, key, mut sender, mut tags, .. } = setting("rendezvous");
    let (from, to) = (driver.page(), driver.page());
    driver.poke(from, b"fetched by the adapter");
    tags.append(&driver, 1, 9, (key, to, 64));
    tags.expect(&driver, NO_PACKET, APPENDED);
    // What ends it comes to the sender as a message.
    sender.post_receive(&driver, key, from + 2048, 64);
    let place = [&from.to_be_bytes()[..], &key.to_be_bytes(), &22u32.to_be_bytes()].concat();
    sender.post(&driver, SEND, 0, &[&inline(&message(1, 9, &place))]);
    tags.expect(&driver, NO_PACKET, CONSUMED);
    tags.expect(&driver, RESPONSE_SEND, EXPECTED);
    assert_eq!(driver.peek(to, 22), b"fetched by the adapter");
    let mut seen = [(); 2].map(|()| driver.poll("completions", || cq.poll(&driver))[63] >> 4);
    seen.sort();
    assert_eq!(seen, [REQUEST, RESPONSE_SEND]);
    assert_eq!(driver.peek(from + 2048, 1), [2], "the end of the rendezvous");
}

#[test]
fn wrong_lists_and_changes_are_refused() {
    let Setting { mut driver, pd, receiver, mut tags, sender, .. } = setting("wrongtags");
    for log_list in [0, 13] {
        let (input, ..) = create(&mut driver, pd, &tags.cq, log_list);
        assert_eq!(driver.status(CREATE, input), BAD_PARAMETER);
    }
    let (mut other, ..) = create(&mut driver, pd, &tags.cq, 4);
    field(&mut other, 0x80 + 0x14, 4, 0);
    assert_eq!(driver.status(CREATE, other), BAD_PARAMETER, "for nothing that is known");
    let mut arm = about(tags.number);
    field(&mut arm, 0x70, 16, 3);
    assert_eq!(driver.status(ARM, arm.clone()), BAD_PARAMETER, "of another kind");
    field(&mut arm, 0x30, 16, 2);
    assert_eq!(driver.status(ARM, arm), 0);
    let answer = driver.command(QUERY, about(tags.number), 0x150);
    assert_eq!(word(&answer, 0x10 + 0x80 + 4) & 0xffff, 3, "the limit");
    // An index that was never given ends the queue pair.
    tags.change(&driver, REMOVE, 8, None, &[]);
    tags.done.expect(&driver, REQUEST_ERROR);
    assert_eq!(driver.status(DESTROY, about(tags.number)), BUSY);
    for qp in [&receiver, &sender, &tags.commands] {
        driver.command(DESTROY_QP, about(qp.number), 16);
    }
    driver.command(DESTROY, about(tags.number), 16);
}

#[test]
fn a_queue_pair_without_a_list_changes_none() {
    let Pair { driver, mut cq, mut one, .. } = pair("nolist");
    one.post(&driver, TAG_MATCHING, 0, &[&[0; 32]]);
    cq.expect(&driver, REQUEST_ERROR);
}
