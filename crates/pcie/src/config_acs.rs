//! Linux's boot parameter `pci=config_acs=`, which sets ACS bits of single functions, and the
//! machine as it is after such a boot.

use crate::machine::{Acs, AcsBits, Machine};
use crate::{Address, Kernel, Version, isolation};
use std::fmt;
use std::str::FromStr;

/// What one function's ACS bits shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcsSetting {
    /// The function.
    pub at: Address,
    /// Bits that shall be set.
    pub set: AcsBits,
    /// Bits that shall not be. The others stay as *firmware* left them: what Linux sets by itself,
    /// it does not set here.
    pub clear: AcsBits,
}

impl AcsSetting {
    /// Whether a machine meets it; `None` if the function is not there or its bits were not read.
    pub fn met(&self, machine: &Machine) -> Option<bool> {
        match machine.function(self.at)?.acs {
            Acs::Unknown => None,
            Acs::Absent => Some(self.set.is_empty()),
            Acs::Enabled(bits) => Some(bits.contains(self.set) && !bits.intersects(self.clear)),
        }
    }
}

/// The parameter's value: `xx110x1@0000:02:00.0;x0x00xx@0000:02:01.0`. Seven characters for each
/// function, the highest bit of the control register first: 1 sets, 0 clears, x is as firmware left
/// it. Kernel 6.11 and later; more than one function from 6.15, and in stable kernels with that fix
/// (kernel's `__pci_config_acs`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigAcs(pub Vec<AcsSetting>);

/// Bits of the mask, from left to right.
const ORDER: [AcsBits; 7] =
    [AcsBits::DT, AcsBits::EC, AcsBits::UF, AcsBits::CR, AcsBits::RR, AcsBits::TB, AcsBits::SV];

impl ConfigAcs {
    /// What stops bridges from sending peer traffic up ([`crate::Verdict::redirects`]), and changes
    /// nothing else of a machine.
    pub fn without_redirect(machine: &Machine, bridges: &[Address]) -> ConfigAcs {
        let clear = crate::verdict::REDIRECT;
        let of = |&at| AcsSetting { at, set: AcsBits::empty(), clear };
        ConfigAcs(bridges.iter().map(of).collect()).keeping(machine)
    }

    /// The whole boot parameter.
    pub fn parameter(&self) -> String {
        format!("pci=config_acs={self}")
    }

    /// The same settings with every bit named that is set on a machine now and may stay: left to
    /// firmware, bits that Linux itself set would be lost.
    pub fn keeping(&self, machine: &Machine) -> ConfigAcs {
        let keep = |setting: &AcsSetting| {
            let now = match machine.function(setting.at).map(|function| function.acs) {
                Some(Acs::Enabled(bits)) => bits,
                _ => AcsBits::empty(),
            };
            AcsSetting { set: setting.set | now.difference(setting.clear), ..*setting }
        };
        ConfigAcs(self.0.iter().map(keep).collect())
    }

    /// Functions of which it leaves a bit to firmware that is set now: whether firmware set it only
    /// a boot can tell.
    pub fn left_to_firmware(&self, machine: &Machine) -> Vec<Address> {
        let kept = self.keeping(machine);
        let pairs = self.0.iter().zip(&kept.0).filter(|(asked, kept)| asked != kept);
        pairs.map(|(asked, _)| asked.at).collect()
    }
}

/// Whether a machine's kernel reads `pci=config_acs=` of several functions rightly; `None` where
/// its release does not tell.
pub fn config_acs_works(machine: &Machine) -> Option<bool> {
    machine.kernel()?.has(Version(6, 15), Version(6, 11))
}

