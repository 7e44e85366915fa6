//! Whether a machine is a guest whose memory its host cannot read: there devices reach memory by
//! way of bounce buffers, or not at all.

use crate::ConditionState;
use topology::Tree;

/// Linux tells of AMD's SNP guests here, by the level of privilege that they run at.
const SNP: &str = "/sys/devices/system/cpu/sev/vmpl";

/// Whether the machine is no such guest, and by what that is known.
///
/// SEV without SNP leaves no sign that every user may read, so of a guest on AMD nothing is known
/// without one.
pub(crate) fn plain(tree: &dyn Tree) -> (ConditionState, String) {
    if tree.start(SNP, 1).is_some() {
        return (ConditionState::Fails, format!("AMD SEV-SNP: {SNP} exists"));
    }
    if let Some(sign) = topology::CONFIDENTIAL.iter().find(|path| tree.has_folder(path)) {
        return (ConditionState::Fails, format!("{sign} exists"));
    }
    let Some(text) = tree.read("/proc/cpuinfo") else {
        return (ConditionState::Unknown, "/proc/cpuinfo could not be read".into());
    };
    let text = String::from_utf8_lossy(&text);
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    let Some(flags) = value("flags") else {
        return match value("CPU implementer") {
            Some(_) => (ConditionState::Holds, format!("no {}", topology::CONFIDENTIAL[0])),
            None => (ConditionState::Unknown, "/proc/cpuinfo lists no flags".into()),
        };
    };
    let has = |flag: &str| flags.split(' ').any(|word| word == flag);
    match () {
        () if has("tdx_guest") => {
            (ConditionState::Fails, "Intel TDX: /proc/cpuinfo has tdx_guest".into())
        }
        () if !has("hypervisor") => {
            (ConditionState::Holds, "no guest: /proc/cpuinfo has no hypervisor".into())
        }
        // a hypervisor shows them to guests whose memory is encrypted alone
        () if ["sev", "sev_es", "sev_snp"].into_iter().any(has) => {
            (ConditionState::Fails, "AMD SEV: a guest with sev in /proc/cpuinfo".into())
        }
        () if value("vendor_id") == Some("AuthenticAMD") => {
            (ConditionState::Unknown, "a guest on AMD, where SEV without SNP shows no sign".into())
        }
        () => (ConditionState::Holds, "/proc/cpuinfo has no tdx_guest".into()),
    }
}
