//! A driver that means no good: whatever it writes, the function lives, and touches only the memory
//! that there is.

use crate::driver::{Pair, pair};
use crate::support::mapped::Mapped;
use crate::support::numbers::{REQUEST, UMR, WRITE};
use crate::support::verbs::{
    self, CREATE_MKEY, context, cq, create_key, data, eq, free, mask, physical_key, qp, remote, umr,
};
use crate::support::{Driver, RAM_LEN, alone, apart, field};
use hca::Network;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const QUERY_ISSI: u16 = 0x10a;

/// A generator whose numbers a failure can be found again by.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Where the device's memory is in BAR 0.
const DEVICE_MEMORY: u64 = 31 << 20;

/// Sends, and changes of keys and lists.
const SENDS: [u8; 12] = [0x2f, 0x25, 0x25, 0x28, 0x0a, 0x0b, 0x20, 0x08, 0x10, 0x11, 0x12, 0x01];

const OPCODES: [u16; 90] = [
    0x201, 0x204, 0x703, 0x717, 0x718, 0x719, //
    0x100, 0x101, 0x107, 0x108, 0x109, 0x10a, 0x200, 0x202, 0x205, 0x206, 0x207, 0x301, 0x302,
    0x400, 0x401, 0x402, 0x500, 0x501, 0x502, 0x503, 0x504, 0x505, 0x507, 0x50a, 0x50b, 0x50d,
    0x705, 0x706, 0x708, 0x805, 0x90c, 0x90d, 0x90f, 0x403, 0x771, 0x772, 0x773, 0x806, 0x807,
    0xb22, 0x50c, 0x50e, 0x600, 0x601, 0xa00, 0xa03, 0xa04, 0xa06, 0xa08, 0xa0a, //
    // Of an Ethernet port.
    0x750, 0x751, 0x754, 0x755, 0x761, 0x900, 0x901, 0x902, 0x904, 0x905, 0x906, 0x907, 0x908,
    0x909, 0x90a, 0x90b, 0x912, 0x913, 0x914, 0x915, 0x916, 0x917, 0x918, 0x92f, 0x930, 0x931,
    0x933, 0x934, 0x936, 0x938, 0x939, 0x93a, 0x93b, 0x93c,
];

#[test]
fn a_chain_of_mailboxes_that_runs_in_a_circle_ends() {
    let mut driver = Driver::new("circle");
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[4..8].copy_from_slice(&(1u32 << 20).to_be_bytes());
    entry[8..16].copy_from_slice(&0x10_0000u64.to_be_bytes());
    entry[56..60].copy_from_slice(&16u32.to_be_bytes());
    entry[63] = 1;
    entry[61] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
    let mut block = [0; 576];
    block[560..568].copy_from_slice(&0x10_0000u64.to_be_bytes());
    driver.poke(0x10_0000, &block);
    driver.poke(0x1000, &entry);
    driver.function.write(0x18, &1u32.to_be_bytes());
    assert_eq!(driver.peek(0x1000, 64)[63] >> 1, 3, "the second block has the number of the first");
    // Without a number that counts up, the length still ends it.
    let (delivery, _) = driver.deliver(&vec![0; 4096], 16);
    assert_eq!(delivery, 0);
}

#[test]
fn wrong_signatures_tokens_and_lengths_are_refused() {
    let driver = Driver::new("delivery");
    let ring = |entry: [u8; 64]| {
        driver.poke(0x1000, &entry);
        driver.function.write(0x18, &1u32.to_be_bytes());
        driver.peek(0x1000, 64)[63]
    };
    let mut entry = [0; 64];
    entry[0] = 7;
    entry[7] = 16;
    entry[59] = 16;
    entry[63] = 1;
    assert_eq!(ring(entry), 1 << 1, "signature");
    let sign = |mut entry: [u8; 64]| {
        entry[61] = 0;
        entry[61] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
        entry
    };
    assert_eq!(ring(sign(entry)), 0);
    entry[7] = 0;
    assert_eq!(ring(sign(entry)), 7 << 1, "input length");
    entry[6] = 1;
    assert_eq!(ring(sign(entry)), 5 << 1, "no mailbox");
    entry[63] = 0;
    assert_eq!(ring(sign(entry)), 0, "it is not ours to touch");
}

