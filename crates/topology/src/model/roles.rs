//! Who is a GPU, who a network adapter, and who only looks like one: by class, by id, and where a
//! source has neither by name.

use super::products;
use pcie::{Function, Kind, Machine, Role};
use std::collections::HashMap;

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;
const MELLANOX: u16 = 0x15b3;
const NEC: u16 = 0x1bcf;
const BROADCOM: u16 = 0x14e4;
const AMAZON: u16 = 0x1d0f;
const PENSANDO: u16 = 0x1dd8;
const HABANA: u16 = 0x1da3;
/// Xilinx and Altera.
const PROGRAMMABLE: [u16; 2] = [0x10ee, 0x1172];
/// Vendors none of whose network devices does RDMA: virtio, Realtek, Atheros.
const NO_RDMA: [u16; 3] = [0x1af4, 0x10ec, 0x1969];
/// The side DMA engine of a ConnectX-8.
const DATA_DIRECT: u16 = 0x2100;

/// Gives each endpoint its role, and each virtual network function the physical one that it belongs
/// to.
pub(crate) fn assign(functions: &mut [Function]) {
    for function in functions.iter_mut().filter(|f| f.kind == Kind::Endpoint) {
        function.role = role(function);
    }
    own_virtual_functions(functions);
}

/// What there is to judge a device by.
struct Device<'a> {
    function: &'a Function,
    vendor: Option<u16>,
    name: String,
}

impl<'a> Device<'a> {
    fn of(function: &'a Function) -> Device<'a> {
        let (vendor, name) = (products::vendor(function), products::name(function));
        Device { function, vendor, name }
    }

    fn is_named(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.name.contains(word))
    }

    fn is_of(&self, vendor: u16) -> bool {
        self.vendor == Some(vendor)
    }

    fn is_below_a_port(&self) -> bool {
        matches!(self.function.below, pcie::Below::Port(_))
    }
}

fn role(function: &Function) -> Role {
    let device = Device::of(function);
    match () {
        () if is_data_direct(&device) => Role::DataDirect,
        () if is_nvswitch(&device) => Role::NvSwitch,
        () if is_management(&device) => Role::Management,
        () => match function.class.map(|class| class >> 8) {
            Some(class) => by_class(&device, class),
            None => by_name(&device),
        },
    }
}

fn is_data_direct(device: &Device<'_>) -> bool {
    device.function.id == Some((MELLANOX, DATA_DIRECT)) || device.is_named(&["Data Direct"])
}

fn is_nvswitch(device: &Device<'_>) -> bool {
    let id = device.function.id;
    matches!(id, Some((NVIDIA, 0x1ac1 | 0x1ac2 | 0x1af1 | 0x22a3)))
        || device.is_named(&["NVSwitch"])
}

fn is_management(device: &Device<'_>) -> bool {
    let of_a_dpu = device.is_of(MELLANOX) || device.is_of(PENSANDO);
    let words = ["anagement", "Auxiliary Communication", "Flash Recovery"];
    of_a_dpu && device.is_named(&words)
}

fn is_fpga(device: &Device<'_>) -> bool {
    device.vendor.is_some_and(|vendor| PROGRAMMABLE.contains(&vendor))
        || device.is_named(&["FPGA", "Alveo", "Stratix", "Arria", "Agilex"])
        // whose list of ids lags behind: Intel's accelerator cards that process and show nothing
        || matches!(
            device.function.id,
            Some((
                INTEL,
                0x09c4 | 0x09c5 | 0x0b2b | 0x0b2c | 0x0b30 | 0x0b31 | 0x0b32 | 0xaf00 | 0xbcce
                    | 0xbccf
            ))
        )
        || matches!(device.function.id, Some((AMAZON, 0xf000 | 0xf001 | 0xf010)))
}

