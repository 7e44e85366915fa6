//! ACS on the way between two functions: what the bits do there, and the boot parameter that sets
//! them.

use pcie::{AcsBits, AcsSetting, Address, ConfigAcs, Function, Kind, Machine};

/// The boot parameter that meets settings on a machine, and changes nothing else there.
pub(crate) fn parameter(machine: &Machine, settings: Vec<AcsSetting>) -> String {
    ConfigAcs(settings).keeping(machine).parameter()
}

/// What Data Direct needs of the switch that it shares with the GPU: completions of the side
/// function and requests of the GPU go up, so that each travels the way that its address
/// translation expects; the root port keeps all in one IOMMU group.
pub(crate) fn data_direct(machine: &Machine, side: &Function, gpu: &Function) -> Vec<AcsSetting> {
    let port_above = |function: &Function| {
        machine
            .upwards(function)
            .skip(1)
            .find(|f| f.kind == Kind::SwitchDownstream)
            .map(|f| f.address)
    };
    let root = machine.upwards(side).find(|f| f.kind == Kind::RootPort).map(|f| f.address);
    let common = AcsBits::SV | AcsBits::UF;
    let of = |bridge: Option<Address>, set, clear| bridge.map(|at| AcsSetting { at, set, clear });
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

/// By completion redirect, request redirect and direct translated P2P of the switch, ATS of the
/// adapter and relaxed ordering of the registration.
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
