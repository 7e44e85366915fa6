//! A machine and a driver that speak the formats from the other side, with an encoder of their own.

pub mod ethernet;
pub mod mapped;
pub mod numbers;
pub mod verbs;

use hca::{Device, DeviceAttr, DeviceConfig, Network};
use mlx5::{Bus, ConnectX, Dma};
use pcie::Route;
use registry::{Client, Options, Role};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use umem::{AccessError, AtomicOp, DmaSpace};

/// Runs a test, `module::function`, in a process of its own, where nobody else takes memory or
/// time.
pub fn apart(name: &str, body: impl FnOnce()) {
    const CHILD: &str = "PEERDMA_TEST_APART";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let own = std::env::current_exe().unwrap();
    let child = Command::new(own).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
    let child = child.unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    print!("{said}");
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

/// The machine's memory: what lies beyond it faults.
pub struct Ram(pub Mutex<Vec<u8>>);

impl DmaSpace for Ram {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let ram = self.0.lock().unwrap();
        let from = usize::try_from(addr).map_err(|_| AccessError::Fault)?;
        let end = from.checked_add(dst.len()).ok_or(AccessError::Fault)?;
        dst.copy_from_slice(ram.get(from..end).ok_or(AccessError::Fault)?);
        Ok(())
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        let mut ram = self.0.lock().unwrap();
        let from = usize::try_from(addr).map_err(|_| AccessError::Fault)?;
        let end = from.checked_add(src.len()).ok_or(AccessError::Fault)?;
        ram.get_mut(from..end).ok_or(AccessError::Fault)?.copy_from_slice(src);
        Ok(())
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        let old = u64::from_ne_bytes(word);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        self.write(addr, &new.to_ne_bytes())?;
        Ok(old)
    }
}

/// Memory as both functions see it, and the interrupts that came.
pub struct Machine {
    pub ram: Arc<dyn DmaSpace>,
    pub route: Arc<Route>,
    /// Other memory, under the same addresses, so that a wrong requester is seen.
    pub side: Arc<Ram>,
    pub side_route: Arc<Route>,
    /// Whether there is a Data Direct function now.
    pub data_direct: AtomicBool,
    pub interrupts: Mutex<Vec<u16>>,
}

impl Bus for Machine {
    fn dma(&self) -> Dma {
        Dma { memory: self.ram.clone(), route: self.route.clone() }
    }

    fn data_direct(&self) -> Option<Dma> {
        self.data_direct
            .load(Ordering::Relaxed)
            .then(|| Dma { memory: self.side.clone(), route: self.side_route.clone() })
    }

    fn interrupt(&self, vector: u16) {
        self.interrupts.lock().unwrap().push(vector);
    }
}

pub const RAM_LEN: usize = 4 << 20;
const COMMANDS: u64 = 0x1000;
/// Where mailboxes are, 1 KiB each: those of commands, then those of answers.
const MAILBOXES: u64 = 0x10_0000;
const ANSWERS: u64 = 0x18_0000;
const UAR_LEN: u64 = 4096;
pub const ALLOC_UAR: u16 = 0x802;
pub const INIT_HCA: u16 = 0x102;
pub const TEARDOWN_HCA: u16 = 0x103;
pub const ENABLE_HCA: u16 = 0x104;
const MAX_MEMORY: u64 = 1 << 30;

/// Stores `value` in a field of `width` bits, `bit` bits from the start.
pub fn field(bytes: &mut [u8], bit: usize, width: usize, value: u64) {
    for step in 0..width {
        let at = bit + width - 1 - step;
        let on = value >> step & 1;
        bytes[at / 8] = bytes[at / 8] & !(0x80 >> (at % 8)) | (on as u8 * 0x80) >> (at % 8);
    }
}

/// A number of 32 bits at byte `at`.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A network of its own.
pub fn alone(name: &str) -> Options {
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    Options { port, name_suffix: Some(format!("mlx5-{name}-{port}")) }
}

/// A driver and the function it drives.
pub struct Driver {
    pub machine: Arc<Machine>,
    pub function: ConnectX,
    pub lid: u16,
    /// Commands may fail.
    pub forgiving: bool,
    token: u8,
    /// The next free page of memory.
    next_page: u64,
    /// The driver's own doorbell page.
    pub uar: u32,
}

