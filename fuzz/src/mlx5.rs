//! Targets of the crate `mlx5`.

use hca::{Device, DeviceAttr, DeviceConfig, Network};
use mlx5::{BAR_LEN, Bus, ConnectX, Dma};
use pcie::Route;
use registry::{Client, Options, Role};
use std::net::UdpSocket;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use umem::{AccessError, AtomicOp, DmaSpace};

const RAM_LEN: usize = 1 << 22;
const PAGE_LEN: usize = 1 << 12;
/// What the function may remember for its driver.
const MAX_MEMORY: u64 = 32 << 20;
/// Where the command queue is, and the mailboxes of a command and of its answer, 1 KiB each.
const QUEUE: u64 = 0x1000;
const MAILBOXES: u64 = 0x10_0000;
const ANSWERS: u64 = 0x20_0000;
const ENTRY_LEN: usize = 64;
const BLOCK_LEN: usize = 576;
const BLOCK_DATA_LEN: usize = 512;
/// Room for an answer, and least of a command's.
const BLOCKS: usize = 16;
/// Bytes of a command are fewer: lists of some thousand pages or keys.
const LONGEST: u16 = 0x8000;
/// Registers of the init segment.
const QUEUE_ADDRESS: u64 = 0x14;
const DOORBELL: u64 = 0x18;
const QUERY_ISSI: u16 = 0x10a;
const INIT_HCA: u16 = 0x102;
const ENABLE_HCA: u16 = 0x104;
const ALLOC_UAR: u16 = 0x802;
/// The first doorbell page, and where commands name it that make event or completion queues, queue
/// pairs and send queues of an Ethernet.
const FIRST_UAR: u32 = 16;
const UAR_PLACES: [usize; 3] = [0x1f, 0x27, 0x5f];
/// Registers' numbers from the first on are places of the device's memory.
const LAST_MIB: u64 = 15 << 20;
const DEVICE_MEMORY: u64 = 31 << 20;

/// The guest's memory; beyond it every access faults.
struct Ram(Mutex<Pages>);

impl Ram {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes, and which pages of them somebody may have written to: a run touches few of them, and to
/// clear all would take longer than the run itself.
struct Pages {
    bytes: Vec<u8>,
    touched: Vec<bool>,
}

impl Pages {
    fn new() -> Pages {
        Pages { bytes: vec![0; RAM_LEN], touched: vec![false; RAM_LEN / PAGE_LEN] }
    }

    /// Bytes to write to. There is no other way to them, so that no page is missed.
    fn touch(&mut self, part: Range<usize>) -> &mut [u8] {
        self.touched[part.start / PAGE_LEN..part.end.div_ceil(PAGE_LEN)].fill(true);
        &mut self.bytes[part]
    }

    fn clear(&mut self) {
        for (page, touched) in self.bytes.chunks_mut(PAGE_LEN).zip(&mut self.touched) {
            if std::mem::take(touched) {
                page.fill(0);
            }
        }
    }
}

fn part(addr: u64, len: usize) -> Result<Range<usize>, AccessError> {
    let from = usize::try_from(addr).map_err(|_| AccessError::Fault)?;
    let end = from.checked_add(len).filter(|&end| end <= RAM_LEN);
    end.map(|end| from..end).ok_or(AccessError::Fault)
}

impl DmaSpace for Ram {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        dst.copy_from_slice(&self.pages().bytes[part(addr, dst.len())?]);
        Ok(())
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.pages().touch(part(addr, src.len())?).copy_from_slice(src);
        Ok(())
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let mut pages = self.pages();
        let word = pages.touch(part(addr, 8)?);
        let old = (&*word).try_into().map(u64::from_ne_bytes).map_err(|_| AccessError::Fault)?;
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }
}

struct Machine(Arc<Ram>);

impl Bus for Machine {
    fn dma(&self) -> Dma {
        Dma { memory: self.0.clone(), route: Arc::new(Route::local()) }
    }

    fn data_direct(&self) -> Option<Dma> {
        Some(self.dma())
    }

    fn interrupt(&self, _: u16) {}
}

