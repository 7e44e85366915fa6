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
        _ => std::process::abort(),
    }
}
