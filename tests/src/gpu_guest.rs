//! A machine with the software ConnectX and the virtual GPU, and what its kernel is asked about the
//! two.

use crate::lab::{Booted, Lab, with_next_rdma};
use crate::{Namespace, Running, c_program, is_root, next_debian, peerdma, serve_connectx};
use serde_json::Value;
use std::path::PathBuf;
use vm::Machine;

/// MiB of the GPU's memory.
pub const GPU_MEMORY_MIB: &str = "64";
/// The GPU in the guest.
pub const GPU_NODE: &str = "/dev/dri/renderD128";
/// A processor whose host bridges pass peer traffic on.
pub const ZEN: &str = "max,vendor=AuthenticAMD,family=25";

/// The functions' sockets.
const ADAPTER: &str = "connectx";
const GPU: &str = "gpu";
const DATA_DIRECT: &str = "data-direct";

/// Where the two functions sit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// Behind one switch, which has no access control.
    Switch,
    /// Behind a switch whose ports have it. QEMU's switch has none, so root ports stand in for its
    /// downstream ports: Linux looks at their bits only.
    IsolatingSwitch,
    /// Below root ports of their own.
    Ports,
}

/// A machine with both functions, which are served as long as this lives.
pub struct GpuGuest {
    /// Boots it.
    pub lab: Lab,
    /// What is booted. Nothing is plugged into it at first.
    pub machine: Machine,
    bare: Machine,
    /// Serves the functions.
    pub serving: Running,
    /// Where the guest has the adapter.
    pub adapter: &'static str,
    /// Where the guest has the GPU.
    pub gpu: &'static str,
    has_data_direct: bool,
    _namespace: Namespace,
}

impl GpuGuest {
    /// A machine that has `peerdma` and these programs of the tests.
    ///
    /// # Errors
    /// What is missing here, in words. A test skips with it.
    pub fn new(name: &str, programs: &[&str]) -> Result<GpuGuest, String> {
        GpuGuest::made(name, programs, None)
    }

    /// As [`GpuGuest::new`], with the adapter's Data Direct function below a port of its own, and
    /// the next Debian's rdma-core, which can use it.
    ///
    /// # Errors
    /// As for that.
    pub fn with_data_direct(name: &str, programs: &[&str]) -> Result<GpuGuest, String> {
        GpuGuest::made(name, programs, Some(next_debian()?))
    }

    fn made(name: &str, programs: &[&str], next: Option<PathBuf>) -> Result<GpuGuest, String> {
        let said = |error: anyhow::Error| format!("{error:#}");
        if !is_root() {
            return Err("a namespace for the functions needs root".to_owned());
        }
        let lab = Lab::new().map_err(said)?;
        let programs: Vec<_> =
            programs.iter().map(|program| c_program(program)).collect::<Result<_, _>>()?;
        let bare = lab.gpu_machine_with(|disk| {
            programs.iter().try_for_each(|program| disk.own_program(program))?;
            disk.own_program(peerdma())?;
            next.as_ref().map_or(Ok(()), |debian| with_next_rdma(disk, debian))
        });
        let bare = bare.map_err(said)?;
        let namespace = Namespace::new(name);
        let socket = |name: &str| lab.socket(name).to_string_lossy().into_owned();
        let (gpu, side) = (socket(GPU), socket(DATA_DIRECT));
        let mut options = vec!["--gpu-socket", &gpu, "--gpu-memory", GPU_MEMORY_MIB];
        if next.is_some() {
            options.extend(["--data-direct-socket", &side]);
        }
        let serving = serve_connectx(&namespace, &lab.socket(ADAPTER), &options);
        Ok(GpuGuest {
            machine: bare.clone(),
            lab,
            bare,
            serving,
            adapter: "",
            gpu: "",
            has_data_direct: next.is_some(),
            _namespace: namespace,
        })
    }

    /// Plugs the functions in, in the place of what was plugged in before; with options of the
    /// kernel's for an IOMMU, or without one.
    pub fn plug(&mut self, placed: Placed, iommu: Option<&str>) {
        self.machine = self.bare.clone();
        if let Some(options) = iommu {
            self.machine.device("intel-iommu,caching-mode=on");
            self.machine.kernel_options = format!("intel_iommu=on {options}");
        }
        let (ports, addresses) = ports(&mut self.machine, placed);
        [self.adapter, self.gpu] = addresses;
        self.machine.function(&self.lab.socket(ADAPTER), ports[0]);
        self.machine.function(&self.lab.socket(GPU), ports[1]);
        if self.has_data_direct {
            self.machine.root_port("side");
            self.machine.function(&self.lab.socket(DATA_DIRECT), "side");
        }
    }

    /// What we say of the way from the adapter to the GPU, in the words of `peerdma topo --json`.
    /// `options` as for that.
    ///
    /// # Panics
    /// When it says nothing of it.
    pub fn way(&self, guest: &Booted, options: &str) -> Value {
        let pair = format!("{},{}", self.gpu, self.adapter);
        let said = guest.output(&format!("peerdma topo --json --pair {pair} {options}"));
        let topo: Value =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}\n{said}"));
        topo["pairs"].get(0).cloned().unwrap_or_else(|| panic!("no pair in {said}"))
    }

    /// Our verdict on that way.
    ///
    /// # Panics
    /// As for [`GpuGuest::way`].
    pub fn verdict(&self, guest: &Booted) -> String {
        self.way(guest, "")["p2pdma"].as_str().expect("a verdict").to_owned()
    }
}

/// Ports for the adapter and the GPU, and where functions below them are.
fn ports(machine: &mut Machine, placed: Placed) -> ([&'static str; 2], [&'static str; 2]) {
    let behind = ["0000:03:00.0", "0000:04:00.0"];
    match placed {
        Placed::Ports => {
            machine.root_port("near");
            machine.root_port("far");
            (["near", "far"], ["0000:01:00.0", "0000:02:00.0"])
        }
        Placed::Switch => {
            machine.root_port("root");
            machine.switch("switch", "root", 2);
            (["switch0", "switch1"], behind)
        }
        Placed::IsolatingSwitch => {
            machine.root_port("root");
            machine.device("x3130-upstream,id=switch,bus=root");
            for port in 0..2 {
                machine.device(&format!(
                    "pcie-root-port,id=switch{port},bus=switch,addr={port},chassis={},slot={port}",
                    100 + port
                ));
            }
            (["switch0", "switch1"], behind)
        }
    }
}

impl Booted {
    /// Runs a program whose rows are all right.
    ///
    /// # Panics
    /// When one is not, or it fails.
    pub fn passes(&self, line: &str) {
        let (status, said) = self.script(line);
        let wrong: Vec<&str> = said.lines().filter(|line| line.starts_with("NOT")).collect();
        assert!(status == 0 && wrong.is_empty(), "{line}: {wrong:#?}\n{said}\n{}", self.0.log());
    }
}
