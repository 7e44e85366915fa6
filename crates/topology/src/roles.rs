//! Who is a GPU, who a network adapter.

use pcie::{Function, Kind, Machine, Role};

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;
const MELLANOX: u16 = 0x15b3;
const NEC: u16 = 0x1bcf;
/// The side DMA engine of a ConnectX-8.
const DATA_DIRECT: u16 = 0x2100;

/// Gives each endpoint its role by class, vendor and what drivers made of it.
pub(crate) fn assign(functions: &mut [Function]) {
    for function in functions.iter_mut().filter(|f| f.kind == Kind::Endpoint) {
        function.role = role(function);
    }
}

fn role(function: &Function) -> Role {
    if function.id == Some((MELLANOX, DATA_DIRECT)) {
        return Role::DataDirect;
    }
    let vendor = function.id.map(|id| id.0);
    match function.class.map(|class| class >> 8) {
        // 3D controllers and processing accelerators show no screen
        Some(0x0302 | 0x1200) => Role::Gpu,
        // AMD's Instinct
        Some(0x0380) if vendor != Some(INTEL) || below_a_port(function) => Role::Gpu,
        // co-processors: Intel's and AMD's encrypt, NEC's vector engines have memory
        Some(0x0b40) if vendor == Some(NEC) => Role::Gpu,
        // VGA controllers are also the service processors' (ASPEED, Matrox)
        Some(0x0300) => match vendor {
            Some(NVIDIA | AMD) => Role::Gpu,
            Some(INTEL) if below_a_port(function) => Role::Gpu,
            _ => Role::Other,
        },
        Some(class) if class >> 8 == 0x02 => Role::Hca,
        _ => Role::Other,
    }
}

fn below_a_port(function: &Function) -> bool {
    matches!(function.below, pcie::Below::Port(_))
}

/// GPUs and other accelerators, in order of their address.
pub fn accelerators(machine: &Machine) -> Vec<&Function> {
    machine.functions().filter(|f| f.role == Role::Gpu).collect()
}

/// Network adapters, in order of their address: those that do RDMA for certain, or if none does for certain, all.
pub fn adapters(machine: &Machine) -> Vec<&Function> {
    let all: Vec<&Function> = machine.functions().filter(|f| f.role == Role::Hca).collect();
    let certain: Vec<&Function> = all.iter().copied().filter(|f| does_rdma(f)).collect();
    if certain.is_empty() { all } else { certain }
}

fn does_rdma(function: &Function) -> bool {
    let infiniband = function.class.is_some_and(|class| class >> 8 == 0x0207);
    let mellanox = function.id.is_some_and(|id| id.0 == MELLANOX);
    infiniband
        || mellanox
        || !function.name.is_empty()
        || function.interfaces.iter().any(|n| is_rdma_name(n))
}

/// Names that RDMA devices get from the kernel or from rdma-core's renaming.
fn is_rdma_name(name: &str) -> bool {
    [
        "mlx", "rocep", "roceo", "ibp", "ibs", "bnxt_re", "irdma", "rdmap", "efa", "hfi1_", "qib",
        "hns_", "cxgb", "qedr",
    ]
    .iter()
    .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{Address, Below};

    #[test]
    fn classes_and_vendors() {
        let port = Below::Port("00:01.0".parse::<Address>().unwrap());
        let of = |vendor, device, class, below| {
            let at = "01:00.0".parse().unwrap();
            let function = Function {
                id: Some((vendor, device)),
                class: Some(class),
                ..Function::new(at, Kind::Endpoint, below)
            };
            role(&function)
        };
        assert_eq!(of(NVIDIA, 0x2330, 0x030200, port), Role::Gpu);
        assert_eq!(of(AMD, 0x74a1, 0x120000, port), Role::Gpu);
        assert_eq!(of(AMD, 0x738c, 0x038000, port), Role::Gpu);
        assert_eq!(of(NVIDIA, 0x1b80, 0x030000, port), Role::Gpu);
        assert_eq!(of(0x1a03, 0x2000, 0x030000, port), Role::Other);
        assert_eq!(of(INTEL, 0x3e92, 0x030000, Below::Host(0)), Role::Other);
        assert_eq!(of(INTEL, 0x56c0, 0x038000, port), Role::Gpu);
        assert_eq!(of(MELLANOX, 0x1021, 0x020700, port), Role::Hca);
        assert_eq!(of(MELLANOX, 0x2100, 0x080100, port), Role::DataDirect);
        assert_eq!(of(0x144d, 0xa80a, 0x010802, port), Role::Other);
    }
}
