//! A PCI function as `/sys/devices/pci…` shows it.

/// One PCI function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PciFunction {
    /// Address, `dddd:bb:dd.f`.
    pub bdf: String,
    /// Addresses of the bridges above it, root port first; empty when it sits on the root bus.
    pub bridges: Vec<String>,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem device id.
    pub subsystem_device: u16,
    /// Revision.
    pub revision: u8,
    /// Class code, 24 bits: 0x020000 is an Ethernet controller, 0x020700 an InfiniBand one.
    pub class: u32,
    /// NUMA node, −1 when the machine does not say.
    pub numa_node: i32,
    /// CPUs near the function.
    pub local_cpus: Vec<u32>,
    /// Base address registers: first byte and length in bytes; length 0 means absent.
    pub bars: Vec<(u64, u64)>,
    /// Link speed in tenths of GT/s: 160 for PCIe 4.
    pub link_speed_tenth_gt_s: u32,
    /// Link width in lanes.
    pub link_width: u8,
}

/// Lines of `resource` of a function without bridge windows: six BARs, the ROM and, in kernels with
/// SR-IOV, its six.
const RESOURCE_LINES: usize = 13;

/// IORESOURCE_MEM | IORESOURCE_PREFETCH | IORESOURCE_SIZEALIGN | IORESOURCE_MEM_64 and the BAR's
/// own bits, as a 64-bit prefetchable BAR shows.
const RESOURCE_FLAGS_MEM64: u64 = 0x0014_220c;

/// Class code of a PCI-to-PCI bridge.
const CLASS_BRIDGE: u32 = 0x06_0400;

/// Path of a function's directory, relative to the tree's root. `bridges` are those above it, root
/// port first.
pub fn pci_directory(bridges: &[String], bdf: &str) -> String {
    let root_bus: String = bridges.first().map_or(bdf, String::as_str).chars().take(7).collect();
    let parts = bridges.iter().map(String::as_str).chain([bdf]);
    parts.fold(format!("devices/pci{root_bus}"), |path, part| path + "/" + part)
}

impl PciFunction {
    /// Path of the function's directory, relative to the tree's root.
    pub fn directory(&self) -> String {
        self.directory_above(self.bridges.len())
    }

    /// Path of the bridge at `depth`, 0 being the root port; of the function itself below the last.
    pub(crate) fn directory_above(&self, depth: usize) -> String {
        match self.bridges.get(depth) {
            Some(bridge) => pci_directory(&self.bridges[..depth], bridge),
            None => pci_directory(&self.bridges, &self.bdf),
        }
    }

    /// What programs that walk up from the function read of a bridge.
    pub(crate) fn bridge_attributes(&self) -> Vec<(&'static str, String)> {
        let shared = [
            "numa_node",
            "current_link_speed",
            "max_link_speed",
            "current_link_width",
            "max_link_width",
        ];
        let mut attributes: Vec<_> =
            self.attributes().into_iter().filter(|(name, _)| shared.contains(name)).collect();
        attributes.push(("class", format!("0x{CLASS_BRIDGE:06x}\n")));
        attributes
    }

    /// Name and content of each attribute.
    pub(crate) fn attributes(&self) -> Vec<(&'static str, String)> {
        let speed = format!(
            "{}.{} GT/s PCIe\n",
            self.link_speed_tenth_gt_s / 10,
            self.link_speed_tenth_gt_s % 10
        );
        let width = format!("{}\n", self.link_width);
        vec![
            ("vendor", format!("0x{:04x}\n", self.vendor)),
            ("device", format!("0x{:04x}\n", self.device)),
            ("subsystem_vendor", format!("0x{:04x}\n", self.subsystem_vendor)),
            ("subsystem_device", format!("0x{:04x}\n", self.subsystem_device)),
            ("revision", format!("0x{:02x}\n", self.revision)),
            ("class", format!("0x{:06x}\n", self.class)),
            ("numa_node", format!("{}\n", self.numa_node)),
            ("local_cpus", cpu_mask(&self.local_cpus)),
            ("local_cpulist", cpu_list(&self.local_cpus)),
            ("resource", self.resource()),
            ("enable", "1\n".into()),
            ("irq", "0\n".into()),
            ("current_link_speed", speed.clone()),
            ("max_link_speed", speed),
            ("current_link_width", width.clone()),
            ("max_link_width", width),
            ("uevent", self.uevent()),
            ("modalias", format!("{}\n", self.modalias())),
        ]
    }

