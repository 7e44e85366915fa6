//! A machine as QEMU builds it: its PCIe tree, memory that other processes can map, and nothing
//! that a guest of ours does not need.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A machine's options. Its devices sit below root ports and switches that are named here.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel: PathBuf,
    ram_disk: PathBuf,
    /// Added to the kernel's command line.
    pub kernel_options: String,
    /// MiB of memory.
    pub memory_mib: u32,
    /// Whether functions get its memory as descriptors. Without, they reach it by messages: only to
    /// try that.
    pub shares_memory: bool,
    /// Processors.
    pub processors: u32,
    /// Model of processor, with its features.
    pub processor: String,
    /// Options of the machine type, such as `kernel-irqchip=split`.
    pub machine_options: Vec<String>,
    /// Whether QEMU goes on when the guest restarts itself, or panics. Else it ends.
    pub restarts: bool,
    devices: Vec<String>,
    drives: Vec<String>,
    cables: Vec<String>,
    ports: u8,
    functions: u8,
    /// A socket on which QEMU's machine protocol (QMP) is spoken with one client at a time.
    pub monitor: Option<PathBuf>,
}

impl Machine {
    /// A machine with a kernel and a RAM disk, 2 processors and 1 GiB.
    pub fn new(kernel: &Path, ram_disk: &Path) -> Machine {
        Machine {
            kernel: kernel.to_owned(),
            ram_disk: ram_disk.to_owned(),
            kernel_options: String::new(),
            memory_mib: 1024,
            shares_memory: true,
            processors: 2,
            processor: "max".to_owned(),
            machine_options: Vec::new(),
            restarts: false,
            devices: Vec::new(),
            drives: Vec::new(),
            cables: Vec::new(),
            ports: 0,
            functions: 0,
            monitor: None,
        }
    }

    /// A device in QEMU's own words (`-device`).
    pub fn device(&mut self, words: &str) {
        self.devices.push(words.to_owned());
    }

    /// The contents of a drive, by a name for its device's `drive=`. The guest may write to the
    /// file.
    pub fn drive(&mut self, name: &str, file: &Path) {
        self.drives.push(format!("if=none,id={name},format=raw,file={}", value(file)));
    }

    /// A network card on a cable between the sockets `own` and `other`; the machine at the other
    /// end has them the other way round.
    pub fn cable(&mut self, own: &Path, other: &Path) {
        let name = format!("cable{}", self.cables.len());
        let end = |side: &str, path: &Path| format!("{side}.type=unix,{side}.path={}", value(path));
        let (local, remote) = (end("local", own), end("remote", other));
        self.cables.push(format!("dgram,id={name},{local},{remote}"));
        self.device(&format!("virtio-net-pci,netdev={name},romfile="));
    }

    /// A root port, as fast as the adapter's own link: of a slower one its kernel would warn.
    pub fn root_port(&mut self, name: &str) {
        self.ports += 1;
        self.device(&format!(
            "pcie-root-port,id={name},chassis={},slot={0},x-speed=64,x-width=16",
            self.ports
        ));
    }

    /// A switch of so many ports below a root port or another switch's port; port `n` is named
    /// `{name}{n}`. Its links are of 2.5 GT/s and one lane: QEMU lets nobody say another speed.
    pub fn switch(&mut self, name: &str, above: &str, ports: u8) {
        self.device(&format!("x3130-upstream,id={name},bus={above}"));
        for port in 0..ports {
            self.ports += 1;
            self.device(&format!(
                "xio3130-downstream,id={name}{port},bus={name},chassis={},slot={0}",
                self.ports
            ));
        }
    }

    /// The function that is served at `socket`, below the port `above`; the nth is named
    /// `function{n}`.
    pub fn function(&mut self, socket: &Path, above: &str) {
        let words = function(&format!("function{}", self.functions), socket, above);
        self.device(&words);
        self.functions += 1;
    }

    /// QEMU's options for it. Nobody sees its screen. On its first serial port are the kernel's
    /// messages and a shell; with `agent` the shell is on the second, for a [`crate::Guest`].
    pub fn options(&self, agent: bool) -> Vec<String> {
        let mut machine = vec!["q35".to_owned(), "memory-backend=ram".to_owned()];
        machine.extend(self.machine_options.iter().cloned());
        let kind = if self.shares_memory { "memfd,share=on" } else { "ram" };
        let memory = format!("memory-backend-{kind},id=ram,size={}M", self.memory_mib);
        let agent = if agent { "agent " } else { "" };
        // Whether the timer works the kernel finds out by waiting for it, which a busy host may
        // keep from it.
        let line =
            format!("console=ttyS0 quiet panic=-1 no_timer_check {agent}{}", self.kernel_options);
        let mut options = ["-nodefaults", "-display", "none"].map(str::to_owned).to_vec();
        if !self.restarts {
            options.push("-no-reboot".to_owned());
        }
        let mut option = |name: &str, value: String| options.extend([name.to_owned(), value]);
        option("-accel", accelerator().to_owned());
        option("-machine", machine.join(","));
        option("-cpu", self.processor.clone());
        option("-smp", self.processors.to_string());
        option("-m", self.memory_mib.to_string());
        option("-object", memory);
        option("-kernel", self.kernel.display().to_string());
        option("-initrd", self.ram_disk.display().to_string());
        option("-append", line.trim().to_owned());
        for drive in &self.drives {
            option("-drive", drive.clone());
        }
        for cable in &self.cables {
            option("-netdev", cable.clone());
        }
        for device in &self.devices {
            option("-device", device.clone());
        }
        if let Some(socket) = &self.monitor {
            option("-qmp", format!("unix:{},server=on,wait=off", value(socket)));
        }
        options
    }
}

/// The function that is served at `socket`, as a device of this name, below the port `above`. In
/// the form of JSON, because the socket is a structure.
pub fn function(name: &str, socket: &Path, above: &str) -> String {
    let socket = socket.display().to_string().replace('\\', r"\\").replace('"', "\\\"");
    format!(
        "{{\"driver\":\"vfio-user-pci\",\"id\":\"{name}\",\"bus\":\"{above}\",\
         \"socket\":{{\"type\":\"unix\",\"path\":\"{socket}\"}}}}"
    )
}

/// A path as the value of one of several options: a comma would end it, and QEMU takes two for one.
fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// The processor's virtualisation where this user may use it, else emulation.
fn accelerator() -> &'static str {
    let has_it = || {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        text.split_whitespace().any(|word| word == "vmx" || word == "svm")
    };
    let may = || File::options().read(true).write(true).open("/dev/kvm").is_ok();
    // A device without the processor's feature is another kind of KVM, under which not every kernel
    // runs.
    if has_it() && may() { "kvm" } else { "tcg,thread=multi" }
}