/// The role that class and subclass give.
fn by_class(device: &Device<'_>, class: u32) -> Role {
    match class {
        0x0108 => Role::Nvme,
        class if class >> 8 == 0x02 => Role::Hca,
        _ if is_fpga(device) => Role::Fpga,
        // 3D controllers and processing accelerators show no screen
        0x0302 => Role::Gpu,
        // Intel's accelerators of this class are engines of the processor, and cards with an FPGA
        0x1200 if !device.is_of(INTEL) => Role::Gpu,
        // AMD's Instinct, Intel's data centre GPUs; also virtual screens
        0x0380 => match device.vendor {
            Some(AMD | NVIDIA) => Role::Gpu,
            Some(INTEL) if device.is_below_a_port() => Role::Gpu,
            _ => Role::Other,
        },
        // co-processors: most encrypt, NEC's vector engines and Xeon Phi have memory
        0x0b40 if device.is_of(NEC) || device.is_named(&["Xeon Phi"]) => Role::Gpu,
        // VGA controllers are also the service processors' (ASPEED, Matrox)
        0x0300 => match device.vendor {
            Some(NVIDIA | AMD) => Role::Gpu,
            Some(INTEL) if device.is_below_a_port() => Role::Gpu,
            _ => Role::Other,
        },
        0x0880 if device.is_of(AMAZON) && device.is_named(&["Neuron"]) => Role::Gpu,
        _ => Role::Other,
    }
}

/// The role that a name alone gives, as `lspci -tv` has it.
fn by_name(device: &Device<'_>) -> Role {
    let gpu = match device.vendor {
        Some(NVIDIA) => is_nvidia_gpu(device),
        Some(AMD) => {
            device.is_named(&["Instinct", "Radeon", "FirePro"])
                && !device.is_named(&["Audio", "USB"])
        }
        Some(INTEL) => device.is_named(&["Data Center GPU", "[Arc ", "Ponte Vecchio", "Xeon Phi"]),
        Some(HABANA) => true,
        Some(NEC) => device.is_named(&["Vector Engine"]),
        Some(AMAZON) => device.is_named(&["Neuron"]),
        _ => device.is_named(&["Instinct", "Gaudi"]),
    };
    match () {
        () if gpu => Role::Gpu,
        () if device.is_named(&["NVMe", "Non-Volatile memory", "SSD Controller"]) => Role::Nvme,
        () if is_network(device) => Role::Hca,
        () if is_fpga(device) => Role::Fpga,
        () => Role::Other,
    }
}

/// Names of NVIDIA's GPUs begin with the chip: GV100GL, TU104, GH100, AD102. Its other devices are
/// called by what they do.
fn is_nvidia_gpu(device: &Device<'_>) -> bool {
    const OTHERS: [&str; 20] = [
        "Audio",
        "USB",
        "UCSI",
        "Bridge",
        "bridge",
        "Ethernet",
        "SATA",
        "SMBus",
        "SMU",
        "LPC",
        "ISA",
        "Memory",
        "Root",
        "Host",
        "IDE",
        "nForce",
        "MCP",
        "Tegra",
        "Grace",
        "Co-processor",
    ];
    if device.is_named(&OTHERS) {
        return false;
    }
    let name = device.name.trim_start_matches("NVIDIA Corporation").trim();
    let chip = name.split([' ', '[']).next().unwrap_or_default();
    let is_chip = chip.len() >= 4
        && chip.starts_with(['G', 'T', 'A', 'N'])
        && chip.chars().any(|c| c.is_ascii_digit())
        && chip.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    // newer than the list: a GPU's first function is the GPU, the second its sound
    let unlisted = name.is_empty() || name.starts_with("Device ");
    is_chip || unlisted && device.function.address.function == 0
}

fn is_network(device: &Device<'_>) -> bool {
    let words = [
        "ConnectX",
        "BlueField",
        "Ethernet",
        "InfiniBand",
        "Infiniband",
        "NetXtreme",
        "FastLinQ",
        "Omni-Path",
        "HFI Silicon",
        "Elastic Fabric",
        "Elastic Network",
        "Elastic RDMA",
        "Slingshot",
        "Network Connection",
        "Network Adapter",
        "network controller",
        "Virtio network",
    ];
    let mellanox = device.is_of(MELLANOX) && device.is_named(&["MT2", "MT4", "BF4", "CX8", "CX9"]);
    (device.is_named(&words) || mellanox)
        && !device.is_named(&["Bridge", "Crypto", "PCIe", "Switch Silicon"])
}

/// Whether an adapter's maker names it for what an RDMA driver takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rdma {
    Yes,
    /// The source does not say which adapter it is.
    May,
    No,
}

