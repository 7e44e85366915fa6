//! A build with deliberate defects: `PEERDMA_SABOTAGE` switches one on, in each process that it is
//! set for.

/// Switches on what the variable names. A name that nobody knows ends the process: a test that
/// meant a defect must not pass.
pub fn begin() {
    use hca::sabotage::{Sabotage, SpoiledTurn, everywhere, spoil_turns};
    let Some(name) = std::env::var_os("PEERDMA_SABOTAGE") else { return };
    match name.to_str() {
        Some("lose-write") => everywhere(Sabotage::LoseWrite),
        Some("panic-in-turn") => spoil_turns(SpoiledTurn::Panics),
        Some("endless-turn") => spoil_turns(SpoiledTurn::Stands),
        Some("lose-invalidation") => {
            dmabuf::sabotage::everywhere(dmabuf::sabotage::Sabotage::LoseInvalidation);
        }
        Some("enter-revoked") => {
            dmabuf::sabotage::everywhere(dmabuf::sabotage::Sabotage::EnterRevoked);
        }
        Some(name) if kill_at(name).is_some() => {}
        _ => std::process::abort(),
    }
}

/// Switches on a process's end at a point, `kill-VICTIM-POINT-NTH`: this process's where the victim
/// is `self`. `None` where that is not what `name` says.
fn kill_at(name: &str) -> Option<()> {
    let (victim, rest) = name.strip_prefix("kill-")?.split_once('-')?;
    let (point, nth) = rest.rsplit_once('-')?;
    let (point, _) = hca::sabotage::Point::ALL.iter().find(|(_, known)| *known == point)?;
    let victim = match victim {
        "self" => std::process::id(),
        other => other.parse().ok()?,
    };
    hca::sabotage::kill_at(*point, nth.parse().ok()?, victim);
    Some(())
}