    fn resource(&self) -> String {
        (0..RESOURCE_LINES)
            .map(|line| match self.bars.get(line) {
                Some(&(start, len)) if len > 0 => {
                    let last = start.saturating_add(len - 1);
                    format!("0x{start:016x} 0x{last:016x} 0x{RESOURCE_FLAGS_MEM64:016x}\n")
                }
                _ => format!("0x{0:016x} 0x{0:016x} 0x{0:016x}\n", 0),
            })
            .collect()
    }

    fn modalias(&self) -> String {
        format!(
            "pci:v{:08X}d{:08X}sv{:08X}sd{:08X}bc{:02X}sc{:02X}i{:02X}",
            self.vendor,
            self.device,
            self.subsystem_vendor,
            self.subsystem_device,
            self.class >> 16 & 0xff,
            self.class >> 8 & 0xff,
            self.class & 0xff
        )
    }

    fn uevent(&self) -> String {
        format!(
            "PCI_CLASS={:X}\nPCI_ID={:04X}:{:04X}\nPCI_SUBSYS_ID={:04X}:{:04X}\nPCI_SLOT_NAME={}\n\
             MODALIAS={}\n",
            self.class,
            self.vendor,
            self.device,
            self.subsystem_vendor,
            self.subsystem_device,
            self.bdf,
            self.modalias()
        )
    }
}

/// A CPU set as the kernel's `%*pb`: 32-bit words in hexadecimal, most significant first, comma
/// separated.
fn cpu_mask(cpus: &[u32]) -> String {
    let words = cpus.iter().max().map_or(1, |&highest| highest as usize / 32 + 1);
    let mut mask = vec![0u32; words];
    for &cpu in cpus {
        mask[cpu as usize / 32] |= 1 << (cpu % 32);
    }
    let words: Vec<String> = mask.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",") + "\n"
}

/// A CPU set as the kernel's `%*pbl`: ranges.
fn cpu_list(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let ranges: Vec<String> = sorted
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [only] => only.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    ranges.join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_sets_read_as_linux_writes_them() {
        assert_eq!(cpu_mask(&[]), "00000000\n");
        assert_eq!(cpu_mask(&[0, 1]), "00000003\n");
        assert_eq!(cpu_mask(&[0, 33]), "00000002,00000001\n");
        assert_eq!(cpu_list(&[]), "\n");
        assert_eq!(cpu_list(&[5, 0, 1, 2, 2]), "0-2,5\n");
    }

    #[test]
    fn the_directory_names_every_bridge() {
        let mut function = PciFunction {
            bdf: "0000:03:00.0".into(),
            bridges: vec!["0000:00:01.0".into(), "0000:01:00.0".into()],
            vendor: 0x1af4,
            device: 0x1041,
            subsystem_vendor: 0,
            subsystem_device: 0,
            revision: 0,
            class: 0x020000,
            numa_node: -1,
            local_cpus: vec![],
            bars: vec![(0x1000, 0x1000)],
            link_speed_tenth_gt_s: 160,
            link_width: 16,
        };
        assert_eq!(
            function.directory(),
            "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.0"
        );
        function.bridges.clear();
        assert_eq!(function.directory(), "devices/pci0000:03/0000:03:00.0");
        let resource = function.resource();
        assert_eq!(resource.lines().count(), 13);
        assert!(resource.starts_with("0x0000000000001000 0x0000000000001fff 0x"));
    }
}