fn rdma(function: &Function) -> Rdma {
    let device = Device::of(function);
    let infiniband = function.class.is_some_and(|class| class >> 8 == 0x0207);
    if infiniband
        || !function.name.is_empty()
        || function.interfaces.iter().any(|n| is_rdma_name(n))
    {
        return Rdma::Yes;
    }
    let yes = match device.vendor {
        Some(MELLANOX) => true,
        // E810 and its relatives, X722, Omni-Path; not the gigabit and 10 gigabit families
        Some(INTEL) => {
            device.is_named(&["E810", "E82", "E830", "X722", "Omni-Path", "Adaptive Virtual"])
        }
        // from the 57400s on; names of those before end in their speed of one gigabit, or are
        // NetXtreme II
        Some(BROADCOM) => {
            device.is_named(&["NetXtreme-E", "BCM574", "BCM575", "BCM576", "BCM577", "BCM578"])
                && !device.is_named(&["Gigabit", "NetXtreme II"])
        }
        Some(AMAZON) => device.is_named(&["Elastic Fabric"]),
        Some(PENSANDO) => device.is_named(&["Ethernet"]),
        // Chelsio from T4 on, QLogic, Huawei, Alibaba, Microsoft, Cornelis
        Some(0x1425) => device.is_named(&["T4", "T5", "T6", "T7"]),
        Some(0x1077) => device.is_named(&["QL4", "InfiniBand"]),
        Some(0x19e5) => device.is_named(&["RDMA", "RoCE", "HNS"]),
        Some(0x1ded) => device.is_named(&["RDMA"]),
        Some(0x1414) => matches!(function.id, Some((_, 0x00b9 | 0x00ba))),
        Some(0x434e) => true,
        _ => false,
    };
    match device.vendor {
        _ if yes => Rdma::Yes,
        Some(INTEL | BROADCOM | AMAZON) => Rdma::No,
        Some(vendor) if NO_RDMA.contains(&vendor) => Rdma::No,
        _ => Rdma::May,
    }
}

/// Names that RDMA devices get from the kernel or from rdma-core's renaming.
pub fn is_rdma_name(name: &str) -> bool {
    [
        "mlx", "rocep", "roceo", "ibp", "ibs", "bnxt_re", "irdma", "rdmap", "efa", "hfi1_", "qib",
        "hns_", "cxgb", "qedr", "mana_", "ionic_", "erdma",
    ]
    .iter()
    .any(|start| name.starts_with(start))
}

/// A virtual network function belongs to the physical one of its kind on the same bus, where the
/// source does not say to which.
fn own_virtual_functions(functions: &mut [Function]) {
    let is_virtual = |function: &Function| {
        let name = products::name(function);
        name.contains("Virtual Function") || name.ends_with(" VF")
    };
    let place = |f: &Function| (f.address.domain, f.address.bus, products::vendor(f));
    let network = |f: &&Function| f.role == Role::Hca;
    let physical: HashMap<_, _> = functions
        .iter()
        .filter(network)
        .filter(|f| f.virtual_of.is_none() && !is_virtual(f))
        .map(|f| (place(f), f.address))
        .collect();
    for function in functions.iter_mut().filter(|f| f.role == Role::Hca && f.virtual_of.is_none()) {
        if is_virtual(function) {
            function.virtual_of = physical.get(&place(function)).copied();
        }
    }
}

/// GPUs and other accelerators, in order of their address.
pub fn accelerators(machine: &Machine) -> Vec<&Function> {
    machine.functions().filter(|f| f.role == Role::Gpu).collect()
}

/// Network adapters that do RDMA, in order of their address: those that do for certain, or if there
/// are none, those of which the source does not tell. Virtual functions count where their physical
/// one is not there, as in a guest.
pub fn adapters(machine: &Machine) -> Vec<&Function> {
    let physical = |f: &&Function| match f.virtual_of {
        Some(physical) => machine.function(physical).is_none(),
        None => true,
    };
    let all: Vec<(&Function, Rdma)> = machine
        .functions()
        .filter(|f| f.role == Role::Hca)
        .filter(physical)
        .map(|f| (f, rdma(f)))
        .collect();
    let of = |wanted| all.iter().filter(|(_, rdma)| *rdma == wanted).map(|&(f, _)| f).collect();
    let certain: Vec<&Function> = of(Rdma::Yes);
    if certain.is_empty() { of(Rdma::May) } else { certain }
}

#[cfg(test)]
mod tests;