impl Driver {
    pub fn new(name: &str) -> Driver {
        Driver::on(name, &alone(name))
    }

    /// With a port of the InfiniBand subnet.
    pub fn on(name: &str, options: &Options) -> Driver {
        Driver::on_network(name, options, Network::Subnet)
    }

    pub fn on_network(name: &str, options: &Options, network: Network) -> Driver {
        let ram = Arc::new(Ram(Mutex::new(vec![0; RAM_LEN])));
        Driver::with(ram, name, options, (network, MAX_MEMORY))
    }

    /// A driver of a function that may remember so many bytes for it.
    pub fn within(name: &str, network: Network, max_memory: u64) -> Driver {
        let ram = Arc::new(Ram(Mutex::new(vec![0; RAM_LEN])));
        Driver::with(ram, name, &alone(name), (network, max_memory))
    }

    /// A driver in a machine with this memory.
    pub fn over(ram: Arc<dyn DmaSpace>, name: &str, options: &Options, network: Network) -> Driver {
        Driver::with(ram, name, options, (network, MAX_MEMORY))
    }

    fn with(
        ram: Arc<dyn DmaSpace>,
        name: &str,
        options: &Options,
        (network, max_memory): (Network, u64),
    ) -> Driver {
        let device = Device::open(DeviceConfig {
            attr: DeviceAttr {
                data_direct: true,
                vuid: "MT2446".into(),
                ..DeviceAttr::new(name, 0x1234)
            },
            comm: "test".into(),
            registry: Client::connect_at(Role::Member, options).unwrap(),
            mtu_bytes: Some(4096),
            network,
            trace: None,
            neighbours: false,
            receive_buffer_bytes: Some(256 << 10),
        })
        .unwrap();
        let machine = Arc::new(Machine {
            ram,
            route: Arc::new(Route::local()),
            side: Arc::new(Ram(Mutex::new(vec![0; RAM_LEN]))),
            side_route: Arc::new(Route::local()),
            data_direct: AtomicBool::new(true),
            interrupts: Mutex::default(),
        });
        let lid = device.slot();
        let function = ConnectX::new(device, machine.clone(), max_memory);
        function.write(0x10, &0u32.to_be_bytes());
        function.write(0x14, &(COMMANDS as u32).to_be_bytes());
        let next_page = 0x20_0000;
        let mut driver =
            Driver { machine, function, lid, forgiving: false, token: 1, next_page, uar: 0 };
        driver.command(ENABLE_HCA, vec![0; 16], 16);
        driver.init();
        driver
    }

    /// Brings the function up that is enabled, as far as doorbells.
    pub fn init(&mut self) {
        self.command(INIT_HCA, vec![0; 16], 16);
        self.uar = self.create(ALLOC_UAR, vec![0; 16]);
    }

    /// Ends all objects and begins again.
    pub fn restart(&mut self) {
        self.command(TEARDOWN_HCA, vec![0; 16], 16);
        self.init();
    }

    pub fn peek(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.machine.ram.read(addr, &mut bytes).unwrap();
        bytes
    }

    pub fn poke(&self, addr: u64, bytes: &[u8]) {
        self.machine.ram.write(addr, bytes).unwrap();
    }

    /// A page that nobody uses; once all were given out, one that somebody does.
    pub fn page(&mut self) -> u64 {
        let page = self.next_page;
        self.next_page = if page + 8192 > RAM_LEN as u64 { 0x20_0000 } else { page + 4096 };
        page
    }

    /// Lays a chain of mailboxes at `at`.
    fn chain(&self, at: u64, bytes: &[u8], blocks: usize, token: u8) {
        for number in 0..blocks {
            let mut block = [0; 576];
            let piece = bytes.chunks(512).nth(number).unwrap_or_default();
            block[..piece.len()].copy_from_slice(piece);
            let next = at + (number as u64 + 1) * 1024;
            if number + 1 < blocks {
                block[560..568].copy_from_slice(&next.to_be_bytes());
            }
            block[568..572].copy_from_slice(&(number as u32).to_be_bytes());
            block[573] = token;
            self.poke(at + number as u64 * 1024, &block);
        }
    }