/// The boot parameter that stops bridges from sending peer traffic up, of those that the machine's
/// kernel knows: `pci=config_acs=` where it can be trusted with several functions (from 6.15 on),
/// else `pci=disable_acs_redir=` (from 4.19 on), which clears the same bits and leaves the others.
/// So too where the release is unknown: a kernel before 6.15 would misread the other and set bits
/// that nobody named. `None` for a kernel that has neither, and without bridges.
pub fn without_redirect(machine: &Machine, bridges: &[Address]) -> Option<String> {
    if bridges.is_empty() {
        return None;
    }
    if config_acs_works(machine) == Some(true) {
        return Some(ConfigAcs::without_redirect(machine, bridges).parameter());
    }
    let list: Vec<String> = bridges.iter().map(Address::to_string).collect();
    let known = |kernel: &Kernel| kernel.version >= Version(4, 19) || kernel.backports;
    machine.kernel().is_none_or(known).then(|| format!("pci=disable_acs_redir={}", list.join(";")))
}

impl fmt::Display for ConfigAcs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, setting) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(";")?;
            }
            for bit in ORDER {
                f.write_str(match () {
                    () if setting.set.contains(bit) => "1",
                    () if setting.clear.contains(bit) => "0",
                    () => "x",
                })?;
            }
            write!(f, "@{}", setting.at)?;
        }
        Ok(())
    }
}

/// A text that is no value of `pci=config_acs=`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not seven of 0, 1 and x, then @ and a PCI address, such as x0x00xx@0000:3b:00.0 \
     (several: with ; between)"
)]
pub struct BadConfigAcs(pub String);

impl FromStr for ConfigAcs {
    type Err = BadConfigAcs;

    /// Reads the value, or the whole parameter.
    fn from_str(text: &str) -> Result<ConfigAcs, BadConfigAcs> {
        let value = text.trim().strip_prefix("pci=").unwrap_or(text.trim());
        let value = value.strip_prefix("config_acs=").unwrap_or(value);
        let settings: Option<Vec<AcsSetting>> = value.split(';').map(setting).collect();
        settings.map(ConfigAcs).ok_or_else(|| BadConfigAcs(text.to_owned()))
    }
}

fn setting(text: &str) -> Option<AcsSetting> {
    let (mask, at) = text.split_once('@')?;
    let (mut set, mut clear) = (AcsBits::empty(), AcsBits::empty());
    if mask.len() != ORDER.len() {
        return None;
    }
    for (character, bit) in mask.chars().zip(ORDER) {
        match character {
            '1' => set |= bit,
            '0' => clear |= bit,
            'x' => {}
            _ => return None,
        }
    }
    Some(AcsSetting { at: at.parse().ok()?, set, clear })
}

/// Why a machine cannot be booted so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotConfigure {
    /// There is no such function.
    #[error("there is no {0} on this machine")]
    NoFunction(Address),
    /// The function has nothing to configure.
    #[error("{0} has no ACS capability")]
    NoAcs(Address),
    /// The bits are not known now, so neither are they then.
    #[error("the ACS bits of {0} could not be read (needs root)")]
    Unread(Address),
}