/// The commands that give out all of the device's memory, and that open a window of an operation on
/// it.
fn all_device_memory(operation: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut part, mut open) = (vec![0; 0x20], vec![0; 0x40]);
    field(&mut part, 0x80, 64, DEVICE_MEMORY);
    field(&mut part, 0xc0, 32, 256 << 10);
    field(&mut part, 0xe0, 32, 256 << 10);
    field(&mut open, 0x78, 8, operation);
    field(&mut open, 0x80, 64, DEVICE_MEMORY);
    (part, open)
}

/// Most that one doorbell or command holds the function, on a processor that does nothing else, as
/// ARCHITECTURE.md says.
const LONGEST: Duration = Duration::from_secs(1);

/// Time that all threads of this process have had of the processors, whatever else these did.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keys over the longest lists of parts of one byte, one below the other as deep as accesses go,
/// and all of it read and written at once. Nobody waits for that longer than is said.
#[test]
fn the_worst_lists_hold_nobody_up() {
    apart("hostile::the_worst_lists_hold_nobody_up", worst_lists);
}

fn worst_lists() {
    const PARTS: u64 = 1 << 15;
    const LIST: u64 = 0x30_0000;
    let Pair { mut driver, mut cq, pd, key, mut one, mut two, .. } = pair("worst");
    let bottom = driver.page();
    let mut below = (key, bottom);
    for _ in 0..3 {
        let mut context = free(context(2, pd, 0, 0, 0));
        field(&mut context, 0x1a0, 32, PARTS);
        let list = driver.create(CREATE_MKEY, create_key(&context, &[])) << 8;
        for part in 0..PARTS {
            driver.poke(LIST + part * 16, &data(below.0, below.1 + part % 4096, 1));
        }
        let mut shown = context;
        field(&mut shown, 1, 1, 0);
        field(&mut shown, 0xc0, 64, PARTS);
        // The list is in memory.
        let mut request = umr(0, mask::LEN | mask::START | mask::FREE, &shown, &[]);
        request[0] = 0;
        request[4..6].copy_from_slice(&(PARTS as u16).to_be_bytes());
        request.extend(data(key, LIST, PARTS as u32 * 16));
        two.post(&driver, UMR, list, &[&request]);
        cq.expect(&driver, REQUEST);
        below = (list, 0);
    }
    let (begun, used) = (Instant::now(), processor_time());
    one.post(&driver, WRITE, 0, &[&remote(0, below.0), &data(below.0, 0, PARTS as u32)]);
    let rung = processor_time() - used;
    let used = processor_time();
    driver.command(QUERY_ISSI, vec![0; 16], 0x70);
    let asked = processor_time() - used;
    cq.expect(&driver, REQUEST);
    println!("a doorbell {rung:?}, a command {asked:?}, all {:?}", begun.elapsed());
    assert!(rung < LONGEST && asked < LONGEST, "{rung:?}, {asked:?}");
}