    /// Executes a command in entry 0; gives delivery status and the answer of `out_len` bytes.
    pub fn deliver(&mut self, input: &[u8], out_len: usize) -> (u8, Vec<u8>) {
        self.token = self.token.wrapping_add(1).max(1);
        let rest = input.get(16..).unwrap_or_default();
        let out_blocks = out_len.saturating_sub(16).div_ceil(512);
        self.chain(MAILBOXES, rest, rest.len().div_ceil(512), self.token);
        self.chain(ANSWERS, &[], out_blocks, self.token);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        if !rest.is_empty() {
            entry[8..16].copy_from_slice(&MAILBOXES.to_be_bytes());
        }
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        if out_blocks > 0 {
            entry[48..56].copy_from_slice(&ANSWERS.to_be_bytes());
        }
        entry[56..60].copy_from_slice(&(out_len as u32).to_be_bytes());
        entry[60] = self.token;
        entry[63] = 1;
        entry[61] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
        self.poke(COMMANDS, &entry);
        self.function.write(0x18, &1u32.to_be_bytes());
        let entry = self.peek(COMMANDS, 64);
        assert_eq!(entry[63] & 1, 0, "the entry is the driver's again");
        assert_eq!(entry.iter().fold(0, |sum, byte| sum ^ byte), 0xff, "signature");
        let mut output = entry[32..48].to_vec();
        for number in 0..out_blocks {
            let block = self.peek(ANSWERS + number as u64 * 1024, 576);
            assert_eq!(block.iter().fold(0, |sum, byte| sum ^ byte), 0xff, "signature of a block");
            output.extend_from_slice(&block[..512]);
        }
        output.truncate(out_len.max(16));
        (entry[63] >> 1, output)
    }

    /// Executes a command that must succeed.
    pub fn command(&mut self, opcode: u16, mut input: Vec<u8>, out_len: usize) -> Vec<u8> {
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        let (delivery, output) = self.deliver(&input, out_len);
        assert!(self.forgiving || (delivery, output[0]) == (0, 0), "command {opcode:#x}");
        output
    }

    /// The status of a command that is delivered.
    pub fn status(&mut self, opcode: u16, mut input: Vec<u8>) -> u8 {
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        let (delivery, output) = self.deliver(&input, 16);
        assert_eq!(delivery, 0);
        output[0]
    }

    /// A command that makes something and answers with its number.
    pub fn create(&mut self, opcode: u16, input: Vec<u8>) -> u32 {
        word(&self.command(opcode, input, 16), 8) & 0xff_ffff
    }

    /// Rings a send doorbell in the driver's page.
    pub fn ring(&self, qpn: u32) {
        self.ring_by(self.uar, qpn);
    }

    /// The same in another page.
    pub fn ring_by(&self, uar: u32, qpn: u32) {
        let word = u64::from(qpn << 8 | 1);
        self.function.write(u64::from(uar) * UAR_LEN + 0x800, &word.to_be_bytes());
    }

    pub fn arm_cq(&self, cqn: u32, consumed: u32) {
        self.arm_cq_by(self.uar, cqn, consumed);
    }

    pub fn arm_cq_by(&self, uar: u32, cqn: u32, consumed: u32) {
        let doorbell = u64::from(consumed) << 32 | u64::from(cqn);
        self.function.write(u64::from(uar) * UAR_LEN + 0x20, &doorbell.to_be_bytes());
    }

    pub fn arm_eq(&self, eqn: u32, consumed: u32) {
        self.arm_eq_by(self.uar, eqn, consumed);
    }

    pub fn arm_eq_by(&self, uar: u32, eqn: u32, consumed: u32) {
        let doorbell = (eqn << 24 | consumed).to_be_bytes();
        self.function.write(u64::from(uar) * UAR_LEN + 0x40, &doorbell);
    }

    /// Waits until `ready` finds something, as a polling driver does.
    pub fn poll<T>(&self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(found) = ready() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what} never came");
            std::thread::yield_now();
        }
    }
}