impl Machine {
    /// The machine after a boot with the parameter: its ACS bits and, where it has IOMMU groups,
    /// the groups that Linux then makes. A bit that is left to firmware is as now, see
    /// [`ConfigAcs::left_to_firmware`].
    ///
    /// # Errors
    /// A function is not there, has no ACS, or its bits were not read.
    pub fn booted_with(&self, config: &ConfigAcs) -> Result<Machine, CannotConfigure> {
        let mut machine = self.clone();
        for setting in &config.0 {
            let function = machine.function_mut(setting.at);
            let function = function.ok_or(CannotConfigure::NoFunction(setting.at))?;
            let bits = match function.acs {
                Acs::Enabled(bits) => bits,
                Acs::Absent => return Err(CannotConfigure::NoAcs(setting.at)),
                Acs::Unknown => return Err(CannotConfigure::Unread(setting.at)),
            };
            let set = setting.set & function.acs_capable.unwrap_or(AcsBits::all());
            function.acs = Acs::Enabled(bits.difference(setting.clear) | set);
        }
        if self.functions().any(|function| function.iommu_group.is_some()) {
            let groups = isolation::iommu_groups(&machine).map_err(CannotConfigure::Unread)?;
            for (number, members) in (0..).zip(groups) {
                for at in members {
                    if let Some(function) = machine.function_mut(at) {
                        function.iommu_group = Some(number);
                    }
                }
            }
        }
        Ok(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Below, Function, HostBridge, Kind};

    fn at(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn the_parameter_reads_from_left_to_right() {
        let of = |place: &str, set, clear| AcsSetting { at: at(place), set, clear };
        let both = ConfigAcs(vec![
            of("0020:02:00.0", AcsBits::SV | AcsBits::UF | AcsBits::CR, AcsBits::RR),
            of("0039:00:00.0", AcsBits::DT, AcsBits::EC),
        ]);
        let text = "xx110x1@0020:02:00.0;10xxxxx@0039:00:00.0";
        assert_eq!(both.to_string(), text);
        assert_eq!(text.parse(), Ok(both.clone()));
        assert_eq!(format!("pci=config_acs={text}").parse(), Ok(both));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "x",
            "xxxxxxx",
            "xxxxxx2@0000:00:00.0",
            "xxxxxxxx@0000:00:00.0",
            "é0x00xx@0000:00:00.0",
            "xxxxxxx@a",
        ] {
            assert_eq!(text.parse::<ConfigAcs>(), Err(BadConfigAcs(text.to_owned())));
        }
    }

    fn machine(acs: Acs, capable: Option<AcsBits>) -> Machine {
        let host = HostBridge {
            name: "h".into(),
            shown: crate::Shown::Bridges,
            numa_node: None,
            root_device: None,
        };
        let mut port = Function::new(at("00:01.0"), Kind::RootPort, Below::Host(0));
        (port.acs, port.acs_capable, port.iommu_group) = (acs, capable, Some(0));
        let mut device = Function::new(at("01:00.0"), Kind::Endpoint, Below::Port(at("00:01.0")));
        (device.acs, device.iommu_group) = (Acs::Absent, Some(1));
        Machine::new(None, vec![host], vec![port, device]).unwrap()
    }

    #[test]
    fn a_boot_sets_what_the_function_can_and_makes_groups_anew() {
        let standard = AcsBits::SV | AcsBits::RR | AcsBits::CR | AcsBits::UF;
        let before = machine(Acs::Enabled(standard), Some(standard));
        let config: ConfigAcs = "1xxx0x0@0000:00:01.0".parse().unwrap();
        assert_eq!(config.left_to_firmware(&before), [at("00:01.0")]);
        let after = before.booted_with(&config).unwrap();
        let port = after.function(at("00:01.0")).unwrap();
        assert_eq!(port.acs, Acs::Enabled(AcsBits::CR | AcsBits::UF), "there is no DT to set");
        let groups: Vec<_> = after.functions().map(|function| function.iommu_group).collect();
        assert_eq!(groups, [Some(0), Some(0)], "they are no longer isolated");
        let kept = config.keeping(&before);
        assert_eq!(kept.to_string(), "1x110x0@0000:00:01.0");
        assert!(kept.left_to_firmware(&before).is_empty());
    }

    #[test]
    fn what_is_not_known_is_not_predicted() {
        let config: ConfigAcs = "1xxx0x0@0000:00:01.0".parse().unwrap();
        let refused =
            |machine: Machine, config: &ConfigAcs| machine.booted_with(config).unwrap_err();
        let port = at("00:01.0");
        assert_eq!(refused(machine(Acs::Unknown, None), &config), CannotConfigure::Unread(port));
        assert_eq!(refused(machine(Acs::Absent, None), &config), CannotConfigure::NoAcs(port));
        let other = "1xxx0x0@0000:00:02.0".parse().unwrap();
        let known = machine(Acs::Enabled(AcsBits::empty()), None);
        assert_eq!(refused(known, &other), CannotConfigure::NoFunction(at("00:02.0")));
    }
}
