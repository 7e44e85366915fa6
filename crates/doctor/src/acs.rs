//! ACS on the way between two functions: what the bits do there, and the boot parameter that sets them.

use pcie::{Acs, AcsBits, Address, Function, Kind, Machine};

/// Which bits a bridge should have, and which not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requirement {
    /// The bridge.
    pub bridge: Address,
    /// Bits that must be set.
    pub set: AcsBits,
    /// Bits that must not be.
    pub clear: AcsBits,
}

impl Requirement {
    /// Whether a bridge meets it; `None` if its bits were not read.
    pub fn met(&self, machine: &Machine) -> Option<bool> {
        match machine.function(self.bridge)?.acs {
            Acs::Unknown => None,
            Acs::Absent => Some(self.set.is_empty()),
            Acs::Enabled(bits) => Some(bits.contains(self.set) && !bits.intersects(self.clear)),
        }
    }

    /// The seven characters of `config_acs`: Direct Translated P2P first, Source Validation last.
    fn mask(&self) -> String {
        (0..7)
            .rev()
            .map(|bit| AcsBits::from_bits_truncate(1 << bit))
            .map(|bit| match () {
                () if self.set.contains(bit) => '1',
                () if self.clear.contains(bit) => '0',
                () => 'x',
            })
            .collect()
    }
}

/// The boot parameter that meets requirements (kernel 6.11 and later; 6.15 or a stable fix for lists).
pub fn config_acs(requirements: &[Requirement]) -> String {
    let entries: Vec<String> = requirements
        .iter()
        .map(|requirement| format!("{}@{}", requirement.mask(), requirement.bridge))
        .collect();
    format!("pci=config_acs={}", entries.join(";"))
}

/// Redirect off where peer traffic shall turn round at the switch.
pub(crate) fn without_redirect(bridges: &[Address]) -> Vec<Requirement> {
    let clear = AcsBits::RR | AcsBits::CR | AcsBits::EC;
    let of = |&bridge| Requirement { bridge, set: AcsBits::empty(), clear };
    bridges.iter().map(of).collect()
}

/// What Data Direct needs of the switch that it shares with the GPU: completions of the side function and requests of the GPU go up,
/// so that each travels the way that its address translation expects; the root port keeps all in one IOMMU group.
pub(crate) fn data_direct(machine: &Machine, side: &Function, gpu: &Function) -> Vec<Requirement> {
    let port_above = |function: &Function| {
        machine
            .upwards(function)
            .skip(1)
            .find(|f| f.kind == Kind::SwitchDownstream)
            .map(|f| f.address)
    };
    let root = machine.upwards(side).find(|f| f.kind == Kind::RootPort).map(|f| f.address);
    let common = AcsBits::SV | AcsBits::UF;
    let of = |bridge: Option<Address>, set, clear| {
        bridge.map(|bridge| Requirement { bridge, set, clear })
    };
    [
        of(port_above(side), common | AcsBits::CR, AcsBits::RR),
        of(port_above(gpu), common | AcsBits::RR, AcsBits::CR),
        of(root, AcsBits::RR | AcsBits::CR | AcsBits::UF, AcsBits::SV),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a ConnectX may do over a switch, by the bits on the way (comment at `mlx5_umem_needs_ats`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Translated {
    Works,
    Slow,
    Fails,
}

/// By completion redirect, request redirect and direct translated P2P of the switch, ATS of the adapter and relaxed ordering of the
/// registration.
pub(crate) fn translated(bits: AcsBits, ats: bool, relaxed_ordering: bool) -> Translated {
    let has = |bit| bits.contains(bit);
    match (has(AcsBits::CR), has(AcsBits::RR), has(AcsBits::DT)) {
        (false, false, _) => Translated::Works,
        (false, true, false) => Translated::Fails,
        (false, true, true) if ats => Translated::Works,
        (false, true, true) => Translated::Fails,
        (true, false, true) if !relaxed_ordering => Translated::Fails,
        (true, false, _) if relaxed_ordering => Translated::Works,
        (true, false, _) => Translated::Fails,
        (true, true, false) => Translated::Slow,
        (true, true, true) if !ats => Translated::Slow,
        (true, true, true) if relaxed_ordering => Translated::Works,
        (true, true, true) => Translated::Fails,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_parameter_reads_from_left_to_right() {
        let of = |at: &str, set, clear| Requirement { bridge: at.parse().unwrap(), set, clear };
        let both = [
            of("0020:02:00.0", AcsBits::SV | AcsBits::UF | AcsBits::CR, AcsBits::RR),
            of("0039:00:00.0", AcsBits::DT, AcsBits::EC),
        ];
        assert_eq!(config_acs(&both), "pci=config_acs=xx110x1@0020:02:00.0;10xxxxx@0039:00:00.0");
    }

    #[test]
    fn every_row_of_the_table() {
        use Translated::*;
        // CR RR DT ATS RO
        for (bits, ats, ordering, expected) in [
            ("00x", None, None, Works),
            ("010", None, None, Fails),
            ("011", Some(false), None, Fails),
            ("011", Some(true), None, Works),
            ("10x", None, Some(true), Works),
            ("101", None, Some(false), Fails),
            ("110", None, Some(false), Slow),
            ("111", Some(false), Some(false), Slow),
            ("111", Some(true), Some(false), Fails),
            ("111", Some(true), Some(true), Works),
        ] {
            let digits: Vec<char> = bits.chars().collect();
            let either = |value: Option<bool>| value.map_or(vec![false, true], |value| vec![value]);
            let bit = |at: usize| match digits[at] {
                '0' => vec![false],
                '1' => vec![true],
                _ => vec![false, true],
            };
            for dt in bit(2) {
                for ats in either(ats) {
                    for ordering in either(ordering) {
                        let mut set = AcsBits::empty();
                        set.set(AcsBits::CR, digits[0] == '1');
                        set.set(AcsBits::RR, digits[1] == '1');
                        set.set(AcsBits::DT, dt);
                        assert_eq!(
                            translated(set, ats, ordering),
                            expected,
                            "{bits} {ats} {ordering}"
                        );
                    }
                }
            }
        }
    }
}