/// One function of each network for all runs; each finds it reset.
fn function(network: Network) -> &'static (ConnectX, Arc<Ram>) {
    static ON_SUBNET: OnceLock<(ConnectX, Arc<Ram>)> = OnceLock::new();
    static ON_ETHERNET: OnceLock<(ConnectX, Arc<Ram>)> = OnceLock::new();
    let on_ethernet = matches!(network, Network::Ethernet { .. });
    let function = if on_ethernet { &ON_ETHERNET } else { &ON_SUBNET };
    function.get_or_init(|| {
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.expect("a port").port();
        let options = Options { port, name_suffix: Some(format!("fuzz-{port}")) };
        let device = Device::open(DeviceConfig {
            attr: DeviceAttr {
                data_direct: true,
                vuid: "fuzz".into(),
                ..DeviceAttr::new("fuzz", 0x1234)
            },
            comm: "fuzz".into(),
            registry: Client::connect_at(Role::Member, &options).expect("a registry"),
            mtu_bytes: Some(4096),
            network,
            trace: None,
            neighbours: false,
            receive_buffer_bytes: Some(256 << 10),
        });
        let ram = Arc::new(Ram(Mutex::new(Pages::new())));
        let bus = Arc::new(Machine(ram.clone()));
        (ConnectX::new(device.expect("a device"), bus, MAX_MEMORY), ram)
    })
}

/// Steps of a hostile driver: a length of two bytes, and as long a command after the room for its
/// answer, in units of 16 bytes; or, of length 0, a register's number (three bytes) and the 8 bytes
/// that are written to it. Where the first length is odd the port is on an Ethernet.
pub fn commands(data: &[u8]) {
    let odd = data.first().is_some_and(|byte| byte % 2 == 1);
    let ethernet = Network::Ethernet { host_addresses: Vec::new() };
    let (connectx, ram) = function(if odd { ethernet } else { Network::Subnet });
    connectx.reset();
    ram.pages().clear();
    connectx.write(QUEUE_ADDRESS, &(QUEUE as u32).to_be_bytes());
    let honest = [&QUERY_ISSI.to_be_bytes()[..], &[0; 14]].concat();
    let answer = deliver(connectx, ram, &honest, 112);
    assert_eq!((answer[63], answer[32]), (0, 0), "an honest command is carried out");
    for begin in [ENABLE_HCA, INIT_HCA] {
        let answer = deliver(connectx, ram, &[&begin.to_be_bytes()[..], &[0; 14]].concat(), 16);
        assert_eq!((answer[63], answer[32]), (0, 0));
    }
    let page = [&ALLOC_UAR.to_be_bytes()[..], &[0; 14]].concat();
    let answer = deliver(connectx, ram, &page, 16);
    assert_eq!(answer[40..44], FIRST_UAR.to_be_bytes());
    let mut rest = data;
    while let Some((&[low, high], tail)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes([low, high]) % LONGEST);
        rest = match (len, tail.split_first_chunk::<11>()) {
            (0, Some((write, tail))) => {
                let at = u64::from(u32::from_le_bytes([write[0], write[1], write[2], 0]));
                let at = if at < LAST_MIB { at } else { at - LAST_MIB + DEVICE_MEMORY };
                // The queue stays where the next command is.
                if !(QUEUE_ADDRESS - 4..DOORBELL).contains(&at) {
                    connectx.write(at % BAR_LEN, &write[3..]);
                    connectx.read(at % BAR_LEN, &mut [0; 8]);
                }
                tail
            }
            (0, None) => return,
            (len, _) => {
                let Some((&room, tail)) = tail.split_first() else { return };
                let (command, tail) = tail.split_at(len.min(tail.len()));
                deliver(connectx, ram, command, usize::from(room) * 16);
                tail
            }
        };
    }
}

