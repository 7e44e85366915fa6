//! Targets of the crate `pcie`.

/// A platform file that a person wrote.
pub fn platform(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(platform) = pcie::Platform::from_toml(text) {
        for function in platform.machine().functions() {
            for target in platform.machine().functions() {
                let _ = platform.route(function, pcie::Target::Function(target.address));
            }
        }
    }
}

/// The embedded default.
pub fn platform_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../crates/pcie/src/platforms/default.toml").to_vec()]
}
