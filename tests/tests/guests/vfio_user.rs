//! A small function of ours in a real machine: QEMU plugs it in, Linux finds it, and a driver in
//! user space has it move memory behind an IOMMU.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use system::lab::{Booted, Lab};
use system::{c_program, skip};
use vfio_user::{Bar, BarKind, Description, Function, Host, Msix, PciIdentity, Server, serve};

/// Registers of 8 bytes: what it is, source, target, length, command, status, vector.
const GO: u64 = 32;
const STATUS: usize = 5;
const MAGIC: u64 = 0x7065_6572_6461_6d61;

/// A device that copies memory, or adds to a word of it, and raises an interrupt.
struct Copier {
    registers: Arc<Mutex<[u64; 8]>>,
    work: Mutex<mpsc::Sender<()>>,
    resets: AtomicU64,
}

impl Copier {
    fn new(host: Host) -> Copier {
        let registers = Arc::new(Mutex::new([MAGIC, 0, 0, 0, 0, 0, 0, 0]));
        let (work, todo) = mpsc::channel();
        let its = registers.clone();
        // Messages to the client need another thread than the one that serves it.
        std::thread::spawn(move || {
            while todo.recv().is_ok() {
                let [_, source, target, length, go, _, vector, _] = *its.lock().unwrap();
                let done = carry_out(&host, go, source, target, length).is_some();
                its.lock().unwrap()[STATUS] = if done { 1 } else { 2 };
                host.interrupt(vector as u16);
            }
        });
        Copier { registers, work: Mutex::new(work), resets: AtomicU64::new(0) }
    }
}

fn carry_out(host: &Host, go: u64, source: u64, target: u64, length: u64) -> Option<()> {
    let memory = host.memory();
    match go {
        1 => {
            let mut bytes =
                vec![0; usize::try_from(length).ok().filter(|&length| length < 1 << 20)?];
            memory.read(source, &mut bytes).ok()?;
            memory.write(target, &bytes).ok()
        }
        2 => memory.atomic(target, mm::AtomicOp::FetchAdd { add: source }).ok().map(drop),
        _ => None,
    }
}

impl Function for Copier {
    fn description(&self) -> Description {
        let bar = |size, kind| Some(Bar { size, kind, memory: None });
        let registers = bar(1 << 16, BarKind::Memory64 { prefetchable: false });
        Description {
            identity: PciIdentity {
                vendor: 0x1234,
                device: 0xc0de,
                subsystem_vendor: 0x1234,
                subsystem: 1,
                revision: 3,
                class: 0xff_0000,
            },
            bars: [registers, None, None, None, None, None],
            msix: Some(Msix { vectors: 2, bar: 0, table: 0x8000, pending: 0xc000 }),
            vpd: Some(b"\x82\x06\0copier\x78".to_vec()),
            serial: Some(0x0123_4567_89ab_cdef),
            vendor_registers: 0,
            ats: false,
            acs: false,
        }
    }

    fn bar_read(&self, _: u8, offset: u64, data: &mut [u8]) {
        let registers = self.registers.lock().unwrap();
        let bytes: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
        let from = bytes.get(offset as usize..).unwrap_or_default();
        data.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }

    fn bar_write(&self, _: u8, offset: u64, data: &[u8]) {
        let (Ok(at), 8..64) = (usize::try_from(offset), offset) else { return };
        // A processor of 32-bit accesses writes a register in two halves.
        let mut registers = self.registers.lock().unwrap();
        let mut register = registers[at / 8].to_le_bytes();
        register[at % 8..].iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        registers[at / 8] = u64::from_le_bytes(register);
        if offset == GO {
            self.work.lock().unwrap().send(()).unwrap();
        }
    }

    fn reset(&self) {
        *self.registers.lock().unwrap() = [MAGIC, 0, 0, 0, 0, 0, 0, 0];
        self.resets.fetch_add(1, Relaxed);
    }
}

const DEVICE: &str = "/sys/bus/pci/devices/0000:01:00.0";

/// The device as Linux sees it, and what the driver in user space says.
fn judge(guest: &Booted, shared: bool) {
    let attribute = |name: &str| guest.output(&format!("cat {DEVICE}/{name}")).trim().to_owned();
    assert_eq!(attribute("vendor"), "0x1234");
    assert_eq!(attribute("device"), "0xc0de");
    assert_eq!(attribute("class"), "0xff0000");
    assert_eq!(attribute("revision"), "0x03");
    let vpd = guest.output(&format!("head -c 9 {DEVICE}/vpd | tail -c 6"));
    assert_eq!(vpd, "copier");
    let capabilities = guest.output("lspci -vvv -s 01:00.0");
    for expected in [
        "MSI-X: Enable- Count=2",
        "Device Serial Number 01-23-45-67-89-ab-cd-ef",
        "FLReset+",
        "Express (v2) Endpoint",
    ] {
        assert!(capabilities.contains(expected), "{expected}\n{capabilities}");
    }
    guest.output(&format!(
        "echo vfio-pci > {DEVICE}/driver_override && echo 0000:01:00.0 > /sys/bus/pci/drivers_probe"
    ));
    let memory = if shared { "shared" } else { "" };
    // Twice: the second driver finds what the first left.
    for _ in 0..2 {
        let said = guest.output(&format!(
            "vfio_copier $(basename $(readlink {DEVICE}/iommu_group)) 0000:01:00.0 {memory}"
        ));
        assert_eq!(said.trim(), "all right");
    }
    guest.output(&format!("echo 0000:01:00.0 > {DEVICE}/driver/unbind; echo 1 > {DEVICE}/reset"));
    assert_eq!(attribute("vendor"), "0x1234");
    guest.assert_quiet();
}

#[test]
fn a_function_of_ours_works_in_a_machine() {
    let (lab, driver) = match (Lab::new(), c_program("vfio_copier")) {
        (Ok(lab), Ok(driver)) => (lab, driver),
        (Err(reason), _) => skip!("{reason:#}"),
        (_, Err(reason)) => skip!("{reason}"),
    };
    let modules = ["vfio-pci", "vfio_iommu_type1"];
    let machine = lab.machine(&modules, &["lspci"], &[&driver], |_| Ok(()));
    let mut machine = match machine {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason:#}"),
    };
    machine.kernel_options = "intel_iommu=on".to_owned();
    machine.device("intel-iommu,caching-mode=on");
    machine.root_port("root");
    let host = Host::new();
    let copier = Arc::new(Copier::new(host.clone()));
    let socket = lab.socket("copier");
    let _server: Server = serve(&socket, host, copier.clone()).unwrap();
    machine.function(&socket, "root");
    judge(&lab.boot(&machine), true);
    // The same function, in another machine whose memory it reaches only by messages.
    let before = copier.resets.load(Relaxed);
    machine.shares_memory = false;
    judge(&lab.boot(&machine), false);
    assert!(copier.resets.load(Relaxed) > before, "each machine finds it reset");
}
