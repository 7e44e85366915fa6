//! Targets of the crate `topology`.

/// A machine that somebody described: text, XML, JSON or an archive of any tool.
pub fn machine(data: &[u8]) {
    let Ok(capture) = topology::parse(data, "fuzz") else { return };
    for gpu in topology::accelerators(&capture.machine) {
        for adapter in topology::adapters(&capture.machine) {
            let _ = pcie::labels(&capture.machine, gpu, adapter);
        }
    }
}

/// A small machine in each format.
pub fn machine_seeds() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../seeds/machine/hwloc.xml").to_vec(),
        include_bytes!("../seeds/machine/lspci-tree.txt").to_vec(),
        include_bytes!("../seeds/machine/lspci.txt").to_vec(),
        include_bytes!("../seeds/machine/nccl.xml").to_vec(),
        include_bytes!("../seeds/machine/nvidia-smi.xml").to_vec(),
        include_bytes!("../seeds/machine/rdma_topo.json").to_vec(),
        include_bytes!("../seeds/machine/sys.tar").to_vec(),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_seed_is_a_machine() {
        for seed in super::machine_seeds() {
            let capture = topology::parse(&seed, "seed").expect("a capture");
            assert!(capture.machine.functions().count() > 0, "{:?}", capture.format);
        }
    }
}