/// Executes a command, laid out as a driver does; gives its entry as it is afterwards.
fn deliver(connectx: &ConnectX, ram: &Ram, command: &[u8], room: usize) -> [u8; ENTRY_LEN] {
    let mut entry = [0; ENTRY_LEN];
    let inline = command.len().min(16);
    entry[0] = 7;
    entry[4..8].copy_from_slice(&(command.len() as u32).to_be_bytes());
    entry[8..16].copy_from_slice(&MAILBOXES.to_be_bytes());
    entry[16..16 + inline].copy_from_slice(&command[..inline]);
    entry[48..56].copy_from_slice(&ANSWERS.to_be_bytes());
    entry[56..60].copy_from_slice(&(room as u32).to_be_bytes());
    entry[63] = 1;
    entry[61] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
    let rest = command.get(16..).unwrap_or_default();
    for (chain, bytes) in [(MAILBOXES, rest), (ANSWERS, &[])] {
        for number in 0..BLOCKS.max(bytes.len().div_ceil(BLOCK_DATA_LEN)) {
            let at = chain + number as u64 * 1024;
            let mut block = [0; BLOCK_LEN];
            let piece = bytes.chunks(BLOCK_DATA_LEN).nth(number).unwrap_or_default();
            block[..piece.len()].copy_from_slice(piece);
            block[560..568].copy_from_slice(&(at + 1024).to_be_bytes());
            block[568..572].copy_from_slice(&(number as u32).to_be_bytes());
            ram.write(at, &block).expect("it is in memory");
        }
    }
    ram.write(QUEUE, &entry).expect("it is in memory");
    connectx.write(DOORBELL, &1u32.to_be_bytes());
    let mut answered = [0; ENTRY_LEN];
    ram.read(QUEUE, &mut answered).expect("it is in memory");
    // A driver may have given the place of the queue to something else that writes there.
    if answered[63] & 1 == 0 && answered[..8] == entry[..8] {
        assert!(answered[63] >> 1 <= 0x10, "an unknown delivery status");
    }
    answered
}

/// Each command alone, then one after the other; those of an Ethernet on one.
pub fn command_seeds() -> Vec<Vec<u8>> {
    let ranges = [0x100..=0x10d, 0x200..=0x204, 0x301..=0x302, 0x400..=0x403, 0x500..=0x50e];
    let more = [
        0x600..=0x601,
        0xa00..=0xa0a,
        0x705..=0x708,
        0x762..=0x770,
        0x800..=0x816,
        0x90c..=0x90f,
        0xb22..=0xb22,
    ];
    let on_ethernet = [0x400..=0x400, 0x750..=0x755, 0x761..=0x761, 0x900..=0x918, 0x92f..=0x93c];
    let all = |ranges: &[RangeInclusive<u16>], len: u16| -> Vec<Vec<u8>> {
        ranges.iter().cloned().flatten().map(|opcode| seed(opcode, len)).collect()
    };
    let mut seeds = all(&[&ranges[..], &more].concat(), 0x120);
    seeds.push(seeds.concat());
    let ethernet = all(&on_ethernet, 0x121);
    seeds.push(ethernet.concat());
    seeds.extend(ethernet);
    seeds
}

/// A command of so many bytes.
fn seed(opcode: u16, len: u16) -> Vec<u8> {
    let mut step = len.to_le_bytes().to_vec();
    step.push(0x20);
    step.extend(opcode.to_be_bytes());
    step.resize(step.len() + usize::from(len) - 2, 0);
    // A small queue in a page of memory, for what makes one, and the page that rings for it.
    UAR_PLACES.iter().for_each(|at| step[3 + at] = FIRST_UAR as u8);
    step[3 + 0x110..][..8].copy_from_slice(&0x2_0000u64.to_be_bytes());
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_memory_is_as_it_was_at_first() {
        let ram = Ram(Mutex::new(Pages::new()));
        let page = PAGE_LEN as u64;
        // Within a page, to its end, into the next and over many.
        let parts = [(9, 1), (page - 8, 8), (3 * page - 1, 2), (5 * page + 7, 3 * PAGE_LEN)];
        for (addr, len) in parts {
            ram.write(addr, &vec![0xa5; len]).expect("it is in memory");
        }
        // At the end of all.
        let last = RAM_LEN as u64 - 8;
        ram.write(last, &[]).expect("nothing is in memory");
        ram.atomic(last, AtomicOp::FetchAdd { add: u64::MAX }).expect("it is in memory");
        ram.write(last + 8, &[]).expect("nothing is in memory");
        ram.write(last + 1, &[1; 8]).expect_err("it ends beyond");
        ram.pages().clear();
        assert!(ram.pages().bytes.iter().all(|&byte| byte == 0));
        assert!(ram.pages().touched.iter().all(|&touched| !touched));
    }
}
