//! A build with deliberate defects: `PEERDMA_SABOTAGE` switches one on, in each process that it is set for.

/// Switches on what the variable names. A name that nobody knows ends the process: a test that meant a defect must not pass.
pub fn begin() {
    let Some(name) = std::env::var_os("PEERDMA_SABOTAGE") else { return };
    match name.to_str() {
        Some("lose-write") => hca::sabotage::everywhere(hca::sabotage::Sabotage::LoseWrite),
        Some("lose-invalidation") => {
            dmabuf::sabotage::everywhere(dmabuf::sabotage::Sabotage::LoseInvalidation);
        }
        Some("enter-revoked") => {
            dmabuf::sabotage::everywhere(dmabuf::sabotage::Sabotage::EnterRevoked);
        }
        _ => std::process::abort(),
    }
}