#[test]
fn random_commands_and_doorbells_harm_nobody() {
    let mut all = BTreeSet::new();
    for seed in 1..=4u64 {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let memory = Mapped::new();
        let name = format!("hostile{seed}");
        let ethernet = Network::Ethernet { host_addresses: Vec::new() };
        let network = if seed % 2 == 0 { ethernet } else { Network::Subnet };
        let mut driver = Driver::over(memory.memory(), &name, &alone(&name), network);
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        driver.function.on_guest_error(move |wrong| sink.lock().unwrap().push(wrong.to_owned()));
        let (eqn, _) = eq(&mut driver, 0);
        let ready = cq(&mut driver, eqn);
        let pd = driver.create(verbs::ALLOC_PD, vec![0; 16]);
        let key = physical_key(&mut driver, pd);
        for operation in 0..2 {
            let (part, open) = all_device_memory(operation);
            driver.status(0x205, part);
            driver.status(0x207, open);
        }
        let mut pair = qp(&mut driver, 0, pd, &ready);
        let lid = driver.lid;
        // On an Ethernet it stays unconnected.
        driver.forgiving = true;
        pair.connect(&mut driver, lid, pair.number);
        for _ in 0..10_000 {
            match numbers.below(4) {
                0 => {
                    let opcode = OPCODES[numbers.below(OPCODES.len() as u64) as usize];
                    let mut input = vec![0; 16 + numbers.below(0x200) as usize];
                    for _ in 0..numbers.below(24) {
                        let width = 1 + numbers.below(40) as usize;
                        let bit = numbers.below((input.len() * 8 - width) as u64) as usize;
                        let value = numbers.next() >> numbers.below(64);
                        field(&mut input, bit, width, value);
                    }
                    input[..2].copy_from_slice(&opcode.to_be_bytes());
                    // The driver's own, or a user's where there is one.
                    input[2..4].copy_from_slice(&[0, u8::from(numbers.below(4) == 0)]);
                    let out_len = 8 + numbers.below(0x300) as usize;
                    driver.deliver(&input, out_len);
                }
                1 => {
                    let at =
                        numbers.below(0x10_0000) + [0, DEVICE_MEMORY][numbers.below(2) as usize];
                    let word = numbers.next().to_be_bytes();
                    let len = [1, 2, 4, 8][numbers.below(4) as usize];
                    // The queue's address stays, or the next command would find none.
                    if at >= 0x20 {
                        driver.function.write(at, &word[..len]);
                    }
                    driver.function.read(at, &mut [0; 8]);
                }
                2 => {
                    // Wild requests in the queues of a living queue pair, with keys that are valid.
                    let at = 0x20_0000 + numbers.below(0x20_0000 - 16);
                    let mut bytes = [numbers.next(), numbers.next()].map(u64::to_be_bytes).concat();
                    if numbers.below(2) == 0 {
                        bytes[4..8].copy_from_slice(&key.to_be_bytes());
                    }
                    driver.poke(at, &bytes);
                }
                _ => {
                    let opcode = SENDS[numbers.below(SENDS.len() as u64) as usize];
                    let mut body: Vec<u8> =
                        (0..numbers.below(24)).flat_map(|_| numbers.next().to_be_bytes()).collect();
                    body.truncate(body.len() & !15);
                    for unit in body.chunks_mut(16) {
                        // Around either end of memory, with a key to all of it; 0 less some is a
                        // long way off.
                        let end = [0, RAM_LEN as u64][numbers.below(2) as usize];
                        let edge = end.wrapping_add(numbers.below(16384)).wrapping_sub(8192);
                        match numbers.below(4) {
                            0 => unit[..8].copy_from_slice(&data(key, 0, 64)[..8]),
                            1 => unit.copy_from_slice(&data(key, edge, numbers.below(9000) as u32)),
                            2 => {
                                unit[..8].copy_from_slice(&edge.to_be_bytes());
                                unit[8..12].copy_from_slice(&key.to_be_bytes());
                            }
                            _ => {}
                        }
                    }
                    pair.post(&driver, opcode, key, &[&body]);
                    // Most requests end the queue pair.
                    if numbers.below(3) == 0 {
                        pair = qp(&mut driver, 0, pd, &ready);
                        pair.connect(&mut driver, lid, pair.number);
                    }
                }
            }
        }
        let told = std::mem::take(&mut *told.lock().unwrap());
        driver.function.reset();
        let after = driver.peek(0, RAM_LEN);
        driver.ring(pair.number);
        assert_eq!(driver.peek(0, RAM_LEN), after, "nothing moves after a reset");
        assert!(memory.is_unharmed(), "no byte outside of what is mapped is touched");
        let acts: BTreeSet<&str> =
            told.iter().filter_map(|wrong| Some(wrong.rsplit_once(" (")?.0)).collect();
        assert_eq!(acts.len(), told.len(), "each is told once: {told:?}");
        all.extend(acts.into_iter().map(str::to_owned));
    }
    for act in ["the command ", "a doorbell rang for no queue", "memory that is not there"] {
        assert!(all.iter().any(|wrong| wrong.starts_with(act)), "{act} is in {all:?}");
    }
}
