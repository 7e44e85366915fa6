//! `peerdma vm`: a machine with an adapter of ours behind a switch, and a command in it.

use super::adapter::{Adapter, AdapterOptions};
use super::virtual_gpu::ServedGpu;
use crate::args::guest::{Port, Vm};
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style::{self, Paint};
use crate::process::own_network;
use crate::surroundings::session::Session;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vfio_user::Neighbours;
use vm::{Guest, Kernel, Machine, Qemu, RamDisk, Store};

/// How long a machine may take until it is up; without hardware virtualisation it takes some ten
/// seconds.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// A command may take as long as it wants.
const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// Boots the machine and runs the command.
///
/// Nothing that an InfiniBand port sends leaves the host, so where UDP port 4791 is another user's
/// it is done in a network namespace of its own.
pub fn vm(arguments: &Vm) -> Outcome {
    if own_network::is_inside() {
        own_network::enter()?;
    }
    let store = Store::at(&folder()?, |what| style::errln(format_args!("{what}")));
    let qemu = Qemu::with_vfio_user(&store).map_err(refused)?;
    let kernel = match (&arguments.kernel, &arguments.modules) {
        (Some(image), Some(modules)) => Kernel::installed(image, modules),
        _ => Kernel::newest(&store),
    };
    let kernel = kernel.map_err(refused)?;
    let disk = match arguments.gpu_memory {
        0 => vm::rdma_disk(&kernel),
        _ => vm::rdma_gpu_disk(&kernel, &store),
    };
    let mut disk = disk.map_err(refused)?;
    let command = add_command(&mut disk, &arguments.command)?;
    if arguments.print {
        return print(arguments, &qemu, &kernel, disk, store.folder());
    }
    let session = Session::begin(false)?;
    let sockets = Sockets::within(session.path());
    let initrd = session.path().join("initrd");
    disk.write(&initrd).map_err(refused)?;
    let machine = machine(arguments, &kernel, &initrd, &sockets);
    let neighbours = Neighbours::default();
    let adapter = Adapter::serve(&AdapterOptions {
        socket: &sockets.connectx,
        data_direct: Some(&sockets.data_direct),
        port: arguments.port,
        allowed: &arguments.allowed,
        platform: None,
        pace: None,
        trace: arguments.trace.as_deref(),
        neighbours: &neighbours,
    });
    let _adapter = match adapter {
        Err(failure) if alone_helps(&failure, arguments.port) => {
            let what = "UDP port 4791 is another user's: the machine is in a network of its own";
            style::errln(format_args!("{} {what}", Paint::Warning.over("note:")));
            drop(session);
            own_network::enter()?;
            return Err(failure);
        }
        adapter => adapter?,
    };
    let _gpu = match arguments.gpu_memory {
        0 => None,
        mib => Some(ServedGpu::serve(&sockets.gpu, mib, &neighbours)?),
    };
    if arguments.command.is_empty() {
        return shell(&qemu, &machine);
    }
    let guest = Guest::boot(&qemu, &machine, BOOT_LIMIT).map_err(refused)?;
    let mut out = std::io::stdout().lock();
    let status = guest.run(&command, NO_LIMIT, |bytes| {
        // Who reads no more does not end what runs.
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    });
    let status = status.map_err(refused)?;
    Ok(u8::try_from(status).unwrap_or(1))
}

/// Whether a network namespace of its own mends it.
fn alone_helps(failure: &Failure, port: Port) -> bool {
    failure.is_port_taken() && port == Port::Ib && !own_network::is_inside()
}

/// Where kernels and QEMU are kept: the user's cache.
fn folder() -> Outcome<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    match cache {
        Some(cache) => Ok(cache.join("peerdma/vm")),
        None => Err(Failure::new("there is no place to keep a kernel in").remedy("set HOME")),
    }
}

fn refused(error: vm::Error) -> Failure {
    match error {
        vm::Error::Missing { what, remedy } => {
            Failure::new("there is no machine").because(what).remedy(remedy)
        }
        error => Failure::new("there is no machine").because(error),
    }
}

/// Adds the program of a command to the RAM disk; the command as the guest's shell takes it.
fn add_command(disk: &mut RamDisk, command: &[String]) -> Outcome<String> {
    let Some((name, rest)) = command.split_first() else { return Ok(String::new()) };
    let name = if name.contains('/') {
        let file = Path::new(name);
        disk.own_program(file).map_err(|error| {
            Failure::new(format_args!("cannot take {name} along")).because(error).status(127)
        })?;
        file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    } else {
        // One that is not installed here may be one of busybox's; if not, the guest's shell says
        // so.
        if vm::find_program(name).is_ok() {
            disk.program(name).map_err(refused)?;
        }
        name.clone()
    };
    let mut line = "cd /root;".to_owned();
    for word in std::iter::once(&name).chain(rest) {
        let _ = write!(line, " {}", quoted(word));
    }
    Ok(line)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Where functions are served.
struct Sockets {
    connectx: PathBuf,
    data_direct: PathBuf,
    gpu: PathBuf,
}

impl Sockets {
    fn within(folder: &Path) -> Sockets {
        let at = |name| folder.join(name);
        Sockets { connectx: at("connectx"), data_direct: at("data-direct"), gpu: at("gpu") }
    }
}

/// All functions are behind one switch.
fn machine(arguments: &Vm, kernel: &Kernel, initrd: &Path, sockets: &Sockets) -> Machine {
    let mut machine = Machine::new(&kernel.image, initrd);
    machine.memory_mib = arguments.memory;
    machine.processors = arguments.cpus;
    machine.root_port("root");
    machine.switch("switch", "root", 3);
    machine.function(&sockets.connectx, "switch0");
    machine.function(&sockets.data_direct, "switch1");
    if arguments.gpu_memory > 0 {
        machine.function(&sockets.gpu, "switch2");
    }
    machine
}

/// The machine with this terminal as its own.
fn shell(qemu: &Qemu, machine: &Machine) -> Outcome {
    let mut command = qemu.command();
    command.args(machine.options(false)).args(["-serial", "mon:stdio"]);
    let status = command.status().what("cannot start QEMU")?;
    if status.success() { Ok(0) } else { Err(Failure::new("QEMU failed").because(status)) }
}

fn print(arguments: &Vm, qemu: &Qemu, kernel: &Kernel, disk: RamDisk, folder: &Path) -> Outcome {
    let (sockets, initrd) = (Sockets::within(folder), folder.join("initrd"));
    disk.write(&initrd).map_err(refused)?;
    let command = qemu.command();
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.extend(machine(arguments, kernel, &initrd, &sockets).options(false));
    words.extend(["-serial", "mon:stdio"].map(str::to_owned));
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let gpu = match arguments.gpu_memory {
        0 => String::new(),
        mib => format!(" --gpu-socket {} --gpu-memory {mib}", sockets.gpu.display()),
    };
    let (connectx, direct) = (sockets.connectx.display(), sockets.data_direct.display());
    style::errln(format_args!(
        "first: peerdma connectx --socket {connectx} --data-direct-socket {direct}{gpu}"
    ));
    style::print(format!("{}\n", words.join(" ")).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_come_through_a_shell_as_they_are() {
        let words = ["plain-word_1.0", "", "two words", "it's", "$HOME `x` \\ \"", "a\nb"];
        for word in words {
            let line = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes(), "{line}");
        }
    }
}
